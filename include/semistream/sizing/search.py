"""The best sizes of one algorithm, and the best algorithm, by the cost models. The method is a
bounded optimisation over the logarithms of the sizes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from semistream.cost_models import MODELS, Costs, Prediction, Workload
from semistream.errors import ConfigError, check_name
from semistream.joins.registry import REGISTRY

EVEN = 0.05  # rates this close count as equal
FIRST, OTHERS = 9, 5  # grid points in the coarse search: of the first size, of each other
SIZE, RATE = 0.05, 1e-3  # tolerances of the search: of a size's logarithm, and of a rate's
NEVER = 100.0  # ln of the seconds per tuple of sizes that do not fit M


def predict(
    algorithm: str, work: Workload, memory: float, costs: Costs, **sizes: float
) -> Prediction:
    """Predict w, c_loop, mu and the memory by component of an algorithm with these sizes. Raises
    ConfigError for an unknown algorithm or size."""
    if algorithm not in MODELS:
        raise ConfigError(
            "algorithm",
            f"must be one that has a cost model: {', '.join(MODELS)}",
            algorithm,
            "Choose one of them.",
        )
    model = MODELS[algorithm]
    for name in sizes:
        check_name(name, f"must be a size of {algorithm}", name, model.sizes)
    missing = [n for n in model.sizes if n not in sizes]
    if missing:
        raise ConfigError(missing[0], "must be given", None, "`tune` finds the best value.")
    return replace(model.predict(work, memory, costs, **sizes), scattered=work.scattered)


def tune(algorithm: str, work: Workload, memory: float, costs: Costs, **given: float) -> Prediction:
    """Return the prediction with the sizes that give the highest rate. Given sizes are kept. Raises
    ConfigError when no sizes fit into M."""
    kinds = MODELS[algorithm].sizes if algorithm in MODELS else {}
    names = [n for n in kinds if n not in given]
    limits = [tuple(map(math.log, kinds[n].bounds(work, memory))) for n in names]

    @functools.cache
    def predicted(*sizes: float) -> Prediction:
        chosen = dict(zip(names, sizes, strict=True))
        return predict(algorithm, work, memory, costs, **chosen, **given)

    def cost(x: Iterable[float]) -> float:
        """Return ln of the seconds per stream tuple with the possible sizes nearest to those with
        the logarithms x."""
        near = (kinds[n].nearest(math.exp(v), work, memory) for n, v in zip(names, x, strict=True))
        mu = predicted(*near).worth
        return -math.log(mu) if mu > 0 else NEVER

    def rounded() -> Prediction:
        """Return the prediction with the best possible sizes near ``sizes``: whole pages, whole
        tuples."""
        options = [kinds[n].near(size, work, memory) for n, size in sizes.items()]
        return max(itertools.starmap(predicted, itertools.product(*options)), key=lambda p: p.worth)

    best = _minimum(cost, limits) if names else ()
    sizes = dict(zip(names, map(math.exp, best), strict=True))
    found = rounded()
    # R's largest partition may be far larger than the average one
    while found.rate <= 0 and sizes.get("disk_tuples", 0) > work.page_tuples:
        sizes["disk_tuples"] /= 2
        found = rounded()
    if found.rate <= 0:
        raise ConfigError(
            "memory",
            f"must hold the smallest disk buffer of {algorithm} twice, and "
            "a tuple for each partition",
            int(memory),
            "Give more memory.",
        )
    if found.w_s == 0 and "disk_tuples" in names:
        return _largest_disk_buffer(found, work, memory, costs)
    return found


def _largest_disk_buffer(
    found: Prediction, work: Workload, memory: float, costs: Costs
) -> Prediction:
    """Return a prediction of the same rate with the largest disk buffer that leaves H_R room for
    all occurring values. A large disk buffer makes the first pass over R faster, and nothing
    slower."""
    smallest, size = MODELS[found.algorithm].sizes["disk_tuples"].bounds(work, memory)
    while size > smallest:
        wider = predict(
            found.algorithm,
            work,
            memory,
            costs,
            **found.sizes | {"disk_tuples": _pages(size, work)},
        )
        if wider.w_s == 0 and wider.rate >= found.rate:
            return wider
        size /= 2
    return found


def _pages(disk_tuples: float, work: Workload) -> int:
    """Return the number of tuples rounded down to whole pages, at least one page."""
    return int(max(disk_tuples // work.page_tuples, 1) * work.page_tuples)


def tune_all(
    work: Workload, memory: float, costs: Costs, algorithms: Iterable[str] = tuple(MODELS)
) -> list[Prediction]:
    """Return the best setting of each algorithm that fits into M, the fastest first."""
    found = []
    for algorithm in algorithms:
        try:
            found.append(tune(algorithm, work, memory, costs))
        except ConfigError:
            continue
    return sorted(found, key=lambda p: -p.worth)


def fastest(candidates: Sequence[Any], rate: Callable[[Any], float]) -> Any:
    """Return the candidate with the highest predicted rate. Among candidates with about equal
    rates, one that reaches its rate soon is preferred."""
    best = max(candidates, key=rate)
    warm = max(
        (c for c in candidates if REGISTRY[c.algorithm].warms_up_fast), key=rate, default=best
    )
    return warm if rate(warm) >= (1 - EVEN) * rate(best) else best


def format_sizes(parameters: Mapping[str, Any]) -> str:
    """Format sizes for a reader: ``disk_tuples 1,000, cache_tuples 500``."""
    return ", ".join(f"{k} {v:,}" for k, v in parameters.items())


def _minimum(
    cost: Callable[[tuple[float, ...]], float], limits: list[tuple[float, ...]]
) -> tuple[float, ...]:
    """Return the point of lowest cost. The search starts at the best point of a coarse grid.

    The cost has steps: a batch takes a whole number of iterations, and R is cut into whole pages.
    The lowest cost is often at the edge of a step, where two sizes must change together. So the
    search starts again at its result with the smallest values of all sizes but the first.
    """
    axes = [
        np.linspace(low, high, FIRST if i == 0 else OTHERS).tolist()
        for i, (low, high) in enumerate(limits)
    ]
    found = _descent(cost, min(itertools.product(*axes), key=cost), limits)
    smallest = (found[0], *(low for low, _ in limits[1:]))
    return min(found, _descent(cost, smallest, limits), key=cost) if limits[1:] else found


def _descent(
    cost: Callable[[tuple[float, ...]], float],
    best: tuple[float, ...],
    limits: list[tuple[float, ...]],
) -> tuple[float, ...]:
    """Return the point that is found by moves to the best neighbour, at a distance that is halved
    when no neighbour is better."""
    least, steps = cost(best), _steps(limits)
    while max(steps) > SIZE:
        near = itertools.product(
            *(
                (x, max(x - step, low), min(x + step, high))
                for x, step, (low, high) in zip(best, steps, limits, strict=True)
            )
        )
        found = min(near, key=cost)
        if (now := cost(found)) < least - RATE:
            best, least = found, now
        else:
            steps = [step / 2 for step in steps]
    return best


def _steps(limits: list[tuple[float, ...]]) -> list[float]:
    """Return half the distance between two points of the grid, of each size."""
    points = [FIRST, *itertools.repeat(OTHERS, len(limits) - 1)]
    return [(high - low) / (n - 1) / 2 for n, (low, high) in zip(points, limits, strict=True)]
