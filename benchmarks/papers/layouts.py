"""The points of an experiment in the papers' layouts: one parameter varied at a time, or a grid
over two sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from benchmarks.papers.model import (
    SYMBOLS,
    TITLES,
    Asked,
    At,
    Claim,
    Number,
    Point,
    Row,
    Stated,
    apart,
    change,
    having,
)
from semistream.cost_models import MODELS
from semistream.errors import ConfigError
from semistream.joins import REGISTRY

R, PERCENT = 100_000_000, (1.0, 2.5, 5.0, 7.5, 10.0)  # the papers' |R|, and M in percent of it
MILLIONS, SKEWS = (20, 40, 60, 80, 100), (0.0, 0.25, 0.5, 0.75, 1.0)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # factors of the model's best size
LITTLE, MUCH = At(R, 1.0), At(R, 10.0)  # settings that several figures of the papers share


def over_memory(
    asked: Asked,
    algorithms: Sequence[str],
    tuples: int = R,
    percent: Sequence[float] = PERCENT,
    **rest: Any,
) -> list[Point]:
    n = round(tuples * asked.scale)
    return [Point(a, n, m / 100, **rest) for m in percent for a in algorithms]


def over_relation(
    asked: Asked,
    algorithms: Sequence[str],
    millions: Sequence[float] = MILLIONS,
    memory: float = 0.1,
    **rest: Any,
) -> list[Point]:
    """Return points over |R|, with M a share `memory` of the largest R."""
    sizes = [round(m * 1e6 * asked.scale) for m in millions]
    return [Point(a, n, memory, memory_of=max(sizes), **rest) for n in sizes for a in algorithms]


def over_skew(
    asked: Asked,
    algorithms: Sequence[str],
    tuples: int = R,
    memory: float = 0.1,
    skews: Sequence[float] = SKEWS,
    **rest: Any,
) -> list[Point]:
    return [
        Point(a, round(tuples * asked.scale), memory, s, **rest) for s in skews for a in algorithms
    ]


def stated(
    figure: str, at: At, faster: str, slower: str, times: float, at_most: bool = False
) -> tuple[Stated]:
    return (Stated(figure, at, faster, slower, times, at_most),)


def over_skew_claims(
    first: str, others: Sequence[tuple[str, str]], scans: Sequence[tuple[str, str]]
) -> tuple[Claim, ...]:
    """Return the papers' claims about the skew: the advantage grows with the skew, and a scan's own
    rate "decreases slightly". others, scans: (algorithm, title)."""
    name = REGISTRY[first].title
    return (
        *(
            change(
                f"The advantage of {name} over {title} grows from skew 0.5 to 1",
                "skew",
                0.5,
                1.0,
                first,
                a,
            )
            for a, title in others
        ),
        *(
            change(
                f"{title}'s own service rate is slightly lower at skew 1 than at 0",
                "skew",
                0.0,
                1.0,
                a,
                falls=0.7,
                reading="down to 70% is taken as slightly",
            )
            for a, title in scans
        ),
    )


def around(asked: Asked, point: Point, factors: Sequence[float] = FACTORS) -> list[Point]:
    """Return a grid over the point's sizes around the model's optimum; `at_SIZE` is the factor of a
    size."""
    best, work, memory = asked.predict(point), asked.work(point), asked.memory(point)
    axes = []
    for name, size in best.sizes.items():
        kind = MODELS[point.algorithm].sizes[name]
        (low, high), unit = kind.bounds(work, memory), kind.unit(work)
        axis: dict[float, float] = {}
        for f in sorted(factors, key=lambda f: abs(f - 1)):
            near = max(round(min(max(size * f, low), high) / unit), 1) * unit
            axis.setdefault(
                best.parameters[name] if f == 1 else round(near, 3) if unit < 1 else int(near), f
            )
        axes.append(sorted(axis.items()))
    found = []
    for steps in itertools.product(*axes):
        sizes = tuple(zip(best.sizes, (s for s, _ in steps), strict=True))
        other = replace(
            point,
            parameters=sizes,
            place=tuple(zip((f"at_{n}" for n in best.sizes), (f for _, f in steps), strict=True)),
        )
        with suppress(ConfigError):  # sizes that do not fit into M
            asked.predict(other)
            found.append(other)
    return found


SCATTER = (
    "what a step costs is measured once, before the points, and differs between runs by more than "
    "the claim's figure"
)
SCATTER_SHORT = "a step's costs differ by more between runs"


def deviation(size: str, claimed: str, high: float) -> Claim:
    """Return the claim about the paper's tuning that calculated and measured rates agree at every
    position of a size, with the other sizes at the model's best."""
    return Claim(
        f"Calculated and measured service rates deviate by {claimed} at most, at every "
        f"position of {TITLES[size]}",
        lambda rows: _deviation(_line(rows, size)),
        claimed,
        0,
        high,
        unit="%",
        note=SCATTER,
        short=SCATTER_SHORT,
        reading="the largest relative difference; where the maxima lie says less: they "
        "may fall on the same position of a coarse grid whatever the model says",
    )


def tuned(size: str, claimed: str, high: float) -> Claim:
    """Return the claim about the paper's tuning that the best calculated and the best measured rate
    over a size agree."""
    return Claim(
        f"The best service rate over {TITLES[size]}, calculated and measured, deviates by "
        f"{claimed}",
        lambda rows: _best(_line(rows, size)),
        claimed,
        0,
        high,
        unit="%",
        note=SCATTER,
        short=SCATTER_SHORT,
        reading="the paper does not say of what it is the deviation; taken as that of the "
        "best rates, wherever they lie",
    )


def everywhere(note: str, short: str) -> Claim:
    """Return the claim that both rates agree over the whole surface, which the paper shows without
    a number. note: why they differ where they do; short: the note for a table."""
    return Claim(
        "Calculated and measured service rates, at every position of the grid",
        lambda rows: _deviation(having(rows)),
        "similar",
        0,
        0.1,
        unit="%",
        note=note,
        short=short,
        reading="the largest relative difference; up to 10% is taken as similar",
    )


def optimum(size: str) -> Claim:
    """Return this project's aim that the model's size loses little against the best measured
    size."""
    return Claim(
        f"The model's best {TITLES[size]} loses little against the best measured",
        lambda rows: _lost(_line(rows, size)),
        "under 5%",
        0,
        0.05,
        unit="%",
        aim=True,
    )


def _line(rows: Sequence[Row], size: str) -> list[Row]:
    others = [k for k in (rows[0] if rows else {}) if k.startswith("at_") and k != f"at_{size}"]
    return having(rows, **dict.fromkeys(others, 1.0))


def _deviation(rows: Sequence[Row]) -> Number | None:
    if len(rows) < 2:
        return None
    off = lambda r: abs(r["mu_model"] / r["mu"] - 1)
    worst = max(rows, key=off)
    return Number(off(worst), told=_told(worst))


def _best(line: Sequence[Row]) -> Number | None:
    if len(line) < 2:
        return None
    best = max(line, key=lambda r: r["mu"])
    calculated = max(r["mu_model"] for r in line)
    return Number(abs(calculated / best["mu"] - 1), told=_told(best))


def _told(row: Row) -> str:
    """Describe the position of a figure: what differs there from the calculation, and how much the
    repetitions do."""
    at = ", ".join(
        f"{SYMBOLS[k.removeprefix('at_')]} × {v:g}" for k, v in row.items() if k.startswith("at_")
    )
    c_loop, w = (apart(row[k] / row[f"{k}_model"] - 1) for k in ("c_loop", "w"))
    wide = row.get("mu_interval")
    return f"at {at} c_loop {c_loop}, w {w}" + (
        f", repetitions ± {wide / row['mu']:.1%}" if wide else ""
    )


def _lost(line: Sequence[Row]) -> Number | None:
    ours = [r for r in line if all(v == 1.0 for k, v in r.items() if k.startswith("at_"))]
    if not ours or len(line) < 2:
        return None
    return Number(1 - ours[0]["mu"] / max(r["mu"] for r in line))
