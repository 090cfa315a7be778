"""The warm-up of an operator before its rate is measured: one rule for all algorithms, in the
experiments and the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from semistream.joins import REGISTRY, SemiStreamJoin
from semistream.joins.statistics import JoinStatistics

# R-cycles of a window, or turnovers of H_S if R is read through an index. SSBJ admits tuples
# to H_R once in three R-cycles, the first time after the fourth: so every window but the first
# has one admission.
CYCLES = 3
NEAR = 0.05  # relative difference up to which the rates of two successive windows are settled
GROWTH = 1.02  # ratio of H_R's sizes in two successive windows up to which it counts as stable
CACHED = 0.95  # share of a window's tuples through H_R from which the other tuples are ignored
WINDOWS = 20  # most windows


def warm_up(
    join: SemiStreamJoin,
    feed: Callable[[], object],
    seconds: float = 0.0,
    rows: int = 0,
    most_seconds: float = float("inf"),
) -> bool:
    """Feed an operator, window by window, until its rate is settled: two successive windows finish
    equally many stream tuples a second, and H_R does not grow from the first to the second. Return
    False if that takes more than WINDOWS windows or most_seconds.

    A window spans CYCLES R-cycles, or, if R is read through an index, as many turnovers of H_S; if
    nearly all tuples are answered by H_R, as many tuples as R has. seconds, rows: a window spans at
    least these, too.
    """
    deadline, stats, before = time.monotonic() + most_seconds, join.stats, None
    for _ in range(WINDOWS):
        start = replace(stats)
        while not _over(join, start, seconds, rows):
            if time.monotonic() > deadline:
                return False
            feed()
        finished = stats.matched + stats.unmatched - start.matched - start.unmatched
        now = finished / (stats.seconds - start.seconds), join.cached
        if before and abs(now[0] - before[0]) <= NEAR * before[0] and now[1] <= GROWTH * before[1]:
            return True
        before = now
    return False


def _over(join: SemiStreamJoin, start: JoinStatistics, seconds: float, rows: int) -> bool:
    """Return whether the window that began with the statistics `start` is over."""
    now = join.stats
    fed, hits = now.rows_read - start.rows_read, now.cache_hits - start.cache_hits
    if now.seconds - start.seconds < seconds or fed < max(rows, 1):
        return False
    if hits >= CACHED * fed and fed >= join.master.tuple_count:
        return True
    algorithm = REGISTRY.get(join.spec.algorithm)
    if algorithm and not algorithm.needs_index:
        return now.r_cycles - start.r_cycles >= CYCLES
    left = (now.matched + now.unmatched - start.matched - start.unmatched) - hits  # H_S
    return left >= CYCLES * max(now.waiting, 1)
