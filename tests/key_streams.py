"""Streams of integer keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def chunk(keys):
    return pa.record_batch(
        {"id": pa.array(np.arange(len(keys)), pa.int64()), "k": pa.array(keys, pa.int64())}
    )


def hot(rng, values, chunks, size=500, share=0.8):
    """Chunks of which `share` are of the hot values, the rest uniformly 600..999."""
    for _ in range(chunks):
        yield np.where(
            rng.random(size) < share, rng.choice(values, size), rng.integers(600, 1000, size)
        )
