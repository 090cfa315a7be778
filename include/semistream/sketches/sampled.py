"""A stream's keys for every load's ledger row: a sketch of a sample, which costs little enough to
be kept always.

One tuple of each 24 that follow each other is drawn at random, and counts 24 times. All such
sketches have the same hash functions and can be merged. One takes 43 KB while it is made; its blob
has some bytes a key where there are few keys, and some 10 KB where there are many.
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
# many rows, as bounds that hardly ever fail are to be small: s2 / q is least, see bounds.py
S1, S2, SLOTS = 320, 15, 256


class SampledSketch:
    """sketch: of the tuples that were drawn, each with the weight EVERY. seed: of the draws; loads
    that are merged must have different ones."""

    def __init__(self, seed: Iterable[int] = (0,)):
        self.sketch = SkimmedSketch(S1, S2, SLOTS)
        self._random = np.random.default_rng(tuple(seed))
        self._seen = self._drawn = 0  # tuples so far; which of its EVERY the last one drawn was

    def draw(self, count: int) -> np.ndarray:
        """Which of the next tuples are in the sample, int64[k]."""
        begin, end = self._seen, self._seen + count
        blocks = np.arange(begin // EVERY, -(-end // EVERY))
        drawn = self._random.integers(0, EVERY, len(blocks))
        if begin % EVERY and count:  # the block was begun by the tuples before
            drawn[0] = self._drawn
        if count:
            self._seen, self._drawn = end, int(drawn[-1])
        at = EVERY * blocks + drawn - begin
        return at[(at >= 0) & (at < count)]

    def add(self, codes: np.ndarray) -> None:
        """Insert the keys, int64[k], of tuples that were drawn."""
        self.sketch.update(codes, EVERY)


def add_load(whole: SkimmedSketch, blob: bytes) -> bool:
    """Add a load's sketch, as its blob is in the ledger. False where that cannot be: it is damaged,
    or of another size, by another version."""
    try:
        whole.merge(cast(SkimmedSketch, read_sketch(blob)))
    except StateError:
        return False
    return True


def merged(blobs: Iterable[bytes]) -> SkimmedSketch:
    """Of all loads whose blobs can be read."""
    whole = SampledSketch().sketch
    for blob in blobs:
        add_load(whole, blob)
    return whole


def join_size(sketch: SkimmedSketch, tuples: int, loads: int,
              frequencies: Iterable[tuple[np.ndarray, np.ndarray]],
              failure: float = FAILURE) -> tuple[Estimate, int]:
    """Of the tuples of so many loads, of whose samples the sketch is, with a relation whose
    frequencies are known (see ``SkimmedSketch.join_size_with``); and the most that a key has there.

    Two errors add up: the sketch's, and by Hoeffding's inequality the sample's, as each EVERY
    tuples add between 0 and EVERY times that many rows, independently of the others.
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
