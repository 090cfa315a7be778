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
    """The events of section 3.6, with the paper's names."""

    STREAM_EMPTY = "StreamEmpty"  # both streams have run out of tuples
    PURGE_THRESHOLD_REACH = "PurgeThresholdReach"  # enough punctuations since the last purge
    STATE_FULL = "StateFull"  # the memory portion has reached M
    NEW_PUNCT_READY = "NewPunctReady"  # punctuations have come
    PROPAGATE_REQUEST = "PropagateRequest"  # pulled from downstream
    PROPAGATE_TIME_EXPIRE = "PropagateTimeExpire"  # enough seconds since the last propagation
    PROPAGATE_COUNT_REACH = "PropagateCountReach"  # enough punctuations since the last one


class Component(enum.Enum):
    """The operator's methods that events run."""

    STATE_RELOCATION = "state_relocation"
    DISK_JOIN = "disk_join"
    # the disk join of all tuples on disk, which propagation requires
    LEFTOVER_JOIN = "leftover_join"
    STATE_PURGE = "state_purge"
    INDEX_BUILD = "index_build"
    PROPAGATION = "propagation"


@dataclass
class Monitor:
    """Thresholds, which may be changed at run time, and the measurements with which they are
    compared."""

    activation_threshold: int = 1  # least tuples of a disk portion for a disk join
    activation_seconds: float = 0.0  # time that both streams must have been empty
    purge_threshold: int = 1  # punctuations; 1: eager purge
    propagate_count: int = 1  # punctuations; 0: not by count
    propagate_seconds: float = math.inf
    pull: bool = False  # whether downstream asks for propagation, and nothing pushes it
    since_purge: int = 0  # punctuations
    since_propagation: int = 0
    propagated_at: float | None = None

    def propagation_is_due(self, clock: Callable[[], float]) -> bool:
        """Return whether propagation is due according to the time since the last one. The first
        call starts the first interval."""
        if self.propagate_seconds == math.inf:
            return False
        now = clock()
        if self.propagated_at is None:
            self.propagated_at = now
        return now - self.propagated_at >= self.propagate_seconds


# the components that run at an event, in this order; entries may be set at run time
Registry = dict[Event, Sequence[Component]]
