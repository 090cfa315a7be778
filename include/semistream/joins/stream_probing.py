"""The stream-probing phase, or cache phase, of the joins with a cache: tuples whose keys H_R knows
are joined at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.master_cache import MasterCache
from semistream.joins.master_cache_kernels import UNKNOWN
from semistream.joins.output import JoinOutput, Output
from semistream.joins.stream_buffer import pieces

PROBE_ROWS, LEAST_PROBED = 65_536, 1024  # stream tuples per step, at most and at least


def steps(
    batch: pa.RecordBatch, codes: np.ndarray, h_s: float
) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Split a batch into steps, and yield (tuples, key codes int64[n]) for each step. h_s: tuples
    that H_S holds."""
    return pieces(batch, codes, step_rows(h_s))


def step_rows(h_s: float) -> int:
    """Return the number of tuples in a step: at most a quarter of the tuples that H_S holds,
    because H_R changes while the misses wait to enter H_S."""
    return min(PROBE_ROWS, max(int(h_s / 4), LEAST_PROBED))


def probe(
    h_r: MasterCache, batch: pa.RecordBatch, codes: np.ndarray, output: Output
) -> Generator[JoinOutput, None, np.ndarray]:
    """Join the tuples whose keys H_R knows. Return the rows with other keys, int64[n].

    A tuple whose key is cached but matches nothing has no match in R, because H_R holds all master
    tuples of a cached key.
    """
    firsts, counts, hits = h_r.probe(codes)
    if not hits:
        return np.arange(len(codes))
    matched = np.zeros(len(codes), bool)
    for rows, slots in output.cut(h_r.pairs(firsts, counts)):
        stream, master, rows = output.equal(
            batch.take(pa.array(rows)).columns, output.tuples(slots, h_r.store.get), rows
        )
        matched[rows] = True
        if len(rows):
            yield output.joined(stream, master)
    output.statistics.cache_hits += hits
    output.statistics.paper_times.answer(hits)
    output.matched_at_once(int(matched.sum()))
    absent = np.flatnonzero((firsts != UNKNOWN) & ~matched)
    yield from output.absent(batch, absent)
    return np.flatnonzero(firsts == UNKNOWN)
