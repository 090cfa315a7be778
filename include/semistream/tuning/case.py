"""What is tuned for: a sample of a stream and a snapshot of its master data, a job's or the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from semistream.config import AUTO, Job, Places, StreamSpec
from semistream.cost_models import Costs, Workload
from semistream.errors import ConfigError
from semistream.joins.registry import find_algorithm
from semistream.master import SnapshotRelation, open_snapshot
from semistream.progress import Progress, silent
from semistream.streaming.plan import Plan
from semistream.tuning.choice import known_costs, usable
from semistream.tuning.settings import TuneSettings
from semistream.tuning.workload import describe

FILES = ("csv", "json", "parquet")
CALIBRATED_ROWS = 1024  # stream tuples that calibration repeats


@dataclass(frozen=True)
class Case:
    """job: its stream may be anywhere, the sample is what counts; snapshot: directory of the master's version."""

    job: Job
    sample: pa.RecordBatch
    snapshot: Path
    partitions: int

    def plan(self, memory: int) -> Plan:
        """How a load with M bytes in all would be joined; the algorithm is open."""
        return Plan(AUTO, int(memory) // self.partitions, "inner", {}, tuple(self.job.on.items()), self.job.columns or None,
                    self.partitions, str(self.snapshot), auto=True)

    @cached_property
    def _balanced(self) -> Plan:
        return self.plan(1).balance(self.sample)

    @cached_property
    def _slowest(self) -> tuple[int, pa.RecordBatch]:
        return self._balanced.slowest(self.sample)

    @property
    def tuples(self) -> pa.RecordBatch:
        """The sample's tuples of the slowest partition, on which the others wait."""
        return self._slowest[1]

    @property
    def share(self) -> float:
        """Of the stream that comes to that partition."""
        return max(self.tuples.num_rows, 1) / max(self.sample.num_rows, 1)

    @cached_property
    def relation(self) -> SnapshotRelation:
        """That partition's part of R."""
        return self._balanced.relation(self._slowest[0])

    @cached_property
    def added(self) -> tuple[str, ...] | None:
        return self.plan(1).added(self.relation)

    @property
    def on(self) -> list[tuple[str, str]]:
        return list(self.job.on.items())

    @cached_property
    def workload(self) -> Workload:
        """To the cost models, of one operator."""
        return describe(self.tuples, self.relation, self.on, self.added)

    def algorithms(self, asked: tuple[str, ...]) -> list[str]:
        """Those asked for, or all that can be used. Raises ConfigError for an unknown one."""
        return [find_algorithm(a).name for a in asked] or usable(self.relation)

    def costs(self, places: Places, calibrate: bool) -> Costs:
        """This machine's, measured now where that is wanted; where R is too small for it, ``machine`` says so."""
        from semistream.tuning import calibration
        from semistream.tuning.choice import COSTS_FILE

        if calibrate:
            sample = self.tuples.slice(0, CALIBRATED_ROWS)
            try:
                calibration.calibrate(sample, self.relation, self.on, self.added).save(places.home / COSTS_FILE)
            except ConfigError as e:
                known = known_costs(places.home)
                return replace(known, machine=f"{known.machine}: this one's could not be measured, as {str(e).rstrip('.')}")
        return known_costs(places.home)


@contextmanager
def open_case(settings: TuneSettings, places: Places, progress: Progress = silent) -> Iterator[Case]:
    """Raises ConfigError for whatever cannot be tuned."""
    with ExitStack() as stack:
        case = _own(settings, stack, progress) if settings.stream is not None else _of_job(settings, places, progress)
        if not case.sample.num_rows:
            raise ConfigError("stream", "must have tuples", str(settings.stream or settings.job), "Give a sample with some.")
        if case.partitions > case.relation.manifest.bucket_count:
            raise ConfigError("partitions", "must be at most the buckets of the snapshot", case.partitions, "Ask for fewer.")
        stack.callback(case.relation.close)
        yield case


def _of_job(settings: TuneSettings, places: Places, progress: Progress) -> Case:
    from semistream import workloads

    if not settings.job:
        raise ConfigError("job", "must be given, or a stream and its master data", None,
                          "Name a job, or give a stream and master data.")
    job = workloads.load_job(settings.job, places)
    workloads.prepare(job, places, progress)
    relation = open_snapshot(places.snapshots / job.master.name)
    relation.close()
    return Case(job, as_batch(stream_sample(job.stream, settings.rows)), relation.directory, settings.partitions)


def _own(settings: TuneSettings, stack: ExitStack, progress: Progress) -> Case:
    from semistream.files.join import Summary, open_master
    from semistream.files.source import open_source

    if settings.master is None and settings.snapshot is None:
        raise ConfigError("master", "must be given, or --snapshot with a directory published before", None, "Give --master FILE.")
    if not settings.on:
        raise ConfigError("on", "must name at least one pair of columns", None, "For instance --on product=sku.")
    assert settings.stream is not None
    stream = open_source("stream", settings.stream, kind=settings.stream_format or "", types=settings.types,
                         null_values=settings.null_values, delimiter=settings.delimiter)
    relation = open_master(settings, stream, Summary(AUTO), stack, progress)
    rows = _first((c.rows for c in stream.chunks()), stream.schema, settings.rows)
    job = Job.load({"name": "sample", "stream": {"path": str(settings.stream)}, "master": {"name": relation.name},
                    "on": settings.on, "columns": settings.columns, "fact_table": "tuning"})
    return Case(job, as_batch(rows), relation.directory, settings.partitions)


def stream_sample(spec: StreamSpec, rows: int) -> pa.Table:
    """The first tuples of a job's stream, in the types that Spark gives them. Raises ConfigError for a source without an end."""
    from semistream.files.source import open_source
    from semistream.workloads.ddl import parse_ddl

    if spec.format == "zipf":
        from semistream.streaming.datasources import ZipfReader, zipf_tuples

        return pa.Table.from_batches([zipf_tuples(ZipfReader({"rows": str(rows), **spec.options}).keys, 0, rows)])
    if spec.format not in FILES or not spec.path or "://" in spec.path:
        raise ConfigError("stream", f"must be files ({', '.join(FILES)}) on this machine or zipf", spec.format,
                          "Save some of the stream as a file and give that, with the snapshot and the join columns.")
    source = open_source("stream", Path(spec.path), kind=spec.format, delimiter=spec.options.get("sep", ""))
    if spec.columns:
        wanted = parse_ddl(spec.columns)
        missing = [n for n in wanted.names if n not in source.schema.names]
        if missing:
            raise ConfigError("stream.columns", "must be columns of the stream's files", missing[0],
                              f"They have: {', '.join(source.schema.names)}.")
        source.schema = pa.schema([wanted.field(f.name) if f.name in wanted.names else f for f in source.schema])
    source.settle({})
    table = _first((c.rows for c in source.chunks()), source.schema, rows)
    return table.select(parse_ddl(spec.columns).names) if spec.columns else table


def as_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _first(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows: int) -> pa.Table:
    taken: list[pa.RecordBatch] = []
    for batch in batches:
        taken.append(batch.slice(0, rows - sum(b.num_rows for b in taken)))
        if sum(b.num_rows for b in taken) >= rows:
            break
    return pa.Table.from_batches(taken, schema)
