"""An estimate of the size of a join, or of the sum of a column over its rows, from sketches of both
sides' keys. No join is executed.

A SUM is a COUNT of weighted tuples (Ganguly, Garofalakis, Rastogi: *Processing Data-Stream Join
Aggregates Using Skimmed Sketches*): the size of the join of A's keys, where a key's frequency is
the sum of its tuples' values, with B's keys. A sketch is linear, so that such frequencies may be
negative.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import select

from semistream.column_format import ColumnFormat, formats, paired
from semistream.errors import ConfigError, TooManyRows
from semistream.files.convert import cast_rows
from semistream.files.formats import check_formats, implied_schema
from semistream.files.inputs import assign_types, check_key_types
from semistream.files.opening import open_source
from semistream.files.source import FileSource
from semistream.job import SIDES
from semistream.keys import codes
from semistream.master.publish import current_manifest
from semistream.master.published import CURRENT
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.pipeline.settings import INPUT, JoinSizeSettings
from semistream.progress import Progress, silent
from semistream.sketches import METHODS
from semistream.sketches.bounds import FAILURE
from semistream.warehouse.bulk import fetch
from semistream.warehouse.dialects import connect, existing
from semistream.warehouse.tables import arrow_schema, existing_table

FLOAT_DIGITS = 6  # decimals with which floating-point numbers are summed
MOST_TOTAL = 2.0**62  # the most that a column's absolute values, as whole numbers, may add up to


@dataclass(frozen=True)
class Side:
    """The counts of one input: its rows, and the rows that can match nothing because they have no
    key or could not be parsed."""

    name: str
    rows: int
    null_keys: int
    unparsable: int


@dataclass(frozen=True)
class JoinSize:
    """The estimated size. estimate: rows of the inner equijoin, or the sum of the column ``sum``
    over these rows; bound: the largest error, with probability ``confidence``; memory_bytes: bytes
    of both sketches; enough_bytes: if the bound exceeds the estimate, the bytes of both sketches
    with which a join of ``enough_for`` rows, or such a sum, could be estimated, otherwise 0;
    ns_per_key: time in the sketches, nanoseconds per key."""

    estimate: float
    bound: float
    sum: str
    confidence: float
    method: str
    memory_bytes: int
    enough_bytes: int
    enough_for: float
    left: Side
    right: Side
    seconds: float
    ns_per_key: float
    notes: tuple[str, ...]

    @property
    def doubt(self) -> str:
        """A warning if the error may exceed the estimate; otherwise ""."""
        if not self.enough_bytes:
            return ""
        most, what, kind = (
            (self.estimate + self.bound, "rows", "join")
            if not self.sum
            else (abs(self.estimate) + self.bound, f"of {self.sum}", "sum")
        )
        return (
            f"Cannot tell with {in_units(self.memory_bytes)}: at most {grouped(most)} {what} "
            f"with a probability of {self.confidence:.0%} ({self.method}). "
            f"{in_units(self.enough_bytes)} would tell a {kind} of {grouped(self.enough_for)} "
            f"{what} or more; a smaller one takes more."
        )

    def describe(self) -> str:
        """Return a description of the estimate in a few lines, for a log."""
        sides = (
            f"  {side.name}: {side.rows:,} rows, {side.null_keys:,} without a key, "
            f"{side.unparsable:,} unparsable"
            for side in (self.left, self.right)
        )
        value = grouped(self.estimate)
        statement = (
            f"The sum of {self.sum} over the join is {value}"
            if self.sum
            else f"The join has {value} rows"
        )
        statement += (
            f", off by at most {grouped(self.bound)} with a probability of "
            f"{self.confidence:.0%} ({self.method}, {self.memory_bytes:,} bytes)."
        )
        return "\n".join((self.doubt or statement, *sides, *self.notes))


class _Rows(NamedTuple):
    """Rows read, the number of rejected ones, and the progress of reading."""

    rows: pa.RecordBatch
    rejected: int
    done: int
    total: int | None


class _FileInput:
    def __init__(self, source: FileSource):
        self.source = source

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    def batches(self, columns: list[str]) -> Iterator[_Rows]:
        self.source.only(columns)
        for chunk in self.source.chunks():
            yield _Rows(
                chunk.rows, len(chunk.rejected), self.source.bytes_done, self.source.bytes_total
            )


class _SnapshotInput:
    """The rows of a snapshot. A snapshot has no rows without a key."""

    def __init__(self, directory: Path, stack: ExitStack):
        self.relation = open_snapshot(directory)
        stack.callback(self.relation.close)
        self.schema = self.relation.schema

    def batches(self, columns: list[str]) -> Iterator[_Rows]:
        done = 0
        for i in range(self.relation.partition_count):
            rows = self.relation.read(i, columns)
            done += rows.num_rows
            yield _Rows(rows, 0, done, self.relation.tuple_count)


class _TableInput:
    def __init__(self, url: str, name: str, stack: ExitStack, formats: dict[str, ColumnFormat]):
        engine = connect(existing(url))
        stack.callback(engine.dispose)
        self.table, self.formats = existing_table(engine, name), formats
        self.connection = stack.enter_context(engine.connect())
        self.stored = arrow_schema(self.table)
        self.schema = implied_schema(self.stored, formats)
        check_formats(self.schema, formats, name, self.stored)

    def batches(self, columns: list[str]) -> Iterator[_Rows]:
        stored, schema = (
            pa.schema([s.field(c) for c in columns]) for s in (self.stored, self.schema)
        )
        done = 0
        for batch in fetch(self.connection, select(*[self.table.c[c] for c in columns]), stored):
            done += batch.num_rows
            rows, wrong = cast_rows(batch, schema, formats=self.formats)
            yield _Rows(rows, len(wrong), done, None)


def estimate_join_size(
    settings: JoinSizeSettings, paths: Paths, progress: Progress = silent
) -> JoinSize:
    """Read the keys of both sides, one after the other, and estimate the join. Raises ConfigError
    for settings that cannot work, and TooManyRows for an estimate above ``max_output_rows``."""
    begun, busy = time.perf_counter(), 0.0
    if settings.sum and settings.max_output_rows:
        raise ConfigError(
            "max_output_rows",
            "must not be given with sum",
            settings.max_output_rows,
            "Estimate the rows and the sum one after the other.",
        )
    pairs = list(settings.on.items())
    method, memory = METHODS[settings.method], int(settings.memory)
    if memory < 2 * method.least:
        raise ConfigError(
            "memory",
            f"must be at least {2 * method.least} bytes, for two sketches",
            memory,
            "Some kilobytes are usual.",
        )
    sketches = [method.for_memory(memory // 2, settings.seed) for _ in range(2)]
    sketches[0].update(np.empty(0, np.int64))  # compiles the kernel before it is timed
    with ExitStack() as stack:
        both = paired(pairs, _declared("left", settings), _declared("right", settings), SIDES)
        inputs = [
            _open(which, settings, paths, stack, formats)
            for which, formats in zip(SIDES, both, strict=True)
        ]
        kinds = _key_types(inputs, pairs)
        measure = (
            Measure(settings.sum, *(given.schema for given in inputs)) if settings.sum else None
        )
        sides, keys_read = [], 0
        for i, (which, given, sketch) in enumerate(zip(SIDES, inputs, sketches, strict=True)):
            weighted = measure if i == 0 else None
            columns = list(
                dict.fromkeys(
                    [*(pair[i] for pair in pairs), *([weighted.column] if weighted else [])]
                )
            )
            read = null_keys = rejected = 0
            for batch in given.batches(columns):
                keys, valid = codes([batch.rows.column(pair[i]) for pair in pairs], kinds)
                weights = (
                    weighted.weights(batch.rows.column(weighted.column))
                    if weighted
                    else np.ones(len(keys), np.int64)
                )
                before = time.perf_counter()
                sketch.update(keys[valid], weights[valid])
                busy, keys_read = busy + time.perf_counter() - before, keys_read + int(valid.sum())
                read, null_keys = read + len(keys), null_keys + int((~valid).sum())
                rejected = rejected + batch.rejected
                progress(f"reading {'AB'[i]}", batch.done, batch.total)
            sides.append(Side(getattr(settings, which), read + rejected, null_keys, rejected))
        notes = tuple(
            n for given in inputs if isinstance(given, _FileInput) for n in given.source.notes
        )
    (left, right), (a, b) = sketches, sides
    found = left.join_size(right)
    estimate = min(
        max(round(found.value), -left.deleted * right.inserted), left.inserted * right.inserted
    )
    if 0 < settings.max_output_rows < estimate:
        raise TooManyRows(settings.max_output_rows, estimate, round(found.bound), 1 - FAILURE)
    memory = left.memory_bytes + right.memory_bytes
    one = measure.one if measure else 1
    wanted, of = enough(memory, abs(found.value), found.bound)
    return JoinSize(
        _over(estimate, one),
        _over(round(found.bound), one),
        settings.sum,
        1 - FAILURE,
        settings.method,
        memory,
        wanted,
        _over(of, one),
        a,
        b,
        time.perf_counter() - begun,
        1e9 * busy / max(keys_read, 1),
        notes,
    )


class Measure:
    """The column of A whose values are summed. They are added up as whole numbers, in units of
    1/``one``."""

    def __init__(self, column: str, left: pa.Schema, right: pa.Schema):
        """Choose the unit. Raises ConfigError for a column that A lacks, or that is not numeric."""
        self.column = column
        if column not in left.names:
            raise ConfigError(
                "sum",
                f"must name a column of A; there are {', '.join(left.names)}",
                column,
                "Give the inputs in the other order: the join is the same."
                if column in right.names
                else "Name one of them.",
            )
        kind = left.field(column).type
        whole = pa.types.is_integer(kind) or pa.types.is_null(kind)
        self._decimal = pa.types.is_decimal(kind)
        if not (whole or self._decimal or pa.types.is_floating(kind)):
            raise ConfigError(
                "sum",
                "must name a numeric column",
                f"{column} ({kind})",
                f"Name its type, for instance --left-types {column}=double.",
            )
        self.one = 1 if whole else 10 ** (max(kind.scale, 0) if self._decimal else FLOAT_DIGITS)
        self._total = 0.0

    def weights(self, values: pa.Array) -> np.ndarray:
        """Return the values as whole numbers, int64[n], with 0 for null. Raises ConfigError if some
        values are not finite numbers, or if their sum is too large."""
        values = (
            pc.fill_null(values, 0)
            if not pa.types.is_null(values.type)
            else pa.array(np.zeros(len(values), np.int64))
        )
        about = self.one * values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        self._total += float(np.abs(about).sum())
        if not self._total < MOST_TOTAL:
            digits = f" with {len(str(self.one)) - 1} decimals" if self.one > 1 else ""
            raise ConfigError(
                "sum",
                f"must name a column whose values{digits} are together less "
                f"than {MOST_TOTAL / self.one:.3g}, without infinity and NaN",
                self.column,
                "Give a type with fewer decimals, for instance "
                f"--left-types {self.column}=decimal(18,2).",
            )
        if self._decimal:
            words = values.cast(pa.decimal128(38, max(values.type.scale, 0)))
            first = 2 * words.offset
            return np.frombuffer(words.buffers()[1], np.int64)[first : first + 2 * len(words) : 2]
        if pa.types.is_integer(values.type):
            return values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return np.rint(about).astype(np.int64)


def _over(number: int, one: int) -> float:
    return number / one if one > 1 else number


def grouped(number: float) -> str:
    """Format a number: a count, or a sum with at most six decimals."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.{FLOAT_DIGITS}f}".rstrip("0").rstrip(".")


def enough(memory: int, estimate: float, bound: float) -> tuple[int, int]:
    """Return (memory, rows): the bytes of memory, rounded up to two digits, with which the bound
    would be `rows`. Return (0, 0) if the present bound does not exceed the estimate.

    rows is the larger of the estimate and a quarter of the present bound. A bound is inversely
    proportional to the square root of s1 (``sketches/bounds.py``), which grows with the memory.
    """
    if bound <= max(estimate, 0.5):
        return 0, 0
    rows = max(estimate, bound / 4)
    wanted = memory * (bound / rows) ** 2
    digit = 10 ** (math.floor(math.log10(wanted)) - 1)
    return math.ceil(wanted / digit) * digit, round(rows)


def in_units(size: int) -> str:
    """Format a size in bytes in the notation of settings."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size} bytes"


def _declared(which: str, settings: JoinSizeSettings) -> dict[str, ColumnFormat]:
    """Return an input's declared formats. The formats of a snapshot are in its manifest."""
    given: dict[str, ColumnFormat] = getattr(settings, f"{which}_formats")
    known = current_manifest(getattr(settings, which))
    if known is None:
        return given
    if given:
        raise ConfigError(
            f"{which}_formats",
            "must not be given with a snapshot",
            list(given),
            "Leave them out: its rows have been read.",
        )
    return formats(known.formats)


def _open(
    which: str,
    settings: JoinSizeSettings,
    paths: Paths,
    stack: ExitStack,
    formats: dict[str, ColumnFormat],
) -> _FileInput | _SnapshotInput | _TableInput:
    """Open an input. The name is the path of a file, or the name of a table."""
    name, types = getattr(settings, which), getattr(settings, f"{which}_types")
    path = Path(name)
    if not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise ConfigError(which, f"must be {INPUT}", name, "Check the path.")
        try:
            return _TableInput(paths.warehouse_url, name, stack, formats)
        except ConfigError as e:
            raise ConfigError(
                which, f"must be {INPUT}", name, e.remedy if e.parameter == "table" else str(e)
            ) from None
    if (path / CURRENT).exists():
        return _SnapshotInput(path, stack)
    return _FileInput(
        open_source(
            which,
            path,
            types=types,
            null_values=settings.null_values,
            delimiter=settings.delimiter,
            formats=formats,
        )
    )


def _key_types(inputs: list[Any], pairs: list[tuple[str, str]]) -> tuple[pa.DataType, ...]:
    """Return the types in which keys are compared. A column without any value gets the type of its
    partner."""
    for i, given in enumerate(inputs):
        if isinstance(given, _FileInput):
            assign_types(
                given.source,
                [pair[i] for pair in pairs],
                inputs[1 - i].schema,
                [pair[1 - i] for pair in pairs],
            )
    left, right = (given.schema for given in inputs)
    try:
        return check_key_types(left, right, pairs, flags=("--left-types", "--right-types"))
    except ConfigError as e:
        raise ConfigError(
            "on",
            e.constraint.replace("the stream", "A").replace("the master", "B"),
            e.value,
            e.remedy,
        ) from None
