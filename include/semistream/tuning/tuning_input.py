"""The input of tuning: a sample of a stream, and a snapshot of its master data. Both come from a
job, or from files of the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pyarrow as pa

from semistream import workloads
from semistream.cost_models import Costs
from semistream.data_files import ENDINGS, is_remote
from semistream.errors import ConfigError
from semistream.gathering import as_batch
from semistream.job import Job, StreamSpec
from semistream.master.published import snapshot_root
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.progress import Progress, silent
from semistream.sizing.choice import COSTS_FILE, known_costs
from semistream.sizing.sizing_input import SizingInput
from semistream.tuning.settings import TuneSettings

CALIBRATED_ROWS = 1024  # stream tuples that calibration repeats


def costs_for(sizing: SizingInput, paths: Paths, calibrate: bool) -> Costs:
    """Return this machine's costs. If ``calibrate`` is true, they are measured now. If R is too
    small for measuring, the field ``machine`` of the result says so."""
    from semistream.tuning import calibration

    if calibrate:
        sample = sizing.tuples.slice(0, CALIBRATED_ROWS)
        try:
            calibration.calibrate(sample, sizing.relation, sizing.on, sizing.added).save(
                paths.home / COSTS_FILE
            )
        except ConfigError as e:
            known = known_costs(paths.home)
            return replace(
                known,
                machine=f"{known.machine}: this one's could not be measured, as "
                f"{str(e).rstrip('.')}",
            )
    return known_costs(paths.home)


@contextmanager
def open_tuning_input(
    settings: TuneSettings, paths: Paths, progress: Progress = silent
) -> Iterator[SizingInput]:
    """Open the sample and the snapshot. Raises ConfigError if they cannot be tuned for."""
    if bool(settings.max_wait) != bool(settings.rate):
        missing, given = ("rate", "max_wait") if settings.max_wait else ("max_wait", "rate")
        raise ConfigError(
            missing,
            f"must be given with {given}",
            None,
            "A bound on waiting takes "
            "the more, the more tuples come a second: give both, or neither.",
        )
    with ExitStack() as stack:
        sizing = (
            _of_files(settings, stack, progress)
            if settings.stream is not None
            else _of_job(settings, paths, progress)
        )
        if not sizing.sample.num_rows:
            raise ConfigError(
                "stream",
                "must have tuples",
                str(settings.stream or settings.job),
                "Give a sample with some.",
            )
        if sizing.partitions > sizing.relation.manifest.bucket_count:
            raise ConfigError(
                "partitions",
                "must be at most the buckets of the snapshot",
                sizing.partitions,
                "Ask for fewer.",
            )
        stack.callback(sizing.relation.close)
        yield sizing


def _of_job(settings: TuneSettings, paths: Paths, progress: Progress) -> SizingInput:
    """Return the input of a job: the first tuples of its stream, and the snapshot of the role's
    dimension."""
    if not settings.job:
        raise ConfigError(
            "job",
            "must be given, or a stream and its master data",
            None,
            "Name a job, or give a stream and master data.",
        )
    job = workloads.load_job(settings.job, paths)
    workloads.prepare(job, paths, progress)
    role = job.role(settings.role)
    relation = open_snapshot(snapshot_root(paths.snapshots, role.dimension.name, role.key))
    relation.close()
    return SizingInput(
        job,
        as_batch(stream_sample(job.stream, settings.rows)),
        relation.directory,
        settings.partitions,
        role.name,
    )


def _of_files(settings: TuneSettings, stack: ExitStack, progress: Progress) -> SizingInput:
    """Return the input from a sample and master data that the user gave as files."""
    from semistream.files.inputs import open_inputs

    stream, relation = open_inputs(settings, stack, progress)
    rows = _first((c.rows for c in stream.chunks()), stream.schema, settings.rows)
    job = Job.load(
        {
            "name": "sample",
            "stream": {"path": str(settings.stream)},
            "master": {"name": relation.name},
            "on": settings.on,
            "columns": settings.columns,
            "fact_table": "tuning",
        }
    )
    return SizingInput(job, as_batch(rows), relation.directory, settings.partitions)


def stream_sample(spec: StreamSpec, rows: int) -> pa.Table:
    """Return the first tuples of a job's stream. Raises ConfigError for a source that cannot be
    sampled here."""
    from semistream.streaming.sources.file_reader import find_reader, listed

    if spec.format == "zipf":
        from semistream.streaming.sources.zipf import ZipfReader, zipf_tuples

        return pa.Table.from_batches(
            [zipf_tuples(ZipfReader({"rows": str(rows), **spec.options}).keys, 0, rows)]
        )
    if spec.format not in ENDINGS or not spec.path or is_remote(spec.path):
        raise ConfigError(
            "stream",
            f"must be files ({', '.join(ENDINGS)}) on this machine or zipf",
            spec.format,
            "Save some of the stream as a file and give that, with the "
            "snapshot and the join columns.",
        )
    reader = find_reader(spec)
    source = reader.open()
    chunks = (chunk.rows for file in listed(spec) for chunk in source.read(file))
    return _first(chunks, reader.schema, rows)


def _first(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows: int) -> pa.Table:
    """Return the first `rows` rows of the batches as a table."""
    taken: list[pa.RecordBatch] = []
    for batch in batches:
        taken.append(batch.slice(0, rows - sum(b.num_rows for b in taken)))
        if sum(b.num_rows for b in taken) >= rows:
            break
    return pa.Table.from_batches(taken, schema)
