"""The event-driven framework of PJoin (Ding, Mehta, Rundensteiner, Heineman, section 3.6): monitor,
events, listener registry.

Deviation: the paper runs listeners in a second thread; here they run between two steps of the
memory join, so that M holds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Event(enum.Enum):
    STREAM_EMPTY = "StreamEmpty"  # both streams have run out of tuples
    PURGE_THRESHOLD_REACH = "PurgeThresholdReach"  # so many punctuations since the last purge
    STATE_FULL = "StateFull"  # the memory portion has reached M
    NEW_PUNCT_READY = "NewPunctReady"  # punctuations have come
    PROPAGATE_REQUEST = "PropagateRequest"  # pulled from downstream
    PROPAGATE_TIME_EXPIRE = "PropagateTimeExpire"  # so many seconds since the last propagation
    PROPAGATE_COUNT_REACH = "PropagateCountReach"  # so many punctuations since the last propagation


class Component(enum.Enum):
    """The operator's method that an event runs."""

    STATE_RELOCATION = "state_relocation"
    DISK_JOIN = "disk_join"
    # the disk join as propagation forces it: of all that is on disk
    LEFTOVER_JOIN = "leftover_join"
    STATE_PURGE = "state_purge"
    INDEX_BUILD = "index_build"
    PROPAGATION = "propagation"


@dataclass
class Monitor:
    """Thresholds, which may be changed at run time, and what is measured against them."""

    activation_threshold: int = 1  # tuples of a disk portion that are worth a disk join
    activation_seconds: float = 0.0  # that both streams have been empty
    purge_threshold: int = 1  # punctuations; 1: eager purge
    propagate_count: int = 1  # punctuations; 0: not by count
    propagate_seconds: float = math.inf
    pull: bool = False  # whether downstream asks for propagation, and nothing pushes it
    idle: float = 0.0
    since_purge: int = 0  # punctuations
    since_propagation: int = 0
    propagated_at: float | None = None

    def is_idle(self) -> bool:
        """Long enough for a disk join."""
        return self.idle >= self.activation_seconds

    def propagation_is_due(self, clock: Callable[[], float]) -> bool:
        """By time; the first interval begins with the first question."""
        if self.propagate_seconds == math.inf:
            return False
        now = clock()
        if self.propagated_at is None:
            self.propagated_at = now
        return now - self.propagated_at >= self.propagate_seconds


Condition = Callable[[Monitor], bool]


def always(_monitor: Monitor) -> bool:
    return True


class Registry:
    """Event -> condition and ordered components; entries may be set at run time."""

    def __init__(self) -> None:
        self._entries: dict[Event, tuple[tuple[Component, ...], Condition]] = {}

    def set(self, event: Event, components: Sequence[Component],
            condition: Condition = always) -> Registry:
        """These components, in this order, where the condition holds; no components: nothing
        happens. A condition is pickled with the operator where another process goes on with it."""
        self._entries[event] = tuple(components), condition
        return self

    def listeners(self, event: Event, monitor: Monitor) -> tuple[Component, ...]:
        components, condition = self._entries.get(event, ((), always))
        return components if condition(monitor) else ()
