"""``algorithm: auto``: the cost models choose the algorithm and its sizes, from a sample of the
stream, the master relation and M."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.cost_models import MODELS, TYPICAL, Costs, Frequencies, Prediction
from semistream.cost_models.bound import Demand, describe_price, highest_rate, price
from semistream.errors import NotEnoughMemory
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.spec import Columns, join_spec
from semistream.joins.stream_probing import PROBE_ROWS
from semistream.joins.whole_master import column_bytes
from semistream.master.relation import MasterRelation
from semistream.sizing.opening import open_join
from semistream.sizing.search import fastest, tune_all
from semistream.sizing.workload import describe

SMALLEST = "hybridjoin"  # it needs the least memory: a disk buffer and a few stream tuples
# times the least work that a bound on waiting may take at the rate of now: a stream may speed up,
# and the choice stays
SPARE = 2.0
# s of a byte of a tuple of R that is copied and written for the rows of one batch only. Measured in
# whole processes, beside joins whose batches have all rows of their tuples.
SCATTERED = 5e-9
# a sample is small if it has fewer tuples than FEW, and than this share of R's tuples
FEW, FEW_SHARE = 10_000, 0.01
COSTS_FILE = "costs.yaml"  # under SEMISTREAM_HOME


@dataclass(frozen=True)
class Choice:
    """The algorithm and the sizes that the cost models have chosen."""

    algorithm: str
    parameters: dict[str, Any]
    reason: str  # for the ledger: one line
    ranking: tuple[Prediction, ...]  # every algorithm that can be used, the fastest first


def known_costs(home: str | Path | None = None) -> Costs:
    """Return this machine's costs, which `calibrate` stored under `home`; ``TYPICAL`` if there are
    none."""
    path = Path(home) / COSTS_FILE if home is not None else None
    return Costs.load(path) if path is not None and path.exists() else TYPICAL


def choose(
    sample: pa.RecordBatch,
    master: MasterRelation,
    memory: int,
    on: Sequence[tuple[str, str]],
    columns: Columns = None,
    *,
    costs: Costs = TYPICAL,
    tuples: float = math.inf,
    demand: Demand | None = None,
    refers: bool = False,
) -> Choice:
    """Return the algorithm and parameters with the highest predicted rate, and the reason. Among
    algorithms with about equal rates, the one that reaches its rate soonest is chosen. demand: a
    bound on waiting, to be kept up to the highest rate. If the demand has a rate, the algorithm
    that needs the least work at that rate is chosen among those that keep the bound.

    sample: stream tuples; some 100,000 of the first micro-batches are enough. tuples: the number of
    the stream's tuples in this run, if known; otherwise the rate is that of the steady state.
    refers: whether the output refers to R's tuples (`Output.refer`), so that rows of the same tuple
    are written in less time if they are in one batch. If M
    is too small for every proposal of the models, ``SMALLEST`` is chosen. Raises NotEnoughMemory if
    M is too small for that too.
    """
    spec = join_spec("", memory, sample.schema, master, on, columns)
    work = describe(spec, sample, stream_tuples=tuples)
    if refers:
        different = work.frequencies.different(PROBE_ROWS) / PROBE_ROWS
        scattered = SCATTERED * different * column_bytes(spec, spec.fetched)
        work = replace(work, scattered=scattered)
    work = demand.of(work) if demand is not None else work

    def opened(algorithm: str, parameters: dict[str, Any]) -> SemiStreamJoin:
        return open_join(
            algorithm,
            memory=memory,
            stream=sample.schema,
            master=master,
            on=on,
            columns=columns,
            parameters=parameters,
            costs=costs,
            sample=sample,
            tuples=tuples,
        )

    def worth(p: Prediction) -> float:
        return (
            p.worth
            if demand is None
            else highest_rate(p, work, costs, MODELS[p.algorithm].phase, demand)
        )

    def busy(p: Prediction) -> float:
        if demand is None or math.isinf(demand.rate):
            return 0.0
        return price(p, work, costs, MODELS[p.algorithm].phase, demand).busy

    ranking = tuple(sorted(tune_all(work, memory, costs), key=worth, reverse=True))
    while ranking:
        best = fastest(cheap(ranking, busy), worth)
        try:
            opened(best.algorithm, best.parameters)
            break
        except NotEnoughMemory:  # the models know R's average partition only, not its largest
            ranking = tuple(p for p in ranking if p is not best)
    else:
        try:
            join = opened(SMALLEST, {})
        except NotEnoughMemory as e:
            raise NotEnoughMemory(e.least, int(memory), f"any of {', '.join(MODELS)}") from None
        reason = (
            f"{SMALLEST}: what needs the least memory; M = {memory:,} bytes is too little to choose"
        )
        return Choice(SMALLEST, join.parameters.model_dump(), reason, ())
    kept = (
        ""
        if demand is None
        else "what keeps max_wait at the highest rate"
        if math.isinf(demand.rate)
        else "what keeps max_wait at the highest rate of those that do so with little work"
    )
    few = 0 < sample.num_rows < min(FEW, FEW_SHARE * master.tuple_count, tuples)
    reason = _reason(best, ranking, memory, master, work.frequencies, costs, tuples, kept, few)
    if demand is not None:
        priced = price(best, work, costs, MODELS[best.algorithm].phase, demand)
        if few:  # at the rate of now, too, the keys decide what the bound costs
            demand = demand._replace(rate=math.inf)
        reason += "; " + describe_price(priced, demand)
    return Choice(best.algorithm, best.parameters, reason, ranking)


def cheap(candidates: Sequence[Any], busy: Callable[[Any], float]) -> list[Any]:
    """Return the candidates that keep a bound on waiting with little work: at most `SPARE` times
    the least share of an operator's time."""
    least = min(map(busy, candidates))
    return [c for c in candidates if busy(c) <= SPARE * least]


def _reason(
    best: Prediction,
    ranking: Sequence[Prediction],
    memory: int,
    master: MasterRelation,
    frequencies: Frequencies,
    costs: Costs,
    tuples: float,
    what: str,
    few: bool,
) -> str:
    """Return the models' prediction for this run as one line. Rates are included if the run's
    length is known and the costs were measured on this machine. what: the reason for which the
    algorithm was chosen, if not its rate; few: whether the sample is too small for numbers."""
    others, bounded = [p for p in ranking if p is not best][:3], math.isfinite(tuples) and not few
    rates = bounded and bool(costs.measured)
    summary = (
        f"about {_about(best.rate)} tuples/s inside the join"
        if rates
        else f"{what or 'the fastest'} by the cost models"
    )
    if bounded:
        summary += (
            f", {best.cache_share:.0%} through the cache, over this run of about "
            f"{tuples:,.0f} tuples, expected"
        )
    behind = ", ".join(
        f"{p.algorithm} {_about(p.rate)}"
        if rates
        else f"{p.algorithm} ({best.worth / p.worth:.1f} times as long)"
        if bounded and p.worth > 0
        else p.algorithm
        for p in others
    )
    return (
        f"{best.algorithm}: {summary} with M = {memory:,} bytes over {master.tuple_count:,} "
        f"master tuples; keys {frequencies.name}{' only' if few else ''}"
        + (f"; next {behind}" if behind else "")
        + f"; costs of {costs.machine}"
        + (
            ""
            if rates or not bounded
            else ", so that no rate is told: `semistream tune --calibrate` measures this one's"
        )
    )


def _about(rate: float) -> str:
    """Format a predicted rate with two significant digits."""
    return f"{float(f'{rate:.2g}'):,.0f}"
