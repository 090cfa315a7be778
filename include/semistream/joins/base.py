"""The contract that every semi-stream join meets, its statistics and state, and the edges that all of them share."""

from __future__ import annotations

import io
import json
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.config import Settings
from semistream.durable import replacing
from semistream.errors import StateError
from semistream.joins.parts import Arena, as_stored
from semistream.joins.spec import JoinSpec
from semistream.keys import canonical

NO_MATCH, NULL_KEY, UNPARSABLE = "no_match", "null_key", "unparsable"  # why a tuple is unmatched
SCATTERED = 2  # fewer than one row in so many is taken page by page, rather than from the pages put together
MAGIC = b"semistream join state 2\n"  # of 24 bytes, so that what follows is aligned
WRITTEN_ROWS = 131_072  # of a state's table at a time


class JoinOutput(NamedTuple):
    """What one step finished.

    joined: stream columns, then master columns (``SemiStreamJoin.output_schema``). In a left join the unmatched tuples are
    here too, with nulls. unmatched: stream columns and ``reason`` (``SemiStreamJoin.unmatched_schema``).
    """

    joined: pa.RecordBatch
    unmatched: pa.RecordBatch


@dataclass
class JoinState:
    """Everything that an operator needs to go on elsewhere: waiting tuples, and where the algorithm stands; or, if not whole,
    what of it has changed since the snapshot before.

    tables: Arrow tables by name; values: JSON-able settings and counters, among them ``identity`` (what the operator was
    opened with), which ``restore`` compares.
    """

    tables: dict[str, pa.Table]
    values: dict[str, Any]
    whole: bool = True

    def write(self, path: str | Path, before: str = "") -> None:
        """One file, written beside, flushed to disk and renamed into place.

        before: name of the file, in the same directory, of the state that changes are told of. Raises StateError when that is
        damaged.
        """
        path, parts = Path(path), []
        adds_to = [] if self.whole else self.files(path.with_name(before))
        with replacing(path) as file:
            file.write(MAGIC)
            for name, table in self.tables.items():
                part = _Checked(file)
                with pa.ipc.new_stream(part, table.schema) as writer:
                    writer.write_table(table, WRITTEN_ROWS)
                parts.append([name, part.size, part.check])
            foot = json.dumps({"values": self.values, "tables": parts, "adds_to": adds_to}).encode()
            file.write(foot + len(foot).to_bytes(8, "little") + zlib.crc32(foot).to_bytes(4, "little"))

    @classmethod
    def files(cls, path: str | Path) -> list[str]:
        """Names of the files that a state consists of: a whole one, and what has changed since, oldest first. Raises StateError
        when this one is missing or damaged."""
        return [*_foot(path)[0]["adds_to"], Path(path).name]

    @classmethod
    def read(cls, path: str | Path) -> list[JoinState]:
        """The whole state and what has changed since, oldest first. Raises StateError when a file is missing or damaged."""
        return [cls._read(Path(path).with_name(name)) for name in cls.files(path)]

    @classmethod
    def _read(cls, path: Path) -> JoinState:
        foot, data = _foot(path)
        at, tables = len(MAGIC), {}
        for name, length, check in foot["tables"]:
            part = data.slice(at, length)
            if zlib.crc32(part) != check:
                raise StateError(f"the join state {path} is damaged at {name!r}")
            tables[name] = pa.ipc.open_stream(part).read_all()
            at += length
        return cls(tables, foot["values"], not foot["adds_to"])


def _foot(path: str | Path) -> tuple[dict[str, Any], pa.Buffer]:
    """What the end of a state's file tells of it, and the file."""
    try:
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
    except (OSError, pa.ArrowInvalid) as e:
        raise StateError(f"the join state {path} cannot be read: {e}") from e
    end = data.size - 12
    size, check = (int.from_bytes(data[a:b], "little") for a, b in ((end, end + 8), (end + 8, end + 12)))
    foot = data[end - size:end].to_pybytes() if end - size >= len(MAGIC) else b""
    if data[:len(MAGIC)].to_pybytes() != MAGIC or zlib.crc32(foot) != check or not foot:
        raise StateError(f"the join state {path} is damaged, of another version, or not one. Go on with the version that "
                         "wrote it, or begin again with another app name and checkpoint.")
    return json.loads(foot), data


class _Checked(io.RawIOBase):
    """Writes to a file, and keeps size and checksum of what it wrote."""

    def __init__(self, file: IO[bytes]):
        self._file, self.size, self.check = file, 0, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.check = zlib.crc32(data, self.check)
        written = self._file.write(data)
        self.size += written
        return written


class Iteration(NamedTuple):
    """One outer loop."""

    w_n: int  # stream tuples finished through the front stage since the last one
    w_s: int  # stream tuples finished through H_S
    disk_tuples: int
    bytes_read: int
    seconds: float  # c_loop
    waiting: int  # tuples in H_S behind it
    cached: int  # master tuples in H_R behind it
    r_cycles: int  # full passes over R so far


@dataclass
class JoinStatistics:
    """Totals since the operator was opened or restored, and its latest iterations one by one."""

    rows_read: int = 0  # stream tuples taken in
    matched: int = 0  # stream tuples finished with a match
    unmatched: int = 0  # stream tuples finished without
    output_rows: int = 0  # pairs (and, in a left join, unmatched tuples)
    cache_hits: int = 0  # stream tuples finished by the front stage
    disk_tuples_read: int = 0
    bytes_read: int = 0
    r_cycles: int = 0
    iteration_count: int = 0
    seconds: float = 0.0  # spent inside the operator
    waiting: int = 0  # tuples taken in and not finished now
    waited_seconds: float = 0.0  # summed over the tuples that entered H_S: from the call that brought them to their entry
    processed_seconds: float = 0.0  # summed over the same: from there to their removal
    processed_seconds_max: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)  # bytes reserved now, by component
    memory_peak: int = 0  # bytes, the most that the components ever had together
    rejected: dict[str, int] = field(default_factory=dict)  # unmatched tuples by reason
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=10_000), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All but the single iterations."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "iterations"}


class SemiStreamJoin(ABC):
    """A single-threaded join of a stream with R in at most M bytes.

    A subclass gives ``_take``, ``_drain``, ``_state`` and ``_go_on``; null keys, output, time and totals are handled here.
    """

    def __init__(self, spec: JoinSpec, parameters: Settings):
        self.spec, self.parameters, self.master = spec, parameters, spec.master
        self.arena = Arena(spec.memory)
        self.stats, self._hits_before = JoinStatistics(), 0
        added = [pa.field(n, spec.fetched_schema.field(c).type) for c, n in zip(spec.columns, spec.names, strict=True)]
        self.output_schema = pa.schema([*spec.stream, *added])
        self.unmatched_schema = pa.schema([*spec.stream, pa.field("reason", pa.string())])
        self._nothing = pa.RecordBatch.from_pylist([], self.output_schema), pa.RecordBatch.from_pylist([], self.unmatched_schema)

    def process(self, chunk: pa.RecordBatch) -> Iterator[JoinOutput]:
        """Take in stream tuples; give what that finished, in batches of bounded size. Consume it to the end."""
        return self._timed(self._process(chunk))

    def drain(self) -> Iterator[JoinOutput]:
        """Finish everything that waits. Afterwards matched + unmatched = rows_read, and waiting = 0."""
        return self._timed(self._drain())

    def snapshot(self, *, changes: bool = False) -> JoinState:
        """The state between two calls. changes: what has changed since the last snapshot will do, where the join knows it."""
        found = self._changes() if changes else None
        tables, values = found or self._state()
        return JoinState(tables, values | {"identity": self.spec.identity()}, not found)

    def restore(self, state: JoinState, *changes: JoinState) -> None:
        """Go on from snapshots of an operator opened alike, a whole one and what has changed since, in a new one. Raises
        StateError when they do not fit."""
        mine, theirs = self.spec.identity(), state.values.get("identity", {})
        wrong = [f"{k} is {theirs.get(k)!r} there and {v!r} here" for k, v in mine.items() if theirs.get(k) != v]
        if wrong:
            raise StateError(f"the saved state is of another join: {'; '.join(wrong)}. Go on with the former settings until the "
                             "join is drained, then change them.")
        self._go_on(state, *changes)
        self._account()

    @abstractmethod
    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        """Take in tuples in stored types whose keys are not null."""

    @abstractmethod
    def _drain(self) -> Iterator[JoinOutput]: ...

    @abstractmethod
    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]: ...

    def _changes(self) -> tuple[dict[str, pa.Table], dict[str, Any]] | None:
        """What of the state has changed since the last snapshot; None: take the whole."""
        return None

    @abstractmethod
    def _go_on(self, state: JoinState) -> None: ...

    @abstractmethod
    def _waiting(self) -> int: ...

    def _process(self, chunk: pa.RecordBatch) -> Iterator[JoinOutput]:
        batch = as_stored(chunk, self.spec.stream)
        codes, valid = self.spec.keys.stream_codes(batch)
        self.stats.rows_read += batch.num_rows
        if not valid.all():
            yield self._unmatched(batch.filter(pa.array(~valid)).columns, NULL_KEY)
            batch, codes = batch.filter(pa.array(valid)), codes[valid]
        if batch.num_rows:
            yield from self._take(batch, codes)

    def _timed(self, steps: Iterator[JoinOutput]) -> Iterator[JoinOutput]:
        """Count the seconds spent inside, not those while the caller uses what came out."""
        while True:
            start = time.perf_counter()
            try:
                item = next(steps)
            except StopIteration:
                return
            finally:
                self.stats.seconds += time.perf_counter() - start
                self._account()
            yield item

    def _account(self) -> None:
        self.stats.waiting = self._waiting()
        self.stats.memory, self.stats.memory_peak = dict(self.arena.components), self.arena.peak

    def _joined(self, stream: list[pa.Array], master: list[pa.Array]) -> JoinOutput:
        """Pairs: stream columns, and columns of R as in ``spec.fetched`` (those that were only compared are left out)."""
        added = [master[self.spec.fetched.index(c)] for c in self.spec.columns]
        joined = pa.RecordBatch.from_arrays([*stream, *added], schema=self.output_schema)
        self.stats.output_rows += joined.num_rows
        return JoinOutput(joined, self._nothing[1])

    def _unmatched(self, stream: list[pa.Array], reason: str) -> JoinOutput:
        """Stream tuples that have no match."""
        count = len(stream[0])
        self.stats.unmatched += count
        self.stats.rejected[reason] = self.stats.rejected.get(reason, 0) + count
        rejected = pa.RecordBatch.from_arrays([*stream, pa.repeat(reason, count)], schema=self.unmatched_schema)
        joined = self._nothing[0]
        if self.spec.join_type == "left":
            added = [pa.nulls(count, f.type) for f in list(self.output_schema)[len(stream):]]
            joined = pa.RecordBatch.from_arrays([*stream, *added], schema=self.output_schema)
            self.stats.output_rows += count
        return JoinOutput(joined, rejected)

    def _iterated(self, started: float, read_before: int, w_s: int, disk_tuples: int, r_cycles: int) -> None:
        """Account for an outer loop that began at a time, when so many bytes of R had been read."""
        s, read = self.stats, self.spec.master.bytes_read - read_before
        s.iteration_count += 1
        s.disk_tuples_read += disk_tuples
        s.bytes_read += read
        s.r_cycles = r_cycles
        w_n, self._hits_before = s.cache_hits - self._hits_before, s.cache_hits
        s.iterations.append(Iteration(w_n, w_s, disk_tuples, read, time.perf_counter() - started, self._waiting(),
                                      getattr(self, "cached", 0), r_cycles))

    def _equal(self, stream: list[pa.Array], master: list[pa.Array],
               tuples: np.ndarray) -> tuple[list[pa.Array], list[pa.Array], np.ndarray]:
        """Of pairs with equal key codes those with equal keys: all of them where codes are exact.

        stream: all stream columns of the pairs; master: their columns as in ``spec.fetched``; tuples: which stream tuples.
        """
        keys = self.spec.keys
        if keys.exact:
            return stream, master, tuples
        same = np.ones(len(stream[0]), bool)
        for s, m, kind in zip(keys.stream, keys.master, keys.types, strict=True):
            left = canonical(stream[self.spec.stream.get_field_index(s)], kind)
            right = canonical(master[self.spec.fetched.index(m)], kind)
            same &= pc.equal(left, right).to_numpy(zero_copy_only=False)
        if same.all():
            return stream, master, tuples
        keep = pa.array(same)
        return [c.filter(keep) for c in stream], [c.filter(keep) for c in master], tuples[same]


class Partition:
    """A disk partition: its key codes at once, its payload when first asked for."""

    def __init__(self, spec: JoinSpec, number: int):
        self._spec, self.number = spec, number
        self.codes = spec.master.read_codes(number)
        self._pages: list[pa.RecordBatch] = []

    def read(self) -> list[pa.RecordBatch]:
        """Its payload, page by page."""
        if not self._pages:
            pages = self._spec.master.pages(self.number, self._spec.fetched)
            self._pages = [as_stored(p, self._spec.fetched_schema) for p in pages]
        return self._pages

    @property
    def payload(self) -> pa.RecordBatch:
        """The payload in one piece, in the order of ``codes``."""
        if len(self.read()) > 1:
            self._pages = [pa.concat_batches(self._pages)]
        return self._pages[0]

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        """The payload of these rows, which ascend."""
        if len(self.read()) == 1 or SCATTERED * len(rows) > len(self.codes):
            return self.payload.take(pa.array(rows))
        ends = np.cumsum([0, *(p.num_rows for p in self._pages)])
        cuts = np.searchsorted(rows, ends)
        return pa.concat_batches([page.take(pa.array(rows[a:b] - first)) for page, first, a, b in
                                  zip(self._pages, ends, cuts, cuts[1:], strict=False) if b > a or page is self._pages[0]])
