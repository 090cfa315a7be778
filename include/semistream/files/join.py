"""The join of a stream's file with master files on one machine, without Airflow or Spark."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from semistream.ahead import ahead
from semistream.errors import ConfigError, NotEnoughMemory
from semistream.files.inputs import RoleInput, StarInputs, open_star
from semistream.files.join_summary import Summary, judge, total
from semistream.files.near_misses import SampledKeys
from semistream.files.opening import FORMATS
from semistream.files.outputs import Outputs, Unmatched, check_paths
from semistream.files.settings import JoinFiles
from semistream.files.source import Chunk, FileSource, Rejected
from semistream.files.text_source import BLOCK
from semistream.gathering import Gathered, as_batch
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.registry import HASH_JOIN, find_algorithm
from semistream.joins.star import RoleJoin, Star, StarOutput
from semistream.keys import key_text, master_keys
from semistream.master.publish import LEAST_MEMORY
from semistream.paths import Paths
from semistream.progress import Progress, silent
from semistream.resident import ResidentPeak, keep_freed
from semistream.sizing import choose, known_costs, open_join
from semistream.sizing.enough import with_enough
from semistream.sizing.star import RoleShare, StarRole, StarSizes, is_small, size_star, widened

if TYPE_CHECKING:
    from semistream.cost_models import Costs

EXAMPLES = 3  # keys that are shown
SAMPLE_ROWS = 50_000  # rows of small files that are enough as a sample


def join_files(settings: JoinFiles, progress: Progress = silent) -> Summary:
    """Join files. The output files get their names only when all of them are complete. Raises
    ConfigError for settings that cannot work."""
    start = time.perf_counter()
    if not settings.auto:
        find_algorithm(settings.algorithm)
    roles = [role.dimension.path for role in settings.dimensions.values()]
    paths = [Path(path) for path in roles if path is not None]
    check_paths(settings, ("stream", "master"), ("out", "unmatched"), paths)
    summary = Summary(settings.algorithm, int(settings.memory))
    with ExitStack() as stack:
        keep_freed()
        resident = ResidentPeak()
        stack.callback(resident.stop)
        memory = max(int(settings.memory), LEAST_MEMORY)
        inputs = open_star(settings, stack, progress, memory)
        stream, several = inputs.stream, len(inputs.roles) > 1
        chunks = stack.enter_context(closing(ahead(stream.chunks())))
        first = _first(stream, chunks)

        def note(role: str, rows: pa.RecordBatch) -> None:
            samples[role].add(rows)
            unmatched.write(rows, role)

        tuples = _tuples(stream, first)
        star = with_enough(
            lambda memory: _open(
                settings.model_copy(update={"memory": memory}),
                first.rows,
                inputs,
                summary,
                tuples,
                note,
            ),
            int(settings.memory),
            len(inputs.roles),
        )
        samples = {each.role: _sample(each.join, stream.schema) for each in star.joins}
        outputs = stack.enter_context(Outputs(settings, star.output_schema))
        unmatched = Unmatched(
            outputs, "unmatched", star.unmatched_schema, summary.unmatched, summary, several
        )

        def write(steps: Iterator[StarOutput]) -> None:
            for step in steps:
                if step.joined is not None:
                    outputs.joined.write(step.joined)
                progress("joining", stream.bytes_done, stream.bytes_total)

        for chunk in chain([first], chunks):
            unmatched.reject(chunk.rejected)
            write(star.process(chunk.rows))
            progress("joining", stream.bytes_done, stream.bytes_total)
        write(star.drain())
        outputs.finish()
        total(summary, star, inputs, time.perf_counter() - start)
        judge(summary, samples, inputs)
        summary.resident_peak = resident.read()
        outputs.publish(summary)
    return summary


def _sample(join: SemiStreamJoin, stream: pa.Schema) -> SampledKeys:
    keys = join.spec.keys.stream
    return SampledKeys(keys, [stream.get_field_index(key) for key in keys])


def _open(
    settings: JoinFiles,
    sample: pa.RecordBatch,
    inputs: StarInputs,
    summary: Summary,
    tuples: float,
    note: Callable[[str, pa.RecordBatch], None],
) -> Star:
    """Open the joins. The cost models choose what the settings leave open: how M is split, which
    roles are held whole in memory, and each role's algorithm and sizes. The roles and the reason
    are written to the summary. note: a function that gets the tuples without a match in a role."""
    roles = {
        role.name: StarRole(
            role.name, role.master, tuple(role.on), role.columns, role.join_type, role.many
        )
        for role in inputs.roles
    }
    costs = known_costs(Paths.from_environment().home)
    # a later role would need R's columns as they are
    refers = len(roles) == 1 and FORMATS[settings.out.suffix] == "parquet"
    waiting: list[str] = []  # roles that were found not to fit their share
    while True:
        sizes = _sizes(settings, sample, list(roles.values()), costs, tuples, waiting)
        joins, reasons, carried = list[RoleJoin](), [sizes.reason], sample
        try:
            for share in sizes.shares:
                role = roles[share.role]
                join, reason = _open_role(settings, role, share, carried, costs, tuples, refers)
                joins.append(RoleJoin(role.name, join, role.many, partial(note, role.name)))
                if len(roles) > 1:
                    carried = widened(carried, role.master, role.columns)
                    reason = reason and f"{role.name}: {reason}"
                reasons.append(reason)
        except NotEnoughMemory as e:
            if share.whole:
                waiting.append(share.role)
                continue
            if len(roles) == 1:
                raise
            most, what = len(roles) * e.least, f"{len(roles)} dimensions"
            raise NotEnoughMemory(most, int(settings.memory), what) from None
        break
    summary.algorithm = ", ".join(dict.fromkeys(each.join.spec.algorithm for each in joins))
    summary.reason = "; ".join(filter(None, reasons))
    try:
        return Star(joins, list(roles))
    except ConfigError as e:
        for each in inputs.roles:
            if e.parameter == f"dimensions.{each.name}.many" and (keys := _repeated_keys(each)):
                remedy = f"{e.remedy} The first: {', '.join(map(repr, keys))}."
                raise ConfigError(e.parameter, e.constraint, e.value, remedy) from None
        raise


def _repeated_keys(role: RoleInput) -> list[str]:
    """Return some keys that several rows of a dimension have, as texts."""
    master, columns = role.master, [column for _, column in role.on]
    found = dict[str, None]()
    for partition in range(master.partition_count):
        codes, counts = np.unique(master.read_codes(partition), return_counts=True)
        if not (repeated := codes[counts > 1]).size:
            continue
        for page in master.pages(partition, columns):
            here = np.isin(master_keys(page.schema, columns).master_codes(page)[0], repeated)
            found |= dict.fromkeys(
                key_text(page, columns, i) for i in np.flatnonzero(here).tolist()
            )
        if len(found) >= EXAMPLES:
            break
    return list(found)[:EXAMPLES]


def _sizes(
    settings: JoinFiles,
    sample: pa.RecordBatch,
    roles: list[StarRole],
    costs: Costs,
    tuples: float,
    waiting: list[str],
) -> StarSizes:
    memory = int(settings.memory)
    if len(roles) == 1:
        return StarSizes((RoleShare(roles[0].name, memory),))
    return size_star(
        roles,
        sample,
        memory,
        costs,
        algorithm=settings.algorithm.lower(),
        tuples=tuples,
        waiting=waiting,
    )


def _open_role(
    settings: JoinFiles,
    role: StarRole,
    share: RoleShare,
    sample: pa.RecordBatch,
    costs: Costs,
    tuples: float,
    refers: bool,
) -> tuple[SemiStreamJoin, str]:
    """Open the join with a role. Return the join, and the reason for the choices that the settings
    left open. refers: whether its output is to refer to R's tuples."""
    memory, on, master = share.memory, list(role.on), role.master
    algorithm, parameters, reason = settings.algorithm, settings.parameters, ""
    size = master.tuple_count * master.tuple_bytes
    if share.whole:
        algorithm = HASH_JOIN.name
    elif settings.auto and is_small(size, memory):
        algorithm = "elevatorjoin"
        reason = f"elevatorjoin: all of R, {size:,.0f} bytes, is read at once and kept in M"
        parameters = {"disk_tuples": max(master.tuple_count, 1), "filter_bits": -1}
    elif settings.auto:
        choice = choose(
            sample, master, memory, on, role.columns, costs=costs, tuples=tuples, refers=refers
        )
        algorithm, reason, parameters = choice.algorithm, choice.reason, choice.parameters
    join = open_join(
        algorithm,
        memory=memory,
        stream=sample.schema,
        master=master,
        on=on,
        columns=role.columns,
        join_type=role.join_type,
        parameters=parameters,
        costs=costs,
        sample=sample,
        tuples=tuples,
    )
    if refers:
        join.output.refer()
    return join, reason


def _first(stream: FileSource, chunks: Iterator[Chunk]) -> Chunk:
    """Return the stream's first rows, which are the sample for the cost models: the first chunk of
    a large file, or the chunks of as many small files as together have as much."""
    rows, rejected, read = Gathered(stream.schema), list[Rejected](), 0
    for chunk in chunks:
        rows.add(chunk.rows)
        rejected += chunk.rejected
        read += chunk.rows.num_rows + len(chunk.rejected)
        if read >= SAMPLE_ROWS or max(stream.bytes_done, rows.size) >= BLOCK:
            break
    return Chunk(as_batch(rows.take()), rejected)


def _tuples(stream: FileSource, first: Chunk) -> float:
    """Estimate the number of the stream's tuples from the bytes of its first rows."""
    read = stream.bytes_done / max(stream.bytes_total, 1)
    return max(first.rows.num_rows / read, 1.0) if read else math.inf
