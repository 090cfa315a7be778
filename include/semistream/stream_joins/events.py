"""The event-driven framework of PJoin (Ding, Mehta, Rundensteiner, Heineman, section 3.6): monitor, events, listener registry.

Deviation: the paper runs listeners in a second thread; here they run between two steps of the memory join, so that M holds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Event(enum.Enum):
    STREAM_EMPTY = "StreamEmpty"  # both streams have run out of tuples
    STATE_FULL = "StateFull"  # the memory portion has reached M


class Component(enum.Enum):
    """The operator's method that an event runs."""

    STATE_RELOCATION = "state_relocation"
    DISK_JOIN = "disk_join"


@dataclass
class Monitor:
    """Thresholds, which may be changed at run time, and what is measured against them."""

    activation_threshold: int = 1  # tuples of a disk portion that are worth a disk join
    activation_seconds: float = 0.0  # that both streams have been empty
    idle: float = 0.0


Condition = Callable[[Monitor], bool]


class Registry:
    """Event -> condition and ordered components; entries may be set at run time."""

    def __init__(self) -> None:
        self._entries: dict[Event, tuple[tuple[Component, ...], Condition]] = {}

    def set(self, event: Event, components: Sequence[Component], condition: Condition = lambda monitor: True) -> Registry:
        """These components, in this order, where the condition holds; no components: nothing happens."""
        self._entries[event] = tuple(components), condition
        return self

    def listeners(self, event: Event, monitor: Monitor) -> tuple[Component, ...]:
        components, condition = self._entries.get(event, ((), lambda monitor: False))
        return components if condition(monitor) else ()
