"""The cost models compared with measurements, for every algorithm. The caller chooses the settings;
the aims are this project's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.papers.common import algorithms, error
from benchmarks.papers.layouts import around
from benchmarks.papers.model import (
    MEASURED,
    Asked,
    Claim,
    Experiment,
    Number,
    Plot,
    Point,
    Row,
    having,
)
from semistream.joins import REGISTRY

# the models' median error; what the model's sizes may lose of the best service rate on a grid
AIM, NEAR = 0.1, 0.05
ALL = algorithms()
LACKS = (
    "the printed equations lack the terms that the docstrings in `cost_models/` list as "
    "corrections: the rows without “as printed” have them"
)


def _grid(asked: Asked, names: Sequence[str]) -> list[Point]:
    return [
        Point(a, n, m / 100, s)
        for a in names
        for n in asked.tuples
        for m in asked.percent
        for s in asked.skews
    ]


def _sizes(asked: Asked, names: Sequence[str]) -> list[Point]:
    return [
        p
        for a in names
        for n in asked.tuples[-1:]
        for m in asked.percent[-2:]
        for s in asked.skews[-1:]
        for p in around(asked, Point(a, n, m / 100, s), (0.5, 1.0, 2.0))
    ]


def _error(who: str, y: str, by: str = "model", **where: Any) -> Claim:
    printed = " as printed" if by == "printed" else ""
    return Claim(
        f"{who}: median error of {y}{printed}",
        partial(error, y=y, by=f"{y}_{by}", **where),
        "under 10%",
        0,
        AIM,
        unit="%",
        aim=True,
        note=LACKS if printed else "",
    )


def _lost(rows: Sequence[Row], algorithm: str) -> Number | None:
    """Return the largest loss by the model's sizes on any of the algorithm's grids."""
    mine, losses = having(rows, state=MEASURED, algorithm=algorithm), []
    for memory in {r["memory"] for r in mine}:
        grid = [r for r in mine if r["memory"] == memory]
        ours = [r for r in grid if all(v == 1.0 for k, v in r.items() if k.startswith("at_"))]
        if ours and len(grid) > 1:
            losses.append(Number(1 - ours[0]["mu"] / max(r["mu"] for r in grid)))
    return max(losses, key=lambda n: n.value, default=None)


EXPERIMENTS = (
    Experiment(
        "cost-models",
        "ours",
        "",
        "predicted beside measured c_loop and mu, over a grid of "
        "M, |R| and skew (--memory, --master, --skew)",
        _grid,
        ALL,
        (
            *(_error("all", y, by) for y in ("c_loop", "mu") for by in ("printed", "model")),
            *(_error(REGISTRY[a].title, y, algorithm=a) for a in ALL for y in ("c_loop", "mu")),
        ),
        tuple(
            Plot(
                f"c_loop of {REGISTRY[a].title}",
                "c_loop",
                "c_loop",
                models=("model", "printed"),
                log="xy",
                only={"algorithm": a},
                caption="On the line, calculated is as measured.",
            )
            for a in ALL
        ),
        scale=1.0,
        least=1.0,
    ),
    Experiment(
        "tuned-sizes",
        "ours",
        "",
        "the sizes that the models choose, among others around them (--memory, --master, --skew)",
        _sizes,
        ALL,
        tuple(
            Claim(
                f"{REGISTRY[a].title}: the model's sizes are within 5% of the best measured",
                partial(_lost, algorithm=a),
                "5%",
                0,
                NEAR,
                unit="%",
                aim=True,
            )
            for a in ALL
        ),
        (),
        scale=1.0,
        least=1.0,
    ),
)
