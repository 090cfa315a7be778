"""How many rows a micro-batch will bring, before it begins: where several master rows match a
tuple, they may be many times its tuples."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from semistream.master.frequencies import key_frequencies
from semistream.master.manifest import Manifest
from semistream.sizing.plan import Plan
from semistream.sketches import SkimmedSketch
from semistream.sketches.bounds import FAILURE

MEMORY = 256_000  # bytes, of the sketch
CONFIDENCE = 1 - FAILURE


class OutputSize(NamedTuple):
    """rows: estimated of the inner join; bound: what they are off by at most, with probability
    CONFIDENCE, where all of the batch is like its sample."""

    rows: int
    bound: int


def many_to_many(plan: Plan) -> bool:
    """Whether a tuple may match several master rows."""
    return not Manifest.read(Path(plan.snapshot)).unique


def estimate_output(plan: Plan, sample: pa.RecordBatch, tuples: int) -> OutputSize:
    """Of a batch of so many tuples, some of which are the sample: from the sample's sketch and R's
    key codes, all of which are read."""
    sketch = SkimmedSketch.for_memory(MEMORY)
    codes, valid = plan.placement(sample.schema).keys.stream_codes(sample)
    sketch.update(codes[valid])
    value, bound = sketch.join_size_with(key_frequencies(Path(plan.snapshot)))
    scale = tuples / max(sample.num_rows, 1)
    return OutputSize(round(scale * max(value, 0.0)), round(scale * bound))
