"""The summary of a join of files: what happened to its rows, in each role and overall."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from semistream.errors import SemistreamError
from semistream.files.inputs import RoleInput, StarInputs
from semistream.files.near_misses import SampledKeys, is_suspicious, near_misses
from semistream.files.outputs import JoinSummary, OperatorSummary
from semistream.joins.output import NO_MATCH, NULL_KEY, UNPARSABLE
from semistream.joins.star import Star

UNMATCHED = 0.5  # share of rows without master data of which the summary warns


@dataclass
class MasterSummary(OperatorSummary):
    """The results of a join with master data, in one role or in all."""

    rows_read: int = 0
    matched: int = 0  # tuples that became output rows
    unmatched: Counter[str] = field(default_factory=Counter)  # by reason
    cache_share: float = 0.0  # share of the stream tuples that did not wait for the disk
    r_cycles: int = 0
    bytes_read: int = 0  # bytes read of R
    master_rows: int = 0
    master_rejected: Counter[str] = field(default_factory=Counter)  # by reason
    master_version: str = ""


@dataclass(kw_only=True)
class RoleSummary(MasterSummary):
    """The results in one role. ``memory_budget`` is the role's share of M; a left join passes the
    unmatched tuples on."""

    role: str
    join_type: str
    near_misses: str = ""  # describes what would make more keys match
    statistics: dict[str, Any] = field(default_factory=dict)  # the operator's statistics


@dataclass
class Summary(JoinSummary, MasterSummary):
    """The results of a join of a stream's file with master data. If there are several roles, the
    numbers are totals, of unmatched tuples only those of inner joins; ``statistics`` exist only for
    a single role."""

    reason: str = ""  # why these algorithms were chosen
    waiting: int = 0
    resident_peak: int = 0  # peak of the process's anonymous memory
    warnings: list[str] = field(default_factory=list)  # about many unmatched rows, and their cause
    roles: list[RoleSummary] = field(default_factory=list)  # in the order of execution

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {
            "roles": [{"role": role.role} | vars(role) for role in self.roles]
        }


class TooManyUnmatched(SemistreamError):
    """More tuples have no master row than the settings allow. why: sentences on near misses; role:
    the role without a match, "" if there is only one role."""

    def __init__(self, unmatched: int, read: int, limit: float, why: list[str], role: str = ""):
        super().__init__(
            f"{unmatched:,} of {read:,} rows have no {f'row of {role}' if role else 'master row'}, "
            f"and no more than {limit:.4g} of them may have none "
            f"({f'dimensions.{role}.' if role else ''}max_unmatched). No output was written. "
            + " ".join(f"{said[0].upper()}{said[1:]}." for said in why)
        )


def total(summary: Summary, star: Star, inputs: StarInputs, seconds: float) -> None:
    """Fill in the summary from the operators' statistics. Raises SemistreamError when a row is
    missing, which would be a defect of this program."""
    came = star.joins[0].join.stats.rows_read
    left = 0  # tuples that were unmatched in an inner role
    for each in star.joins:
        stats, role = each.join.stats, inputs.role(each.role)
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
                each.join.spec.algorithm,
                each.join.spec.memory,
                stats.memory_peak,
                stats.rows_read / stats.seconds if stats.seconds else 0.0,
                stats.rows_read,
                stats.matched,
                Counter(stats.rejected),
                stats.cache_hits / stats.rows_read if stats.rows_read else 0.0,
                stats.r_cycles,
                stats.bytes_read,
                role.master.tuple_count,
                Counter(role.rejected),
                role.master.version,
                role=each.role,
                join_type=each.join.spec.join_type,
                statistics=stats.as_dict(),
            )
        )
        if each.kind.inner or len(star.joins) == 1:
            left += stats.unmatched
            summary.unmatched.update(stats.rejected)
    roles, all_stats = summary.roles, [each.join.stats for each in star.joins]
    first = roles[0].rows_read
    summary.rows_read = first + summary.unmatched[UNPARSABLE]
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
    summary.master_rejected = sum((role.master_rejected for role in roles), Counter())
    summary.statistics = roles[0].statistics if len(roles) == 1 else {}
    summary.notes, summary.ignored_fields = inputs.notes, dict(inputs.stream.ignored)


def judge(summary: Summary, samples: dict[str, SampledKeys], inputs: StarInputs) -> None:
    """Add warnings to the summary if many tuples have no row in a role, with the likely reason.
    Raises TooManyUnmatched if more tuples have none than the settings allow. samples: unmatched
    keys, by role."""
    several = len(inputs.roles) > 1
    unparsable = 0 if several else summary.unmatched[UNPARSABLE]
    for found in summary.roles:
        role = inputs.role(found.role)
        name, prefix = (role.name, f"{role.name}: ") if several else ("", "")
        read = found.rows_read + unparsable
        without = found.unmatched[NO_MATCH] + found.unmatched[NULL_KEY]
        found.near_misses = _near_misses(found, role, samples[found.role])
        why = [found.near_misses] if found.near_misses else []
        if role.max_unmatched is not None and without > role.max_unmatched * read:
            raise TooManyUnmatched(without, read, role.max_unmatched, why, name)
        if without > UNMATCHED * read:
            what, setting = (
                (f"row of {name}", f"dimensions.{name}.max_unmatched")
                if several
                else ("master row", "--max-unmatched")
            )
            share = f"{without / read:.1%} of the rows have no {what}"
            summary.warnings.append(f"{prefix}{share}; {setting} makes that an error")
        summary.warnings += [prefix + said for said in why]


def _near_misses(found: RoleSummary, role: RoleInput, sample: SampledKeys) -> str:
    """Return a sentence that says which change would make many unmatched keys of a role match; ""
    if nothing is found."""
    keys = sample.keys()
    if keys is None or not is_suspicious(found.matched, found.unmatched[NO_MATCH]):
        return ""
    near = near_misses(keys, role.master)
    if near is None:
        return ""
    where = "" if role.from_file else " for the snapshot's own column, when it is published"
    return f"{near}: {near.flags}{where}"
