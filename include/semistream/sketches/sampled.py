"""A sketch of a stream's keys for every load's ledger row. It uses a sample of the keys, so that it
is cheap enough for every load.

One tuple of every 24 consecutive ones is drawn at random, and counts 24 times. All these sketches
have the same hash functions and can be merged. A sketch takes 43 KB while it is built. Its blob
takes some bytes per key if there are few keys, and some 10 KB if there are many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np

from semistream.errors import StateError
from semistream.sketches.bounds import FAILURE
from semistream.sketches.methods import read_sketch
from semistream.sketches.sketch import Estimate
from semistream.sketches.skimmed import SkimmedSketch

EVERY = 24  # tuples, of which one is drawn
# many rows, so that bounds that hardly ever fail are small: s2 / q is least, see bounds.py
S1, S2, SLOTS = 320, 15, 256


class SampledSketch:
    """A sketch of a stream's sample. sketch: the sketch of the drawn tuples, each with the weight
    EVERY. seed: the seed of the draws; loads that are merged must have different seeds."""

    def __init__(self, seed: Iterable[int] = (0,)):
        self.sketch = SkimmedSketch(S1, S2, SLOTS)
        self._random = np.random.default_rng(tuple(seed))
        self._seen = self._drawn = 0  # tuples so far; place of the last draw in its EVERY

    def draw(self, count: int) -> np.ndarray:
        """Return which of the next `count` tuples are in the sample, int64[k], as positions."""
        begin, end = self._seen, self._seen + count
        blocks = np.arange(begin // EVERY, -(-end // EVERY))
        drawn = self._random.integers(0, EVERY, len(blocks))
        if begin % EVERY and count:  # the previous tuples began this block; its draw is kept
            drawn[0] = self._drawn
        if count:
            self._seen, self._drawn = end, int(drawn[-1])
        at = EVERY * blocks + drawn - begin
        return at[(at >= 0) & (at < count)]

    def add(self, codes: np.ndarray) -> None:
        """Insert the keys, int64[k], of drawn tuples."""
        self.sketch.update(codes, EVERY)


def add_load(whole: SkimmedSketch, blob: bytes) -> bool:
    """Merge the sketch of one load, which the ledger stores as bytes, into ``whole``. If it is
    damaged or of another size or version, merge nothing and return False."""
    try:
        whole.merge(cast(SkimmedSketch, read_sketch(blob)))
    except StateError:
        return False
    return True


def merged(blobs: Iterable[bytes]) -> SkimmedSketch:
    """Return the merged sketch of all loads whose blobs can be read."""
    whole = SampledSketch().sketch
    for blob in blobs:
        add_load(whole, blob)
    return whole


def join_size(
    sketch: SkimmedSketch,
    tuples: int,
    loads: int,
    frequencies: Iterable[tuple[np.ndarray, np.ndarray]],
    failure: float = FAILURE,
) -> tuple[Estimate, int]:
    """Estimate the join size of sampled loads with a relation of known frequencies (see
    ``SkimmedSketch.join_size_with``). Return the estimate, and the highest frequency of a key in
    that relation.

    sketch: the sketch of the loads' samples; tuples, loads: the numbers of tuples and loads. Two
    errors add up: the sketch's error, and the sample's error by Hoeffding's inequality: each EVERY
    tuples add between 0 and EVERY times that highest frequency, independently of the others.
    """
    most = 0

    def watched() -> Iterable[tuple[np.ndarray, np.ndarray]]:
        nonlocal most
        for codes, counts in frequencies:
            most = max(most, int(counts.max(initial=0)))
            yield codes, counts

    value, bound = sketch.join_size_with(watched(), failure / 2)
    blocks = tuples / EVERY + loads
    sampled = EVERY * most * math.sqrt(blocks / 2 * math.log(2 / (failure / 2)))
    return Estimate(max(value, 0.0), bound + sampled), most
