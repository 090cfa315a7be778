"""The base class of basic AGMS and skimmed sketches."""

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
    """An estimated join size, and an error bound that holds except with the requested
    probability."""

    value: float
    bound: float


class Sketch(ABC):
    """A summary of a stream of keys, in s2 rows of s1 counters, that is a linear function of the
    keys' frequencies.

    Keys are given by their codes (``keys``). Two sketches can be joined or merged if they have the
    same sizes and seed, and so the same hash functions. least: the smallest possible bytes of a
    sketch. counters: int64[s2, s1]. inserted, deleted: total weights. Memory consists of counters,
    candidates and hash functions; an update temporarily takes some ten bytes more per code.
    """

    name: ClassVar[str]
    least: ClassVar[int]

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
        """Return an empty sketch that takes at most `memory` bytes. Raises ConfigError if the bytes
        do not suffice."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of counters, candidates and hash functions."""

    def update(self, codes: np.ndarray, weights: np.ndarray | int = 1) -> None:
        """Insert keys, int64[n], or delete them if their weight is negative. weights: int64[n], or
        one weight for all keys."""
        weights = (
            np.full(len(codes), weights, np.int64)
            if np.isscalar(weights)
            else np.asarray(weights, np.int64)
        )
        inserted = int(weights[weights > 0].sum())
        self.inserted += inserted
        self.deleted += inserted - int(weights.sum())
        self._update(codes, weights)

    def merge(self, other: Self) -> None:
        """Add another stream's sketch, to get the sketch of both streams. Raises StateError for a
        sketch with other hash functions."""
        self._check(other)
        self.counters += other.counters
        self.inserted += other.inserted
        self.deleted += other.deleted

    @abstractmethod
    def join_size(self, other: Self, failure: float = FAILURE) -> Estimate:
        """Estimate the join size of the two streams. Raises StateError for a sketch with other hash
        functions."""

    def to_bytes(self) -> bytes:
        """Return the sketch as one blob, compressed, with a checksum."""
        values = {
            "name": self.name,
            "inserted": self.inserted,
            "deleted": self.deleted,
            **self._parameters(),
        }
        body = (
            json.dumps(values).encode()
            + b"\n"
            + b"".join(a.astype("<i8").tobytes() for a in self._arrays())
        )
        packed = zlib.compress(body, 1)
        return MAGIC + zlib.crc32(packed).to_bytes(4, "little") + packed

    @abstractmethod
    def _update(self, codes: np.ndarray, weights: np.ndarray) -> None: ...

    def _parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"s1": self.s1, "s2": self.s2, "seed": self.seed}

    def _arrays(self) -> list[np.ndarray]:
        return [self.counters]

    def _restore(self, words: np.ndarray, values: dict[str, Any]) -> None:
        """Restore the content of a sketch. words: the arrays of ``_arrays`` as words; values: the
        values in the blob."""
        self.counters[:] = words[: self.counters.size].reshape(self.counters.shape)
        self.inserted, self.deleted = values["inserted"], values["deleted"]

    def _points(self, codes: np.ndarray) -> np.ndarray:
        return field_elements(np.ascontiguousarray(codes, np.int64), self._linear)

    def _check(self, other: Sketch) -> None:
        mine, theirs = ({"name": s.name, **s._parameters()} for s in (self, other))
        if mine != theirs:
            wrong = ", ".join(
                f"{k} {mine.get(k)} and {theirs.get(k)}"
                for k in mine
                if mine.get(k) != theirs.get(k)
            )
            raise StateError(
                f"the sketches have different hash functions: {wrong}. Make both with "
                f"the same settings."
            )


def unpack(blob: bytes) -> tuple[dict[str, Any], np.ndarray]:
    """Return (values, words int64[n]) of a sketch's blob. Raises StateError for a blob that is
    damaged, or of another version."""
    packed = blob[len(MAGIC) + 4 :]
    if (
        blob[: len(MAGIC)] != MAGIC
        or zlib.crc32(packed).to_bytes(4, "little") != blob[len(MAGIC) : len(MAGIC) + 4]
    ):
        raise StateError(
            "the sketch is damaged, of another version, or not one. Make it anew from its stream."
        )
    head, _, body = zlib.decompress(packed).partition(b"\n")
    return json.loads(head), np.frombuffer(body, "<i8")
