"""The join of two streams' files on one machine, without Airflow or Spark."""

from __future__ import annotations

import heapq
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, ByteSize, Field

from semistream.column_format import Formats, paired
from semistream.config import Bytes, Names, Pairs, Settings, Types
from semistream.errors import ConfigError, SemistreamError
from semistream.files.source import Chunk, FileSource, Rejected
from semistream.files.join import EXAMPLES
from semistream.files.opening import open_source
from semistream.files.settings import FORMATS, Format
from semistream.files.sink import OutputFile, check_output
from semistream.joins.output import UNPARSABLE
from semistream.keys import resolve_keys
from semistream.progress import Progress, silent
from semistream.stream_joins import (
    LEFT,
    RIGHT,
    SIDES,
    StreamJoinOutput,
    StreamStreamJoin,
    Within,
    open_stream_join,
)
from semistream.stream_joins.sources import (
    Clustered,
    PunctuationRows,
    PunctuationSource,
    Step,
    UniqueKey,
    Watermark,
)

ROWS = 4096  # rows of a stream that are read before it is the other one's turn
MOMENTS = 200  # most moments of the state in the summary
PROPAGATION = ("propagate", "propagate_count", "propagate_seconds", "index")
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def duration(text: Any) -> Any:
    """Convert a text such as 10s, 5min, 1h to a timedelta, and one without a unit to an integer."""
    if not isinstance(text, str):
        return text
    if text.strip().isdigit():
        return int(text)
    if not (found := DURATION.fullmatch(text.strip())):
        raise ValueError("must be a time such as 500ms, 10s, 5min, 1h or 2d, or a number where the "
                         "columns are integers")
    return timedelta(seconds=float(found[1]) * UNITS[found[2]])


Duration = Annotated[timedelta | int, BeforeValidator(duration)]
Side = Literal["left", "right", "both"]


class JoinStreams(Settings):
    """A join of two streams' files."""

    left: Path = Field(description="One stream's tuples: a CSV, JSON lines or Parquet file, or a "
                                   "directory of such files")
    right: Path = Field(description="The other stream's, likewise")
    on: Pairs = Field(description="Join columns: a name, or LEFT=RIGHT; repeat it for a composite "
                                  "key")
    out: Path = Field(description="File for the joined rows: .parquet, .csv, .tsv or .jsonl")
    join_type: Literal["inner", "left", "right", "full"] = Field(
        "inner", description="inner: pairs only; left, right, full: also that side's tuples that "
                             "have no partner, with nulls")
    algorithm: Literal["pjoin", "xjoin"] = Field(
        "pjoin", description="pjoin, or xjoin, which takes no punctuations")
    memory: Bytes = Field(ByteSize(64_000_000), description="M, bytes that the join may hold; what "
                                                            "does not fit waits on disk")
    unique: Side | None = Field(None, description="The side whose tuples differ in the join "
                                                  "columns: each is the last one of its key")
    clustered: Side | None = Field(None, description="The side whose tuples of one key come "
                                                     "together: another key ends one")
    punctuations: Path | None = Field(
        None, description="JSON lines such as {\"side\": \"left\", \"after\": 1000, \"match\": "
                          "{\"id\": 7}}: behind the first 1000 rows of the left stream no tuple of "
                          "id 7 comes; a pattern is a value, {\"range\": [low, high]} or {\"in\": "
                          "[values]}")
    left_punctuations: str = Field("", description="Column of the left stream that marks rows "
                                                   "which are punctuations: true, or a pattern as "
                                                   "JSON")
    right_punctuations: str = Field("", description="Column of the right stream, likewise")
    left_time: str = Field("", description="Column of the left stream's event times; needs "
                                           "--within")
    right_time: str = Field("", description="Column of the right stream's event times, likewise")
    within: Duration | None = Field(None, description="Join only tuples whose times differ by at "
                                                      "most this, for instance 1h")
    delay: Duration | None = Field(None, description="How much older than the newest tuple of its "
                                                     "stream a tuple may be; default: any age")
    purge_threshold: int = Field(1, ge=1, description="Punctuations between two purges of the "
                                                      "state")
    propagate: Literal["push", "pull"] = Field(
        "push", description="push: punctuations are propagated by --propagate-count and "
                            "--propagate-seconds; pull: behind each chunk of rows, with the disk "
                            "join that it takes")
    propagate_count: int | None = Field(None, ge=0, description="Punctuations between two "
                                                                "propagations; 0: not by their "
                                                                "count; default: 1")
    propagate_seconds: float | None = Field(None, gt=0, description="Seconds between two "
                                                                    "propagations; default: not "
                                                                    "by time")
    index: Literal["lazy", "eager"] = Field(
        "lazy", description="When tuples are indexed by their own stream's punctuations: lazy: at "
                            "a propagation; eager: at each punctuation")
    left_unmatched: Path | None = Field(None, description="File for the left stream's rows without "
                                                          "a partner, and why they have none")
    right_unmatched: Path | None = Field(None, description="File for the right stream's, likewise")
    propagated: Path | None = Field(None, description="JSON lines file for the punctuations that "
                                                      "hold for the output, as they come to hold")
    stats: Path | None = Field(None, description="JSON file for the summary, with the state over "
                                                 "time")
    null_values: Names = Field((), description="Texts that mean null in a CSV file besides an "
                                               "empty cell, separated by commas")
    left_types: Types = Field({}, description="Types of the left stream's columns, COLUMN=TYPE, "
                                              "over those found")
    right_types: Types = Field({}, description="Types of the right stream's columns, likewise")
    left_format: Format | None = Field(None, description="Format of the left stream, where its "
                                                         "name does not tell")
    right_format: Format | None = Field(None, description="Format of the right stream, likewise")
    left_formats: Formats = Field({}, description=FORMATS)
    right_formats: Formats = Field({}, description="How the right stream's columns are written, "
                                                   "likewise")
    delimiter: str = Field("", max_length=1, description="Character between the cells of CSV "
                                                         "files; default: a comma, or a tab in "
                                                         ".tsv")


@dataclass
class SideSummary:
    """The results for one stream's rows."""

    rows_read: int = 0
    punctuations: int = 0
    matched: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)  # by reason
    purged: int = 0
    dropped: int = 0  # dropped on the fly
    propagated: int = 0
    forgotten: int = 0  # punctuations forgotten for lack of memory
    held_peak: int = 0


@dataclass
class StreamsSummary:
    """The results of a join of streams' files. Rates in tuples/s, times in s, memory in bytes."""

    algorithm: str
    left: SideSummary = field(default_factory=SideSummary)
    right: SideSummary = field(default_factory=SideSummary)
    output_rows: int = 0
    relocated: int = 0  # tuples that went to disk
    disk_joins: int = 0
    service_rate: float = 0.0  # rate inside the operator
    rate: float = 0.0  # rate of the whole command, with start, reading and writing
    memory_peak: int = 0
    memory_budget: int = 0
    seconds: float = 0.0  # time of the whole command
    examples: list[str] = field(default_factory=list)  # why rows were unparsable
    notes: list[str] = field(default_factory=list)
    ignored_fields: dict[str, int] = field(default_factory=dict)
    over_time: list[dict[str, int]] = field(default_factory=list)  # see `_moment`
    statistics: dict[str, Any] = field(default_factory=dict)  # the operator's statistics

    def as_dict(self) -> dict[str, Any]:
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        return shown | {side: vars(getattr(self, side)) for side in SIDES}


def join_streams(settings: JoinStreams, progress: Progress = silent) -> StreamsSummary:
    """Join two streams, and give the output files their names when all is complete.

    Both streams are read in turns, each in its own order: the next chunk is of the stream whose
    event time is behind, or else of the one of which less has been read. Raises ConfigError for
    settings that cannot work.
    """
    start = time.perf_counter()
    _check(settings)
    summary = StreamsSummary(settings.algorithm, memory_budget=int(settings.memory))
    streams = [_Stream(settings, side) for side in (LEFT, RIGHT)]
    settle(settings, streams)
    join = _open(settings, streams)
    with ExitStack() as stack:
        outputs = _Outputs(settings, join, stack)
        for side, chunk in _interleaved(streams, join):
            outputs.reject(side, chunk.rejected, summary)
            for step in streams[side].steps(chunk.rows):
                for part in _behind(step, streams[side]):
                    outputs.write(join.process(side, part.tuples))
                    for punctuations in part.punctuations:
                        outputs.write(join.punctuate(side, punctuations))
            if join.monitor.pull:
                outputs.write(join.request_propagation())
            _moment(summary, join)
            progress("joining", sum(s.source.bytes_done for s in streams),
                     sum(s.source.bytes_total for s in streams))
        outputs.write(join.drain())
        _total(summary, join, streams, time.perf_counter() - start)
        outputs.publish(summary)
    return summary


class _Stream:
    """One side of the join: its file, its sources of punctuations, and its part of the file of
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
        s = self.settings
        return open_source(self.name, getattr(s, self.name), kind=self.of("format") or "",
                           types=self.of("types"), null_values=s.null_values,
                           delimiter=s.delimiter, formats=dict(zip(SIDES, paired(
                               s.on.items(), s.left_formats, s.right_formats, SIDES),
                               strict=True))[self.name])

    def _derived(self) -> list[PunctuationSource]:
        """Return the sources of punctuations beside the file of punctuations, in their order."""
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
            steps = [Step(step.tuples, (*before.punctuations, *step.punctuations))
                     for before in steps for step in source.steps(before.tuples)]
        yield from steps


def _behind(step: Step, stream: _Stream) -> Iterator[Step]:
    """Split the step where punctuations of the file come between its rows."""
    first, count = 0, step.tuples.num_rows
    while stream.waiting and stream.waiting[0][0] <= stream.rows + count:
        after, _, plain = heapq.heappop(stream.waiting)
        last = max(after - stream.rows, first)
        yield Step(step.tuples.slice(first, last - first), [[plain]])
        first = last
    stream.rows += count
    yield Step(step.tuples.slice(first), step.punctuations)


def _punctuations(path: Path | None, side: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Read a side's entries of the file of punctuations, as a heap of (after, line, pattern).
    Raises ConfigError for a malformed line."""
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
                case {"side": "left" | "right" as of, "after": int(after), "match": dict(plain),
                      **more} if not more and after >= 0:
                    if of == side:
                        found.append((after, number, plain))
                    continue
        except ValueError:
            pass
        raise ConfigError("punctuations", 'must have lines such as {"side": "left", "after": 1000, '
                          '"match": {"id": 7}}', f"{path}, line {number}: {line[:200]}",
                          "Correct the line.")
    heapq.heapify(found)
    return found


def _slices(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        yield Chunk(chunk.rows.slice(0, ROWS), chunk.rejected)
        for first in range(ROWS, chunk.rows.num_rows, ROWS):
            yield Chunk(chunk.rows.slice(first, ROWS), [])


def _interleaved(streams: list[_Stream], join: StreamStreamJoin) -> Iterator[tuple[int, Chunk]]:
    """Yield (side, chunk) of both streams in turns."""
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


def settle(settings: JoinStreams, streams: list[_Stream]) -> None:
    """Give types to columns that have none, and check the join columns."""
    for one, other in zip(streams, reversed(streams), strict=True):
        if not one.source.schema.names:
            one.source.add_columns(one.on)
        known = {mine: other.source.schema.field(theirs).type
                 for mine, theirs in zip(one.on, other.on, strict=True)
                 if theirs in other.source.schema.names}
        one.source.settle({k: t for k, t in known.items() if not pa.types.is_null(t)})
        for name in (one.time, one.of("punctuations")):
            if name and name not in one.source.schema.names:
                raise ConfigError(f"{one.name}_{'time' if name == one.time else 'punctuations'}",
                                  "must name a column", name,
                                  f"It has: {', '.join(one.source.schema.names)}.")
    left, right = (s.source.schema for s in streams)
    try:
        resolve_keys(left, right, list(settings.on.items()), sides=SIDES)
    except ConfigError as e:
        if "type" not in e.constraint:
            raise
        flags = " ".join(f"--{s.name}-types {quote(f'{c}=string')}"
                         for s, c in zip(streams, next(iter(settings.on.items())), strict=True))
        raise ConfigError("on", e.constraint, e.value,
                          f"Name the type that they should have: {flags}.") from None


def _open(settings: JoinStreams, streams: list[_Stream]) -> StreamStreamJoin:
    schemas = []
    for stream in streams:
        schema = stream.source.schema
        if marks := stream.of("punctuations"):
            schema = schema.remove(schema.get_field_index(marks))
        schemas.append(schema)
    within = None
    if settings.within is not None:
        within = Within(settings.left_time, settings.right_time, settings.within)
    return open_stream_join(settings.algorithm, memory=int(settings.memory), left=schemas[0],
                            right=schemas[1], on=list(settings.on.items()),
                            join_type=settings.join_type, within=within,
                            parameters=_parameters(settings))


def _parameters(s: JoinStreams) -> dict[str, Any]:
    """Return the parameters of the algorithm that the user gave."""
    return {name: getattr(s, name) for name in ("purge_threshold", *PROPAGATION)
            if getattr(s, name) != JoinStreams.model_fields[name].default}


class _Outputs:
    """The output files of a join."""

    def __init__(self, settings: JoinStreams, join: StreamStreamJoin, stack: ExitStack):
        self._stats = settings.stats
        self._joined = stack.enter_context(OutputFile("out", settings.out, join.output_schema))
        self._unmatched: list[OutputFile | None] = [None, None]
        for side, path in enumerate((settings.left_unmatched, settings.right_unmatched)):
            if path is not None:
                schema = pa.schema(list(join.unmatched_schemas[side])[:-1])
                for name in ("reason", "detail", "text"):  # as in the join with master data
                    while name in schema.names:
                        name = "_" + name
                    schema = schema.append(pa.field(name, pa.string()))
                self._unmatched[side] = stack.enter_context(
                    OutputFile(f"{SIDES[side]}_unmatched", path, schema))
        self._propagated: OutputFile | None = None
        if settings.propagated is not None:
            schema = pa.schema([("side", pa.string()), ("match", pa.string())])
            self._propagated = stack.enter_context(
                OutputFile("propagated", settings.propagated, schema))

    def write(self, outputs: Iterator[StreamJoinOutput]) -> None:
        for one in outputs:
            if one.joined is not None:
                self._joined.write(one.joined)
            if one.unmatched is not None and (file := self._unmatched[one.side]) is not None:
                none = pa.nulls(one.unmatched.num_rows, pa.string())
                columns = [*one.unmatched.columns, none, none]
                file.write(pa.RecordBatch.from_arrays(columns, schema=file.schema))
            if one.propagated is not None and self._propagated is not None:
                plain = [*one.propagated.constants.to_pylist(), *one.propagated.patterns]
                texts = [json.dumps(p, default=str, ensure_ascii=False) for p in plain]
                sides = pa.repeat(SIDES[one.propagated.side], len(texts))
                self._propagated.write(pa.RecordBatch.from_arrays(
                    [sides, pa.array(texts, pa.string())], schema=self._propagated.schema))

    def reject(self, side: int, rejected: Sequence[Rejected], summary: StreamsSummary) -> None:
        if not rejected:
            return
        told = getattr(summary, SIDES[side]).unmatched
        told[UNPARSABLE] = told.get(UNPARSABLE, 0) + len(rejected)
        summary.examples += [f"{r.place}: {r.detail} in {r.text[:120]!r}"
                             for r in rejected[:EXAMPLES - len(summary.examples)]]
        if (file := self._unmatched[side]) is not None:
            count = len(rejected)
            empty = [pa.nulls(count, f.type) for f in list(file.schema)[:-3]]
            why = [pa.repeat(UNPARSABLE, count),
                   pa.array([f"{r.place}: {r.detail}" for r in rejected], pa.string()),
                   pa.array([r.text for r in rejected], pa.string())]
            file.write(pa.RecordBatch.from_arrays([*empty, *why], schema=file.schema))

    def publish(self, summary: StreamsSummary) -> None:
        files = [f for f in (*self._unmatched, self._propagated, self._joined) if f is not None]
        for file in files:
            file.finish()
        for file in files:
            file.publish()
        if self._stats is not None:
            self._stats.write_text(json.dumps(summary.as_dict(), indent=2, default=str) + "\n")


def _moment(summary: StreamsSummary, join: StreamStreamJoin) -> None:
    """Record the present state. If there are too many moments, every other one is dropped."""
    left, right = join.stats.sides
    summary.over_time.append({
        "rows": left.rows_read + right.rows_read, "output_rows": join.stats.output_rows,
        "left": left.held, "right": right.held, "on_disk": left.on_disk + right.on_disk})
    if len(summary.over_time) > MOMENTS:
        del summary.over_time[::2]


def _total(summary: StreamsSummary, join: StreamStreamJoin, streams: list[_Stream],
           seconds: float) -> None:
    """Fill in the summary. Raises SemistreamError when a row is missing, which would be a defect of
    this program."""
    for stream, stats in zip(streams, join.stats.sides, strict=True):
        if stats.matched + sum(stats.unmatched.values()) != stats.rows_read or stats.held:
            raise SemistreamError(f"Of {stats.rows_read} rows of the {stream.name} stream "
                                  f"{stats.matched} matched and {stats.unmatched} came out.")
        side: SideSummary = getattr(summary, stream.name)
        side.rows_read = stats.rows_read + side.unmatched.get(UNPARSABLE, 0)
        side.unmatched |= stats.unmatched
        for name in ("punctuations", "matched", "purged", "dropped", "propagated", "forgotten",
                     "held_peak"):
            setattr(side, name, getattr(stats, name))
        summary.notes += stream.source.notes
        summary.ignored_fields |= stream.source.ignored
    total, s = sum(side.rows_read for side in join.stats.sides), join.stats
    summary.output_rows, summary.relocated, summary.disk_joins = (s.output_rows, s.relocated,
                                                                  s.disk_joins)
    summary.service_rate = total / s.seconds if s.seconds else 0.0
    summary.rate = total / seconds if seconds else 0.0
    summary.memory_peak, summary.seconds, summary.statistics = s.memory_peak, seconds, s.as_dict()


def _check(s: JoinStreams) -> None:
    """Check settings against each other, and the output paths. Raises ConfigError if they do not
    fit."""
    if bool(s.left_time) != bool(s.right_time) or bool(s.left_time) != (s.within is not None):
        raise ConfigError("within", "must be given with --left-time and --right-time, and they "
                          "with it", s.within, "Event times bound a state only where the join "
                          "bounds how far they differ.")
    if s.delay is not None and s.within is None:
        raise ConfigError("delay", "must be given with --within, --left-time and --right-time",
                          str(s.delay), "Without them a new tuple may still meet one of any age.")
    given = [n for n in ("unique", "clustered", "punctuations", "left_punctuations",
                         "right_punctuations", "delay", *PROPAGATION)
             if getattr(s, n) != JoinStreams.model_fields[n].default]
    if s.algorithm == "xjoin" and given:
        raise ConfigError("algorithm", f"must be pjoin with --{given[0].replace('_', '-')}",
                          s.algorithm, "Leave it out.")
    places = {n: getattr(s, n) for n in ("out", "left_unmatched", "right_unmatched", "propagated")}
    for name, path in places.items():
        if path is not None:
            check_output(name, path)
    if s.stats is not None and not s.stats.absolute().parent.is_dir():
        raise ConfigError("stats", "must be in a directory that exists", str(s.stats),
                          "Make the directory first.")
    read = {p.resolve() for p in (s.left, s.right, s.punctuations) if p}
    written = [p.resolve() for p in (*places.values(), s.stats) if p]
    if len(read.union(written)) < len(read) + len(written):
        raise ConfigError("out", "must be a file of its own, as all files named", str(s.out),
                          "Choose another name.")
