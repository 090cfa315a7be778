"""The duration of each phase of a batch, for ``load_commits.phases``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from semistream.warehouse.records import LoadRecord

T = TypeVar("T")
# plan: which files and which plan; schedule: Spark starts the tasks; commit: from the end of the
# tasks until the batch is committed, which is known after its commit only
JOIN = "join"
BEFORE_COMMIT = ("plan", "schedule", "read", JOIN, "write")
COMMIT = "commit"
PHASES = (*BEFORE_COMMIT, COMMIT)


class Reading(Generic[T]):
    """An iterable that adds up the seconds spent waiting for its items."""

    def __init__(self, items: Iterable[T]):
        self._items, self.seconds = items, 0.0

    def __iter__(self) -> Iterator[T]:
        began = time.perf_counter()
        for item in self._items:
            self.seconds += time.perf_counter() - began
            yield item
            began = time.perf_counter()
        self.seconds += time.perf_counter() - began


def timed(record: LoadRecord, read: float, began: float) -> LoadRecord:
    """Return a task's record completed with its times. read: seconds spent on reading; began: start
    of the task, by ``time.perf_counter``."""
    return replace(record, read_seconds=read, task_seconds=time.perf_counter() - began)


def phases(loads: Sequence[LoadRecord], plan: float, tasks: float) -> dict[str, float]:
    """Return the seconds that each phase of a batch before its commit took. For phases inside
    tasks, the slowest task counts.

    plan: seconds before the tasks; tasks: seconds until all tasks had ended.
    """
    slowest = max(loads, key=lambda load: load.task_seconds)
    read, join, all_of_it = slowest.read_seconds, slowest.seconds, slowest.task_seconds
    write = max(all_of_it - read - join, 0.0)
    seconds = (plan, max(tasks - all_of_it, 0.0), read, join, write)
    return dict(zip(BEFORE_COMMIT, seconds, strict=True))
