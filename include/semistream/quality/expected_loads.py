"""The user's expectations of a job's loads (``expect:``): their volume, their match rate, and the
age of the newest load. Limits are given by the user, or learned from earlier loads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from sqlalchemy import BigInteger, Column, select

from semistream.durations import duration_text
from semistream.expect import Expectation, Expectations, Freshness, MatchRate, Volume
from semistream.job import SIDES
from semistream.quality.checks import Check
from semistream.quality.scope import Scope
from semistream.quality.staging import Staging
from semistream.warehouse.load_history import LEARNED_FROM, LEAST, Band, Load, usual_weekday
from semistream.warehouse.types import LongString

log = logging.getLogger(__name__)
LOADS = 30  # most loads from which usual values are learned
LITTLE = 0.1  # a volume within this share of the median is usual
POINTS = 0.02  # a match rate within this distance of the median is usual
Form = Callable[[float], str]


@dataclass(frozen=True)
class Limits:
    """The limits of a value. A limit is None if that side is unlimited. usual: the values from
    which the limits were learned, None if the user gave the limits."""

    low: float | None = None
    high: float | None = None
    usual: Band | None = None

    def holds(self, value: float) -> bool:
        return not (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
        )

    def text(self, form: Form) -> str:
        """Return the limits as words. form: a function that formats a value."""
        parts = [] if self.low is None else [f"at least {form(self.low)}"]
        parts += [] if self.high is None else [f"at most {form(self.high)}"]
        learned = (
            f" (median of {self.usual.loads} loads: {form(self.usual.median)})"
            if self.usual is not None
            else ""
        )
        return " and ".join(parts) + learned


@dataclass(frozen=True)
class Judged:
    """A load's value, and its limits. limits: None if there were too few earlier loads to learn
    from."""

    load: Load
    value: float
    limits: Limits | None


def expectation_checks(
    staging: Staging, scope: Scope, expect: Expectations, loads: Sequence[Load]
) -> Iterator[Check]:
    """Yield the checks of the expectations that are set. loads: all loads up to the verified range.

    The checks judge the loads that end in the verified range. If everything is verified, only the
    newest load is judged, because an unusual load of the past is not news. A load with waiting
    tuples has not ended.
    """
    new = [n for n, of in enumerate(loads) if scope.first is None or of.last > scope.first]
    new = [n for n in (new[-1:] if scope.first is None else new) if not loads[n].waiting]
    if (volume := expect.volume) is not None:
        judged = [Judged(loads[n], loads[n].read, volume_limits(volume, loads, n)) for n in new]
        title = "Each load reads as many rows as are expected"
        yield _check(staging, scope, "volume", "", title, volume, judged, "{:,.0f}".format)
    if (rate := expect.match_rate) is not None:
        inputs = [role.name for role in scope.roles] or [*SIDES]
        for role in rate.roles or inputs:
            judged = [
                Judged(loads[n], match_rate(loads[n], role), match_limits(rate, role, loads, n))
                for n in new
                if loads[n].finished[role]
            ]
            of = role if len(inputs) > 1 else ""
            title = f"As many tuples of each load have a match in {role} as are expected"
            yield _check(staging, scope, "match_rate", of, title, rate, judged, "{:.1%}".format)
    if (freshness := expect.freshness) is not None:
        title = "The newest load is as recent as is expected"
        judged = _age(freshness, loads)
        yield _check(staging, scope, "freshness", "", title, freshness, judged, duration_text)


def is_stale(expect: Expectations, loads: Sequence[Load]) -> bool:
    """Return whether the newest load ended longer ago than expected."""
    judged = [] if expect.freshness is None else _age(expect.freshness, loads)
    return any(of.limits is not None and not of.limits.holds(of.value) for of in judged)


def match_rate(load: Load, role: str) -> float:
    """Return the share of a load's tuples that have a match in a role."""
    return 1 - load.missing_share(role)


def volume_limits(volume: Volume, loads: Sequence[Load], n: int) -> Limits | None:
    """Return the limits for the number of rows that the n-th load reads; None if there were too few
    earlier loads to learn from."""
    low, high = volume.at_least, volume.at_most
    both = (low, high, volume.below, volume.above) == (None,) * 4
    if not both and volume.below is None and volume.above is None:
        return Limits(low, high)
    before = [of.read for of in usual_weekday(loads[:n], loads[n])[-LOADS:]]
    if len(before) < LEARNED_FROM:
        return None if low is None and high is None else Limits(low, high)
    usual = Band.learn(before)
    usual = Band.learn(before, LITTLE * usual.median)
    if both:
        return Limits(max(usual.low, 0), usual.high, usual)
    return Limits(
        low if volume.below is None else usual.median * (1 - volume.below),
        high if volume.above is None else usual.median * (1 + volume.above),
        usual,
    )


def match_limits(rate: MatchRate, role: str, loads: Sequence[Load], n: int) -> Limits | None:
    """Return the limits of the n-th load's match rate in a role; None if they cannot be learned."""
    if rate.at_least is not None:
        return Limits(rate.at_least)
    before = [match_rate(of, role) for of in loads[:n] if of.finished[role] >= LEAST][-LOADS:]
    if len(before) < LEARNED_FROM or loads[n].finished[role] < LEAST:
        return None
    usual = Band.learn(before, POINTS)
    low = usual.low if rate.below is None else usual.median - rate.below
    return Limits(max(low, 0.0), usual=usual)


def _age(freshness: Freshness, loads: Sequence[Load]) -> list[Judged]:
    """Return the age of the newest load, in seconds, with its limit."""
    if not loads:
        return []
    now = datetime.now(UTC).replace(tzinfo=None)
    age, limits = (now - loads[-1].ended_at).total_seconds(), None
    if freshness.seconds is not None:
        limits = Limits(high=freshness.seconds)
    elif len(loads) > LEARNED_FROM:
        ends = [of.ended_at for of in loads[-LOADS - 1 :]]
        gaps = [(after - before).total_seconds() for before, after in pairwise(ends)]
        usual = Band.learn(gaps)
        usual = Band.learn(gaps, usual.median)
        limits = Limits(high=usual.high, usual=usual)
    return [Judged(loads[-1], age, limits)]


def _check(
    staging: Staging,
    scope: Scope,
    what: str,
    role: str,
    title: str,
    expectation: Expectation,
    judged: Sequence[Judged],
    form: Form,
) -> Check:
    """Return the check that values are within their limits. What cannot be judged yet is noted.
    what: the check's name; role: that it is about, "" for the only one, or none."""
    name = f"{role}_{what}" if role else what
    if any(of.limits is None for of in judged):
        staging.notes.append(
            f"Not enough loads yet to learn what is usual ({name}): it takes {LEARNED_FROM} before."
        )
    wrong = [
        (
            of.load.first[0],
            of.load.last[0],
            f"{of.load.ended_at:%Y-%m-%d %H:%M} UTC",
            form(of.value),
            of.limits.text(form),
        )
        for of in judged
        if of.limits is not None and not of.limits.holds(of.value)
    ]
    warns = expectation.action == "warn"
    for batch, to_batch, _, found, expected in wrong if warns else ():
        of = f"batch {batch}" if batch == to_batch else f"batches {batch} to {to_batch}"
        log.warning("%s: %s of %s is %s, expected is %s", scope.app, name, of, found, expected)
    limits = [of.limits.text(form) for of in judged[-1:] if of.limits is not None]
    table = staging.table(
        f"expect_{name}",
        *(Column(n, BigInteger) for n in ("batch", "to_batch")),
        *(Column(n, LongString()) for n in ("ended_at", "found", "expected")),
        rows=wrong,
    )
    return Check(
        what,
        title,
        "A load is what was read between two moments at which nothing waited. "
        + (f"Expected of the newest one: {limits[0]}. " if limits else "")
        + "The limits are of the job's expect.",
        select(table),
        f"Look for what the source lacks, or has too much of. Where it is right as it is, change "
        f"expect in the job, and `semistream verify {scope.app} --job FILE`.",
        warns=warns,
        expected="expected",
        found="found",
    ).about(role)
