"""The size of a join, estimated from sketches of both sides' keys, without joining."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from semistream.column_format import ColumnFormat, formats, paired
from semistream.config import SIDES, Places
from semistream.errors import ConfigError, TooManyRows
from semistream.files.convert import cast_rows
from semistream.files.formats import check_formats, implied_schema
from semistream.files.opening import open_source
from semistream.files.source import FileSource
from semistream.keys import codes, resolve_keys
from semistream.master import open_snapshot
from semistream.master.publish import current_manifest
from semistream.pipeline.settings import INPUT, JoinSizeSettings
from semistream.progress import Progress, silent
from semistream.published import CURRENT
from semistream.sketches import METHODS
from semistream.sketches.bounds import FAILURE
from semistream.warehouse.bulk import fetch
from semistream.warehouse.dialects import connect
from semistream.warehouse.tables import arrow_schema, existing_table


@dataclass(frozen=True)
class Side:
    """What was read of a side: its rows, and which of them join nothing."""

    name: str
    rows: int
    null_keys: int
    unparsable: int


@dataclass(frozen=True)
class JoinSize:
    """estimate: rows of the inner equijoin; bound: what it is off by at most, with probability
    ``confidence``, both rows; memory_bytes: of both sketches; enough_bytes: of both that would tell
    a join of ``enough_for`` rows, where these tell nothing, else 0; ns_per_key: inside the
    sketches."""

    estimate: int
    bound: int
    confidence: float
    method: str
    memory_bytes: int
    enough_bytes: int
    enough_for: int
    left: Side
    right: Side
    seconds: float
    ns_per_key: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def doubt(self) -> str:
        """What is said where the estimate may be off by more than itself; else nothing."""
        if not self.enough_bytes:
            return ""
        return (f"Cannot tell with {in_units(self.memory_bytes)}: at most "
                f"{self.estimate + self.bound:,} rows with a probability of {self.confidence:.0%} "
                f"({self.method}). {in_units(self.enough_bytes)} would tell a join of "
                f"{self.enough_for:,} rows.")

    def describe(self) -> str:
        """A few lines for a log."""
        sides = (f"  {side.name}: {side.rows:,} rows, {side.null_keys:,} without a key, "
                 f"{side.unparsable:,} unparsable" for side in (self.left, self.right))
        told = (f"The join has {self.estimate:,} rows, off by at most {self.bound:,} with a "
                f"probability of {self.confidence:.0%} ({self.method}, {self.memory_bytes:,} "
                f"bytes).")
        return "\n".join((self.doubt or told, *sides, *self.notes))


class _Rows(NamedTuple):
    """Rows read, how many could not be, and how far it is."""

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
            yield _Rows(chunk.rows, len(chunk.rejected), self.source.bytes_done,
                        self.source.bytes_total)


class _SnapshotInput:
    """Rows without a key are in no snapshot."""

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
        engine = connect(url)
        stack.callback(engine.dispose)
        self.table, self.formats = existing_table(engine, name), formats
        self.connection = stack.enter_context(engine.connect())
        self.own = arrow_schema(self.table)
        self.schema = implied_schema(self.own, formats)
        check_formats(self.schema, formats, name, self.own)

    def batches(self, columns: list[str]) -> Iterator[_Rows]:
        own, schema = (pa.schema([s.field(c) for c in columns]) for s in (self.own, self.schema))
        done = 0
        for batch in fetch(self.connection, select(*[self.table.c[c] for c in columns]), own):
            done += batch.num_rows
            rows, wrong = cast_rows(batch, schema, formats=self.formats)
            yield _Rows(rows, len(wrong), done, None)


def estimate_join_size(settings: JoinSizeSettings, places: Places,
                       progress: Progress = silent) -> JoinSize:
    """Read the keys of both sides, one after the other. Raises ConfigError for what cannot work,
    and for an estimate above ``max_output_rows``."""
    begun, busy = time.perf_counter(), 0.0
    pairs = list(settings.on.items())
    method = METHODS[settings.method]
    sketches = [method.for_memory(int(settings.memory) // 2, settings.seed) for _ in range(2)]
    sketches[0].update(np.empty(0, np.int64))  # compiles what is measured
    with ExitStack() as stack:
        both = paired(pairs, _declared("left", settings), _declared("right", settings), SIDES)
        inputs = [_open(which, settings, places, stack, formats)
                  for which, formats in zip(SIDES, both, strict=True)]
        kinds = _key_types(inputs, pairs)
        sides = []
        for which, given, sketch, i in zip(("left", "right"), inputs, sketches, (0, 1),
                                           strict=True):
            columns = list(dict.fromkeys(pair[i] for pair in pairs))
            read = null_keys = rejected = 0
            for batch in given.batches(columns):
                keys, valid = codes([batch.rows.column(pair[i]) for pair in pairs], kinds)
                before = time.perf_counter()
                sketch.update(keys if valid.all() else keys[valid])
                busy += time.perf_counter() - before
                read, null_keys = read + len(keys), null_keys + int((~valid).sum())
                rejected = rejected + batch.rejected
                progress(f"reading {'AB'[i]}", batch.done, batch.total)
            sides.append(Side(getattr(settings, which), read + rejected, null_keys, rejected))
        notes = tuple(n for given in inputs if isinstance(given, _FileInput)
                      for n in given.source.notes)
    (left, right), (a, b) = sketches, sides
    found = left.join_size(right)
    keys_read = max(left.inserted + right.inserted, 1)
    estimate = min(max(round(found.value), 0), left.inserted * right.inserted)
    if 0 < settings.max_output_rows < estimate:
        raise TooManyRows(settings.max_output_rows, estimate, round(found.bound), 1 - FAILURE)
    memory = left.memory_bytes + right.memory_bytes
    return JoinSize(estimate, round(found.bound), 1 - FAILURE,
                    settings.method, memory, *enough(memory, found.value, found.bound), a, b,
                    time.perf_counter() - begun, 1e9 * busy / keys_read, notes)


def enough(memory: int, estimate: float, bound: float) -> tuple[int, int]:
    """(memory, to two digits, rows) at which the bound would be no more than these rows: as many as
    estimated, or a quarter of the present bound if that is more. (0, 0) where it is no more than
    the estimate.

    A bound falls with the root of s1 (``sketches/bounds.py``), which grows with the memory.
    """
    if bound <= max(estimate, 0.5):
        return 0, 0
    rows = max(estimate, bound / 4)
    wanted = memory * (bound / rows) ** 2
    digit = 10 ** (math.floor(math.log10(wanted)) - 1)
    return math.ceil(wanted / digit) * digit, round(rows)


def in_units(size: int) -> str:
    """A size as settings have it."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size} bytes"


def _declared(which: str, settings: JoinSizeSettings) -> dict[str, ColumnFormat]:
    """Return an input's formats; those of a snapshot are in its manifest."""
    given: dict[str, ColumnFormat] = getattr(settings, f"{which}_formats")
    known = current_manifest(getattr(settings, which))
    if known is None:
        return given
    if given:
        raise ConfigError(f"{which}_formats", "must not be given with a snapshot", list(given),
                          "Leave them out: its rows have been read.")
    found: dict[str, ColumnFormat] = formats(known.formats)
    return found


def _open(which: str, settings: JoinSizeSettings, places: Places, stack: ExitStack,
          formats: dict[str, ColumnFormat]) -> _FileInput | _SnapshotInput | _TableInput:
    """Of a name that is a path and a table's, the path."""
    name, types = getattr(settings, which), getattr(settings, f"{which}_types")
    path = Path(name)
    if not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise ConfigError(which, f"must be {INPUT}", name, "Check the path.")
        try:
            return _TableInput(places.warehouse_url, name, stack, formats)
        except ConfigError as e:
            raise ConfigError(which, f"must be {INPUT}", name,
                              e.remedy if e.parameter == "table" else str(e)) from None
    if (path / CURRENT).exists():
        return _SnapshotInput(path, stack)
    return _FileInput(open_source(which, path, types=types, null_values=settings.null_values,
                                  delimiter=settings.delimiter, formats=formats))


def _key_types(inputs: list[Any], pairs: list[tuple[str, str]]) -> tuple[pa.DataType, ...]:
    """The types that keys are compared in; a column without a value takes its partner's."""
    for i, given in enumerate(inputs):
        if isinstance(given, _FileInput):
            names, other = [pair[i] for pair in pairs], inputs[1 - i].schema
            if not given.schema.names:  # JSON lines without a line
                given.source.add_columns(names)
            partner = {pair[i]: other.field(pair[1 - i]).type for pair in pairs
                       if pair[1 - i] in other.names}
            given.source.settle({n: k for n, k in partner.items() if not pa.types.is_null(k)})
    left, right = (given.schema for given in inputs)
    try:
        return resolve_keys(left, right, pairs).types
    except ConfigError as e:
        if "type" in e.constraint:
            raise ConfigError("on", e.constraint, e.value,
                              "Name the type that both should have, for instance --left-types "
                              f"{pairs[0][0]}=string --right-types {pairs[0][1]}=string.") from None
        raise ConfigError("on", e.constraint.replace("the stream", "A").replace("the master", "B"),
                          e.value, e.remedy) from None
