"""Stopwatches on the parts of an operator, and the pace of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from semistream.joins.key_table import KeyTable

Clock = Literal["wall", "cpu"]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


class Stopwatch:
    """The seconds and tuples of each part of an operator."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tuples: dict[str, float] = {}

    def add(self, part: str, started: float, tuples: int = 0) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + self.clock() - started
        self.tuples[part] = self.tuples.get(part, 0.0) + tuples

    def watch(
        self, owner: Any, method: str, part: str, tuples: Callable[..., int] = lambda *_: 0
    ) -> None:
        """Time a method of one object from now on. If the method is a generator, the time inside it
        is measured."""
        plain = getattr(owner, method)

        def timed(*arguments: Any, **names: Any) -> Any:
            count, started = tuples(*arguments), self.clock()
            out = plain(*arguments, **names)
            self.add(part, started, count)
            return self._steps(out, part) if isinstance(out, Iterator) else out

        setattr(owner, method, timed)

    def _steps(self, steps: Iterator[Any], part: str) -> Generator[Any, None, Any]:
        """Yield the items of an iterator, and add the time inside it to a part."""
        while True:
            started = self.clock()
            try:
                item = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self.add(part, started)
            yield item


class Pace:
    """The pace of this machine: how much slower it is now than at first. It is measured by a fixed
    piece of work that is similar to the joins' work.

    On a shared machine, a time divided by the simultaneous pace estimates the time of an
    undisturbed run.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time, first: float | None = None):
        random = np.random.default_rng(0)
        self.clock = clock
        self.table = KeyTable(random.permutation(1 << 20))
        self.codes = random.integers(0, 1 << 20, 40_000)
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(112), 1 << 16, [None, pa.py_buffer(bytes(112 << 16))]
        )
        self.batch = pa.RecordBatch.from_arrays([payload], ["payload"])
        self.rows = pa.array(random.integers(0, 1 << 16, 20_000))
        self._work()
        self.first = first or float(np.median([self._work() for _ in range(9)]))

    def __call__(self) -> float:
        # fills the processor's caches, whatever the join before has evicted
        self._work()
        return self._work() / self.first

    def _work(self) -> float:
        started = self.clock()
        self.table.find(self.codes)
        self.batch.take(self.rows)
        for first in range(0, 20_000, 200):
            self.batch.slice(first, 200).take(pa.array(np.arange(50))).column(0)
        return self.clock() - started
