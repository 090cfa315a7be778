"""An estimate of how many rows a micro-batch will write, before it begins: if several master rows
match a tuple, there may be many times as many rows as tuples."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from semistream.master.frequencies import key_frequencies
from semistream.sizing.role_plan import RolePlan
from semistream.sketches import SkimmedSketch
from semistream.sketches.bounds import FAILURE

MEMORY = 256_000  # bytes of the sketch
CONFIDENCE = 1 - FAILURE


def estimate_output(plan: RolePlan, sample: pa.RecordBatch, tuples: int) -> tuple[int, int]:
    """Estimate the output of the inner join of a batch of so many tuples from a sample of them and
    R's key codes, all of which are read. Return (rows, the greatest error of that with probability
    CONFIDENCE, if the whole batch is like its sample)."""
    sketch = SkimmedSketch.for_memory(MEMORY)
    codes, valid = plan.placement((sample.schema,)).keys.stream_codes(sample)
    sketch.update(codes[valid])
    value, bound = sketch.join_size_with(key_frequencies(Path(plan.snapshot)))
    scale = tuples / max(sample.num_rows, 1)
    return round(scale * max(value, 0.0)), round(scale * bound)
