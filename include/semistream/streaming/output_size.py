"""An estimate of how many rows a micro-batch will write, before it begins. If several master rows
match a tuple, there may be many times as many rows as tuples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from semistream.master.frequencies import key_frequencies
from semistream.master.manifest import Manifest
from semistream.sizing.role_plan import RolePlan
from semistream.sketches import SkimmedSketch
from semistream.sketches.bounds import FAILURE

MEMORY = 256_000  # bytes of the sketch
CONFIDENCE = 1 - FAILURE


def many_to_many(plan: RolePlan) -> bool:
    """Return whether a tuple may match several rows of the dimension."""
    return not Manifest.read(Path(plan.snapshot)).unique


def estimate_output(
    plans: Iterable[RolePlan], sample: pa.RecordBatch, tuples: int
) -> tuple[int, int]:
    """Estimate the output of joining a batch of this many tuples with each dimension in turn. A
    tuple's matches in different dimensions are assumed to be independent. Return (rows, the largest
    error of the estimate with probability CONFIDENCE, if the whole batch is like its sample)."""
    rows, bound = tuples, 0
    for plan in plans:
        before, (rows, error) = rows, _estimate(plan, sample, rows)
        if plan.join_type == "left":  # a tuple without a match has a row, too
            rows = max(rows, before)
        bound = error + round(bound * rows / max(before, 1))
    return rows, bound


def _estimate(plan: RolePlan, sample: pa.RecordBatch, tuples: int) -> tuple[int, int]:
    """Estimate the output of a join from a sample, for a batch of this many tuples. All key codes
    of R are read. Return (rows, bound)."""
    sketch = SkimmedSketch.for_memory(MEMORY)
    codes, valid = plan.keys(sample.schema).stream_codes(sample)
    sketch.update(codes[valid])
    value, bound = sketch.join_size_with(key_frequencies(Path(plan.snapshot)))
    scale = tuples / max(sample.num_rows, 1)
    return round(scale * max(value, 0.0)), round(scale * bound)
