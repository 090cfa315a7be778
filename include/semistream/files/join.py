"""The join of a stream's file with master files on one machine, without Airflow or Spark."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from semistream.ahead import ahead
from semistream.errors import ConfigError, NotEnoughMemory, SemistreamError
from semistream.files.inputs import StarInputs, open_star
from semistream.files.near_misses import SampledKeys, is_suspicious, near_misses
from semistream.files.outputs import JoinSummary, Outputs, Unmatched, check_paths
from semistream.files.settings import JoinFiles
from semistream.files.source import Chunk, FileSource
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.output import NO_MATCH, NULL_KEY, UNPARSABLE
from semistream.joins.registry import HASH_JOIN, find_algorithm
from semistream.joins.star import RoleJoin, Star, StarOutput
from semistream.master.publish import LEAST_MEMORY
from semistream.paths import Paths
from semistream.progress import Progress, silent
from semistream.resident import ResidentPeak
from semistream.sizing import choose, known_costs, open_join
from semistream.sizing.star import RoleShare, StarRole, StarSizes, size_star, widened

UNMATCHED = 0.5  # share of rows without master data of which the summary warns
SMALL = 4_000_000  # bytes of an R that is read in some milliseconds


@dataclass
class RoleSummary:
    """The results in one role. Reads in bytes; memory in bytes, of which ``memory_budget`` is the
    role's share."""

    role: str
    algorithm: str
    memory_budget: int
    memory_peak: int = 0
    rows_read: int = 0
    matched: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)  # by reason; they go on in a left join
    cache_share: float = 0.0  # share of the stream tuples that did not wait for the disk
    service_rate: float = 0.0  # tuples/s inside this role's join
    r_cycles: int = 0
    bytes_read: int = 0  # bytes read of R
    master_rows: int = 0
    master_rejected: dict[str, int] = field(default_factory=dict)  # by reason
    master_version: str = ""
    near_misses: str = ""  # what would make more keys match
    statistics: dict[str, Any] = field(default_factory=dict)  # the operator's statistics


@dataclass
class Summary(JoinSummary):
    """The results of a join of a stream's file with master data. Reads in bytes. Where there are
    several roles, numbers are those of all together; ``statistics`` are those of the only one."""

    reason: str = ""  # why these algorithms
    rows_read: int = 0
    matched: int = 0  # tuples that became output rows
    unmatched: dict[str, int] = field(
        default_factory=dict
    )  # by reason, in several roles the others
    waiting: int = 0
    cache_share: float = 0.0  # share of the stream tuples that did not wait for the disk
    resident_peak: int = 0  # peak of the process's anonymous memory
    r_cycles: int = 0
    bytes_read: int = 0  # bytes read of R
    master_rows: int = 0
    master_rejected: dict[str, int] = field(default_factory=dict)  # by reason
    master_version: str = ""
    warnings: list[str] = field(default_factory=list)  # of many unmatched rows, and why they are
    roles: list[RoleSummary] = field(default_factory=list)  # in the order of execution

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"roles": [dict(vars(role)) for role in self.roles]}


class TooManyUnmatched(SemistreamError):
    """More rows have no master row than the settings allow. why: sentences on near misses; role: in
    which they have none, "" for the only one."""

    def __init__(self, unmatched: int, read: int, limit: float, why: list[str], role: str = ""):
        super().__init__(
            f"{unmatched:,} of {read:,} rows have no {f'row of {role}' if role else 'master row'}, "
            f"and no more than {limit:.4g} of them may have none "
            f"({f'dimensions.{role}.' if role else ''}max_unmatched). No output was written. "
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
        inputs = open_star(settings, stack, progress, memory)
        stream, several = inputs.stream, len(inputs.roles) > 1
        chunks = stack.enter_context(closing(ahead(stream.chunks())))
        first = next(chunks, Chunk(pa.RecordBatch.from_pylist([], stream.schema), []))

        def note(role: str, rows: pa.RecordBatch) -> None:
            samples[role].add(rows)
            unmatched.write(rows, role)

        star = _open(settings, first.rows, inputs, summary, _tuples(stream, first), note)
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
        _total(summary, star, inputs, time.perf_counter() - start)
        _judge(summary, settings, samples, inputs)
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
    """Open the joins. What the settings leave open is chosen by the cost models: how M is split and
    which roles are held whole, then each role's algorithm and its sizes. The summary gets the
    roles, and the reason. note: gets the tuples without a match in a role."""
    roles = {
        role.name: StarRole(
            role.name, role.master, tuple(role.on), role.columns, role.join_type, role.many
        )
        for role in inputs.roles
    }
    waiting: list[str] = []  # roles that were found not to fit their share
    while True:
        sizes = _sizes(settings, sample, list(roles.values()), tuples, waiting)
        joins, reasons, carried = [], [sizes.reason] if len(roles) > 1 else [], sample
        try:
            for share in sizes.shares:
                role = roles[share.role]
                with _naming(role.name if len(roles) > 1 else ""):
                    join, reason = _open_role(settings, role, share, carried, tuples)
                joins.append(RoleJoin(role.name, join, role.many, partial(note, role.name)))
                reasons += [reason] if reason else []
                if len(roles) > 1:
                    carried = widened(carried, role.master, role.columns)
        except NotEnoughMemory:
            if not share.whole:
                raise
            waiting.append(share.role)
            continue
        break
    summary.algorithm = ", ".join(dict.fromkeys(each.join.spec.algorithm for each in joins))
    summary.reason = "; ".join(reasons)
    return Star(joins, list(roles))


def _sizes(
    settings: JoinFiles,
    sample: pa.RecordBatch,
    roles: list[StarRole],
    tuples: float,
    waiting: list[str],
) -> StarSizes:
    memory, costs = int(settings.memory), known_costs(Paths.from_environment().home)
    if len(roles) == 1:
        return StarSizes((RoleShare(roles[0].name, memory),), math.inf, math.inf, "")
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
    settings: JoinFiles, role: StarRole, share: RoleShare, sample: pa.RecordBatch, tuples: float
) -> tuple[SemiStreamJoin, str]:
    """Open the join with a role. Return it, and the reason of the choices that the settings left
    open."""
    memory, on, master = share.memory, list(role.on), role.master
    costs, parameters = known_costs(Paths.from_environment().home), settings.parameters
    algorithm, reason = settings.algorithm, ""
    size = master.tuple_count * master.tuple_bytes
    if share.whole:
        algorithm = HASH_JOIN.name
    elif settings.auto and size <= min(SMALL, memory // 16):  # choosing would take longer
        algorithm = "elevatorjoin"
        reason = f"elevatorjoin: all of R, {size:,.0f} bytes, is read at once and kept in M"
        parameters = {"disk_tuples": max(master.tuple_count, 1), "filter_bits": -1}
    elif settings.auto:
        choice = choose(sample, master, memory, on, role.columns, costs=costs, tuples=tuples)
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
    return join, reason


@contextmanager
def _naming(role: str) -> Iterator[None]:
    """Name the role in errors about its join, and its setting."""
    try:
        yield
    except NotEnoughMemory as e:
        if not role:
            raise
        raise NotEnoughMemory(e.least, e.value, f"the share of {role}", e.remedy) from None
    except ConfigError as e:
        if not role or e.parameter not in ("on", "columns"):
            raise
        raise ConfigError(
            f"dimensions.{role}.{e.parameter}", e.constraint, e.value, e.remedy
        ) from None


def _tuples(stream: FileSource, first: Chunk) -> float:
    """Estimate the number of the stream's tuples from the bytes of its first chunk."""
    read = stream.bytes_done / max(stream.bytes_total, 1)
    return max(first.rows.num_rows / read, 1.0) if read else math.inf


def _total(summary: Summary, star: Star, inputs: StarInputs, seconds: float) -> None:
    """Fill in the summary from the operators' statistics. Raises SemistreamError when a row is
    missing, which would be a defect of this program."""
    of_role = {role.name: role for role in inputs.roles}
    came = star.joins[0].join.stats.rows_read
    left = 0  # tuples that were unmatched in an inner role
    for each in star.joins:
        stats, role = each.join.stats, of_role[each.role]
        if (
            stats.matched + stats.unmatched != stats.rows_read
            or stats.waiting
            or (stats.rows_read != came)
        ):
            raise SemistreamError(
                f"Of {came} rows {stats.matched} matched and {stats.unmatched} unmatched ones came "
                f"out of {each.role}, which read {stats.rows_read}."
            )
        came = stats.output_rows
        summary.roles.append(
            RoleSummary(
                each.role,
                each.join.spec.algorithm,
                each.join.spec.memory,
                stats.memory_peak,
                stats.rows_read,
                stats.matched,
                dict(stats.rejected),
                stats.cache_hits / stats.rows_read if stats.rows_read else 0.0,
                stats.rows_read / stats.seconds if stats.seconds else 0.0,
                stats.r_cycles,
                stats.bytes_read,
                role.master.tuple_count,
                role.rejected,
                role.master.version,
                statistics=stats.as_dict(),
            )
        )
        if each.kind.inner or len(star.joins) == 1:
            left += stats.unmatched
            for reason, count in stats.rejected.items():
                summary.unmatched[reason] = summary.unmatched.get(reason, 0) + count
    roles, all_stats = summary.roles, [each.join.stats for each in star.joins]
    first = roles[0].rows_read
    summary.rows_read = first + summary.unmatched.get(UNPARSABLE, 0)
    summary.matched = first - left
    summary.output_rows = came
    summary.memory_peak = sum(role.memory_peak for role in roles)
    inside = sum(stats.seconds for stats in all_stats)
    summary.service_rate = first / inside if inside else 0.0
    summary.seconds, summary.rate = seconds, summary.rows_read / seconds if seconds else 0.0
    looked_up = sum(role.rows_read for role in roles)
    hits = sum(stats.cache_hits for stats in all_stats)
    summary.cache_share = hits / looked_up if looked_up else 0.0
    summary.r_cycles = max(role.r_cycles for role in roles)
    summary.bytes_read = sum(role.bytes_read for role in roles)
    summary.master_rows = sum(role.master_rows for role in roles)
    summary.master_version = ", ".join(dict.fromkeys(role.master_version for role in roles))
    for role in roles:
        for reason, count in role.master_rejected.items():
            summary.master_rejected[reason] = summary.master_rejected.get(reason, 0) + count
    summary.statistics = roles[0].statistics if len(roles) == 1 else {}
    summary.notes, summary.ignored_fields = inputs.notes, dict(inputs.stream.ignored)


def _judge(
    summary: Summary, settings: JoinFiles, samples: dict[str, SampledKeys], inputs: StarInputs
) -> None:
    """Add warnings to the summary if many rows have no row in a role, with the likely reason.
    Raises TooManyUnmatched if more have none than the settings allow."""
    of_role = {role.name: role for role in inputs.roles}
    several = len(of_role) > 1
    unparsable = 0 if several else summary.unmatched.get(UNPARSABLE, 0)
    for found in summary.roles:
        role, warnings = of_role[found.role], list[str]()
        no_match = found.unmatched.get(NO_MATCH, 0)
        keys = samples[found.role].keys()
        if keys is not None and is_suspicious(found.matched, no_match):
            near = near_misses(keys, role.master)
            if near is not None:
                given = (
                    settings.dimensions[role.name].dimension.path if several else settings.master
                )
                where = "" if given else " for the snapshot's own column, when it is published"
                found.near_misses = f"{near}: {near.flags}{where}"
                warnings.append(found.near_misses)
        without = no_match + found.unmatched.get(NULL_KEY, 0)
        read = found.rows_read + unparsable
        if role.max_unmatched is not None and without > role.max_unmatched * read:
            name = role.name if several else ""
            raise TooManyUnmatched(without, read, role.max_unmatched, warnings, name)
        if without > UNMATCHED * read:
            what, setting = (
                (f"row of {role.name}", f"dimensions.{role.name}.max_unmatched")
                if several
                else ("master row", "--max-unmatched")
            )
            warnings.insert(
                0, f"{without / read:.1%} of the rows have no {what}; {setting} makes that an error"
            )
        prefix = f"{role.name}: " if several else ""
        summary.warnings += [prefix + warning for warning in warnings]
