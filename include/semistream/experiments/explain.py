"""Why a ratio is another one here than in the paper: what an iteration is spent on, by the cost
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from semistream.cost_models import Costs, Prediction, Workload
from semistream.cost_models.costs import PHASES
from semistream.errors import ConfigError
from semistream.experiments.bench import Bench
from semistream.experiments.model import Claim, Point
from semistream.joins import REGISTRY

LEAST = 1e-4  # share of an iteration, that is more than rounding
SEEK, BANDWIDTH = 8e-3, 100e6  # s to position, bytes/s: a hard disk of the papers' years
PAPERS = "the paper's |R|, on a hard disk"
WAITS = ("wait_partition", "wait_tuple", "left_partition", "left_tuple")
# fields of a phase's costs; of all of them
TERMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "read R": (("read_partition", "read_code", "payload", "read_payload", *WAITS), ()),
    "look up in H_S": (("look_up",), ()),
    "output": (("output",), ("output_cache",)), "append, remove": (("append", "remove"), ()),
    "read the stream": (("read_stream",), ()), "look up in H_R": ((), ("look_up_cache",)),
    "detect frequent": ((), ("compare", "compare_match", "detection", "switch")),
    "iteration itself": (("iteration", "probe"), ()),
}
PASS = {"read R", "look up in H_S", "iteration itself"}  # those of a scan, whatever waits


@dataclass(frozen=True)
class Share:
    """Of one algorithm at one setting: its predicted rate, and the parts of an iteration by
    term."""

    algorithm: str
    mu: float
    cached: float  # share of the stream through H_R
    terms: dict[str, float]


@dataclass(frozen=True)
class Setting:
    """ratio: of two rates, or of two memories at the same rate."""

    name: str
    ratio: float
    shares: tuple[Share, ...]
    # share of the stream that all of M as a cache of the most frequent tuples would answer
    most: float
    # of two memories: the ratio where stream tuples cost nothing, but only a pass over R
    passes: float = 0.0

    @property
    def bound(self) -> tuple[float, str]:
        """The largest ratio of two rates that the models give at these sizes, whatever the
        operations cost, and the one operation that alone costs something there.

        c_loop is linear in the costs, so that the ratio of two is largest where all but one are 0.
        """
        first, second = self.shares
        return max((first.mu / first.terms[t] / (second.mu / second.terms[t]), t) for t in TERMS
                   if first.terms[t] > LEAST and second.terms[t] > LEAST)


def explain(bench: Bench, points: Sequence[Point]) -> list[Setting]:
    """For two points, whose ratio is the first's rate over the second's, or the first's memory
    where the rate is given: at the papers' size on a hard disk, at the papers' size here, and as
    measured. Empty where the models cannot say."""
    factor = 1 / bench.scale
    costs = bench.costs(points[0].data, points[0].tuples, points[0].skew)
    slow = hard_disk(costs, bench.data(points[0]).tuple_bytes)
    settings = [("as measured here", 1.0, costs)]
    if bench.data(points[0]).scalable:
        settings = [(PAPERS, factor, slow), ("the paper's |R|, on this "
                                                                        "machine", factor, costs),
                    *settings]
    setting = _memories if points[0].needed else _rates
    found = []
    for name, scale, now in settings:
        try:
            found.append(setting(bench, points, name, scale, now))
        except ConfigError:
            continue
    return found


def _rates(bench: Bench, points: Sequence[Point], name: str, factor: float,
           costs: Costs) -> Setting:
    shares = tuple(_share(bench, p, *_at(bench, p, factor), costs) for p in points)
    work, memory = _at(bench, points[0], factor)
    return Setting(name, shares[0].mu / shares[1].mu, shares, _most(work, memory))


def _memories(bench: Bench, points: Sequence[Point], name: str, factor: float,
              costs: Costs) -> Setting:
    """At the rate that the first, without an H_R, has with the share of R that it needs here."""
    first, second = points
    work, _ = _at(bench, first, factor)
    memory = bench.needed(first) * factor

    def other(costs: Costs) -> float:
        rate = bench.predict(first, work, memory, costs).mu
        return bench.needed(replace(second, rate=rate), work, costs)

    needed, alone = other(costs), costs
    for term in TERMS.keys() - PASS:
        alone = without(alone, term)
    shares = (_share(bench, first, work, memory, costs),
              _share(bench, second, work, needed, costs))
    return Setting(name, memory / needed, shares, _most(work, needed), memory / other(alone))


def _most(work: Workload, memory: float) -> float:
    return work.frequencies.top(memory / work.disk_tuple_bytes / work.fan_out)


def _share(bench: Bench, point: Point, work: Workload, memory: float, costs: Costs) -> Share:
    prediction = bench.predict(point, work, memory, costs)
    fixed = replace(point, parameters=tuple({**dict(point.parameters), **prediction.sizes}.items()))

    def again(other: Costs) -> Prediction:
        return bench.predict(fixed, work, memory, other)

    whole = again(costs).c_loop
    return Share(point.algorithm, prediction.mu, prediction.w_n / prediction.w,
                 {term: max(1 - again(without(costs, term)).c_loop / whole, 0.0) for term in TERMS})


def _at(bench: Bench, point: Point, factor: float) -> tuple[Workload, float]:
    return bench.at_scale(point,
                          factor) if factor != 1 else (bench.work(point), bench.memory(point))


def without(costs: Costs, term: str) -> Costs:
    """As if this were free. c_loop is a sum of such terms, so that the difference is its share."""
    phase, general = TERMS[term]

    def nothing(owner: Any, names: Sequence[str]) -> Any:
        zero = {n: tuple(0.0 for _ in getattr(owner, n)) if isinstance(getattr(owner, n), tuple)
                else 0.0 for n in names}
        return replace(owner, **zero)

    return replace(nothing(costs, general),
                   **{p: nothing(getattr(costs, p), phase) for p in PHASES})


def hard_disk(costs: Costs, tuple_bytes: float) -> Costs:
    """The same processor, with R on a disk that must position for a read through the index; a scan
    goes on where it was."""
    slow: dict[str, Any] = {p: replace(getattr(costs, p),
                                       read_partition=SEEK if p == "index" else 0.0, payload=0.0,
                                       read_code=0.0, read_payload=tuple_bytes / BANDWIDTH,
                                       **dict.fromkeys(WAITS, 0.0)) for p in PHASES}
    return replace(costs, **slow)


def sentence(settings: Sequence[Setting]) -> str:
    """What the shares say, in words."""
    parts = []
    for s in settings:
        told = "; ".join(f"{REGISTRY[x.algorithm].title} "
                         f"{', '.join(f'{v:.0%} to {t}' for t, v in _largest(x))}"
                         for x in s.shares)
        parts.append(f"{s.name} the models expect a ratio of {s.ratio:.1f} ({told}).")
    return " ".join(p[0].upper() + p[1:] for p in parts)


def reason(claim: Claim, settings: Sequence[Setting]) -> str:
    """Why a ratio is not the claimed one: this machine, or the paper's model or figure. Empty where
    the models cannot say."""
    if not settings or settings[0].name != PAPERS:
        return ""
    paper = settings[0].ratio
    told = (f"At the paper's |R| and M, with a disk of its years, the models give {paper:.2f}, and "
            f"{settings[-1].ratio:.2f} at the sizes and costs here")
    if claim.low <= paper <= claim.high:
        return f"{told}: they agree with the paper, and what differs is the machine or the scale."
    if passes := settings[0].passes:
        return (f"{told}. Memory lets more tuples share a pass over R: where nothing but a pass "
                f"costs anything, it would be {passes:.2f}. A much larger one follows only where "
                f"the one that needs more spends most of its time on stream tuples; the paper "
                f"prints no costs that would tell.")
    most, term = settings[0].bound
    if paper < claim.low and most < claim.low:
        return (f"{told}. At the paper's sizes the ratio is never more than {most:.2f}, whatever "
                f"the operations cost (that much where nothing but “{term}” costs anything). The "
                f"paper's figure does not follow from the model, at the bytes that tuples take "
                f"here: one of the two is wrong.")
    return (f"{told}. Whether the paper's costs would give its figure cannot be told, as it prints "
            f"none: where nothing but “{term}” costs anything, it would be {most:.2f}.")


def limits(settings: Sequence[Setting]) -> str:
    """What a cache alone can bring: the disk phase has the share of the stream that is left, and no
    more memory than before."""
    first = settings[0]
    cached, plain = first.shares
    if not cached.cached or plain.cached:
        return ""
    told = "; ".join(f"{s.name} {s.shares[0].cached:.0%}, so {_at_most(s.shares[0].cached)}"
                     for s in settings)
    return (f"Through the cache of {REGISTRY[cached.algorithm].title} goes, by the model, this "
            f"share of the stream, and a disk phase like {REGISTRY[plain.algorithm].title}'s has "
            f"the rest, with less memory: {told}. Even all of M as a cache would answer "
            f"{first.most:.0%} {first.name}, so {_at_most(first.most)}.")


def _at_most(cached: float) -> str:
    return (f"at most about {1 / (1 - cached):.1f} times" if cached < 0.999
            else "as good as everything")


def _largest(share: Share) -> list[tuple[str, float]]:
    return sorted(((t, v) for t, v in share.terms.items()), key=lambda x: -x[1])[:2]
