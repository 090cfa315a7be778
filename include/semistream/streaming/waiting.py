"""``max_wait``: how long a stream tuple may wait for R while a load is running.

After a micro-batch the stream buffer is empty. In SSJ and SSCJ the disk-probing phase then becomes
active for one iteration; in the other joins it waits for w tuples or for a full H_S. Therefore a
load whose trigger is an interval spreads a pass over R over the bound: with every micro-batch the
disk-probing phase of every join becomes active and continues by the share of a pass that has become
due (`SemiStreamJoin.keep_up`). If no micro-batch comes, the disk is idle, and waiting tuples are
finished.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from semistream.cost_models import Costs
from semistream.cost_models.bound import IDLE, Demand
from semistream.errors import ConfigError
from semistream.joins import SemiStreamJoin
from semistream.joins.disk_partition import DiskPartition
from semistream.streaming.phases import BEFORE_COMMIT, JOIN

log = logging.getLogger(__name__)
SHARE = 1 / 4  # largest share of the time that passes over R may take if no bound is given
MOST_SHARE = 1 / 2  # the same if a bound is given
TRIGGERS = 2  # the least bound, in triggers: one to read a tuple, one to finish it
SAMPLED = 100_000  # tuples of a micro-batch that auto samples
READ = 16  # partitions that are read to estimate a pass
WARN_EVERY = 60.0  # s between two warnings
COARSE = 1.1  # waits are recorded in steps of 9%


class Pace(NamedTuple):
    """The arguments of ``SemiStreamJoin.keep_up``."""

    seconds: float
    bound: float


def pass_seconds(join: SemiStreamJoin, costs: Costs) -> float:
    """Return the seconds of a pass over R when no stream tuples wait: the measured time for reading
    some partitions, scaled to R, plus the modelled costs of the iterations."""
    n = join.master.partition_count
    if not n:
        return 0.0
    numbers = sorted({int(i * n / READ) for i in range(READ)})
    DiskPartition(join.spec, numbers[0]).read()  # imports, and opens files
    begun = time.perf_counter()
    tuples = 0
    for number in numbers:
        partition = DiskPartition(join.spec, number)
        partition.read()
        tuples += len(partition.codes)
    each = (time.perf_counter() - begun) / len(numbers)
    d = tuples / len(numbers)
    s = costs.at(max(join.h_s.live, 1), d)
    return n * (each + d * s.c_h + s.c_i)


class WaitingBound:
    """The longest time that a tuple of a load may wait. seconds: None if tuples may wait until the
    load ends."""

    def __init__(self, given: float, trigger: float | None):
        """Set the bound. given: seconds, 0 for the smallest bound that is cheap; trigger: seconds
        between micro-batches, None if the load ends when all available input is read. Raises
        ConfigError."""
        self._given, self._trigger = given, trigger
        self.seconds: float | None = given or None
        self._pass, self._before, self._warned = 0.0, 0.0, -math.inf
        self._phases: Mapping[str, float] = {}  # of the last micro-batch, seconds
        self._interval = trigger or 0.0  # s between the last two micro-batches
        self._paced, self._began = 0, time.monotonic()  # micro-batches of this run, and its start
        if given and given < (least := TRIGGERS * (trigger or 0.0)):
            raise ConfigError(
                "max_wait",
                f"must be at least {TRIGGERS} triggers, {least:g} s",
                given,
                "Give more, or a shorter trigger.",
            )

    def choose(self, seconds: float) -> None:
        """Choose the bound for passes over R that take this many seconds. Raises ConfigError if a
        given bound cannot be kept; a running load only logs this."""
        self._pass, trigger = seconds, self._trigger or 0.0
        least = max(TRIGGERS * trigger, trigger + seconds / MOST_SHARE)
        if self._given and self._given < least:
            refusal = ConfigError(
                "max_wait",
                f"must be at least {least:.3g} s: a pass over R, in which every tuple "
                f"meets it, takes {seconds:.3g} s, and may take half of the time",
                self._given,
                "Give more, or more partitions on more cores, each of which reads its part of R.",
            )
            if not self._before:
                raise refusal
            log.warning("%s", refusal)
        if self._trigger is None and not self._given:
            return
        cheap = max(TRIGGERS * trigger, trigger + seconds / SHARE)
        former, self.seconds = self.seconds, self._given or cheap
        if self.seconds != former or self._before == 0.0:
            log.info(
                "max_wait: a tuple waits for its master data for at most %.3g s (a pass over "
                "R takes %.3g s)",
                self.seconds,
                seconds,
            )

    def demand(self, tuples: int) -> Demand | None:
        """Return the demands of the bound on an algorithm. tuples: how many tuples of the first
        micro-batch were sampled."""
        if self.seconds is None:
            return None
        rate = tuples / self._trigger if self._trigger and 0 < tuples < SAMPLED else math.inf
        return Demand(self.seconds, rate, self.seconds - self._within(), self._idle_after)

    def pace(self) -> Pace | None:
        """Return how far operators must proceed in the micro-batch that begins now: by a trigger's
        share at least, because a micro-batch that begins some milliseconds sooner after the former
        one would otherwise leave the end of a pass, and the tuples that wait for it, to the next
        one."""
        if self.seconds is None:
            return None
        now = time.monotonic()
        if self._before:
            self._interval = now - self._before
        self._before = now
        self._paced += 1
        return Pace(max(self._interval, self._trigger or 0.0), self._within())

    def _within(self) -> float:
        """Return the seconds over which a pass over R is spread: the bound minus the time until the
        next micro-batch, but at least half of the bound."""
        assert self.seconds is not None
        ahead = max(self._trigger or 0.0, self._interval)
        return max(self.seconds - ahead, self.seconds / 2)

    def idle(self, seconds: float) -> bool:
        """Return whether the disk is idle, because no tuple came for as long as a pass over R
        takes."""
        return seconds > self._idle_after

    @property
    def _idle_after(self) -> float:
        """The seconds without a tuple after which the disk is idle."""
        if self._trigger is None:
            return math.inf
        return min(self._trigger, max(IDLE, self._pass))

    def check(self, longest: float, phases: Mapping[str, float]) -> None:
        """Log a warning if tuples waited longer than the bound. longest: the longest wait, seconds;
        phases: the seconds of each phase of the micro-batch, as in ``phases.BEFORE_COMMIT``."""
        former, self._phases = self._phases, phases
        if self.seconds is None or longest <= COARSE * self.seconds:
            return
        now = time.monotonic()
        if now - self._warned < WARN_EVERY:
            return
        # tuples that waited before this run were due in its first micro-batch
        if self._paced < 2 and longest > COARSE * (now - self._began):
            log.warning(
                "tuples waited for up to %.3g s, longer than max_wait, %.3g s, with the "
                "time before this start of the load",
                longest,
                self.seconds,
            )
            return
        self._warned = now
        # a tuple that this micro-batch finished came with it, or with the one before
        taken = {name: former.get(name, 0.0) + phases.get(name, 0.0) for name in BEFORE_COMMIT}
        phase = max(taken, key=lambda name: taken[name])
        log.warning(
            "tuples waited for up to %.3g s, longer than max_wait, %.3g s. Of the last two "
            "micro-batches the phase %s took the most time, %.3g s. To keep a bound give %s"
            "smaller micro-batches (max_files, max_rows) or a max_wait of %.2g s",
            longest,
            self.seconds,
            phase,
            taken[phase],
            "more memory, more partitions on more cores, " if phase == JOIN else "",
            1.5 * longest,
        )
