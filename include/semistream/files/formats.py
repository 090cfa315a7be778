"""Conversion of cells with a ``ColumnFormat`` into texts that ``convert`` can cast: dates and times
in ISO 8601, plain numbers, and keys in their normal form."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.ddl import type_name
from semistream.errors import ConfigError, check_name
from semistream.files.format_kernels import (
    CLOCK_WIDTH,
    DATE_WIDTH,
    FRACTION_WIDTH,
    LITERAL,
    MOST_GROWTH,
    OPERATIONS,
    ZONE_WIDTH,
    read_numbers,
    read_times,
)
from semistream.files.shapes import text_buffers

NOTHING = np.zeros(0, np.int64)
CASES = {"fold": str.casefold, "lower": str.lower, "upper": str.upper}


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column's values are texts, or bytes that may be texts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
    )


def prepared(
    texts: pa.Array, form: ColumnFormat, null_words: pa.Array
) -> tuple[pa.Array, np.ndarray]:
    """Convert texts by a declared format. Return (strings that a cast accepts, int64 positions of
    the texts that do not fit the format, which are null). null_words: texts that mean null in a
    column of times or numbers."""
    if form.trim or form.notation:
        texts = pc.utf8_trim_whitespace(texts)
    words = [*form.missing, *(null_words.to_pylist() if form.notation else ())]
    if words:
        texts = pc.if_else(
            pc.is_in(texts, pa.array(words, pa.string())), pa.scalar(None, pa.string()), texts
        )
    if form.time:
        return _times(texts, form)
    return _numbers(texts, form) if form.number else (_normal(texts, form), NOTHING)


def _normal(texts: pa.Array, form: ColumnFormat) -> pa.Array:
    """Convert texts into the normal form of a key. The Unicode form is applied again after the
    change of case, which may undo it."""
    if form.unicode:
        texts = pc.utf8_normalize(texts, form.unicode)
    if form.case:
        texts = _cased(texts, form.case)
        if form.unicode:
            texts = pc.utf8_normalize(texts, form.unicode)
    if form.fraction:
        texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)\.0+$", r"\1")
    if form.zeros == "strip":
        return pc.replace_substring_regex(texts, "^0+([0-9]+)$", r"\1")
    if form.zeros:
        padded = pc.utf8_lpad(texts, int(form.zeros), "0")
        return pc.if_else(pc.match_substring_regex(texts, "^[0-9]+$"), padded, texts)
    return texts


def _cased(texts: pa.Array, case: str) -> pa.Array:
    """Change the case of texts. Python changes texts that are not ASCII, because Arrow has no case
    folding."""
    ascii_ = pc.fill_null(pc.string_is_ascii(texts), True)
    changed = pc.ascii_upper(texts) if case == "upper" else pc.ascii_lower(texts)
    if pc.all(ascii_).as_py() is not False:
        return changed
    few = texts.filter(pc.invert(ascii_)).dictionary_encode()
    words = pa.array([CASES[case](word) for word in few.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(changed, pc.invert(ascii_), words.take(few.indices))


def _times(texts: pa.Array, form: ColumnFormat) -> tuple[pa.Array, np.ndarray]:
    """Convert times in a declared format into ISO 8601. Return (strings, int64 positions of the
    texts that do not fit, which are null)."""
    operations, width = [], DATE_WIDTH
    for part in re.findall("%.|[^%]+", form.time):
        if part[0] == "%" and part[1] != "%":
            operations.append(OPERATIONS[part[1]])
        else:
            operations += [LITERAL + byte for byte in part[-1 if part[0] == "%" else 0 :].encode()]
    if form.clock:
        width += CLOCK_WIDTH
    if "f" in form.directives:
        width += FRACTION_WIDTH
    if form.zone:
        width += ZONE_WIDTH
    offsets, data, valid = text_buffers(texts)
    out, fits = np.empty(len(texts) * width, np.uint8), np.zeros(len(texts), bool)
    read_times(offsets, data, valid, np.array(operations, np.int32), width, out, fits)
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.where(fits, width, 0), out=ends[1:])
    if not fits.all():
        out = out.reshape(len(texts), width)[fits].ravel()
    return _strings(ends, out, fits), np.flatnonzero(valid & ~fits)


def _numbers(texts: pa.Array, form: ColumnFormat) -> tuple[pa.Array, np.ndarray]:
    """Convert numbers in a declared format into plain ones. Return (strings, int64 positions of the
    texts that do not fit, which are null)."""
    signs = [s.strip().encode() for s in sorted(form.strip, key=len, reverse=True)]
    offsets, data, valid = text_buffers(texts)
    out = np.empty(len(data) + MOST_GROWTH * len(texts), np.uint8)
    ends, fits = np.zeros(len(texts) + 1, np.int32), np.zeros(len(texts), bool)
    read_numbers(
        offsets,
        data,
        valid,
        ord(form.point),
        ord(form.thousands) if form.thousands else 0,
        form.percent,
        np.frombuffer(b"".join(signs), np.uint8),
        np.cumsum([len(s) for s in signs], dtype=np.int32),
        out,
        ends,
        fits,
    )
    return _strings(ends, out[: ends[-1]], fits), np.flatnonzero(valid & ~fits)


def _strings(ends: np.ndarray, data: np.ndarray, valid: np.ndarray) -> pa.Array:
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.string(), len(valid), [bits, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def implied_type(form: ColumnFormat) -> pa.DataType | None:
    """Return the type that a time format implies; None if the type depends on the values."""
    if not form.time:
        return None
    return pa.timestamp("us", "UTC" if form.zone else None) if form.clock else pa.date32()


def implied_schema(schema: pa.Schema, formats: Mapping[str, ColumnFormat]) -> pa.Schema:
    """Return the schema, in which text columns with a time format have the type that the format
    implies."""
    return pa.schema(
        [
            f.with_type(implied_type(formats[f.name]) or f.type)
            if f.name in formats and is_text(f.type)
            else f
            for f in schema
        ]
    )


def check_texts(name: str, kind: pa.DataType, form: ColumnFormat) -> None:
    """Check that a column whose format applies to texts contains texts. Raises ConfigError
    otherwise. The normal form of a key is allowed for any column, because it changes texts only."""
    if (form.notation or form.missing) and not (is_text(kind) or pa.types.is_null(kind)):
        raise ConfigError(
            f"formats.{name}",
            "must be of a column of texts",
            f"{name}: {type_name(kind)}",
            "Leave the format out: the column's values have a type.",
        )


def check_formats(
    schema: pa.Schema,
    formats: Mapping[str, ColumnFormat],
    side: str,
    typed: pa.Schema | None = None,
) -> None:
    """Check formats against the columns. Raises ConfigError for a format of a missing column, or a
    format that does not apply to the column's type. typed: the columns whose types come from the
    file or table itself."""
    for name, form in formats.items():
        check_name("formats", f"must name columns of the {side}", name, schema.names)
        kind = schema.field(name).type
        if typed is not None and name in typed.names:
            check_texts(name, typed.field(name).type, form)
        if not form.notation or pa.types.is_null(kind):
            continue
        number = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        time = pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and not form.clock)
        if not (time if form.time else number):
            wanted = (
                ("a timestamp" if form.clock else "a date or a timestamp")
                if form.time
                else ("a number")
            )
            raise ConfigError(
                f"formats.{name}",
                f"must be of a column whose type is {wanted}, as {form.describe()} is",
                f"{name}: {type_name(kind)}",
                "Give the column such a type, for instance decimal(12,2).",
            )
        if form.time and form.zone and kind.tz is None:
            raise ConfigError(
                f"formats.{name}",
                "must be of a column of times with a zone, as %z is in the format",
                f"{name}: {type_name(kind)}",
                "Give the column the type timestamp_utc, TIMESTAMP in a job.",
            )
