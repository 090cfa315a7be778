"""The join of two streams' files on one machine, without Airflow or Spark."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import paired
from semistream.errors import ConfigError, SemistreamError, check_name
from semistream.files.inputs import assign_types, check_key_types
from semistream.files.opening import open_source
from semistream.files.outputs import JoinSummary, Outputs, Unmatched, check_paths
from semistream.files.settings import JoinStreams
from semistream.files.source import Chunk, FileSource
from semistream.job import SIDES
from semistream.joins.output import UNPARSABLE
from semistream.progress import Progress, silent
from semistream.stream_joins import (
    LEFT,
    RIGHT,
    Propagated,
    StreamJoinOutput,
    StreamStreamJoin,
    Within,
    open_stream_join,
)
from semistream.stream_joins.base import SideStatistics
from semistream.stream_joins.sources import (
    Clustered,
    PunctuationRows,
    PunctuationSource,
    Step,
    UniqueKey,
    Watermark,
)

ROWS = 4096  # rows read of one stream before the other one's turn
MOMENTS = 200  # most moments of the state in the summary
PROPAGATION = ("propagate", "propagate_count", "propagate_seconds", "index")
PROPAGATED = pa.schema([("side", pa.string()), ("match", pa.string())])


@dataclass
class StreamsSummary(JoinSummary):
    """The results of a join of two streams' files."""

    left: SideStatistics = field(default_factory=SideStatistics)  # including unparsable rows
    right: SideStatistics = field(default_factory=SideStatistics)
    relocated: int = 0  # tuples that went to disk
    disk_joins: int = 0
    over_time: list[dict[str, int]] = field(default_factory=list)  # see `_moment`

    @property
    def sides(self) -> tuple[SideStatistics, SideStatistics]:
        return self.left, self.right

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"left": vars(self.left), "right": vars(self.right)}


def join_streams(settings: JoinStreams, progress: Progress = silent) -> StreamsSummary:
    """Join two streams. The output files get their names only when all of them are complete.

    The streams are read in turns, each in its order: the next chunk comes from the stream whose
    event time is behind, or otherwise from the stream of which less has been read. Raises
    ConfigError for settings that cannot work.
    """
    start = time.perf_counter()
    _check(settings)
    check_paths(
        settings,
        ("left", "right", "punctuations"),
        ("out", "left_unmatched", "right_unmatched", "propagated"),
    )
    summary = StreamsSummary(settings.algorithm, int(settings.memory))
    streams = [_Stream(settings, side) for side in (LEFT, RIGHT)]
    _assign_types(settings, streams)
    join = _open(settings, streams)
    with Outputs(settings, join.output_schema) as outputs:
        unmatched = [
            Unmatched(
                outputs,
                f"{SIDES[side]}_unmatched",
                join.unmatched_schemas[side],
                summary.sides[side].unmatched,
                summary,
            )
            for side in (LEFT, RIGHT)
        ]
        propagated = outputs.open("propagated", PROPAGATED)

        def write(steps: Iterator[StreamJoinOutput]) -> None:
            for step in steps:
                if step.joined is not None:
                    outputs.joined.write(step.joined)
                if step.unmatched is not None:
                    unmatched[step.side].write(step.unmatched)
                if step.propagated is not None and propagated is not None:
                    propagated.write(_as_rows(step.propagated))

        for side, chunk in _interleaved(streams, join):
            unmatched[side].reject(chunk.rejected)
            for step in streams[side].steps(chunk.rows):
                for part in _behind(step, streams[side]):
                    write(join.process(side, part.tuples))
                    for punctuations in part.punctuations:
                        write(join.punctuate(side, punctuations))
            if join.monitor.pull:
                write(join.request_propagation())
            _moment(summary, join)
            progress(
                "joining",
                sum(s.source.bytes_done for s in streams),
                sum(s.source.bytes_total for s in streams),
            )
        write(join.drain())
        outputs.finish()
        _total(summary, join, streams, time.perf_counter() - start)
        outputs.publish(summary)
    return summary


class _Stream:
    """One side of the join: its file, its sources of punctuations, and its entries in the file of
    punctuations."""

    def __init__(self, settings: JoinStreams, side: int):
        self.name, self.settings = SIDES[side], settings
        self.source = self._open()
        self.on = [pair[side] for pair in settings.on.items()]
        self.time = self.of("time")
        self.derived = self._derived()
        self.waiting = _punctuations(settings.punctuations, self.name)
        self.rows = 0  # rows read
        self.newest: int | None = None  # event time

    def of(self, setting: str) -> Any:
        return getattr(self.settings, f"{self.name}_{setting}")

    def _open(self) -> FileSource:
        """Open the file, with the types and formats that the settings give for this side."""
        s = self.settings
        return open_source(
            self.name,
            getattr(s, self.name),
            kind=self.of("format") or "",
            types=self.of("types"),
            null_values=s.null_values,
            delimiter=s.delimiter,
            formats=dict(
                zip(
                    SIDES, paired(s.on.items(), s.left_formats, s.right_formats, SIDES), strict=True
                )
            )[self.name],
        )

    def _derived(self) -> list[PunctuationSource]:
        """Return the sources of punctuations that the settings name, except the file of
        punctuations, in the order in which they are applied."""
        s = self.settings
        found: list[PunctuationSource] = []
        if self.of("punctuations"):
            found.append(PunctuationRows(self.of("punctuations"), self.on))
        if s.unique in (self.name, "both"):
            found.append(UniqueKey(self.on))
        if s.clustered in (self.name, "both"):
            found.append(Clustered(self.on))
        if s.delay is not None:
            found.append(Watermark(self.time, s.delay))
        return found

    def steps(self, rows: pa.RecordBatch) -> Iterator[Step]:
        """Yield the chunk's tuples with the punctuations of every source."""
        steps = [Step(rows)]
        for source in self.derived:
            steps = [
                Step(step.tuples, (*before.punctuations, *step.punctuations))
                for before in steps
                for step in source.steps(before.tuples)
            ]
        yield from steps


def _behind(step: Step, stream: _Stream) -> Iterator[Step]:
    """Split a step's tuples at each position for which the file of punctuations has an entry. Yield
    the parts in order, each with the punctuations that come after it."""
    first, count = 0, step.tuples.num_rows
    while stream.waiting and stream.waiting[0][0] <= stream.rows + count:
        after, _, plain = heapq.heappop(stream.waiting)
        last = max(after - stream.rows, first)
        yield Step(step.tuples.slice(first, last - first), [[plain]])
        first = last
    stream.rows += count
    yield Step(step.tuples.slice(first), step.punctuations)


def _punctuations(path: Path | None, side: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Read the entries for one side from the file of punctuations. Return them as a heap of (after,
    line, pattern). Raises ConfigError for a malformed line."""
    found: list[tuple[int, int, dict[str, Any]]] = []
    if path is None:
        return found
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError("punctuations", "must be a readable file", str(path), str(e)) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            match json.loads(line):
                case {
                    "side": "left" | "right" as of,
                    "after": int(after),
                    "match": dict(plain),
                    **more,
                } if not more and after >= 0:
                    if of == side:
                        found.append((after, number, plain))
                    continue
        except ValueError:
            pass
        raise ConfigError(
            "punctuations",
            'must have lines such as {"side": "left", "after": 1000, "match": {"id": 7}}',
            f"{path}, line {number}: {line[:200]}",
            "Correct the line.",
        )
    heapq.heapify(found)
    return found


def _slices(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        yield Chunk(chunk.rows.slice(0, ROWS), chunk.rejected)
        for first in range(ROWS, chunk.rows.num_rows, ROWS):
            yield Chunk(chunk.rows.slice(first, ROWS), [])


def _interleaved(streams: list[_Stream], join: StreamStreamJoin) -> Iterator[tuple[int, Chunk]]:
    """Yield (side, chunk) of both streams in turns. The next chunk comes from the stream whose
    event time is behind, or otherwise from the stream of which less has been read."""
    chunks = [_slices(s.source.chunks()) for s in streams]
    left = {LEFT, RIGHT}

    def behind(side: int) -> tuple[Any, float]:
        stream = streams[side]
        newest = stream.newest if all(s.newest is not None for s in streams) else 0
        return newest, stream.source.bytes_done / max(stream.source.bytes_total, 1)

    while left:
        side = min(left, key=behind)
        chunk = next(chunks[side], None)
        if chunk is None:
            left.remove(side)
            continue
        yield side, chunk
        if (band := join.spec.within) is not None:
            times = band.times(pc.drop_null(chunk.rows.column(streams[side].time)))
            if len(times):
                newest = int(times.max())
                streams[side].newest = max(newest, streams[side].newest or newest)


def _assign_types(settings: JoinStreams, streams: list[_Stream]) -> None:
    """Give types to columns without a type, and check the columns that the settings name."""
    for one, other in zip(streams, reversed(streams), strict=True):
        assign_types(one.source, one.on, other.source.schema, other.on)
        for setting in ("time", "punctuations"):
            if name := one.of(setting):
                check_name(
                    f"{one.name}_{setting}", "must name a column", name, one.source.schema.names
                )
    left, right = (s.source.schema for s in streams)
    check_key_types(
        left, right, list(settings.on.items()), SIDES, ("--left-types", "--right-types")
    )


def _open(settings: JoinStreams, streams: list[_Stream]) -> StreamStreamJoin:
    """Open the operator for the columns of both streams."""
    schemas = []
    for stream in streams:
        schema = stream.source.schema
        if marks := stream.of("punctuations"):
            schema = schema.remove(schema.get_field_index(marks))
        schemas.append(schema)
    within = settings.within
    return open_stream_join(
        settings.algorithm,
        memory=int(settings.memory),
        left=schemas[0],
        right=schemas[1],
        on=list(settings.on.items()),
        join_type=settings.join_type,
        within=None if within is None else Within(settings.left_time, settings.right_time, within),
        parameters=_parameters(settings),
    )


def _parameters(s: JoinStreams) -> dict[str, Any]:
    """Return the parameters of the algorithm that the user gave."""
    return {
        name: getattr(s, name)
        for name in ("purge_threshold", *PROPAGATION)
        if getattr(s, name) != JoinStreams.model_fields[name].default
    }


def _as_rows(propagated: Propagated) -> pa.RecordBatch:
    """Convert propagated punctuations into rows of the file of punctuations."""
    plain = [*propagated.constants.to_pylist(), *propagated.patterns]
    texts = [json.dumps(p, default=str, ensure_ascii=False) for p in plain]
    return pa.RecordBatch.from_arrays(
        [pa.repeat(SIDES[propagated.side], len(texts)), pa.array(texts, pa.string())],
        schema=PROPAGATED,
    )


def _moment(summary: StreamsSummary, join: StreamStreamJoin) -> None:
    """Record how many tuples the join holds now. If there are too many records, every other record
    is dropped."""
    left, right = join.stats.sides
    summary.over_time.append(
        {
            "rows": left.rows_read + right.rows_read,
            "output_rows": join.stats.output_rows,
            "left": left.held,
            "right": right.held,
            "on_disk": left.on_disk + right.on_disk,
        }
    )
    if len(summary.over_time) > MOMENTS:
        del summary.over_time[::2]


def _total(
    summary: StreamsSummary, join: StreamStreamJoin, streams: list[_Stream], seconds: float
) -> None:
    """Fill in the summary from the statistics of the join. Raises SemistreamError when a row is
    missing, which would be a defect of this program."""
    for stream, side, stats in zip(streams, summary.sides, join.stats.sides, strict=True):
        unmatched = side.unmatched | stats.unmatched
        if stats.matched + sum(stats.unmatched.values()) != stats.rows_read or stats.held:
            raise SemistreamError(
                f"Of {stats.rows_read} rows of the {stream.name} stream "
                f"{stats.matched} matched and {stats.unmatched} came out."
            )
        rows_read = stats.rows_read + unmatched.get(UNPARSABLE, 0)
        vars(side).update(vars(stats), rows_read=rows_read, unmatched=unmatched)
        summary.notes += stream.source.notes
        summary.ignored_fields |= stream.source.ignored
    summary.set_totals(
        join.stats,
        sum(side.rows_read for side in join.stats.sides),
        sum(side.rows_read for side in summary.sides),
        seconds,
    )
    summary.relocated, summary.disk_joins = join.stats.relocated, join.stats.disk_joins


def _check(s: JoinStreams) -> None:
    """Check settings against each other. Raises ConfigError if they do not fit."""
    if bool(s.left_time) != bool(s.right_time) or bool(s.left_time) != (s.within is not None):
        raise ConfigError(
            "within",
            "must be given with --left-time and --right-time, and they with it",
            s.within,
            "Event times bound a state only where the join bounds how far they differ.",
        )
    if s.delay is not None and s.within is None:
        raise ConfigError(
            "delay",
            "must be given with --within, --left-time and --right-time",
            str(s.delay),
            "Without them a new tuple may still meet one of any age.",
        )
    given = [
        n
        for n in (
            "unique",
            "clustered",
            "punctuations",
            "left_punctuations",
            "right_punctuations",
            "delay",
            *PROPAGATION,
        )
        if getattr(s, n) != JoinStreams.model_fields[n].default
    ]
    if s.algorithm == "xjoin" and given:
        raise ConfigError(
            "algorithm",
            f"must be pjoin with --{given[0].replace('_', '-')}",
            s.algorithm,
            "Leave it out.",
        )
