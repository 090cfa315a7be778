"""The non-swappable part of X-HYBRIDJOIN's disk buffer: the most frequent master tuples, which stay
in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.arena import Arena, mapped
from semistream.joins.disk_partition import DiskPartition, tuples_of
from semistream.joins.master_cache import cached_bytes
from semistream.joins.selection import slices
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import Part
from semistream.joins.stored_types import variable_bytes
from semistream.joins.tuple_store import MOST_HEAP, TupleStore


def resident_bytes(spec: JoinSpec) -> float:
    """Return the bytes of a tuple in the non-swappable part: key code, link, its key's first
    partition, and the columns that are added or compared."""
    return 8 + 4 + cached_bytes(spec)


class Resident:
    """A portion of the non-swappable part. codes: int64[n], the key codes of its tuples; firsts:
    int32[n], the first disk partition of each tuple."""

    def __init__(self, of: NonSwappablePart, part: slice):
        self._store, self._first = of.store, part.start
        self.codes, self.firsts = of.codes[part], of.firsts[part]

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            self._store.get(self._first + rows), schema=self._store.schema
        )


class NonSwappablePart(Part):
    """At most ``capacity`` (d_N) master tuples that stay in memory. For each key, all of its master
    tuples are held or none.

    The tuples are loaded once, in three steps: ``choose`` chooses the keys, ``gather`` copies their
    tuples from each partition that may hold them, and ``complete`` makes them available. Until then
    each key takes 9 more bytes. If keys are unique, the tuples lie in the order of the partitions,
    as in H_S. Before the choice, ``note`` collects the keys of stream tuples, in the memory
    reserved for key codes. tuples: the number of tuples that probes can find.
    """

    def __init__(self, spec: JoinSpec, arena: Arena, d_n: int):
        self.spec, self.capacity = spec, min(d_n, spec.master.tuple_count)
        self.size = int(self.capacity * resident_bytes(spec))
        arena.reserve("non-swappable part", self.size)
        self.store = TupleStore(spec.fetched_schema, self.capacity, min(self.size, MOST_HEAP))
        self._codes, self._owner = mapped(self.capacity, np.int64), mapped(self.capacity, np.int32)
        self.slot = 8 + 4 + self.store.width  # bytes of a tuple, its strings aside
        self.tuples = self._gathered = self._heap_at = self._noted = 0
        self.chosen = False

    @property
    def codes(self) -> np.ndarray:
        """The key codes of the tuples, int64[tuples]."""
        return self._codes[: self.tuples]

    @property
    def firsts(self) -> np.ndarray:
        """The first disk partition of each tuple's key, int32[tuples]."""
        return self._owner[: self.tuples]

    def portions(self) -> Iterator[Resident]:
        return (Resident(self, part) for part in slices(self.tuples))

    def note(self, keys: np.ndarray) -> None:
        """Record the keys of stream tuples, int64[n], in the order of arrival, up to ``capacity``
        keys in total. Do nothing once keys are chosen."""
        if not self.chosen:
            end = min(self._noted + len(keys), self.capacity)
            self._codes[self._noted : end] = keys[: end - self._noted]
            self._noted = end

    @property
    def noted_enough(self) -> bool:
        """Whether keys have not been chosen yet and at least ``capacity`` stream tuples have
        come."""
        return not self.chosen and self._noted == self.capacity

    def most_frequent(self) -> np.ndarray:
        """Return the noted keys, the most frequent first, int64[n]."""
        noted = self._codes[: self._noted]
        noted.sort()
        firsts = np.flatnonzero(np.append(True, noted[1:] != noted[:-1]))
        return noted[firsts[np.argsort(-np.diff(firsts, append=len(noted)), kind="stable")]]

    def choose(self, keys: np.ndarray) -> list[int]:
        """Choose the keys, int64[n], whose tuples are to be held. Return the numbers of the
        partitions that may hold these tuples. The numbers are in ascending order if each key has
        one tuple. Otherwise they follow the order of the keys, because the tuples may not all fit.
        """
        numbers: dict[int, None] = {}
        for part in slices(len(keys)):
            spans = self.spec.master.partitions_of(keys[part])
            numbers |= dict.fromkeys(number for a, b in spans for number in range(a, b))
        self.chosen, self._keys = True, np.sort(keys)
        self._dropped = np.zeros(len(keys), bool)  # keys whose tuples do not all fit
        return sorted(numbers) if self.spec.master.unique else list(numbers)

    def gather(self, partition: DiskPartition) -> None:
        """Copy the tuples of the chosen keys from a partition that was read."""
        owners = np.searchsorted(self._keys, partition.codes)
        owners[owners == len(self._keys)] = 0
        rows = np.flatnonzero(self._keys[owners] == partition.codes)
        self._add(partition, rows, owners[rows])

    def _add(self, partition: DiskPartition, rows: np.ndarray, owners: np.ndarray) -> None:
        """Copy these rows of a partition, if they fit. owners: int64[rows], for each row the number
        of its key among the chosen keys."""
        wanted = ~self._dropped[owners]
        rows, owners = rows[wanted], owners[wanted]
        if not len(rows):
            return
        piece, first, last = partition.take(rows), self._gathered, self._gathered + len(rows)
        heap_end = self._heap_at + int(variable_bytes(piece).sum())
        if (
            last > self.capacity
            or heap_end > len(self.store.heap)
            or last * self.slot + heap_end > self.size
        ):
            self._dropped[owners] = True
            return
        slots = np.arange(first, last)
        self._heap_at = self.store.put(piece, slots - first, slots, self._heap_at)
        self._codes[first:last], self._owner[first:last] = partition.codes[rows], owners
        self._gathered = last

    def complete(self) -> None:
        """Make the gathered tuples available to probes. Keys whose tuples did not all fit are
        dropped."""
        left = 0
        for part in slices(self._gathered):
            kept = part.start + np.flatnonzero(~self._dropped[self._owner[part]])
            into = slice(left, left + len(kept))
            self._codes[into], self.store.tuples[into] = self._codes[kept], self.store.tuples[kept]
            self._owner[into] = self.spec.master.partitions_of(self._codes[into])[:, 0]
            left += len(kept)
        self.tuples = left
        del self._keys, self._dropped

    # State

    def tables(self) -> dict[str, pa.RecordBatchReader]:
        """Return the keys of the resident tuples, or the noted keys if none have been chosen. The
        tuples can be read from R."""
        schema, n = pa.schema([("key", pa.int64())]), self.tuples if self.chosen else self._noted
        batches = (pa.record_batch([self._codes[part]], schema=schema) for part in slices(n))
        return {
            "resident" if self.chosen else "noted": pa.RecordBatchReader.from_batches(
                schema, batches
            )
        }

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        """Fetch the tuples of the saved keys from R."""
        if "noted" in tables:
            self.note(tables["noted"]["key"].to_numpy())
        if "resident" not in tables:
            return
        keys = np.unique(tables["resident"]["key"].to_numpy())
        self.choose(keys)
        for part in slices(len(keys)):
            for partition, rows, owners in tuples_of(self.spec, keys[part]):
                self._add(partition, rows, part.start + owners)
        self.complete()
