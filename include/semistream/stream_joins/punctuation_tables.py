"""The tables that find a punctuation by a key: intervals of codes, and constants in a hash table or
with their full keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.keys import equal_keys
from semistream.stream_joins import kernels
from semistream.stream_joins.punctuations import Keys

NONE, CLOSED = -1, -2  # in the place of a pid


class Intervals:
    """Intervals of the codes of one exact column: low..high (int64[n], closed, disjoint, ascending)
    and pid (int32[n]). The arrays are never written to: a change creates new arrays."""

    # bytes: of the interval, of its copy during a change, and of the last snapshot's
    ROW = 3 * (8 + 8 + 4)

    def __init__(self) -> None:
        self.low, self.high = np.empty(0, np.int64), np.empty(0, np.int64)
        self.pid = np.empty(0, np.int32)
        self._saved = self.low, self.high, self.pid

    @property
    def bytes(self) -> int:
        rows = len(self.low)
        return self.ROW * rows + self.ROW // 3 * max(len(self._saved[0]) - rows, 0)

    @property
    def open_count(self) -> int:
        return int(np.count_nonzero(self.pid != CLOSED))

    def match(self, codes: np.ndarray, out: np.ndarray) -> None:
        if len(self.low):
            kernels.find_intervals(codes, self.low, self.high, self.pid, out)

    def new(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of low..high that no interval of this object covers."""
        return _subtract(low, high, self.low, self.high, open_ends=False)

    def add(self, low: np.ndarray, high: np.ndarray, pid: int) -> None:
        """Insert a new punctuation, except for the parts that earlier punctuations cover. Remove
        the closed intervals that it contains, so that a containing punctuation takes no additional
        memory."""
        at = np.maximum(np.searchsorted(low, self.low, "right") - 1, 0)
        inside = (self.pid == CLOSED) & (low[at] <= self.low) & (self.high <= high[at])
        self.keep(~inside)
        low, high = self.new(low, high)
        self.insert(low, high, np.full(len(low), pid))

    def insert(self, low: np.ndarray, high: np.ndarray, pid: np.ndarray) -> None:
        merged = np.concatenate([self.low, low])
        order = np.argsort(merged, kind="stable")
        self.low, self.high = merged[order], np.concatenate([self.high, high])[order]
        self.pid = np.concatenate([self.pid, pid.astype(np.int32)])[order]

    def keep(self, which: np.ndarray) -> None:
        """Keep only the selected intervals. which: a mask, bool[n], or indices."""
        self.low, self.high, self.pid = self.low[which], self.high[which], self.pid[which]

    def close(self, pids: np.ndarray) -> None:
        """Close the intervals of these pids, and merge adjacent closed intervals."""
        if not len(self.low):
            return
        if len(pids):
            self.pid = np.where(np.isin(self.pid, pids), np.int32(CLOSED), self.pid)
        closed = self.pid == CLOSED
        # only the first interval can have LEAST as low
        touch = closed[1:] & closed[:-1] & (self.high[:-1] + 1 == self.low[1:])
        if touch.any():
            first = np.flatnonzero(np.append(True, ~touch))
            high = self.high[np.append(first[1:], len(self.low)) - 1]
            self.keep(first)
            self.high = high

    def closed(self) -> tuple[np.ndarray, np.ndarray]:
        which = self.pid == CLOSED
        return self.low[which], self.high[which]

    def forget(self, low: np.ndarray, high: np.ndarray) -> None:
        """Cut low..high out of the closed intervals. An interval with an open end stays whole,
        because this takes no more memory."""
        left = _subtract(*self.closed(), low, high, open_ends=True)
        self.keep(self.pid != CLOSED)
        self.insert(*left, np.full(len(left[0]), CLOSED))

    def saved(self, changes: bool) -> tuple[np.ndarray, pa.Table]:
        """Return (`low` of the intervals that were removed since the last snapshot, a table of the
        new intervals). Without `changes`, all intervals count as new."""
        old, new = self._saved, (self.low, self.high, self.pid)
        self._saved = new
        came = _others(new, old) if changes else np.arange(len(self.low))
        return (
            old[0][_others(old, new)] if changes else self.low[:0],
            pa.table({"low": self.low[came], "high": self.high[came], "pid": self.pid[came]}),
        )

    def restore(self, gone: np.ndarray, came: pa.Table) -> None:
        self.keep(~np.isin(self.low, gone))
        self.insert(*(came[c].to_numpy() for c in ("low", "high", "pid")))
        self._saved = self.low, self.high, self.pid


def _subtract(
    low: np.ndarray,
    high: np.ndarray,
    other_low: np.ndarray,
    other_high: np.ndarray,
    open_ends: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the other intervals out of the intervals [low, high]. Return the (low, high) of the
    remaining intervals. All arrays are int64; the intervals of each set are ascending and disjoint.
    open_ends: whether an interval with an open end stays whole."""
    out = [np.empty(len(low) + len(other_low), np.int64) for _ in range(2)]
    left = kernels.subtract(low, high, other_low, other_high, open_ends, *out)
    return out[0][:left], out[1][:left]


def _others(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> np.ndarray:
    """Return the rows of a that b lacks. Both have columns low, high and pid, and ascending
    rows."""
    at = np.searchsorted(b[0], a[0])
    there = np.flatnonzero(at < len(b[0]))
    same = np.zeros(len(a[0]), bool)
    same[there] = np.logical_and.reduce(
        [x[there] == y[at[there]] for x, y in zip(a, b, strict=True)]
    )
    return np.flatnonzero(~same)


class OpenConstants:
    """The pids of the open constants of one exact column, in a hash table with open addressing."""

    POSITION, LOAD, LEAST = 16, 0.6, 64

    def __init__(self) -> None:
        self.used, self.table = 0, np.zeros((self.LEAST, 2), np.int64)

    @property
    def bytes(self) -> int:
        return self.table.nbytes

    def growth(self, count: int) -> int:
        """Return the bytes that `count` more constants take. During the change, these include the
        table that is replaced."""
        fits = self.used + count <= self.LOAD * len(self.table)
        return 0 if fits else self._wanted(count) * self.POSITION

    def _wanted(self, count: int) -> int:
        return max(self.LEAST, 3 * (self.used + count))

    def match(self, codes: np.ndarray, out: np.ndarray) -> None:
        if self.used:
            kernels.get(codes, self.table, out)

    def insert(self, codes: np.ndarray, pids: np.ndarray) -> None:
        if self.used + len(codes) > self.LOAD * len(self.table):
            self._resize(self._wanted(len(codes)))
        kernels.put(codes, pids, self.table)
        self.used += len(codes)

    def remove(self, codes: np.ndarray) -> None:
        kernels.take_out(codes, self.table)
        self.used -= len(codes)
        if self._wanted(0) < len(self.table) // 4:
            self._resize(self._wanted(0))

    def _resize(self, size: int) -> None:
        old, self.table = self.table[self.table[:, 1] != 0], np.zeros((size, 2), np.int64)
        kernels.put(np.ascontiguousarray(old[:, 0]), old[:, 1] - 1, self.table)


class HashedConstants:
    """Constants, open and closed, of keys whose codes are hashes: code (int64[n], ascending), pid
    (int32[n]) and the keys, which are compared in full."""

    def __init__(self, kinds: Sequence[pa.DataType]):
        self.keys = Keys(np.empty(0, np.int64), [pa.array([], k) for k in kinds])
        self.pid = np.empty(0, np.int32)

    @property
    def bytes(self) -> int:
        return 12 * len(self.pid) + sum(v.nbytes for v in self.keys.values)

    def find(self, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, pids) of the keys that are among these constants."""
        first = np.searchsorted(self.keys.codes, keys.codes, "left")
        count = np.searchsorted(self.keys.codes, keys.codes, "right") - first
        rows = np.repeat(np.arange(len(first)), count)
        entries = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(rows))
        same = equal_keys(keys.take(rows).values, self.keys.take(entries).values)
        return rows[same], self.pid[entries[same]]

    def of(self, pids: np.ndarray) -> tuple[Keys, np.ndarray]:
        """Return (the keys of these pids, the pid of each key)."""
        rows = np.flatnonzero(np.isin(self.pid, pids))
        return self.keys.take(rows), self.pid[rows]

    def insert(self, keys: Keys, pid: np.ndarray) -> None:
        """Add constants with these pids, int32[n]."""
        code = np.concatenate([self.keys.codes, keys.codes])
        order = np.argsort(code, kind="stable")
        both = [
            pa.concat_arrays([a, b]) for a, b in zip(self.keys.values, keys.values, strict=True)
        ]
        self.keys = Keys(code, both).take(order)
        self.pid = np.concatenate([self.pid, pid.astype(np.int32)])[order]

    def remove(self, pids: np.ndarray) -> None:
        left = np.flatnonzero(~np.isin(self.pid, pids))
        self.keys, self.pid = self.keys.take(left), self.pid[left]
