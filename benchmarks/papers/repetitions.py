"""Whole repetitions of an experiment: each in a process of its own, with its points in another
order."""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.papers.model import FAILED, Figures, Runner
from benchmarks.verdicts import half_width

# figures whose intervals are plotted
INTERVALS = ("mu", "c_loop", "needed", "processing_time", "waiting_time", "entry_time",
             "removal_time")
Run = Callable[[Any, Figures | None], dict[str, Any]]


def shuffled(name: str, repetition: int, points: Sequence[Any]) -> list[Any]:
    """Return the points in a random order, which is always the same for one repetition of an
    experiment."""
    return random.Random(f"{name} {repetition}").sample(list(points), len(points))


@contextmanager
def process(open_runner: Callable[..., Runner], *arguments: Any) -> Iterator[Run]:
    """Run points in a new process, with a runner that is opened there."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context, _open, (open_runner, *arguments)) as pool:
        yield lambda point, figures: pool.submit(_run, point, figures).result()


_runner: Runner | None = None  # the runner of this process


def _open(open_runner: Callable[..., Runner], *arguments: Any) -> None:
    global _runner
    _runner = open_runner(*arguments)


def _run(point: Any, figures: Figures | None) -> dict[str, Any]:
    assert _runner is not None
    return _runner.run(point, figures)


def combined(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a point: the means over its repetitions, with half of their 95% intervals as
    X_interval (None for a single repetition). If a repetition failed, its row stands for the point.
    """
    points: dict[str, list[dict[str, Any]]] = {}
    for row in runs:
        points.setdefault(row["point"], []).append(row)
    return [_combined(rows) for rows in points.values()]


def _combined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        if row["state"] == FAILED:
            return row
    found = {k: _mean([r[k] for r in rows]) for k in rows[0] if k != "repetition"}
    wide = {f"{k}_interval": half_width([r[k] for r in rows]) for k in INTERVALS if k in rows[0]}
    return found | {"repetitions": len(rows)} | {
        k: v if math.isfinite(v) else None for k, v in wide.items()}


def _mean(values: list[Any]) -> Any:
    """Return the mean of the values; the first value if they are equal or no numbers; for booleans,
    whether all are true."""
    if isinstance(values[0], bool):
        return all(values)
    if isinstance(values[0], (int, float)) and any(v != values[0] for v in values):
        return float(np.mean(values))
    return values[0]
