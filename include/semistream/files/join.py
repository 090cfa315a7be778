"""The join of a stream's file with a master file on one machine, without Airflow or Spark."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

from semistream.ahead import ahead
from semistream.column_format import ColumnFormat, formats, key_forms, paired
from semistream.config import Places
from semistream.errors import ConfigError, SemistreamError
from semistream.files.source import Chunk, FileSource, Rejected
from semistream.files.opening import open_source
from semistream.files.settings import JoinFiles
from semistream.files.sink import OutputFile, check_output
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import NULL_KEY, UNPARSABLE, JoinOutput
from semistream.joins.registry import find_algorithm
from semistream.keys import resolve_keys
from semistream.master.manifest import Manifest
from semistream.master.publish import (
    LEAST_MEMORY,
    MEMORY,
    current_manifest,
    publish_snapshot,
)
from semistream.master.snapshot import SnapshotRelation, open_snapshot
from semistream.progress import Progress, silent
from semistream.resident import ResidentPeak
from semistream.scratch import scratch_directory
from semistream.sizing import choose, known_costs, open_join

SMALL = 4_000_000  # bytes of an R that is read in some milliseconds
EXAMPLES = 3  # rejected rows that the summary shows


@dataclass
class Summary:
    """The results of a join of files. Rates in stream tuples/s, times in s, memory and reads in
    bytes."""

    algorithm: str
    reason: str = ""  # why this algorithm
    rows_read: int = 0
    matched: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)  # by reason
    waiting: int = 0
    output_rows: int = 0
    service_rate: float = 0.0  # rate inside the operator
    rate: float = 0.0  # rate of the whole command, with start, reading and writing
    cache_share: float = 0.0  # share of the stream tuples through H_R
    memory_peak: int = 0  # peak of the operator's arrays
    memory_budget: int = 0
    resident_peak: int = 0  # peak of the process's anonymous memory
    r_cycles: int = 0
    bytes_read: int = 0  # bytes read of R
    seconds: float = 0.0  # time of the whole command
    master_rows: int = 0
    master_rejected: dict[str, int] = field(default_factory=dict)  # by reason
    master_version: str = ""
    # JSON fields that the sample lacked, with their values
    ignored_fields: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)  # why rows were unparsable
    notes: list[str] = field(default_factory=list)  # remarks for the user on the inferred types
    statistics: dict[str, Any] = field(default_factory=dict)  # the operator's statistics

    def as_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def join_files(settings: JoinFiles, progress: Progress = silent) -> Summary:
    """Join files, and give the output files their names when all is complete. Raises ConfigError
    for settings that cannot work."""
    start = time.perf_counter()
    if not settings.auto:
        find_algorithm(settings.algorithm)
    _check_places(settings)
    stream = open_stream(settings, settings.stream)
    summary = Summary(settings.algorithm, memory_budget=int(settings.memory))
    with ExitStack() as stack:
        resident = ResidentPeak()
        stack.callback(resident.stop)
        relation = open_master(settings, stream, summary, stack, progress,
                               max(int(settings.memory), LEAST_MEMORY))
        summary.notes += stream.notes
        chunks = stack.enter_context(closing(ahead(stream.chunks())))
        first = next(chunks, Chunk(pa.RecordBatch.from_pylist([], stream.schema), []))
        operator = _open(settings, first.rows, relation, summary, _tuples(stream, first))
        outputs = _Outputs(settings, operator, stack)
        for chunk in chain([first], chunks):
            outputs.reject(chunk.rejected, summary)
            for step in operator.process(chunk.rows):
                outputs.write(step)
            progress("joining", stream.bytes_done, stream.bytes_total)
        for step in operator.drain():
            outputs.write(step)
            progress("joining", stream.bytes_done, stream.bytes_total)
        outputs.finish()
        _total(summary, operator, stream, time.perf_counter() - start, resident.read())
        outputs.publish(summary)
    return summary


def open_stream(settings: Any, path: Path) -> FileSource:
    """Open the stream's file by settings like ``JoinFiles``."""
    return open_source("stream", path, kind=settings.stream_format or "", types=settings.types,
                       null_values=settings.null_values, delimiter=settings.delimiter,
                       formats=_formats(settings)[0])


def _formats(settings: Any) -> tuple[dict[str, ColumnFormat], dict[str, ColumnFormat]]:
    """Return the formats of both sides. Those of a snapshot published before come from its
    manifest."""
    master = settings.master_formats
    if settings.master is None and (known := current_manifest(settings.snapshot)) is not None:
        if master:
            raise ConfigError("master_formats", "must not be given with a snapshot published "
                                                "before", list(master), "Leave them out: its rows "
                                                                        "have been read.")
        master = formats(known.formats)
    return paired(settings.on.items(), settings.formats, master)


def _open(settings: JoinFiles, sample: pa.RecordBatch, relation: SnapshotRelation,
          summary: Summary, tuples: float) -> SemiStreamJoin:
    """Open the operator. If the algorithm or its sizes are open, the cost models choose them by a
    sample of the stream and its number of tuples. The summary gets the algorithm's name and the
    reason."""
    memory, on, columns = int(settings.memory), list(settings.on.items()), settings.columns or None
    costs, parameters = known_costs(Places.from_environment().home), settings.parameters
    size = relation.tuple_count * relation.tuple_bytes
    if settings.auto and size <= min(SMALL, memory // 16):  # choosing would take longer
        summary.algorithm = "elevatorjoin"
        summary.reason = f"elevatorjoin: all of R, {size:,.0f} bytes, is read at once and kept in M"
        parameters = {"disk_tuples": max(relation.tuple_count, 1), "filter_bits": -1}
    elif settings.auto:
        choice = choose(sample, relation, memory, on, columns, costs=costs, tuples=tuples)
        summary.algorithm, summary.reason = choice.algorithm, choice.reason
        parameters = choice.parameters
    return open_join(summary.algorithm, memory=memory, stream=sample.schema, master=relation, on=on,
                     columns=columns, join_type=settings.join_type, parameters=parameters,
                     costs=costs, sample=sample, tuples=tuples)


def _tuples(stream: FileSource, first: Chunk) -> float:
    """Estimate the number of the stream's tuples from the bytes of its first chunk."""
    read = stream.bytes_done / max(stream.bytes_total, 1)
    return max(first.rows.num_rows / read, 1.0) if read else math.inf


def publish_file(path: Path, on: list[str], root: Path, source: FileSource,
                 progress: Progress = silent, name: str = "", memory: int = MEMORY,
                 flush: bool = True) -> tuple[Manifest, dict[str, int]]:
    """Publish a snapshot of a master file under ``root``. Return its manifest, and the numbers of
    rows left out by reason. memory, flush: as for ``publish_snapshot``."""
    rejected: Counter[str] = Counter()

    def batches() -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            rejected[UNPARSABLE] += len(chunk.rejected)
            progress("reading the master data", source.bytes_done, source.bytes_total)
            yield chunk.rows

    with closing(ahead(source.chunks())) as chunks:
        manifest = publish_snapshot(batches(), source.schema, root, name or master_name(path), on,
                                    source={"path": str(path)}, memory=memory, flush=flush,
                                    formats=key_forms(on, source.reading.formats))
    rejected[NULL_KEY] = manifest.null_keys
    return manifest, {k: n for k, n in rejected.items() if n}


def master_name(path: Path) -> str:
    """Return the name of the master relation of a file: the file's name up to the first dot."""
    return re.sub(r"\W+", "_", path.name.split(".")[0]) or "master"


def open_master(settings: Any, stream: FileSource, summary: Summary, stack: ExitStack,
                 progress: Progress, memory: int = MEMORY) -> SnapshotRelation:
    """Open the master's snapshot by settings like ``JoinFiles``: one published before, or a new one
    of the file, made in ``memory`` bytes. Columns of unknown type get one."""
    pairs = list(settings.on.items())
    if settings.master is None:
        relation = open_snapshot(settings.snapshot or "")
        stack.callback(relation.close)
        _settle(stream, relation.schema, [s for s, _ in pairs], dict(pairs))
        _check_keys(stream.schema, relation.schema, pairs)
    else:
        source = open_source("master", settings.master, kind=settings.master_format or "",
                             types=settings.master_types,
                             null_values=settings.null_values, delimiter=settings.delimiter,
                             formats=_formats(settings)[1])
        _settle(stream, source.schema, [s for s, _ in pairs], dict(pairs))
        _settle(source, stream.schema, [m for _, m in pairs], {m: s for s, m in pairs})
        stream.settle({})
        source.settle({})
        summary.notes += source.notes
        _check_keys(stream.schema, source.schema, pairs)
        root = settings.snapshot or scratch_directory()
        _, summary.master_rejected = publish_file(settings.master, [m for _, m in pairs], root,
                                                  source, progress, memory=memory,
                                                  flush=settings.snapshot is not None)
        relation = open_snapshot(root)
        stack.callback(relation.close)
    summary.master_rows, summary.master_version = relation.tuple_count, relation.version
    return relation


def _settle(source: FileSource, other: pa.Schema, keys: list[str], partner: dict[str, str]) -> None:
    """Give key columns without any value the type of their partner."""
    if not source.schema.names:  # JSON lines without a line
        source.add_columns(keys)
    known = {k: other.field(partner[k]).type for k in keys if partner[k] in other.names}
    source.settle({k: t for k, t in known.items() if not pa.types.is_null(t)},
                  leave=[k for k, t in known.items() if pa.types.is_null(t)])


def _check_keys(stream: pa.Schema, master: pa.Schema, pairs: list[tuple[str, str]]) -> None:
    try:
        resolve_keys(stream, master, pairs)
    except ConfigError as e:
        if "type" not in e.constraint:
            raise
        example = next((_one_type(s, stream.field(s).type, m, master.field(m).type)
                        for s, m in pairs if stream.field(s).type != master.field(m).type),
                       quote(f"{pairs[0][0]}=decimal(18,2)"))
        raise ConfigError("on", e.constraint, e.value,
                          f"Name the type that they should have: --types {example}.") from None


def _one_type(s: str, stream: pa.DataType, m: str, master: pa.DataType) -> str:
    """Propose types in which two key columns can be compared: int64 if one side is integer and the
    other floating, otherwise string."""
    if pa.types.is_floating(stream) and pa.types.is_integer(master):
        return quote(f"{s}=int64")
    if pa.types.is_integer(stream) and pa.types.is_floating(master):
        return f"{quote(f'{s}=int64')} --master-types {quote(f'{m}=int64')}"
    return f"{quote(f'{s}=string')} --master-types {quote(f'{m}=string')}"


class _Outputs:
    """The output files of a join."""

    def __init__(self, settings: JoinFiles, operator: SemiStreamJoin, stack: ExitStack):
        self._stats, self._unmatched = settings.stats, None
        self._joined = stack.enter_context(OutputFile("out", settings.out, operator.output_schema))
        if settings.unmatched is not None:
            schema = pa.schema(list(operator.unmatched_schema)[:-1])
            # detail: why a row was not a tuple; text: the row as it was read
            for name in ("reason", "detail", "text"):
                while name in schema.names:
                    name = "_" + name
                schema = schema.append(pa.field(name, pa.string()))
            self._unmatched = stack.enter_context(
                OutputFile("unmatched", settings.unmatched, schema))

    @property
    def _files(self) -> list[OutputFile]:
        return [f for f in (self._unmatched, self._joined) if f is not None]

    def write(self, step: JoinOutput) -> None:
        self._joined.write(step.joined)
        if self._unmatched is not None and (count := step.unmatched.num_rows):
            columns = [*step.unmatched.columns, pa.nulls(count, pa.string()),
                       pa.nulls(count, pa.string())]
            self._unmatched.write(
                pa.RecordBatch.from_arrays(columns, schema=self._unmatched.schema))

    def reject(self, rejected: list[Rejected], summary: Summary) -> None:
        if not rejected:
            return
        summary.unmatched[UNPARSABLE] = summary.unmatched.get(UNPARSABLE, 0) + len(rejected)
        summary.examples += [f"{r.place}: {r.detail} in {r.text[:120]!r}"
                             for r in rejected[:EXAMPLES - len(summary.examples)]]
        if self._unmatched is not None:
            schema, count = self._unmatched.schema, len(rejected)
            told = [pa.repeat(UNPARSABLE, count),
                    pa.array([f"{r.place}: {r.detail}" for r in rejected], pa.string()),
                    pa.array([r.text for r in rejected], pa.string())]
            empty = [pa.nulls(count, f.type) for f in list(schema)[:-3]]
            self._unmatched.write(pa.RecordBatch.from_arrays([*empty, *told], schema=schema))

    def finish(self) -> None:
        """Write the remaining rows. The files do not have their names yet."""
        for file in self._files:
            file.finish()

    def publish(self, summary: Summary) -> None:
        for file in self._files:
            file.publish()
        if self._stats is not None:
            self._stats.write_text(json.dumps(summary.as_dict(), indent=2, default=str) + "\n")


def _total(summary: Summary, operator: SemiStreamJoin, stream: FileSource, seconds: float,
           resident: int) -> None:
    """Fill in the summary. Raises SemistreamError when a row is missing, which would be a defect of
    this program."""
    stats = operator.stats
    if stats.matched + stats.unmatched != stats.rows_read or stats.waiting:
        raise SemistreamError(f"Of {stats.rows_read} rows {stats.matched} matched and "
                              f"{stats.unmatched} unmatched ones came out.")
    summary.rows_read = stats.rows_read + summary.unmatched.get(UNPARSABLE, 0)
    summary.matched, summary.output_rows = stats.matched, stats.output_rows
    summary.waiting = stats.waiting
    summary.unmatched |= stats.rejected
    summary.service_rate = stats.rows_read / stats.seconds if stats.seconds else 0.0
    summary.rate = summary.rows_read / seconds if seconds else 0.0
    summary.cache_share = stats.cache_hits / stats.rows_read if stats.rows_read else 0.0
    summary.memory_peak, summary.r_cycles = stats.memory_peak, stats.r_cycles
    summary.bytes_read, summary.resident_peak = stats.bytes_read, resident
    summary.seconds, summary.ignored_fields = seconds, dict(stream.ignored)
    summary.statistics = stats.as_dict()


def _check_places(settings: JoinFiles) -> None:
    if settings.master is None and settings.snapshot is None:
        raise ConfigError("master",
                          "must be given, or --snapshot with a directory published before", None,
                          "Give --master FILE.")
    check_output("out", settings.out)
    if settings.unmatched is not None:
        check_output("unmatched", settings.unmatched)
    if settings.stats is not None and not settings.stats.absolute().parent.is_dir():
        raise ConfigError("stats", "must be in a directory that exists", str(settings.stats),
                          "Make the directory first.")
    read = {p.resolve() for p in (settings.stream, settings.master) if p}
    written = [p.resolve() for p in (settings.out, settings.unmatched, settings.stats) if p]
    if len(read.union(written)) < len(read) + len(written):
        raise ConfigError("out", "must be a file of its own, as all files named", str(settings.out),
                          "Choose another name.")
