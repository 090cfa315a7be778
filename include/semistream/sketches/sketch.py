"""What basic AGMS and skimmed sketches have in common."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from semistream.errors import ConfigError, StateError
from semistream.sketches.bounds import FAILURE
from semistream.sketches.hashing import field_elements, random_field_elements

MAGIC = b"semistream sketch 1\n"


class Estimate(NamedTuple):
    """A join size, and what it is off by at most, but with the probability that was asked for."""

    value: float
    bound: float


class Sketch(ABC):
    """A summary of a stream of keys, in s2 rows of s1 counters, that is a linear function of the
    keys' frequencies.

    Keys are given by their codes (``keys``). Two sketches can be joined or merged if they have the
    same sizes and seed, that is the same hash functions. least: bytes that it can be made of.
    counters: int64[s2, s1]. inserted, deleted: total weights. Memory is of counters, candidates and
    hash functions; an update takes some ten bytes a code besides.
    """

    name: ClassVar[str]
    least: ClassVar[int]
    s1: int
    s2: int

    def __init__(self, s1: int, s2: int, seed: int):
        for parameter, value in (("s1", s1), ("s2", s2)):
            if not 1 <= value < 2**31:
                remedy = f"Give the sketch {'more' if value < 1 else 'less'} memory."
                raise ConfigError(parameter, "must be in [1, 2**31)", value, remedy)
        self.s1, self.s2, self.seed = s1, s2, seed
        self.counters = np.zeros((s2, s1), np.int64)
        self.inserted = self.deleted = 0
        self._linear = random_field_elements(seed, "field elements", 3)

    @classmethod
    @abstractmethod
    def for_memory(cls, memory: int, seed: int = 0) -> Self:
        """One that takes at most so many bytes. Raises ConfigError where they are too few."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of counters, candidates and hash functions."""

    def update(self, codes: np.ndarray, weights: np.ndarray | int = 1) -> None:
        """Insert keys, int64[n]; of a negative weight, delete them. weights: int64[n], or one for
        all."""
        weights = np.full(len(codes), weights,
                          np.int64) if np.isscalar(weights) else np.asarray(weights, np.int64)
        inserted = int(weights[weights > 0].sum())
        self.inserted += inserted
        self.deleted += inserted - int(weights.sum())
        self._update(codes, weights)

    def merge(self, other: Self) -> None:
        """Add another stream's sketch: the sketch of both streams. Raises StateError for one of
        other hash functions."""
        self._check(other)
        self.counters += other.counters
        self.inserted += other.inserted
        self.deleted += other.deleted

    @abstractmethod
    def join_size(self, other: Self, failure: float = FAILURE) -> Estimate:
        """Of the two streams. Raises StateError for a sketch of other hash functions."""

    def to_bytes(self) -> bytes:
        """One blob, compressed, with a checksum."""
        values = {"name": self.name, "inserted": self.inserted, "deleted": self.deleted,
                  **self._parameters()}
        body = (json.dumps(values).encode() + b"\n"
                + b"".join(a.astype("<i8").tobytes() for a in self._arrays()))
        packed = zlib.compress(body, 1)
        return MAGIC + zlib.crc32(packed).to_bytes(4, "little") + packed

    @abstractmethod
    def _update(self, codes: np.ndarray, weights: np.ndarray) -> None: ...

    def _parameters(self) -> dict[str, Any]:
        """What the class is made with."""
        return {"s1": self.s1, "s2": self.s2, "seed": self.seed}

    def _arrays(self) -> list[np.ndarray]:
        return [self.counters]

    def _restore(self, words: np.ndarray, values: dict[str, Any]) -> None:
        """Take up what ``_arrays`` and the blob's values told."""
        self.counters[:] = words[:self.counters.size].reshape(self.counters.shape)
        self.inserted, self.deleted = values["inserted"], values["deleted"]

    def _points(self, codes: np.ndarray) -> np.ndarray:
        return field_elements(np.ascontiguousarray(codes, np.int64), self._linear)

    def _check(self, other: Sketch) -> None:
        mine, theirs = ({"name": s.name, **s._parameters()} for s in (self, other))
        if mine != theirs:
            wrong = ", ".join(f"{k} {mine.get(k)} and {theirs.get(k)}" for k in mine
                              if mine.get(k) != theirs.get(k))
            raise StateError(f"the sketches have different hash functions: {wrong}. Make both with "
                             f"the same settings.")


def unpack(blob: bytes) -> tuple[dict[str, Any], np.ndarray]:
    """(values, words int64[n]) of a sketch's blob. Raises StateError for one that is damaged, or of
    another version."""
    packed = blob[len(MAGIC) + 4:]
    if (blob[:len(MAGIC)] != MAGIC
            or zlib.crc32(packed).to_bytes(4, "little") != blob[len(MAGIC):len(MAGIC) + 4]):
        raise StateError(
            "the sketch is damaged, of another version, or not one. Make it anew from its stream.")
    head, _, body = zlib.decompress(packed).partition(b"\n")
    return json.loads(head), np.frombuffer(body, "<i8")
