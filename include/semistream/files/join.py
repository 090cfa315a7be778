"""The join of a stream's file with a master file on one machine, without Airflow or Spark."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from semistream.ahead import ahead
from semistream.errors import SemistreamError
from semistream.files.inputs import Inputs, open_inputs
from semistream.files.near_misses import SampledKeys, is_suspicious, near_misses
from semistream.files.outputs import JoinSummary, Outputs, Unmatched, check_paths
from semistream.files.settings import JoinFiles
from semistream.files.source import Chunk, FileSource
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import NO_MATCH, NULL_KEY, UNPARSABLE, JoinOutput
from semistream.joins.registry import find_algorithm
from semistream.master.publish import LEAST_MEMORY
from semistream.master.snapshot import SnapshotRelation
from semistream.paths import Paths
from semistream.progress import Progress, silent
from semistream.resident import ResidentPeak
from semistream.sizing import choose, known_costs, open_join

UNMATCHED = 0.5  # share of rows without master data of which the summary warns
SMALL = 4_000_000  # bytes of an R that is read in some milliseconds


@dataclass
class Summary(JoinSummary):
    """The results of a join of a stream's file with a master file. Reads in bytes."""

    reason: str = ""  # why this algorithm
    rows_read: int = 0
    matched: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)  # by reason
    waiting: int = 0
    cache_share: float = 0.0  # share of the stream tuples through H_R
    resident_peak: int = 0  # peak of the process's anonymous memory
    r_cycles: int = 0
    bytes_read: int = 0  # bytes read of R
    master_rows: int = 0
    master_rejected: dict[str, int] = field(default_factory=dict)  # by reason
    master_version: str = ""
    warnings: list[str] = field(default_factory=list)  # of many unmatched rows, and why they are


class TooManyUnmatched(SemistreamError):
    """More rows have no master row than the settings allow. why: sentences on near misses."""

    def __init__(self, unmatched: int, read: int, limit: float, why: list[str]):
        super().__init__(
            f"{unmatched:,} of {read:,} rows have no master row, and no more than {limit:.4g} of "
            "them may have none (max_unmatched). No output was written. "
            + " ".join(f"{said[0].upper()}{said[1:]}." for said in why)
        )


def join_files(settings: JoinFiles, progress: Progress = silent) -> Summary:
    """Join files, and give the output files their names when all is complete. Raises ConfigError
    for settings that cannot work."""
    start = time.perf_counter()
    if not settings.auto:
        find_algorithm(settings.algorithm)
    check_paths(settings, ("stream", "master"), ("out", "unmatched"))
    summary = Summary(settings.algorithm, int(settings.memory))
    with ExitStack() as stack:
        resident = ResidentPeak()
        stack.callback(resident.stop)
        memory = max(int(settings.memory), LEAST_MEMORY)
        inputs = open_inputs(settings, stack, progress, memory, settings.allow_empty)
        stream = inputs.stream
        chunks = stack.enter_context(closing(ahead(stream.chunks())))
        first = next(chunks, Chunk(pa.RecordBatch.from_pylist([], stream.schema), []))
        operator = _open(settings, first.rows, inputs, summary, _tuples(stream, first))
        outputs = stack.enter_context(Outputs(settings, operator.output_schema))
        unmatched = Unmatched(
            outputs, "unmatched", operator.unmatched_schema, summary.unmatched, summary
        )

        keys = operator.spec.keys.stream
        sample = SampledKeys(keys, [stream.schema.get_field_index(key) for key in keys])

        def write(steps: Iterator[JoinOutput]) -> None:
            for step in steps:
                outputs.joined.write(step.joined)
                unmatched.write(step.unmatched)
                sample.add(step.unmatched)
                progress("joining", stream.bytes_done, stream.bytes_total)

        for chunk in chain([first], chunks):
            unmatched.reject(chunk.rejected)
            write(operator.process(chunk.rows))
            progress("joining", stream.bytes_done, stream.bytes_total)
        write(operator.drain())
        outputs.finish()
        _total(summary, operator, inputs, time.perf_counter() - start)
        _judge(summary, settings, sample, inputs.master)
        summary.resident_peak = resident.read()
        outputs.publish(summary)
    return summary


def _open(
    settings: JoinFiles, sample: pa.RecordBatch, inputs: Inputs, summary: Summary, tuples: float
) -> SemiStreamJoin:
    """Open the operator. If the algorithm or its sizes are open, the cost models choose them by a
    sample of the stream and its number of tuples. The summary gets the algorithm's name and the
    reason."""
    memory, on, columns = int(settings.memory), list(settings.on.items()), settings.columns or None
    costs, parameters = known_costs(Paths.from_environment().home), settings.parameters
    master = inputs.master
    size = master.tuple_count * master.tuple_bytes
    if settings.auto and size <= min(SMALL, memory // 16):  # choosing would take longer
        summary.algorithm = "elevatorjoin"
        summary.reason = f"elevatorjoin: all of R, {size:,.0f} bytes, is read at once and kept in M"
        parameters = {"disk_tuples": max(master.tuple_count, 1), "filter_bits": -1}
    elif settings.auto:
        choice = choose(sample, master, memory, on, columns, costs=costs, tuples=tuples)
        summary.algorithm, summary.reason = choice.algorithm, choice.reason
        parameters = choice.parameters
    return open_join(
        summary.algorithm,
        memory=memory,
        stream=sample.schema,
        master=master,
        on=on,
        columns=columns,
        join_type=settings.join_type,
        parameters=parameters,
        costs=costs,
        sample=sample,
        tuples=tuples,
    )


def _tuples(stream: FileSource, first: Chunk) -> float:
    """Estimate the number of the stream's tuples from the bytes of its first chunk."""
    read = stream.bytes_done / max(stream.bytes_total, 1)
    return max(first.rows.num_rows / read, 1.0) if read else math.inf


def _total(summary: Summary, operator: SemiStreamJoin, inputs: Inputs, seconds: float) -> None:
    """Fill in the summary. Raises SemistreamError when a row is missing, which would be a defect of
    this program."""
    stats = operator.stats
    if stats.matched + stats.unmatched != stats.rows_read or stats.waiting:
        raise SemistreamError(
            f"Of {stats.rows_read} rows {stats.matched} matched and "
            f"{stats.unmatched} unmatched ones came out."
        )
    summary.rows_read = stats.rows_read + summary.unmatched.get(UNPARSABLE, 0)
    summary.set_totals(stats, stats.rows_read, summary.rows_read, seconds)
    summary.matched, summary.waiting = stats.matched, stats.waiting
    summary.unmatched |= stats.rejected
    summary.cache_share = stats.cache_hits / stats.rows_read if stats.rows_read else 0.0
    summary.r_cycles, summary.bytes_read = stats.r_cycles, stats.bytes_read
    summary.master_rows, summary.master_version = inputs.master.tuple_count, inputs.master.version
    summary.master_rejected = inputs.master_rejected
    summary.notes, summary.ignored_fields = inputs.notes, dict(inputs.stream.ignored)


def _judge(
    summary: Summary, settings: JoinFiles, sample: SampledKeys, master: SnapshotRelation
) -> None:
    """Warn of many rows without master data, and say why they may have none. Raises
    TooManyUnmatched for more than the settings allow."""
    no_match = summary.unmatched.get(NO_MATCH, 0)
    keys = sample.keys()
    if keys is not None and is_suspicious(summary.matched, no_match):
        found = near_misses(keys, master)
        if found is not None:
            where = (
                "" if settings.master else " for the snapshot's own column, when it is published"
            )
            summary.warnings.append(f"{found}: {found.flags}{where}")
    without, limit = no_match + summary.unmatched.get(NULL_KEY, 0), settings.max_unmatched
    if limit is not None and without > limit * summary.rows_read:
        raise TooManyUnmatched(without, summary.rows_read, limit, summary.warnings)
    if without > UNMATCHED * summary.rows_read:
        share = without / summary.rows_read
        summary.warnings.insert(
            0, f"{share:.1%} of the rows have no master row; --max-unmatched makes that an error"
        )
