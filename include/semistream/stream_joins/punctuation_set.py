"""The punctuations of one stream: the punctuation set with its index, and what has been propagated
(*closed*) since.

Deviation (section 3.5): the paper drops a punctuation once it is propagated. Then a later tuple of
the other stream would stay for ever, so here it is kept as closed, until the other stream has
closed the same values; closed integers that touch are one interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.stream_joins import kernels
from semistream.stream_joins.punctuations import (
    LEAST,
    MOST,
    Keys,
    Pattern,
    Punctuation,
    code_intervals,
    column_codes,
    exact_columns,
    values_of,
)
from semistream.stream_joins.spec import SIDES, StreamJoinSpec, equal_keys
from semistream.stream_joins.state import BUCKETS

NONE, CLOSED = -1, -2  # in the place of a pid
ANY_BUCKET = -1
INDEX = np.dtype([("count", "<i8"),
                  ("arrived", "<i8"), ("bucket", "<i2"), ("open", "?"), ("constant", "?")])


class Intervals:
    """Over the codes of one exact column: low..high (int64[n], closed, disjoint, ascending) and pid
    (int32[n])."""

    ROW = 20  # bytes

    def __init__(self) -> None:
        self.low, self.high = np.empty(0, np.int64), np.empty(0, np.int64)
        self.pid = np.empty(0, np.int32)

    @property
    def bytes(self) -> int:
        return self.ROW * len(self.low)

    def match(self, codes: np.ndarray, out: np.ndarray) -> None:
        if len(self.low):
            kernels.find_intervals(codes, self.low, self.high, self.pid, out)

    def overlapped(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Numbers of the intervals here that any of low..high meets."""
        first = np.searchsorted(self.high, low, "left")
        last = np.searchsorted(self.low, high, "right")
        met = [np.arange(a, b) for a, b in zip(first, last, strict=True)]
        return np.unique(np.concatenate(met).astype(np.int64))

    def holds(self, low: np.ndarray, high: np.ndarray) -> bool:
        """Whether each of low..high lies in one that is closed."""
        at = np.searchsorted(self.low, low, "right") - 1
        return (bool(len(self.low))
                and bool(((at >= 0) & (self.high[at] >= high) & (self.pid[at] == CLOSED)).all()))

    def insert(self, low: np.ndarray, high: np.ndarray, pid: np.ndarray) -> None:
        merged = np.concatenate([self.low, low])
        order = np.argsort(merged, kind="stable")
        self.low, self.high = merged[order], np.concatenate([self.high, high])[order]
        self.pid = np.concatenate([self.pid, pid.astype(np.int32)])[order]

    def close(self, closing: np.ndarray) -> None:
        """closing: bool by pid. Closed ones that touch become one."""
        if not len(self.low):
            return
        own = self.pid >= 0
        own[own] = closing[self.pid[own]]
        self.pid[own] = CLOSED
        closed = self.pid == CLOSED
        touch = np.zeros(len(self.low), bool)
        # LEAST is nobody's low but the first one's
        touch[1:] = closed[1:] & closed[:-1] & (self.high[:-1] + 1 == self.low[1:])
        first = np.flatnonzero(~touch)
        last = np.append(first[1:], len(self.low)) - 1
        self.low, self.high, self.pid = self.low[first], self.high[last], self.pid[first]

    def closed(self) -> tuple[np.ndarray, np.ndarray]:
        which = self.pid == CLOSED
        return self.low[which], self.high[which]

    def forget(self, low: np.ndarray, high: np.ndarray) -> None:
        """Cut low..high out of what is closed, save of an interval with an open end, which costs no
        more for being whole."""
        mine = self.closed()
        out = [np.empty(len(mine[0]) + len(low), np.int64) for _ in range(2)]
        left = kernels.subtract(*mine, low, high, *out)
        still = self.pid != CLOSED
        self.low, self.high, self.pid = self.low[still], self.high[still], self.pid[still]
        self.insert(out[0][:left], out[1][:left], np.full(left, CLOSED))


class HashedConstants:
    """Of keys whose codes are hashes: code (int64[n], ascending), pid (int32[n]) and the keys,
    compared in full."""

    def __init__(self, kinds: Sequence[pa.DataType]):
        self.keys = Keys(np.empty(0, np.int64), [pa.array([], k) for k in kinds])
        self.pid = np.empty(0, np.int32)

    @property
    def bytes(self) -> int:
        return 12 * len(self.pid) + sum(v.nbytes for v in self.keys.values)

    def find(self, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        """(rows, entries) of keys that are here."""
        first = np.searchsorted(self.keys.codes, keys.codes, "left")
        count = np.searchsorted(self.keys.codes, keys.codes, "right") - first
        rows = np.repeat(np.arange(len(first)), count)
        entries = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(rows))
        same = equal_keys(keys.take(rows).values, self.keys.take(entries).values)
        return rows[same], entries[same]

    def match(self, keys: Keys, out: np.ndarray) -> None:
        if len(self.pid):
            rows, entries = self.find(keys)
            out[rows] = self.pid[entries]

    def insert(self, keys: Keys, pid: np.ndarray) -> None:
        code = np.concatenate([self.keys.codes, keys.codes])
        order = np.argsort(code, kind="stable")
        both = [pa.concat_arrays([a, b])
                for a, b in zip(self.keys.values, keys.values, strict=True)]
        self.keys = Keys(code, both).take(order)
        self.pid = np.concatenate([self.pid, pid.astype(np.int32)])[order]

    def remove(self, entries: np.ndarray) -> None:
        left = np.delete(np.arange(len(self.pid)), entries)
        self.keys, self.pid = self.keys.take(left), self.pid[left]


class Closed(NamedTuple):
    """Punctuations that have just been closed."""

    constants: Keys
    others: list[Punctuation]


class PunctuationSet:
    """Punctuations that are disjoint, by pid, and the index: of each the number of tuples of its
    own stream that match it and are in the state, in memory or on disk."""

    def __init__(self, spec: StreamJoinSpec, side: int):
        self.spec, self.side, self.kinds = spec, side, spec.keys.types
        # punctuations over one column, by join column
        self.intervals = {i: Intervals() for i in exact_columns(spec)}
        self.hashed = None if spec.keys.exact else HashedConstants(self.kinds)
        self.boxes: list[tuple[Punctuation, int]] = []  # any others, and their pids
        self.forms: dict[int, Punctuation] = {}  # of punctuations that are no constants, by pid
        self.index = np.zeros(0, INDEX)
        self._free = np.empty(0, np.int32)
        # arrivals; until which tuples in memory are indexed, and purged
        self.sequence = self.indexed = self.purged = 0

    @property
    def bytes(self) -> int:
        """With what a change of the arrays takes for a moment."""
        tables = (sum(t.bytes for t in self.intervals.values())
                  + (self.hashed.bytes if self.hashed else 0))
        return (2 * tables + self.index.nbytes + 4 * len(self._free)
                + 512 * (len(self.boxes) + len(self.forms)))

    def growth(self, constants: Keys, others: int) -> int:
        """Bytes, at most, that so many more take."""
        new = max(len(constants.codes) - len(self._free), 0)
        more = new + len(self.index) // 2 if new else 0
        row = Intervals.ROW if self.hashed is None else 12
        keys = row * len(constants.codes) + sum(v.nbytes for v in constants.values)
        return (2 * keys + (INDEX.itemsize + 4) * more + 1024 * others
                + (self.index.nbytes if new else 0))

    @property
    def is_empty(self) -> bool:
        return not (self.boxes or (self.hashed and len(self.hashed.pid))
                    or any(len(t.low) for t in self.intervals.values()))

    def match(self, keys: Keys) -> np.ndarray:
        """The pid of each key, CLOSED or NONE, int32[n]."""
        out = np.full(len(keys.codes), NONE, np.int32)
        if len(out):
            for column, table in self.intervals.items():
                if len(table.low):
                    table.match(self._codes(keys, column), out)
            if self.hashed:
                self.hashed.match(keys, out)
            for box, pid in self.boxes:
                out[box.matches(keys.values)] = pid
        return out

    def _codes(self, keys: Keys, column: int) -> np.ndarray:
        return (keys.codes if self.spec.keys.exact
                else column_codes(keys.values[column], self.kinds[column]))

    # Arrival

    def new(self, constants: Keys, others: Sequence[Punctuation]) -> tuple[Keys, list[Punctuation]]:
        """Those that say something new. Raises ConfigError for one that overlaps another and is not
        equal to it."""
        new: list[Punctuation] = []
        for p in others:
            met = [q for q in new if p.overlaps(q)]
            if any(not self._equal(p, q) for q in met):
                raise self._overlap(p.plain(self.spec.key_columns(self.side)))
            if not met and not self._repeats(p):
                new.append(p)
        return self._new_constants(constants, new), new

    def _new_constants(self, constants: Keys, others: Sequence[Punctuation]) -> Keys:
        found = self.match(constants)
        wrong = found >= 0
        wrong[wrong] = ~self.index["constant"][found[wrong]]
        for p in others:
            wrong |= p.matches(self._values(constants))
        if wrong.any():
            values = self._values(constants.take(np.flatnonzero(wrong)[:1]))
            raise self._overlap(dict(zip(self.spec.key_columns(self.side),
                                         (v[0].as_py() for v in values), strict=True)))
        rows = np.flatnonzero(found == NONE)
        if self.hashed is None:
            rows = rows[np.argsort(constants.codes[rows])]
            codes = constants.codes[rows]
            rows = rows[np.append(True, codes[1:] != codes[:-1])[:len(rows)]]
        elif len(rows):
            columns = {f"{i}": v for i, v in enumerate(constants.take(rows).values)}
            first = pa.table(columns | {"row": rows}).group_by(list(columns)).aggregate(
                [("row", "min")])
            rows = np.sort(first["row_min"].to_numpy())
        return constants.take(rows)

    def _values(self, keys: Keys) -> list[pa.Array]:
        return keys.values or [values_of(keys.codes, self.kinds[0])]

    def _repeats(self, p: Punctuation) -> bool:
        """Whether it says nothing new. Raises ConfigError when it overlaps another one that it is
        not equal to."""
        equal = False
        for column, table in self.intervals.items():
            if not len(table.low):
                continue
            low, high = code_intervals(p.patterns[column], self.kinds[column])
            met = table.overlapped(low, high)
            if not len(met):
                continue
            if table.holds(low, high):
                return True
            pids = set(table.pid[met].tolist())
            other = self.forms.get(pids.pop()) if len(pids) == 1 else None
            equal = other is not None and self._equal(p, other)
            if not equal:
                raise self._overlap(p.plain(self.spec.key_columns(self.side)))
        if self.hashed and p.matches(self.hashed.keys.values).any():
            raise self._overlap(p.plain(self.spec.key_columns(self.side)))
        for box, pid in self.boxes:
            if self._equal(p, box) or (pid == CLOSED and box.contains(p)):
                equal = True
            elif box.overlaps(p):
                raise self._overlap(p.plain(self.spec.key_columns(self.side)))
        return equal

    def _equal(self, p: Punctuation, q: Punctuation) -> bool:
        """Whether the same keys match both."""
        def alike(i: int, a: Pattern, b: Pattern) -> bool:
            kind = self.kinds[i]
            return a == b or (i in self.intervals
                              and np.array_equal(code_intervals(a, kind), code_intervals(b, kind)))

        return all(alike(i, a, b)
                   for i, (a, b) in enumerate(zip(p.patterns, q.patterns, strict=True)))

    def _overlap(self, what: dict[str, Any]) -> ConfigError:
        return ConfigError("punctuation", "must be disjoint from the others of the "
                                          f"{SIDES[self.side]} stream, or equal to one",
                           what, "Close each value once.")

    def add(self, constants: Keys, others: Sequence[Punctuation]) -> None:
        """Take in punctuations that are `new`."""
        n = len(constants.codes)
        pids = self._allocate(n + len(others))
        rows = np.empty(len(pids), INDEX)
        rows["count"], rows["bucket"], rows["open"] = 0, ANY_BUCKET, True
        rows["arrived"] = self.sequence + np.arange(len(pids))
        rows["constant"] = np.arange(len(pids)) < n
        bucket = np.empty(n, np.int32)
        kernels.buckets(constants.codes, BUCKETS, bucket)
        rows["bucket"][:n] = bucket
        self.index[pids] = rows
        self.sequence += len(pids)
        if self.hashed is None:
            self.intervals[0].insert(constants.codes, constants.codes, pids[:n])
        elif n:
            self.hashed.insert(constants, pids[:n])
        for p, pid in zip(others, pids[n:].tolist(), strict=True):
            self.forms[pid] = p
            if (home := self._home(p)) is None:
                self.boxes.append((p, pid))
            else:
                low, high = code_intervals(p.patterns[home], self.kinds[home])
                self.intervals[home].insert(low, high, np.full(len(low), pid))

    def _home(self, p: Punctuation) -> int | None:
        """The column whose intervals can hold it."""
        columns = p.constrained or (next(iter(self.intervals), 0),)
        return columns[0] if len(columns) == 1 and columns[0] in self.intervals else None

    def _allocate(self, count: int) -> np.ndarray:
        short = count - len(self._free)
        if short > 0:
            old = len(self.index)
            size = old + max(short, old // 2)
            self.index = np.concatenate([self.index, np.zeros(size - old, INDEX)])
            self._free = np.concatenate([self._free, np.arange(old, size, dtype=np.int32)])
        pids, self._free = self._free[:count], self._free[count:]
        return pids

    # Purge and index

    def since(self, arrived: int) -> tuple[Keys, list[Punctuation]]:
        """Those open that came then or later: constants, and others."""
        pids = np.flatnonzero(self.index["open"] & (self.index["arrived"] >= arrived))
        constant = self.index["constant"][pids]
        wanted = np.zeros(len(self.index), bool)
        wanted[pids[constant]] = True
        return self._constants(wanted)[0], [self.forms[p] for p in pids[~constant].tolist()]

    def _constants(self, wanted: np.ndarray) -> tuple[Keys, np.ndarray]:
        """Keys of the constants with wanted[pid], and their pids."""
        table = self.intervals[0] if self.hashed is None else self.hashed
        own = table.pid >= 0
        own[own] = wanted[table.pid[own]]
        rows = np.flatnonzero(own)
        keys = (Keys(self.intervals[0].low[rows], []) if self.hashed is None
                else self.hashed.keys.take(rows))
        return keys, table.pid[rows]

    def count(self, pids: np.ndarray, by: int) -> None:
        """pids: of tuples that came into the index, or have left the state; int32[n], negative ones
        are none."""
        kernels.add_at(self.index["count"], pids, by)

    # Propagation

    def propagable(self, disk_level: np.ndarray) -> np.ndarray:
        """Pids that no tuple of the state matches (Theorem 1).

        disk_level: int64[buckets], until which arrival the disk portion of each hash bucket is
        indexed.
        """
        index = self.index
        pids = np.flatnonzero(index["open"] & (index["count"] == 0)
                              & (index["arrived"] < min(self.indexed, self.purged)))
        # ANY_BUCKET is the last one
        level = np.append(disk_level, disk_level.min())[index["bucket"][pids]]
        return pids[index["arrived"][pids] < level]

    def close(self, pids: np.ndarray) -> Closed:
        """Take these out of the set, and keep them as closed."""
        closing = np.zeros(len(self.index), bool)
        closing[pids] = True
        constants = self._constants(closing & self.index["constant"])[0]
        others = [self.forms.pop(p) for p in pids[~self.index["constant"][pids]].tolist()]
        for table in self.intervals.values():
            table.close(closing)
        if self.hashed:
            own = self.hashed.pid >= 0
            own[own] = closing[self.hashed.pid[own]]
            self.hashed.pid[own] = CLOSED
        self.boxes = [(b, CLOSED if p >= 0 and closing[p] else p) for b, p in self.boxes]
        self.index["open"][pids] = False
        self._free = np.concatenate([self._free, pids.astype(np.int32)])
        return Closed(constants, others)

    def forget_half(self) -> np.ndarray:
        """Forget half of the closed intervals and constants, the ones of the lower codes, and of
        the open constants the older half. Returns the latter's pids."""
        pids = np.flatnonzero(self.index["open"] & self.index["constant"])
        pids = pids[np.argsort(self.index["arrived"][pids])][:-(-len(pids) // 2)]
        gone = np.zeros(len(self.index), bool)
        gone[pids] = True
        for column, table in self.intervals.items():
            closed = np.flatnonzero((table.pid == CLOSED) & (table.low > LEAST)
                                    & (table.high < MOST))
            keep = np.ones(len(table.pid), bool)
            keep[closed[:-(-len(closed) // 2)]] = False
            if self.hashed is None and column == 0:
                keep[table.pid >= 0] &= ~gone[table.pid[table.pid >= 0]]
            table.low, table.high, table.pid = table.low[keep], table.high[keep], table.pid[keep]
        if self.hashed:
            closed = np.flatnonzero(self.hashed.pid == CLOSED)
            lost = np.zeros(len(self.hashed.pid), bool)
            lost[closed[:-(-len(closed) // 2)]] = True
            lost[self.hashed.pid >= 0] |= gone[self.hashed.pid[self.hashed.pid >= 0]]
            self.hashed.remove(np.flatnonzero(lost))
        self.index["open"][pids], self.index["count"][pids] = False, 0
        last = int(np.flatnonzero(self.index["open"]).max(initial=-1)) + 1
        self.index = self.index[:last].copy()
        self._free = np.flatnonzero(~self.index["open"]).astype(np.int32)
        return pids

    # Snapshots

    def tables(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        name = f"{SIDES[self.side]} punctuations"
        tables = {f"{name} {c}": pa.table({"low": t.low, "high": t.high, "pid": t.pid})
                  for c, t in self.intervals.items()}
        if self.hashed:
            columns = {f"key {i}": v for i, v in enumerate(self.hashed.keys.values)}
            tables[f"{name} hashed"] = pa.table(
                {"code": self.hashed.keys.codes, "pid": self.hashed.pid} | columns)
        pids = np.flatnonzero(self.index["open"])
        columns = {f: np.ascontiguousarray(self.index[f][pids]) for f in INDEX.names or ()}
        tables[f"{name} index"] = pa.table({"pid": pids} | columns)
        shown = [*self.boxes, *((p, pid) for pid, p in self.forms.items())]
        for column, kind in enumerate(self.kinds):
            rows = [(i, low, high) for i, (p, _) in enumerate(shown)
                    for low, high in p.patterns[column].intervals]
            arrays = [pa.array([r[k] for r in rows], t)
                      for k, t in enumerate((pa.int64(), kind, kind))]
            tables[f"{name} patterns {column}"] = pa.Table.from_arrays(
                arrays, ["form", "low", "high"])
        return tables, {"sequence": self.sequence, "indexed": self.indexed, "purged": self.purged,
                        "boxes": len(self.boxes), "pids": [pid for _, pid in shown]}

    def restore(self, tables: dict[str, pa.Table], values: dict[str, Any]) -> None:
        name = f"{SIDES[self.side]} punctuations"
        for column, table in self.intervals.items():
            saved = tables[f"{name} {column}"]
            table.insert(*(saved[c].to_numpy() for c in ("low", "high", "pid")))
        if self.hashed:
            saved = tables[f"{name} hashed"]
            columns = [saved[f"key {i}"].combine_chunks() for i in range(len(self.kinds))]
            self.hashed.insert(Keys(saved["code"].to_numpy(), columns), saved["pid"].to_numpy())
        index = tables[f"{name} index"]
        pids = index["pid"].to_numpy()
        self.index = np.zeros(int(pids.max()) + 1 if len(pids) else 0, INDEX)
        for f in INDEX.names or ():
            self.index[f][pids] = index[f].to_numpy()
        self._free = np.flatnonzero(~self.index["open"]).astype(np.int32)
        shown: list[list[list[tuple[Any, Any]]]] = [[[] for _ in self.kinds]
                                                    for _ in values["pids"]]
        for column in range(len(self.kinds)):
            for row in tables[f"{name} patterns {column}"].to_pylist():
                shown[row["form"]][column].append((row["low"], row["high"]))
        forms = [Punctuation(tuple(Pattern(tuple(i)) for i in one)) for one in shown]
        self.boxes = list(zip(forms, values["pids"], strict=True))[:values["boxes"]]
        self.forms = dict(zip(values["pids"][values["boxes"]:],
                              forms[values["boxes"]:], strict=True))
        self.sequence = values["sequence"]
        self.indexed, self.purged = values["indexed"], values["purged"]


def forget_closed_by_both(a: PunctuationSet, b: PunctuationSet, newly: Closed) -> None:
    """Forget what both streams have closed: no tuple of these values will come, and none is held.

    newly: what `a` has just closed. An interval with an open end, a watermark's, is kept, so that
    late tuples are still known as such; it is at most two of a column.
    """
    for column, table in a.intervals.items():
        mine, theirs = table.closed(), b.intervals[column].closed()
        if len(mine[0]) and len(theirs[0]):
            table.forget(*theirs)
            b.intervals[column].forget(*mine)
    if a.hashed and b.hashed:
        if len(newly.constants.codes):
            both = newly.constants.take(np.flatnonzero(b.match(newly.constants) == CLOSED))
            for one in (a.hashed, b.hashed):
                one.remove(one.find(both)[1])
        if newly.others:
            met = [np.flatnonzero((x.pid == CLOSED) & (y.match(x.keys) == CLOSED))
                   for x, y in ((a.hashed, b), (b.hashed, a))]
            for one, entries in zip((a.hashed, b.hashed), met, strict=True):
                one.remove(entries)
    closed = [[p for p, pid in s.boxes if pid == CLOSED] for s in (b, a)]
    for s, others in zip((a, b), closed, strict=True):
        s.boxes = [(p, pid)
                   for p, pid in s.boxes if pid != CLOSED or not any(q.contains(p) for q in others)]
