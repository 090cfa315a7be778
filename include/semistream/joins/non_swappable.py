"""The non-swappable part of X-HYBRIDJOIN's disk buffer: the most frequent master tuples, which
stay."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.joins.arena import Arena
from semistream.joins.disk_partition import DiskPartition, tuples_of
from semistream.joins.key_table import KeyTable
from semistream.joins.master_cache import cached_bytes
from semistream.joins.spec import JoinSpec


def resident_bytes(spec: JoinSpec) -> float:
    """Bytes of a tuple in the non-swappable part: key code and the columns that are added or
    compared."""
    return 8 + cached_bytes(spec)


class NonSwappablePart:
    """Master tuples that stay in memory, all that their keys have, in ``places`` (d_N) places.

    They are loaded once: ``choose`` the keys, ``gather`` their tuples from each partition that may
    have them, ``complete``. codes: int64[n], their key codes; payload: as many rows.
    """

    def __init__(self, spec: JoinSpec, arena: Arena, d_n: int):
        self.spec, self.places = spec, min(d_n, spec.master.tuple_count)
        self.size = int(self.places * resident_bytes(spec))
        arena.reserve("non-swappable part", self.size)
        self.chosen = False
        self.codes = np.empty(0, np.int64)
        self.payload = pa.RecordBatch.from_pylist([], spec.fetched_schema)

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        return self.payload.take(pa.array(rows))

    def choose(self, keys: np.ndarray) -> list[int]:
        """Hold the tuples of these keys, int64[n], from now on. Returns the numbers of the
        partitions that may have them, those of the first key first."""
        self.chosen, self._keys, self._free = True, KeyTable(keys), self.size
        self._dropped = np.zeros(len(keys), bool)  # keys whose tuples do not all fit
        self._codes, self._owners = [self.codes], [np.empty(0, np.int32)]
        self._pieces = [self.payload]
        spans = self.spec.master.partitions_of(keys)
        return list(dict.fromkeys(number for a, b in spans for number in range(a, b)))

    def gather(self, partition: DiskPartition) -> None:
        """Take the chosen keys' tuples of a partition that was read."""
        owners = self._keys.find(partition.codes)
        rows = np.flatnonzero(owners >= 0)
        self._add(partition, rows, owners[rows])

    def _add(self, partition: DiskPartition, rows: np.ndarray, owners: np.ndarray) -> None:
        """owners: int[rows], the place of each row's key among the chosen ones."""
        wanted = ~self._dropped[owners]
        rows, owners = rows[wanted], owners[wanted]
        if not len(rows):
            return
        piece = partition.take(rows)
        if piece.nbytes + 8 * len(rows) > self._free:
            self._dropped[owners] = True
            return
        self._free -= piece.nbytes + 8 * len(rows)
        self._codes.append(partition.codes[rows])
        self._owners.append(owners)
        self._pieces.append(piece)

    def complete(self) -> None:
        """Make what was gathered findable: of a key all tuples or none."""
        keep, payload = ~self._dropped[np.concatenate(self._owners)], self._pieces[0]
        if payload.num_columns:  # a record batch without columns has no length
            payload = pa.concat_batches(self._pieces).filter(pa.array(keep))
        self.codes, self.payload = np.concatenate(self._codes)[keep], payload
        del self._keys, self._dropped, self._codes, self._owners, self._pieces

    # State

    def tables(self) -> dict[str, pa.Table]:
        """Of what is here only the keys: their tuples are in R."""
        return {"resident": pa.table({"key": np.unique(self.codes)})} if self.chosen else {}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        """Fetch the tuples of the saved keys from R."""
        if "resident" not in tables:
            return
        keys = tables["resident"]["key"].to_numpy()
        self.choose(keys)
        for found in tuples_of(self.spec, keys):
            self._add(*found)
        self.complete()
