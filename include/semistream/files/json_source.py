"""JSON files: one object on each line, objects over several lines, or a list of objects.

Values are texts, exactly as in the file, until their column's type is known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.column_format import ColumnFormat
from semistream.files.convert import NO_UTF8, prepared_cells, without
from semistream.files.inference import SampledCells, infer_formatted_type, infer_time
from semistream.files.json_kernels import (
    ESCAPED,
    MISSING,
    NOTHING,
    NUMBER,
    STRING,
    TRUTH,
    gather,
    scan,
)
from semistream.files.records import line_numbers
from semistream.files.source import Chunk, Raw, Rejected, check_columns
from semistream.files.text_source import BOM, TextSource, decode

CELLS = 1_000_000  # values found at a time
LEAST_ROWS = 64  # least objects at a time
UNKNOWN = 256  # keys that are learned at a time
MOST_KEYS = 2000  # most keys that are known
NO_OBJECT = "not one JSON object"
UNBOUNDED = np.zeros(0, np.int64)


class JsonSource(TextSource):
    """JSON objects. Types are inferred from a sample. Fields that do not occur in the sample are
    ignored, and counted."""

    def columns(self, path: Path) -> list[str] | None:
        keys = _Keys([])
        for _ in self._objects(path, 0, keys):
            pass
        return keys.names or None

    def read_as(self, schema: pa.Schema, declared: Iterable[str] = ()) -> None:
        """Use the types of another schema, and add its columns that the sample lacks."""
        more = [f for f in schema if f.name not in self.schema.names]
        super().read_as(schema, declared)
        self.schema = pa.schema([*self.schema, *more])

    def _infer_schema(self) -> pa.Schema:
        keys = _Keys([])
        found = self._first_pieces(
            lambda path: self._objects(path, 0, keys), lambda found: len(found[0].data)
        )
        samples = [objects for objects, _ in found]
        return pa.schema([(name, self._infer(name, samples)) for name in keys.names])

    def _infer(self, name: str, samples: list[_Objects]) -> pa.DataType:
        """Infer the type of one key from its values in the sampled objects. Values of different
        kinds are read as strings."""
        columns = [o.column(name) for o in samples if name in o.keys.names]
        kinds = np.concatenate([c.kind[c.present] for c in columns])
        texts = pa.concat_arrays([c.texts.filter(pa.array(c.present)) for c in columns])
        form = self.reading.formats.get(name)
        if form is not None and form.notation:
            strings = pa.array(np.isin(kinds, (STRING, ESCAPED)))
            return infer_formatted_type(texts.filter(strings), form)
        if not len(kinds):
            return pa.null()
        texts = prepared_cells(name, texts, form)[0]
        if np.isin(kinds, (STRING, ESCAPED)).all():
            return infer_time(texts)
        kind = kinds[0]
        if not (kinds == kind).all():
            if name not in self.declared:
                self.notes.append(
                    f"{self.side} column {name} is read as string, for values of different kinds"
                )
            return pa.string()
        if kind == NUMBER:
            return SampledCells(texts).infer_type(numbers=True)
        return pa.bool_() if kind == TRUTH else pa.string()  # a nested value is read as its text

    def _read(self, path: Path, done: int) -> Iterator[Raw]:
        keys, wanted = _Keys(self.schema.names), self.schema.names
        # columns that no object of the file has had so far
        lacking = set(wanted) - self.declared if len(self.paths) > 1 else set()
        rows = 0
        for objects, lines in self._objects(path, done, keys):
            raw = self._raw(objects, lines, str(path))
            rows += raw.rows.num_rows
            lacking -= {n for n in lacking if objects.has(n)}
            yield raw
        if rows and lacking:
            check_columns(
                self.side,
                path,
                [n for n in wanted if n not in lacking],
                wanted,
                "Name the types of columns that a file may lack.",
            )

    def parse(self, values: pa.Array) -> Chunk:
        """Read a binary array in which each value is one JSON object, such as a column of Kafka.
        The chunk's lines are the numbers of the values, from 1."""
        keys, values = _Keys(self.schema.names), values.fill_null(b"")
        offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
        data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        bounds = (offsets[1:] - offsets[0]).astype(np.int64)
        objects = keys.scan(data, bounds, True, False, max(len(values), 1))
        chunk = self._typed(Path(), self._raw(objects, np.arange(1, len(values) + 1), ""))
        return chunk._replace(rejected=[r._replace(file="") for r in chunk.rejected])

    def _objects(self, path: Path, done: int, keys: _Keys) -> Iterator[tuple[_Objects, np.ndarray]]:
        """Yield (some objects of a file, the line on which each begins, int64[r]), in order."""
        blocks = self._blocks(path, done)
        data, final = next(blocks)
        start, lines, listed = True, 0, False
        while True:
            at = len(BOM) if start and data.startswith(BOM) else 0
            start = start and not at
            if text := data[at : at + 4096].lstrip() if not lines else b"":
                listed = listed if listed else text.startswith(b"[")
            array = np.frombuffer(data, np.uint8)
            while True:
                most = max(CELLS // max(len(keys.names), 1), LEAST_ROWS)
                objects = keys.scan(array[at:], UNBOUNDED, final, listed, most)
                if objects.number:
                    yield objects, lines + 1 + line_numbers(data, at + objects.starts)
                at += objects.consumed
                if objects.number < most:
                    break
            lines += int(line_numbers(data, np.array([at]))[0])
            if final:
                return
            data, final = blocks.send(at)

    def _raw(self, objects: _Objects, lines: np.ndarray, path: str) -> Raw:
        """Return objects as rows of texts, in the columns of the schema. Malformed objects, and
        objects with a string whose escapes are broken, are rejected. lines: int64[r], the line of
        each object."""
        bad = objects.malformed()
        columns: list[pa.Array] = []
        kinds: dict[str, np.ndarray] = {}
        for field in self.schema:
            column = objects.column(field.name)
            for i in column.broken:
                bad.setdefault(i, f"{field.name}: half of a surrogate pair, or no escape")
            columns.append(column.texts)
            kinds[field.name] = column.kind
        for name in objects.keys.names:
            if name not in kinds and (count := objects.values_of(name)):
                self.ignored[name] += count
        rows = pa.RecordBatch.from_arrays(
            columns,
            schema=pa.schema([(f.name, c.type) for f, c in zip(self.schema, columns, strict=True)]),
        )
        if not columns:  # no columns are known
            rows = pa.RecordBatch.from_struct_array(pa.array([{}] * objects.number, pa.struct([])))
        if bad:
            rows = without(rows, bad)
        rejected = [
            Rejected(decode(objects.text(i)), why, path, int(lines[i]))
            for i, why in sorted(bad.items())
        ]
        kept = np.delete(np.arange(objects.number), list(bad))
        unlike = {
            f.name: _unlike(kinds[f.name][kept], f.type, self.reading.formats.get(f.name))
            for f in self.schema
        }
        return Raw(rows, rejected, lambda i: decode(objects.text(kept[i])), lines[kept], unlike)


def _unlike(kinds: np.ndarray, kind: pa.DataType, form: ColumnFormat | None) -> np.ndarray:
    """Return the positions, int64[k], of JSON values that are not of the column's type, such as a
    string among numbers. If a format of times or numbers is declared, only strings fit."""
    if form is not None and form.notation:
        return np.flatnonzero(~np.isin(kinds, (MISSING, NOTHING, STRING, ESCAPED)))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return UNBOUNDED
    like = (
        (TRUTH,)
        if pa.types.is_boolean(kind)
        else (STRING, ESCAPED)
        if pa.types.is_temporal(kind)
        else (NUMBER,)
    )
    return np.flatnonzero(~np.isin(kinds, (MISSING, NOTHING, *like)))


class _Column(NamedTuple):
    """The values of one key in r objects. kind: uint8[r], a constant of ``json_kernels``; texts:
    strings of length r, null for no value; present: bool[r], whether there is a value; broken:
    positions of strings with invalid escapes."""

    kind: np.ndarray
    texts: pa.Array
    present: np.ndarray
    broken: list[int]


class _Keys:
    """The known keys, each with all its notations in the file: a name may be written with or
    without escape sequences."""

    def __init__(self, names: Sequence[str]):
        self.spellings: dict[bytes, str] = {
            json.dumps(name, ensure_ascii=a)[1:-1].encode(errors="surrogatepass"): name
            for a in (True, False)
            for name in names
        }

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self.spellings.values()))

    def scan(
        self, data: np.ndarray, bounds: np.ndarray, final: bool, listed: bool, most: int
    ) -> _Objects:
        """Find at most `most` objects. Unknown keys are added to the known ones."""
        while True:
            keys, count = list(self.spellings), len(self.spellings)
            ends = np.cumsum([len(k) for k in keys], dtype=np.int64)
            packed = np.frombuffer(b"".join(keys), np.uint8)
            starts, until_ = np.empty(most, np.int64), np.empty(most, np.int64)
            good = np.empty(most, bool)
            at, until = (np.empty((most, count), np.int32) for _ in range(2))
            kind = np.empty((most, count), np.uint8)
            unknown = np.empty((UNKNOWN if count < MOST_KEYS else 0, 2), np.int64)
            found, consumed, new = scan(
                data,
                bounds,
                final,
                listed,
                packed,
                ends,
                starts,
                until_,
                good,
                at,
                until,
                kind,
                unknown,
            )
            for start, end in unknown[:new].tolist():
                self._learn(data[start:end].tobytes())
            if len(self.spellings) == count:
                if not _is_utf8(data[:consumed]):
                    for i in range(found):
                        good[i] &= _is_utf8(data[starts[i] : until_[i]])
                return _Objects(
                    data,
                    starts[:found],
                    until_[:found],
                    good[:found],
                    at[:found],
                    until[:found],
                    kind[:found],
                    int(consumed),
                    self,
                )

    def _learn(self, spelling: bytes) -> None:
        """Add a key in this notation to the known keys."""
        try:
            name = json.loads(b'"' + spelling + b'"')
            name.encode()
        except ValueError:
            name = spelling.decode(errors="backslashreplace")
        self.spellings.setdefault(spelling, name)


class _Objects(NamedTuple):
    """The objects of data, uint8[n], as ``json_kernels.scan`` found them."""

    data: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    good: np.ndarray
    at: np.ndarray
    until: np.ndarray
    kind: np.ndarray
    consumed: int
    keys: _Keys

    @property
    def number(self) -> int:
        return len(self.starts)

    def text(self, i: int) -> bytes:
        return self.data[self.starts[i] : self.ends[i]].tobytes()

    def malformed(self) -> dict[int, str]:
        """Return the reason why a text is not a JSON object, by the text's position."""
        return {i: _why(self.text(i)) for i in np.flatnonzero(~self.good).tolist()}

    def has(self, name: str) -> bool:
        return any((self.kind[:, k] != MISSING)[self.good].any() for k in self._columns_of(name))

    def values_of(self, name: str) -> int:
        return sum(
            int((~np.isin(self.kind[:, k], (MISSING, NOTHING)))[self.good].sum())
            for k in self._columns_of(name)
        )

    def _columns_of(self, name: str) -> list[int]:
        count = self.kind.shape[1]
        return [k for k, n in enumerate(self.keys.spellings.values()) if n == name and k < count]

    def column(self, name: str) -> _Column:
        """Return the values of a key. If a key occurs twice in an object, the last value counts."""
        at, until = np.zeros(self.number, np.int32), np.zeros(self.number, np.int32)
        kind = np.zeros(self.number, np.uint8)
        for k in self._columns_of(name):
            later = (
                self.good
                & (self.kind[:, k] != MISSING)
                & ((kind == MISSING) | (self.at[:, k] > at))
            )
            at[later], until[later] = self.at[later, k], self.until[later, k]
            kind[later] = self.kind[later, k]
        present = (kind != MISSING) & (kind != NOTHING)
        texts = _texts(self.data, at, until, present)
        escaped = np.flatnonzero(kind == ESCAPED).tolist()
        broken: list[int] = []
        if escaped:
            cells = texts.to_pylist()
            broken = _unescape(cells, escaped)
            texts = pa.array(cells, pa.binary())
        return _Column(kind, texts.cast(pa.string()), present, broken)


def _texts(data: np.ndarray, at: np.ndarray, until: np.ndarray, present: np.ndarray) -> pa.Array:
    """Return the pieces data[at:until] of data, uint8[n], as a binary array. Pieces without a
    present value become null."""
    offsets = np.zeros(len(at) + 1, np.int32)
    np.cumsum(np.where(present, until - at, 0), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather(data, at, until, present, offsets, out)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        pa.binary(), len(at), [valid, pa.py_buffer(offsets), pa.py_buffer(out)]
    )


def _unescape(cells: list[bytes | None], positions: list[int]) -> list[int]:
    """Replace escape sequences in strings by the characters that they denote. Return the positions
    of strings with invalid escapes, which become null."""
    broken = []
    try:
        meant = json.loads(b'["' + b'","'.join(cells[i] or b"" for i in positions) + b'"]')
        encoded = [text.encode() for text in meant]
    except ValueError:
        encoded = []
    for n, i in enumerate(positions):
        try:
            cells[i] = (
                encoded[n] if encoded else json.loads(b'"' + (cells[i] or b"") + b'"').encode()
            )
        except ValueError:
            cells[i] = None
            broken.append(i)
    return broken


def _why(text: bytes) -> str:
    """Return the reason why a text is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        return NO_UTF8 if isinstance(e, UnicodeDecodeError) else f"not JSON: {e}"
    if not isinstance(value, dict):
        return NO_OBJECT
    names = Counter(name for name, _ in json.loads(text, object_pairs_hook=list))
    twice = [name for name, count in names.items() if count > 1]
    return f"{twice[0]}: it is there twice" if twice else "nested too deep"


def _is_utf8(data: np.ndarray) -> bool:
    try:
        pa.Array.from_buffers(
            pa.binary(),
            1,
            [
                None,
                pa.py_buffer(np.array([0, len(data)], np.int32)),
                pa.py_buffer(np.ascontiguousarray(data)),
            ],
        ).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
