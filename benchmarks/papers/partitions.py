"""How evenly a scanning join uses the partitions of R that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers.measure import CYCLES, Drive
from benchmarks.papers.model import Point
from benchmarks.warm_up import warm_up
from semistream.cost_models import Prediction
from semistream.joins.output import JoinOutput
from semistream.sizing import open_join


def used(bench: Any, point: Point, prediction: Prediction) -> Mapping[str, float]:
    """Return how many pairs of tuples each partition that is read yields, over some passes over R:
    the mean, and the standard deviation divided by the mean.

    bench: a `bench.Bench`.
    """
    data = bench.data(point)
    join = open_join(
        point.algorithm,
        memory=bench.memory(point),
        stream=data.sample.schema,
        master=data.relation,
        on=data.on,
        parameters=prediction.parameters,
    )
    pairs: list[int] = []
    iterate = join.iterate

    def counted() -> Iterator[JoinOutput]:
        before = join.stats.output_rows
        yield from iterate()
        pairs.append(join.stats.output_rows - before)

    join.iterate = counted  # type: ignore[method-assign]
    try:
        drive = Drive(join, data.stream(0), data.batch, bench.clock)
        warm_up(join, drive.feed)
        pairs.clear()
        passes = join.stats.r_cycles + CYCLES
        while join.stats.r_cycles < passes:
            drive.feed()
    finally:
        join.master.close()
    return {
        "partition_pairs": float(np.mean(pairs)),
        "partition_spread": float(np.std(pairs) / np.mean(pairs)),
    }
