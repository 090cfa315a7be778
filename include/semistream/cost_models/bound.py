"""The cost of a bound on waiting.

A join whose H_S is full reads R once for many tuples. At a lower rate H_S would take minutes to
fill, so that a bound of T seconds makes the join read for fewer tuples. If lambda_S tuples/s miss
H_R, the tuples for each of N partitions arrive as a Poisson process of rate lambda_S / N. The reads
a second are then

- for a scan N / T: it passes over R once in T;
- for the elevator N (1 - exp(-lambda_S T / N)) / T: it stops only where tuples wait;
- for an index N / (T + N / lambda_S): a partition is read T after its first tuple came, and the
  next tuple comes N / lambda_S later.

The steady state of the algorithm, with its H_R, comes from its own model, for the workload that
`Demand.of` returns. If fewer tuples come in T than H_S holds, H_R knows fewer frequent values than
in the steady state (`Prediction.waits`).

A load whose disk is idle works waiting tuples off before the bound. If micro-batches are I seconds
apart, so that the disk is idle between them, each is read for on its own: a scan passes over R once
in I, the others read N (1 - exp(-lambda_S I / N)) / I partitions a second.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from semistream.cost_models.costs import Costs, Prediction, Workload

IDLE = 1.0  # the least s without a micro-batch after which the disk counts as idle
MORE = 1.1  # the least ratio of two rates that are told apart


class Demand(NamedTuple):
    """The demands on a join, and on one of its operators. max_wait: seconds that a tuple may wait;
    rate: lambda, stream tuples/s of all operators, inf if unknown; ahead: seconds of max_wait that
    pass until the next micro-batch, so that only the remainder is left for reading R; idle: I,
    seconds without a micro-batch after which the disk is idle; share: the operator's share of the
    stream; whole: bytes that all operators read, per byte that this one reads."""

    max_wait: float
    rate: float = math.inf
    ahead: float = 0.0
    idle: float = IDLE
    share: float = 1.0
    whole: float = 1.0

    @property
    def bound(self) -> float:
        """T, the seconds within which R must be read for the waiting tuples."""
        return self.max_wait - self.ahead

    def of(self, work: Workload) -> Workload:
        """Return the workload of an operator under this demand."""
        return replace(work, unread=self.rate * self.share * self.bound)


class Price(NamedTuple):
    """The cost of a bound at a rate. bytes_read: bytes of R per second, of all operators; busy:
    share of the operator's time, where 1 is all of it; idle: bytes of R per second, of all
    operators, where the disk is idle between micro-batches."""

    bytes_read: float
    busy: float
    idle: float = 0.0

    @property
    def kept(self) -> bool:
        """Return whether the operator can finish every tuple in time at the demanded rate."""
        return self.busy <= 1


def price(found: Prediction, work: Workload, costs: Costs, phase: str, demand: Demand) -> Price:
    """Return the cost of finishing every tuple in time. found, work: of an operator; phase: the
    disk phase, one of `costs.PHASES`."""
    if found.mu <= 0:
        return Price(math.inf, math.inf, math.inf)
    rate = demand.rate * demand.share
    if found.w_s <= 0:  # nothing waits
        return Price(0.0, rate / found.mu)
    cut, slices = work.partitions(found.sizes["disk_tuples"]), found.sizes.get("slices", 1)
    s = work.symbols(costs, found.h_s, cut.tuples, found.h_r, phase)
    read = work.overlap(s.c_io + cut.tuples * s.c_h + s.c_i, s)
    each = max(found.c_loop - read / slices, 0.0) / found.w
    full = rate / found.w / slices  # reads/s where H_S is full

    def misses(seconds: float) -> float:
        """Return lambda_S, for reads of the same partition that are so far apart."""
        return rate * (found.waits(rate * seconds) if found.waits else found.w_s / found.w)

    reads = max(full, due(phase, cut.number, misses(demand.bound), demand.bound))
    apart = min(demand.idle, demand.bound)
    alone = max(reads, at_once(phase, cut.number, misses(apart), apart))
    each_read = cut.tuples * work.disk_tuple_bytes * demand.whole
    return Price(reads * each_read, reads * read + rate * each, alone * each_read)


def due(phase: str, number: float, misses: float, bound: float) -> float:
    """Return the reads per second that a bound requires. number: N; misses: lambda_S, tuples/s;
    bound: T, s."""
    if phase == "index":
        return number / (bound + number / misses)
    return at_once(phase, number, misses, bound)


def at_once(phase: str, number: float, misses: float, seconds: float) -> float:
    """Return the reads per second if all that waits is finished at once, every so many seconds.
    number, misses: see `due`."""
    waited_for = 1.0 if phase == "scan" else -math.expm1(-misses * seconds / number)
    return number * waited_for / seconds


def highest_rate(
    found: Prediction, work: Workload, costs: Costs, phase: str, demand: Demand
) -> float:
    """Return the highest arrival rate at an operator, tuples/s, at which the bound on waiting can
    be kept; the rate in `demand` is ignored. It is the service rate mu, unless reads that serve few
    tuples take too much time."""
    low, high = 0.0, found.mu
    demand = demand._replace(share=1.0)
    if high <= 0 or price(found, work, costs, phase, demand._replace(rate=high)).busy <= 1 + 1e-6:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        kept = price(found, work, costs, phase, demand._replace(rate=middle)).kept
        low, high = (middle, high) if kept else (low, middle)
    return low


def describe_price(found: Price, demand: Demand) -> str:
    """Return a sentence about the cost of a bound."""
    if math.isinf(demand.rate):
        return f"max_wait {demand.max_wait:.3g} s"
    kept = "" if found.kept else ", more than there is: give more memory, or a larger max_wait"
    each = f", with a micro-batch each {demand.ahead:.3g} s," if demand.ahead else ""
    text = (
        f"max_wait {demand.max_wait:.3g} s at {demand.rate:,.0f} tuples/s{each} takes "
        f"{found.bytes_read / 1e6:,.1f} MB/s of master data and {found.busy:.0%} of the "
        f"time{kept}"
    )
    idle = describe_idle(found.bytes_read, found.idle)
    return "; ".join(filter(None, (text, idle)))


def describe_idle(bytes_read: float, idle: float) -> str:
    """Return a clause about the reads of an idle disk, "" if they are not more. bytes_read, idle:
    see `Price`."""
    if idle <= MORE * bytes_read:
        return ""
    return (
        f"up to {idle / 1e6:,.1f} MB/s where the stream pauses between micro-batches, as an idle "
        "disk works off what waits before the bound"
    )
