"""Explanations of why a ratio differs from the paper's: how an iteration spends its time, according
to the cost model."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.papers.bench import Bench
from benchmarks.papers.model import Claim, Point
from semistream.cost_models import MODELS, Costs, Prediction, Workload
from semistream.cost_models.costs import PHASES
from semistream.errors import ConfigError
from semistream.joins import REGISTRY

SHARE = 1e-6  # the least share of the costs that is not rounding
GRID = {1: 64, 2: 20}  # values of each size that a bound tries, by the number of sizes to tune
SEEK, BANDWIDTH = 8e-3, 100e6  # s to position, and bytes/s, of a hard disk of the papers' time
PAPERS = "the paper's |R|, on a hard disk"
MACHINE = "the paper's |R|, on this machine"
WAITS = ("wait_partition", "wait_tuple", "left_partition", "left_tuple")
# fields of a phase's costs; fields of the general costs
TERMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "read R": (("read_partition", "read_code", "payload", "read_payload", *WAITS), ()),
    "look up in H_S": (("look_up",), ()),
    "output": (("output",), ("output_cache",)),
    "append, remove": (("append", "remove"), ()),
    "read the stream": (("read_stream",), ()),
    "look up in H_R": ((), ("look_up_cache",)),
    "detect frequent": ((), ("compare", "compare_match", "detection", "switch")),
    "iteration itself": (("iteration", "probe"), ()),
}
PASS = {"read R", "look up in H_S", "iteration itself"}  # a scan's terms without waiting tuples


@dataclass(frozen=True)
class Share:
    """The predicted rate of one algorithm at one setting, and the share of each term in an
    iteration's cost."""

    algorithm: str
    mu: float
    cached: float  # share of the stream through H_R
    terms: dict[str, float]


@dataclass(frozen=True)
class Bound:
    """The largest ratio of two service rates over all sizes of both algorithms and all costs of the
    operations. terms: the terms that have a cost where the ratio is the largest."""

    ratio: float
    terms: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """The prediction for two algorithms at one setting. ratio: of two rates, or of two memories at
    the same rate."""

    name: str
    ratio: float
    shares: tuple[Share, ...]
    # the share of the stream that a cache as large as M would answer
    most: float
    # of two memories: the ratio if only a pass over R had a cost, and stream tuples had none
    passes: float = 0.0
    bound: Bound | None = None  # of two rates, at the paper's |R| and M


def explain(bench: Bench, points: Sequence[Point]) -> list[Setting]:
    """Return the predictions for two points at the papers' size on a hard disk, at the papers' size
    on this machine, and as measured. A prediction's ratio is the first point's rate over the
    second's, or the first's memory over the second's if the rate is given. Settings that the models
    cannot predict are omitted."""
    factor = 1 / bench.scale
    costs = bench.costs(points[0].data, points[0].tuples, points[0].skew)
    slow = hard_disk(costs, bench.data(points[0]).tuple_bytes)
    settings = [("as measured here", 1.0, costs)]
    if bench.data(points[0]).scalable:
        settings = [(PAPERS, factor, slow), (MACHINE, factor, costs), *settings]
    setting = _memories if points[0].needed else _rates
    found = []
    for name, scale, now in settings:
        try:
            found.append(setting(bench, points, name, scale, now))
        except ConfigError:
            continue
    return found


def _rates(
    bench: Bench, points: Sequence[Point], name: str, factor: float, costs: Costs
) -> Setting:
    shares = tuple(_share(bench, p, *_at(bench, p, factor), costs) for p in points)
    work, memory = _at(bench, points[0], factor)
    bound = largest(*(_seconds(bench, p, *_at(bench, p, factor), costs) for p in points))
    return Setting(
        name,
        shares[0].mu / shares[1].mu,
        shares,
        _most(work, memory),
        bound=bound if name == PAPERS else None,
    )


def _seconds(bench: Bench, point: Point, work: Workload, memory: float, costs: Costs) -> np.ndarray:
    """Return the seconds per stream tuple that each term takes, float64[sizes, terms]. Each row is
    one choice of the sizes that the point leaves open: the sizes of a grid, and the best sizes for
    these costs and for the costs of each single term."""
    model, given = MODELS[point.algorithm], dict(point.parameters)
    known = inspect.signature(model.predict).parameters
    names = [n for n in model.sizes if n not in given]
    axes = [np.geomspace(*model.sizes[n].bounds(work, memory), GRID[len(names)]) for n in names]
    alone, best = [_only(costs, t) for t in TERMS], []
    for c in (costs, *alone):
        with suppress(ConfigError):  # this algorithm does not have the term
            tuned = bench.predict(point, work, memory, c).sizes
            best.append(tuple(tuned[n] for n in names))
    rows = []
    for sizes in [*best, *itertools.product(*axes)]:
        fixed = dict(zip(names, sizes, strict=True)) | {
            k: v for k, v in given.items() if k in known
        }
        if model.predict(work, memory, costs, **fixed).mu > 0:  # it fits M
            found = (model.predict(work, memory, c, **fixed) for c in alone)
            rows.append([p.c_loop / p.w for p in found])
    return np.array(rows)


def largest(first: np.ndarray, second: np.ndarray) -> Bound:
    """Return the largest ratio of the first algorithm's rate to the second's. Each has the best
    sizes for the costs at which the ratio is taken.

    first, second: seconds per stream tuple, float64[sizes, terms]. The seconds are linear in the
    costs. For given sizes of the first, the costs solve a linear program: it maximises the least
    seconds of the second while the first needs one second.
    """
    from scipy.optimize import linprog

    terms = first.shape[1]
    unit = np.minimum(first.min(0), second.min(0))  # scales each term for the linear program
    unit[unit <= 0] = np.maximum(first.max(0), second.max(0))[unit <= 0]
    unit[unit <= 0] = 1.0
    first, second = _efficient(first / unit), _efficient(second / unit)
    ratio, costs = 0.0, np.zeros(terms)
    for row in first:
        found = linprog(
            [*np.zeros(terms), -1.0],
            A_ub=np.column_stack([-second, np.ones(len(second))]),
            b_ub=np.zeros(len(second)),
            A_eq=[[*row, 0.0]],
            b_eq=[1.0],
        )
        if found.status == 3:
            return Bound(math.inf, ())
        if -found.fun > ratio:
            ratio, costs = -found.fun, found.x[:-1] * row
    return Bound(float(ratio), tuple(t for t, c in zip(TERMS, costs, strict=True) if c > SHARE))


def _efficient(rows: np.ndarray) -> np.ndarray:
    """Return the rows that no other row dominates."""
    kept: list[np.ndarray] = []
    for row in rows[np.argsort(rows.sum(1))]:
        if not any((k <= row * (1 + 1e-9)).all() for k in kept):
            kept.append(row)
    return np.array(kept)


def _only(costs: Costs, term: str) -> Costs:
    for other in TERMS.keys() - {term}:
        costs = without(costs, other)
    return costs


def _memories(
    bench: Bench, points: Sequence[Point], name: str, factor: float, costs: Costs
) -> Setting:
    """Compare the memories that two algorithms need for the same rate. The rate is the one that the
    first algorithm, which has no H_R, reaches with the share of R that it needs here."""
    first, second = points
    work, _ = _at(bench, first, factor)
    memory = bench.needed(first) * factor

    def other(costs: Costs) -> float:
        rate = bench.predict(first, work, memory, costs).mu
        return bench.needed(replace(second, rate=rate), work, costs)

    needed, alone = other(costs), costs
    for term in TERMS.keys() - PASS:
        alone = without(alone, term)
    shares = (_share(bench, first, work, memory, costs), _share(bench, second, work, needed, costs))
    return Setting(name, memory / needed, shares, _most(work, needed), memory / other(alone))


def _most(work: Workload, memory: float) -> float:
    return work.frequencies.top(memory / work.disk_tuple_bytes / work.fan_out)


def _share(bench: Bench, point: Point, work: Workload, memory: float, costs: Costs) -> Share:
    prediction = bench.predict(point, work, memory, costs)
    fixed = replace(point, parameters=tuple({**dict(point.parameters), **prediction.sizes}.items()))

    def again(other: Costs) -> Prediction:
        return bench.predict(fixed, work, memory, other)

    whole = again(costs).c_loop
    return Share(
        point.algorithm,
        prediction.mu,
        prediction.w_n / prediction.w,
        {term: max(1 - again(without(costs, term)).c_loop / whole, 0.0) for term in TERMS},
    )


def _at(bench: Bench, point: Point, factor: float) -> tuple[Workload, float]:
    return (
        bench.at_scale(point, factor) if factor != 1 else (bench.work(point), bench.memory(point))
    )


def without(costs: Costs, term: str) -> Costs:
    """Return costs in which this term is free. Because c_loop is a sum of such terms, the
    difference is the term's share."""
    phase, general = TERMS[term]

    def nothing(owner: Any, names: Sequence[str]) -> Any:
        zero = {
            n: tuple(0.0 for _ in getattr(owner, n))
            if isinstance(getattr(owner, n), tuple)
            else 0.0
            for n in names
        }
        return replace(owner, **zero)

    return replace(
        nothing(costs, general), **{p: nothing(getattr(costs, p), phase) for p in PHASES}
    )


def hard_disk(costs: Costs, tuple_bytes: float) -> Costs:
    """Return the costs of the same processor with R on a hard disk, which must position for a read
    through the index, but not for the next read of a scan."""
    slow: dict[str, Any] = {
        p: replace(
            getattr(costs, p),
            read_partition=SEEK if p == "index" else 0.0,
            payload=0.0,
            read_code=0.0,
            read_payload=tuple_bytes / BANDWIDTH,
            **dict.fromkeys(WAITS, 0.0),
        )
        for p in PHASES
    }
    return replace(costs, **slow)


def sentence(settings: Sequence[Setting]) -> str:
    """Describe the shares in words."""
    parts = []
    for s in settings:
        summary = "; ".join(
            f"{REGISTRY[x.algorithm].title} {', '.join(f'{v:.0%} to {t}' for t, v in _largest(x))}"
            for x in s.shares
        )
        parts.append(f"{s.name} the models expect a ratio of {s.ratio:.1f} ({summary}).")
    return " ".join(p[0].upper() + p[1:] for p in parts)


def reason(claim: Claim, settings: Sequence[Setting], here: float | None = None) -> str:
    """Explain why a ratio is not the claimed one: because of this machine, or because of the
    paper's model or figure. The explanation is empty if the models cannot provide one.

    here: the models' prediction when the ratio was measured; by default, their present prediction.
    """
    if not settings or settings[0].name != PAPERS:
        return ""
    paper = settings[0].ratio
    summary = (
        f"At the paper's |R| and M, with a disk of its years, the models give {paper:.2f}, and "
        f"{here or settings[-1].ratio:.2f} at the sizes and costs here"
    )
    if claim.low <= paper <= claim.high:
        differs = _differs(claim, settings, here or settings[-1].ratio)
        return f"{summary}: they agree with the paper. {differs}"
    if passes := settings[0].passes:
        return (
            f"{summary}. Memory lets more tuples share a pass over R: where nothing but a pass "
            f"costs anything, it would be {passes:.2f}. A much larger one follows only where "
            f"the one that needs more spends most of its time on stream tuples; the paper "
            f"prints no costs that would tell."
        )
    bound = settings[0].bound
    if paper > claim.high or bound is None:
        return f"{summary}. The paper prints no costs that would tell whether its figure follows."
    held = (
        "over all sizes that can be tuned and all costs of the operations (held fixed: M, the "
        "bytes of a tuple, and how a cost grows with its table here)"
    )
    if bound.ratio < claim.low:
        return (
            f"{summary}. The most that the models give, {held}, is {bound.ratio:.2f}: the paper's "
            f"figure does not follow from them."
        )
    return (
        f"{summary}. The most that they can give, {held}, is {bound.ratio:.2f}, where only "
        f"{' and '.join(f'“{t}”' for t in bound.terms)} cost anything. The paper prints no "
        f"costs: its figure is possible by the models, and whether it follows cannot be told."
    )


def _differs(claim: Claim, settings: Sequence[Setting], here: float) -> str:
    """Say what differs from a paper with whose claim the models agree: the machine, the scale, or
    what is measured from what the models predict for it."""
    machine = _by_this_machine(settings)
    told = f" (at the paper's |R|, with this machine's costs: {machine:.2f})" if machine else ""
    if claim.low <= here <= claim.high:
        return "They do so here as well, so that what differs is the measurement."
    if machine and not claim.low <= machine <= claim.high:
        return f"What differs is the machine{told}."
    return f"What differs is the scale{told}."


def _by_this_machine(settings: Sequence[Setting]) -> float | None:
    return next((s.ratio for s in settings if s.name == MACHINE), None)


def brief(claim: Claim, settings: Sequence[Setting], here: float | None = None) -> str:
    """Give the explanation of `reason` in a few words, for a table."""
    if not settings or settings[0].name != PAPERS:
        return ""
    paper, bound = settings[0].ratio, settings[0].bound
    summary = f"models {paper:.2f}"
    if claim.low <= paper <= claim.high:
        machine = _by_this_machine(settings)
        of_it = f"this machine {machine:.2f}, " if machine else ""
        return f"{summary}, as claimed; {of_it}here {here or settings[-1].ratio:.2f}"
    return f"{summary}, at most {bound.ratio:.2f}" if paper < claim.low and bound else summary


def limits(settings: Sequence[Setting]) -> str:
    """Describe how much a cache alone can gain if the disk phase gets the rest of the stream, and
    no more memory than before."""
    first = settings[0]
    cached, plain = first.shares
    if not cached.cached or plain.cached:
        return ""
    summary = "; ".join(
        f"{s.name} {s.shares[0].cached:.0%}, so {_at_most(s.shares[0].cached)}" for s in settings
    )
    return (
        f"Through the cache of {REGISTRY[cached.algorithm].title} goes, by the model, this "
        f"share of the stream, and a disk phase like {REGISTRY[plain.algorithm].title}'s has "
        f"the rest, with less memory: {summary}. Even all of M as a cache would answer "
        f"{first.most:.0%} {first.name}, so {_at_most(first.most)}."
    )


def _at_most(cached: float) -> str:
    return (
        f"at most about {1 / (1 - cached):.1f} times" if cached < 0.999 else "as good as everything"
    )


def _largest(share: Share) -> list[tuple[str, float]]:
    return sorted(((t, v) for t, v in share.terms.items()), key=lambda x: -x[1])[:2]
