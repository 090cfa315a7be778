"""Skimmed sketches.

S. Ganguly, M. Garofalakis, R. Rastogi: Processing Data-Stream Join Aggregates Using Skimmed
Sketches (2004). The hash sketch is that of M. Charikar, K. Chen, M. Farach-Colton: Finding Frequent
Items in Data Streams (2002).

There are two deviations. The paper finds dense values by dyadic intervals: a further sketch for
each level of the domain, 61 levels for codes of 64 bits, and as many updates. Here a few counters
(``frequent``) nominate candidates, at 16 bytes a candidate and one update, and the sketch decides
which candidates are dense. Every value that was inserted often enough is nominated, whatever is
deleted later.

The paper's threshold is of the order of N / sqrt(s1), as sqrt(F2) <= N bounds the error of a row's
estimate of a frequency. Here F2 is that of the remaining values, estimated from the sketch itself,
and values are skimmed until no candidate is dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np

from semistream.compiled import filled, njit
from semistream.errors import ConfigError
from semistream.sketches.bounds import FAILURE, estimated_join_error, self_join_size
from semistream.sketches.frequent import SLOT_BYTES, FrequentItems
from semistream.sketches.hashing import BITS, COEFFICIENTS, polynomial, random_field_elements
from semistream.sketches.sketch import Estimate, Sketch

ROWS = 5  # s2 for a given memory
CANDIDATES = 0.25  # share of the memory
# a frequency is dense if it exceeds this many times the error of a single row; the error of the
# rows' median is less
DENSE = 1.0
ROUNDS = 20  # most rounds of skimming


class Dense(NamedTuple):
    """The dense values of a sketch. codes, frequencies: int64[k], in ascending order of the codes;
    table: int64[s2, s1], their sketch; rest: int64[s2, s1], the sketch without them; weight: a
    bound on the sum of the absolute frequencies in the rest."""

    codes: np.ndarray
    frequencies: np.ndarray
    table: np.ndarray
    rest: np.ndarray
    weight: int

    @property
    def self_join_size(self) -> float:
        frequencies = self.frequencies.astype(float)
        return float(frequencies @ frequencies)


class SkimmedSketch(Sketch):
    """A hash sketch, which also tracks the most frequent keys. It has s2 rows of s1 buckets,
    C[q][h_q(v)] += f(v) xi_q(v).

    h_q(v) and xi_q(v) are bits of one four-wise independent value.
    """

    name = "skimmed"
    least = 300

    def __init__(self, s1: int, s2: int, slots: int, seed: int = 0):
        super().__init__(s1, s2, seed)
        if s2 < 3 or s2 % 2 == 0:
            raise ConfigError(
                "s2",
                "must be an odd number from 3 on, as a frequency is the median of so many",
                s2,
                "Give 5.",
            )
        if slots < 2:
            raise ConfigError("slots", "must be at least 2", slots, "Give the sketch more memory.")
        self.candidates = FrequentItems(slots)
        self._hashes = random_field_elements(seed, "skimmed", s2 * COEFFICIENTS).reshape(
            s2, COEFFICIENTS
        )

    @classmethod
    def for_memory(cls, memory: int, seed: int = 0) -> Self:
        if memory < cls.least:
            raise ConfigError(
                "memory",
                f"must be at least {cls.least} bytes for a sketch",
                memory,
                "Some kilobytes are usual.",
            )
        slots = int(CANDIDATES * memory) // SLOT_BYTES
        s1 = (memory - SLOT_BYTES * slots - 8 * COEFFICIENTS * ROWS) // (8 * ROWS)
        return cls(s1, ROWS, slots, seed)

    @property
    def memory_bytes(self) -> int:
        return self.counters.nbytes + self._hashes.nbytes + self.candidates.memory_bytes

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.candidates.merge(other.candidates)

    def skim(self) -> Dense:
        """Separate the dense values from the sketch. Return these values with their estimated
        frequencies, and the sketch of all other values."""
        codes, counts = self.candidates.items()
        certain = self.candidates.error + self.deleted  # bound on the error of a candidate's count
        least, most = counts - self.deleted, counts + self.candidates.error
        points, frequencies = self._points(codes), np.zeros(len(codes), np.int64)
        rest = self.counters.copy()
        for _ in range(ROUNDS):
            off = min(math.sqrt(_self_join_size(rest) / self.s1), certain)
            shape = len(rest), len(points)
            estimates = filled(_estimates, shape, np.float64, points, self._hashes, rest)
            found = frequencies + np.rint(np.median(estimates, axis=0)).astype(np.int64)
            found = np.clip(found, least, most)
            dense = (frequencies == 0) & (found >= max(DENSE * off, 1))
            if not dense.any():
                break
            _add(points[dense], -found[dense], self._hashes, rest)
            frequencies[dense] = found[dense]
        dense = frequencies > 0
        weight = (
            self.inserted
            - int(counts.sum())
            + self.deleted
            + int(np.abs(counts - frequencies).sum())
        )
        return Dense(codes[dense], frequencies[dense], self.counters - rest, rest, weight)

    def join_size(self, other: Self, failure: float = FAILURE) -> Estimate:
        """Estimate J = J_dd + J_ds + J_sd + J_ss (ESTSKIMJOINSIZE). The bound treats the dense
        frequencies as if they had been known before the hash functions were drawn."""
        self._check(other)
        f, g = self.skim(), other.skim()
        _, i, j = np.intersect1d(f.codes, g.codes, assume_unique=True, return_indices=True)
        value = float(f.frequencies[i].astype(float) @ g.frequencies[j].astype(float))
        # the failure probability in parts: three sketched terms, and two self-join sizes
        bound, part = 0.0, failure / 5
        sparse_f, sparse_g = (
            self_join_size(_self_join_size(x.rest), float(x.weight) ** 2, self.s1, self.s2, part)
            for x in (f, g)
        )
        for left, right, f2 in (
            (f.table, g.rest, (f.self_join_size, sparse_g)),
            (f.rest, g.table, (sparse_f, g.self_join_size)),
            (f.rest, g.rest, (sparse_f, sparse_g)),
        ):
            term = float(np.median((left.astype(float) * right).sum(axis=1)))
            value += term
            bound += estimated_join_error(*f2, term, self.s1, self.s2, part)
        return Estimate(value, bound)

    def join_size_with(
        self, pieces: Iterable[tuple[np.ndarray, np.ndarray]], failure: float = FAILURE
    ) -> Estimate:
        """Estimate the join size with a stream of known frequencies. pieces: (codes int64[k],
        frequencies int64[k]); each code is in only one piece. Because that side is exact, the bound
        is smaller than the bound of ``join_size``."""
        f, table = self.skim(), np.zeros_like(self.counters)
        value = f2 = 0.0
        for codes, frequencies in pieces:
            _add(self._points(codes), frequencies, self._hashes, table)
            _, i, j = np.intersect1d(f.codes, codes, assume_unique=True, return_indices=True)
            exact = frequencies.astype(float)
            value += float(f.frequencies[i].astype(float) @ exact[j])
            f2 += float(exact @ exact)
        sparse = self_join_size(
            _self_join_size(f.rest), float(f.weight) ** 2, self.s1, self.s2, failure / 2
        )
        term = float(np.median((f.rest.astype(float) * table).sum(axis=1)))
        return Estimate(
            value + term, estimated_join_error(sparse, f2, term, self.s1, self.s2, failure / 2)
        )

    def _update(self, codes: np.ndarray, weights: np.ndarray) -> None:
        _add(self._points(codes), weights, self._hashes, self.counters)
        self.candidates.update(codes, weights)

    def _parameters(self) -> dict[str, Any]:
        return super()._parameters() | {"slots": self.candidates.slots}

    def _arrays(self) -> list[np.ndarray]:
        return [self.counters, *self.candidates.items(), np.array([self.candidates.error])]

    def _restore(self, words: np.ndarray, values: dict[str, Any]) -> None:
        super()._restore(words, values)
        rest = words[self.counters.size : -1]
        self.candidates.update(rest[: len(rest) // 2], rest[len(rest) // 2 :])
        self.candidates.error = int(words[-1])


def _self_join_size(table: np.ndarray) -> float:
    """Return the median over the rows of the sum of squared counters, int64[s2, s1]."""
    return float(np.median(np.square(table.astype(float)).sum(axis=1)))


@njit(inline="always")
def _bucket(value, s1):
    """Return a bucket from the upper 32 of 61 bits. The lowest bit is the sign."""
    return np.int64(((value >> np.uint64(BITS - 32)) * np.uint64(s1)) >> np.uint64(32))


@njit(cache=True)
def _add(points, weights, hashes, counters):
    """Add points with their weights to the hash sketch.

    in      points uint64[n], weights int64[n], hashes uint64[s2, COEFFICIENTS]
    in/out  counters int64[s2, s1]
    """
    s2, s1 = counters.shape
    for q in range(s2):
        a, b, c, d = hashes[q, 0], hashes[q, 1], hashes[q, 2], hashes[q, 3]
        for i in range(len(points)):
            value = polynomial(points[i], a, b, c, d, BITS)
            negative = -np.int64(value & np.uint64(1))
            counters[q, _bucket(value, s1)] += (weights[i] ^ negative) - negative


@njit(cache=True)
def _estimates(points, hashes, counters, out):
    """Write the estimates C[q][h_q(v)] xi_q(v) of each row.

    in      points uint64[n], hashes uint64[s2, COEFFICIENTS], counters int64[s2, s1]
    out     out float64[s2, n]
    """
    s2, s1 = counters.shape
    for q in range(s2):
        a, b, c, d = hashes[q, 0], hashes[q, 1], hashes[q, 2], hashes[q, 3]
        for i in range(len(points)):
            value = polynomial(points[i], a, b, c, d, BITS)
            count = counters[q, _bucket(value, s1)]
            out[q, i] = -count if value & np.uint64(1) else count
