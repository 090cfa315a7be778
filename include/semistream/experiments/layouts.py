"""Points as the papers lay them out: one parameter varied at a time, or a grid over two sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from semistream.errors import ConfigError
from semistream.experiments.model import MEASURED, Asked, Number, Point, Row, having
from semistream.sizing.search import bounds

R, PERCENT = 100_000_000, (1.0, 2.5, 5.0, 7.5, 10.0)  # the papers' |R|, and M in percent of it
MILLIONS, SKEWS = (20, 40, 60, 80, 100), (0.0, 0.25, 0.5, 0.75, 1.0)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the model's best size


def over_memory(asked: Asked, algorithms: Sequence[str], tuples: int = R,
                percent: Sequence[float] = PERCENT, **rest: Any) -> list[Point]:
    n = round(tuples * asked.scale)
    return [Point(a, n, m / 100, **rest) for m in percent for a in algorithms]


def over_relation(asked: Asked, algorithms: Sequence[str], millions: Sequence[float] = MILLIONS,
                  memory: float = 0.1, **rest: Any) -> list[Point]:
    """M is `memory` of the largest."""
    sizes = [round(m * 1e6 * asked.scale) for m in millions]
    return [Point(a, n, memory, memory_of=max(sizes), **rest) for n in sizes for a in algorithms]


def over_skew(asked: Asked, algorithms: Sequence[str], tuples: int = R, memory: float = 0.1,
              skews: Sequence[float] = SKEWS, **rest: Any) -> list[Point]:
    return [Point(a, round(tuples * asked.scale), memory, s, **rest) for s in skews
            for a in algorithms]


def around(asked: Asked, point: Point, factors: Sequence[float] = FACTORS) -> list[Point]:
    """A grid over the point's sizes, around those of the model's optimum; `at_SIZE` tells the
    factor."""
    best, work, memory = asked.predict(point), asked.work(point), asked.memory(point)
    axes = []
    for name, size in best.sizes.items():
        low, high = bounds(name, work, memory)
        unit = (work.page_tuples if name == "disk_tuples" else 0.001
                if name.endswith("share") else 1.0)
        axis: dict[float, float] = {}
        for f in sorted(factors, key=lambda f: abs(f - 1)):
            near = max(round(min(max(size * f, low), high) / unit), 1) * unit
            axis.setdefault(best.parameters[name] if f == 1 else round(near, 3) if unit < 1
                            else int(near), f)
        axes.append(sorted(axis.items()))
    found = []
    for steps in itertools.product(*axes):
        sizes = tuple(zip(best.sizes, (s for s, _ in steps), strict=True))
        other = replace(point, parameters=sizes,
                        place=tuple(zip((f"at_{n}" for n in best.sizes), (f for _, f in steps),
                                        strict=True)))
        with suppress(ConfigError):  # beyond what M holds
            asked.predict(other)
            found.append(other)
    return found


def lost(rows: Sequence[Row], size: str) -> Number | None:
    """The share of the service rate that the model's size loses against the best one measured, the
    other sizes at the model's best."""
    others = [k for k in (rows[0] if rows else {}) if k.startswith("at_") and k != f"at_{size}"]
    line = having(rows, state=MEASURED, **dict.fromkeys(others, 1.0))
    ours = next((r for r in line if r.get(f"at_{size}") == 1.0), None)
    if ours is None or len(line) < 2:
        return None
    best = max(line, key=lambda r: r["mu"])
    wide = sum(r["mu_interval"] / r["mu"] for r in (ours, best)) if best is not ours else 0.0
    return Number(1 - ours["mu"] / best["mu"], wide)
