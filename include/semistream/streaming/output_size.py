"""An estimate of how many rows a micro-batch will write, before it begins: if several master rows
match a tuple, there may be many times as many rows as tuples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from semistream.master.frequencies import key_frequencies
from semistream.master.manifest import Manifest
from semistream.sizing.role_plan import RolePlan
from semistream.sketches import SkimmedSketch
from semistream.sketches.bounds import FAILURE

MEMORY = 256_000  # bytes of the sketch
CONFIDENCE = 1 - FAILURE


class OutputSize(NamedTuple):
    """The estimated size of the inner join. rows: the estimate; bound: its greatest error with
    probability CONFIDENCE, if the whole batch is like its sample."""

    rows: int
    bound: int


def many_to_many(plan: RolePlan) -> bool:
    """Return whether a tuple may match several rows of the dimension."""
    return not Manifest.read(Path(plan.snapshot)).unique


def estimate_output(plans: Iterable[RolePlan], sample: pa.RecordBatch, tuples: int) -> OutputSize:
    """Estimate the output of the joins of a batch of so many tuples, one after the other, as if a
    tuple's matches in one dimension told nothing of those in another."""
    found = OutputSize(tuples, 0)
    for plan in plans:
        before, found = found, _estimate(plan, sample, found.rows)
        found = found._replace(
            bound=found.bound + round(before.bound * found.rows / max(before.rows, 1))
        )
    return found


def _estimate(plan: RolePlan, sample: pa.RecordBatch, tuples: int) -> OutputSize:
    """Estimate the output of a join from a sample of so many tuples and R's key codes, all of which
    are read."""
    sketch = SkimmedSketch.for_memory(MEMORY)
    codes, valid = plan.placement((sample.schema,)).keys.stream_codes(sample)
    sketch.update(codes[valid])
    value, bound = sketch.join_size_with(key_frequencies(Path(plan.snapshot)))
    scale = tuples / max(sample.num_rows, 1)
    return OutputSize(round(scale * max(value, 0.0)), round(scale * bound))
