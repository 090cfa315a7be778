"""The sizes of operators that the search chooses: which values M allows, and which are possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from semistream.cost_models.costs import Workload
from semistream.joins.frequency_detection import SWITCH_SHARE

SLICES_MOST = 64
FRACTION = 0.001  # unit of sizes that are fractions of 1; their names end in ``share``
CACHED = 0.95  # the most of M that a cache may take, as H_S needs some too


def one(_work: Workload) -> float:
    return 1.0


class Size(NamedTuple):
    """A size that the search chooses.

    bounds: a function that returns the smallest and the largest value, for a workload and M in
    bytes. unit: a function that returns the number whose multiples are the possible values. coarse:
    whether one unit makes a noticeable difference, so that the search tries the values on both
    sides.
    """

    bounds: Callable[[Workload, float], tuple[float, float]]
    unit: Callable[[Workload], float] = one
    coarse: bool = False

    def nearest(self, size: float, work: Workload, memory: float) -> float:
        """Return the possible value nearest to `size`."""
        return min(self.near(size, work, memory), key=lambda value: abs(value - size))

    def near(self, size: float, work: Workload, memory: float) -> list[float]:
        """Return the possible values next to `size`, in ascending order."""
        (low, high), unit = self.bounds(work, memory), self.unit(work)
        at = size / unit
        values = (
            min(max(n * unit, low), high)
            for n in ((math.floor(at), math.ceil(at)) if self.coarse else (round(at),))
        )
        return sorted({round(v, 3) if unit < 1 else max(1, int(v)) for v in values})


def at_most(work: Workload, most: float, least: float = 1.0) -> tuple[float, float]:
    """Return the bounds of a number of master tuples. most: the largest number that M allows;
    least: the lower bound."""
    most = min(most, work.master_tuples)
    return min(least, max(most, 1.0)), max(most, least)


DISK_TUPLES = Size(
    lambda work, m: at_most(work, m / 2 / work.disk_tuple_bytes, work.page_tuples),
    lambda work: work.page_tuples,
    coarse=True,
)
SLICES = Size(lambda _work, _memory: (1.0, SLICES_MOST), coarse=True)
CACHE_TUPLES = Size(
    lambda work, m: at_most(
        work,
        CACHED * m / (work.cached_tuple_bytes + work.cached_key_bytes) / (1 + 1 / SWITCH_SHARE),
    )
)
RESIDENT_TUPLES = Size(lambda work, m: at_most(work, CACHED * m / work.resident_tuple_bytes))
CACHE_SHARE = Size(lambda _work, _memory: (FRACTION, 0.9), lambda _work: FRACTION)
