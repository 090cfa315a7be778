"""The punctuations of one stream: the punctuation set with its index, and the propagated (*closed*)
punctuations.

Deviation (section 3.5): the paper drops a punctuation once it is propagated. A later tuple of the
other stream would then stay for ever. Here the punctuation is kept as closed until the other stream
has closed the same values; adjacent closed integers form one interval.

Another deviation (section 3.5): the paper outputs a punctuation when its count is zero, although
matching tuples may be counted for an earlier punctuation that it contains. Here the punctuation
also waits for these tuples, as Theorem 1 requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.compiled import filled
from semistream.job import SIDES
from semistream.joins.key_table import count_by
from semistream.stream_joins import kernels
from semistream.stream_joins.punctuation_tables import (
    CLOSED,
    NONE,
    HashedConstants,
    Intervals,
    OpenConstants,
)
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
from semistream.stream_joins.spec import StreamJoinSpec

ANY_BUCKET = -1
# states of a pid; a hashed constant keeps its pid when it is closed
FREE, OPEN, SHUT = 0, 1, 2
INDEX = {
    "count": np.int64,
    "arrived": np.int64,
    "code": np.int64,
    "bucket": np.int16,
    "state": np.uint8,
    "constant": np.bool_,
}
INDEX_ROW = sum(np.dtype(kind).itemsize for kind in INDEX.values())  # bytes


class Closed(NamedTuple):
    """Punctuations that have just been closed."""

    constants: Keys
    others: list[Punctuation]


class PunctuationSet:
    """Punctuations by pid, and their index. The index counts, for each punctuation, the tuples of
    its own stream in the state, in memory or on disk, whose first punctuation it is.

    A punctuation may contain earlier ones. A tuple that matches several has the pid of the
    punctuation that arrived first (section 3.5). If one of these is a constant, it is always the
    first: a constant that an earlier punctuation contains adds nothing and is not taken in.
    """

    def __init__(self, spec: StreamJoinSpec, side: int):
        self.spec, self.side, self.kinds = spec, side, spec.keys.types
        # punctuations over one column, by join column, and their closed parts
        self.intervals = {i: Intervals() for i in exact_columns(spec)}
        # constants: with exact keys the open ones are in `open`; otherwise all are in `hashed`
        self.exact = spec.keys.exact
        self.open, self.hashed = OpenConstants(), HashedConstants(self.kinds)
        self.boxes: list[tuple[Punctuation, int]] = []  # all other punctuations, with their pids
        self.forms: dict[int, Punctuation] = {}  # punctuations other than constants, by pid
        self.index: dict[str, np.ndarray] = {f: np.zeros(0, kind) for f, kind in INDEX.items()}
        self._free = np.empty(0, np.int32)
        # sequence numbers: arrivals so far; up to which memory is indexed; up to which the other
        # stream's memory is purged
        self.sequence = self.indexed = self.purged = 0
        self.closed_early = False  # whether some were closed before they were used in a purge
        # the last snapshot has the arrivals before this; it has the pids of `_gone`, which are free
        # now, and those of `_shut` as open
        self._saved_until, self._gone, self._shut = 0, list[np.ndarray](), list[np.ndarray]()

    @property
    def bytes(self) -> int:
        """The bytes of the set, including the copies that a change of the arrays needs
        temporarily."""
        tables = sum(t.bytes for t in self.intervals.values()) + 2 * self.hashed.bytes
        changes = sum(a.nbytes for a in self._gone) + sum(a.nbytes for a in self._shut)
        return (
            tables
            + self.open.bytes
            + changes
            + INDEX_ROW * len(self.index["state"])
            + 4 * len(self._free)
            + 512 * (len(self.boxes) + len(self.forms))
        )

    def growth(self, constants: Keys, others: Sequence[Punctuation]) -> int:
        """Return the largest number of bytes that adding these punctuations may take."""
        n, size = len(constants.codes), len(self.index["state"])
        new = max(n - len(self._free), 0)
        more = new + size // 2 if new else 0
        tables = (
            self.open.growth(n)
            if self.exact
            else 24 * n + 2 * sum(v.nbytes for v in constants.values)
        )
        parts = sum(
            len(p.patterns[home].intervals) + self.intervals[home].open_count
            for p in others
            if (home := self._home(p)) is not None
        )
        return (
            tables
            + (INDEX_ROW + 4) * more
            + 1024 * len(others)
            + Intervals.ROW * parts
            + (INDEX_ROW * size if new else 0)
        )

    def closing(self, count: int) -> int:
        """Return the largest number of bytes that closing `count` punctuations may take: an
        interval, and two entries in lists of changes, for each."""
        return ((Intervals.ROW if self.exact else 0) + 8) * count

    @property
    def is_empty(self) -> bool:
        return not (
            self.boxes
            or len(self.hashed.pid)
            or self.open.used
            or any(len(t.low) for t in self.intervals.values())
        )

    def match(self, keys: Keys) -> np.ndarray:
        """Return for each key the pid of the earliest punctuation that matches it, int32[n]: CLOSED
        if that punctuation is closed, NONE if no punctuation matches."""
        out = self._match_others(keys)
        if self.exact and len(out):
            self.open.match(keys.codes, out)
        elif len(out) and len(self.hashed.pid):
            rows, pids = self.hashed.find(keys)
            out[rows] = np.where(self.index["state"][pids] == SHUT, CLOSED, pids)
        return out

    def _match_others(self, keys: Keys) -> np.ndarray:
        """Match keys like `match`, but without open constants, and without closed constants of
        hashed keys. Return pids, int32[n]."""
        out, met = np.full(len(keys.codes), NONE, np.int32), False
        for column, table in self.intervals.items() if len(out) else ():
            if len(table.low):
                found = np.full(len(out), NONE, np.int32) if met else out
                table.match(self._codes(keys, column), found)
                out, met = self._first(out, found) if met else out, True
        for box, pid in self.boxes if len(out) else ():
            found = np.where(box.matches(keys.values), np.int32(pid), np.int32(NONE))
            out = self._first(out, found)
        return out

    def _first(self, pids: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the earlier of two pids for each row, int32[n]. CLOSED precedes all others."""
        assert (CLOSED, NONE) == (-2, -1)  # they index the appended ranks
        rank = np.append(self.index["arrived"], [LEAST, MOST])
        return np.where(rank[others] < rank[pids], others, pids)

    def _codes(self, keys: Keys, column: int) -> np.ndarray:
        return (
            keys.codes
            if self.spec.keys.exact
            else column_codes(keys.values[column], self.kinds[column])
        )

    # Arrival

    def new(self, constants: Keys, others: Sequence[Punctuation]) -> tuple[Keys, list[Punctuation]]:
        """Filter out punctuations that add nothing: constants that match an earlier punctuation,
        and others that an earlier one contains."""
        new: list[Punctuation] = []
        for p in others:
            if not self._contained(p) and not any(q.contains(p) for q in new):
                new.append(p)
        return self._new_constants(constants), new

    def _new_constants(self, constants: Keys) -> Keys:
        """Filter out the constants that match an earlier punctuation, and all but one of equal
        ones."""
        if not len(constants.codes):
            return constants
        rows = np.flatnonzero(self.match(constants) == NONE)
        if self.exact:
            codes = np.sort(constants.codes[rows])
            return Keys(codes[np.append(True, codes[1:] != codes[:-1])[: len(rows)]], [])
        if len(rows):
            columns = {f"{i}": v for i, v in enumerate(constants.take(rows).values)}
            first = (
                pa.table(columns | {"row": rows})
                .group_by(list(columns))
                .aggregate([("row", "min")])
            )
            rows = np.sort(first["row_min"].to_numpy())
        return constants.take(rows)

    def _contained(self, p: Punctuation) -> bool:
        return any(
            not len(table.new(*code_intervals(p.patterns[column], self.kinds[column]))[0])
            for column, table in self.intervals.items()
        ) or any(box.contains(p) for box, _ in self.boxes)

    def _values(self, keys: Keys) -> list[pa.Array]:
        return keys.values or [values_of(keys.codes, self.kinds[0])]

    def add(self, constants: Keys, others: Sequence[Punctuation]) -> None:
        """Add punctuations to the set. `new` must have filtered them."""
        n = len(constants.codes)
        pids = self._allocate(n + len(others))
        mine, arrived = pids[:n], self.sequence + np.arange(len(pids))
        self.sequence += len(pids)
        if n:
            self._set(mine, constants.codes, arrived[:n], True)
            if self.exact:
                self.open.insert(constants.codes, mine)
            else:
                self.hashed.insert(constants, mine)
        if others:
            self._set(pids[n:], 0, arrived[n:], False)
        for p, pid in zip(others, pids[n:].tolist(), strict=True):
            self._add(p, pid)

    def _add(self, p: Punctuation, pid: int) -> None:
        """Add a punctuation that is not a constant. The punctuation replaces closed ones that it
        contains."""
        self.forms[pid] = p
        self.boxes = [(box, of) for box, of in self.boxes if of != CLOSED or not p.contains(box)]
        if not self.exact:
            keys, pids = self.hashed.of(self._pids(SHUT, constant=True))
            self.forget(pids[p.matches(keys.values)])
        if (home := self._home(p)) is None:
            self.boxes.append((p, pid))
        else:
            self.intervals[home].add(*code_intervals(p.patterns[home], self.kinds[home]), pid)

    def _set(
        self,
        pids: np.ndarray,
        codes: np.ndarray | int,
        arrived: np.ndarray,
        constant: bool | np.ndarray,
        state: int | np.ndarray = OPEN,
    ) -> None:
        """Initialise rows of the index that no tuple matches yet."""
        index = self.index
        index["count"][pids], index["arrived"][pids] = 0, arrived
        index["code"][pids], index["constant"][pids], index["state"][pids] = codes, constant, state
        bucket = filled(kernels.buckets, len(pids), np.int32, index["code"][pids])
        index["bucket"][pids] = np.where(constant, bucket, ANY_BUCKET)

    def _home(self, p: Punctuation) -> int | None:
        """Return the column whose intervals can represent the punctuation; None if no column
        can."""
        columns = p.constrained or (next(iter(self.intervals), 0),)
        return columns[0] if len(columns) == 1 and columns[0] in self.intervals else None

    def _allocate(self, count: int) -> np.ndarray:
        """Return `count` free pids, int32[count]. The index grows if it has too few."""
        short = count - len(self._free)
        if short > 0:
            old = len(self.index["state"])
            self._resize(old + max(short, old // 2))
            self._free = np.concatenate(
                [self._free, np.arange(old, len(self.index["state"]), dtype=np.int32)]
            )
        pids, self._free = self._free[:count], self._free[count:]
        return pids

    def _resize(self, size: int) -> None:
        for name, column in self.index.items():
            self.index[name] = np.zeros(size, column.dtype)
            self.index[name][: min(size, len(column))] = column[:size]

    def _release(self, pids: np.ndarray) -> None:
        """Free pids. They can be given to other punctuations afterwards."""
        self._note(self._gone, pids)
        self.index["state"][pids], self.index["count"][pids] = FREE, 0
        self._free = np.concatenate([self._free, pids.astype(np.int32)])

    def _note(self, what: list[np.ndarray], pids: np.ndarray) -> None:
        """Append pids to a list of changes since the last snapshot. Pids of punctuations that came
        after the snapshot are left out."""
        saved = pids[self.index["arrived"][pids] < self._saved_until]
        if len(saved):
            what.append(saved.astype(np.int32))

    # Purge and index

    def since(self, arrived: int) -> tuple[Keys, list[Punctuation]]:
        """Return the open punctuations with sequence number `arrived` or later, as (constants,
        other punctuations)."""
        if arrived == self.sequence:
            return self._keys(np.empty(0, np.int32)), []
        index = self.index
        pids = np.flatnonzero((index["arrived"] >= arrived) & (index["state"] == OPEN))
        constant = index["constant"][pids]
        return self._keys(pids[constant]), [self.forms[p] for p in pids[~constant].tolist()]

    def _pids(self, state: int, constant: bool) -> np.ndarray:
        return np.flatnonzero((self.index["state"] == state) & (self.index["constant"] == constant))

    def _keys(self, pids: np.ndarray) -> Keys:
        """Return the keys of constants in ascending order of their codes."""
        return (
            Keys(np.sort(self.index["code"][pids]), []) if self.exact else self.hashed.of(pids)[0]
        )

    def count(self, pids: np.ndarray, by: int) -> None:
        """Add `by` to the counts of punctuations. pids: int32[n], of tuples that entered the index
        or left the state; negative pids are ignored."""
        count_by(pids, self.index["count"], by)

    # Propagation

    def propagable(self, disk_level: np.ndarray) -> np.ndarray:
        """Return the pids of punctuations that no tuple of the state matches (Theorem 1).

        disk_level: int64[buckets], for each hash bucket the arrival number of punctuations up to
        which its disk portion is indexed.
        """
        index = self.index
        pids = np.flatnonzero(
            (index["state"] == OPEN) & (index["count"] == 0) & (index["arrived"] < self.indexed)
        )
        # ANY_BUCKET is the last one
        level = np.append(disk_level, disk_level.min())[index["bucket"][pids]]
        return self._without_blocked(pids[index["arrived"][pids] < level])

    def _without_blocked(self, pids: np.ndarray) -> np.ndarray:
        """Filter out the pids of punctuations that overlap an earlier punctuation which is not in
        `pids`, because a tuple that matches both is counted for the earlier one only."""
        arrived = self.index["arrived"]
        rest = sorted(pids[~self.index["constant"][pids]].tolist(), key=arrived.__getitem__)
        if not rest:
            return pids
        held = [pid for pid in self.forms if pid not in rest]
        constants = np.setdiff1d(self._pids(OPEN, constant=True), pids)
        for pid in rest:
            p = self.forms[pid]
            if (
                any(arrived[q] < arrived[pid] and p.overlaps(self.forms[q]) for q in held)
                or p.matches(self._values(self._keys(constants))).any()
            ):
                held.append(pid)
        return pids[~np.isin(pids, held)]

    def close(self, pids: np.ndarray) -> Closed:
        """Remove these punctuations from the set, and keep them as closed. Constants and boxes that
        another closed punctuation contains are not kept."""
        self.closed_early |= bool((self.index["arrived"][pids] >= self.purged).any())
        constant = self.index["constant"][pids]
        mine, rest = pids[constant], pids[~constant]
        constants, of = (self._keys(mine), mine) if self.exact else self.hashed.of(mine)
        alone = self._match_others(constants) == NONE
        others = [self.forms.pop(p) for p in rest.tolist()]
        if self.exact:
            codes = constants.codes[alone]
            self.open.remove(constants.codes)
            self.intervals[0].insert(codes, codes, np.full(len(codes), CLOSED))
            self._release(pids)
        else:
            self.index["state"][of[alone]] = SHUT
            self._note(self._shut, of[alone])
            self.forget(of[~alone])
            self._release(rest)
        for table in self.intervals.values():
            table.close(rest)
        if len(rest):
            gone = set(rest.tolist())
            boxes = [(b, CLOSED if p in gone else p) for b, p in self.boxes]
            whole = [*self.forms.values(), *(b for b, _ in boxes)]
            self.boxes = [
                (b, p)
                for b, p in boxes
                if p != CLOSED or not any(q != b and q.contains(b) for q in whole)
            ]
        return Closed(constants, others)

    def closed_by(self, other: PunctuationSet) -> np.ndarray:
        """Return the pids of closed hashed constants that the other stream has also closed."""
        keys, pids = self.hashed.of(self._pids(SHUT, constant=True))
        return pids[other.match(keys) == CLOSED]

    def forget(self, pids: np.ndarray) -> None:
        """Remove constants from the set."""
        if self.exact:
            self.open.remove(self.index["code"][pids])
        else:
            self.hashed.remove(pids)
        self._release(pids)

    def forgetting(self) -> int:
        """Return the largest number of bytes that forgetting half of the constants may take: two
        entries in lists of changes for each pid."""
        return 4 * len(self.index["state"]) + 8

    def forget_half(self) -> tuple[np.ndarray, np.ndarray]:
        """Forget half of the closed intervals and constants, those with the lower codes, and the
        older half of the open constants. Return the pids of these open constants, int32[n], and the
        pids that their tuples get instead: of another punctuation that contains the constant, or
        NONE."""
        pids = self._pids(OPEN, constant=True)
        pids = pids[np.argsort(self.index["arrived"][pids])][: -(-len(pids) // 2)]
        keys, pids = (
            (Keys(self.index["code"][pids], []), pids) if self.exact else self.hashed.of(pids)
        )
        heirs = self._match_others(keys)
        inherit = heirs != NONE
        np.add.at(self.index["count"], heirs[inherit], self.index["count"][pids[inherit]])
        for table in self.intervals.values():
            closed = np.flatnonzero(
                (table.pid == CLOSED) & (table.low > LEAST) & (table.high < MOST)
            )
            table.keep(np.delete(np.arange(len(table.pid)), closed[: -(-len(closed) // 2)]))
        shut = self._pids(SHUT, constant=True)
        shut = shut[np.argsort(self.index["code"][shut])][: -(-len(shut) // 2)]
        self.forget(np.concatenate([pids, shut]))
        self._resize(int(np.flatnonzero(self.index["state"]).max(initial=-1)) + 1)
        self._free = np.flatnonzero(self.index["state"] == FREE).astype(np.int32)
        return pids, heirs

    # Snapshots

    def saved(self, changes: bool) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Return the tables and values of a snapshot. changes: whether to return only the changes
        since the last snapshot. The few patterns over several columns are always saved completely.
        """
        name, index = f"{SIDES[self.side]} punctuations", self.index
        tables: dict[str, pa.Table] = {}
        for column, intervals in self.intervals.items():
            gone, came = intervals.saved(changes)
            tables |= {f"{name} {column}": came, f"{name} {column} gone": pa.table({"low": gone})}
        known = index["state"] != FREE
        pids = np.flatnonzero(known & (index["arrived"] >= self._saved_until) if changes else known)
        tables[f"{name} index"] = pa.table(
            {"pid": pids} | {f: index[f][pids] for f in ("arrived", "code", "state", "constant")}
        )
        if not self.exact:
            keys, of = self.hashed.of(pids)
            tables[f"{name} keys"] = pa.table(
                {"pid": of} | {f"key {i}": v for i, v in enumerate(keys.values)}
            )
        for what, these in (("gone", self._gone), ("shut", self._shut)):
            found = np.concatenate([np.empty(0, np.int32), *these]) if changes else pids[:0]
            tables[f"{name} {what}"] = pa.table({"pid": found})
        self._saved_until, self._gone, self._shut = self.sequence, [], []
        written = [*self.boxes, *((p, pid) for pid, p in self.forms.items())]
        for column, kind in enumerate(self.kinds):
            rows = [
                (i, low, high)
                for i, (p, _) in enumerate(written)
                for low, high in p.patterns[column].intervals
            ]
            arrays = [
                pa.array([r[k] for r in rows], t) for k, t in enumerate((pa.int64(), kind, kind))
            ]
            tables[f"{name} patterns {column}"] = pa.Table.from_arrays(
                arrays, ["form", "low", "high"]
            )
        return tables, {
            "sequence": self.sequence,
            "indexed": self.indexed,
            "purged": self.purged,
            "closed_early": self.closed_early,
            "boxes": len(self.boxes),
            "pids": [pid for _, pid in written],
        }

    def restore(self, snapshots: Sequence[dict[str, pa.Table]], values: dict[str, Any]) -> None:
        """Restore a snapshot. snapshots: the tables of a full snapshot, then of each change after
        it; values: the values of the last one. The tuple counts are not restored, so that the
        caller must count them again."""
        name = f"{SIDES[self.side]} punctuations"
        for tables in snapshots:
            for column, intervals in self.intervals.items():
                intervals.restore(
                    tables[f"{name} {column} gone"]["low"].to_numpy(), tables[f"{name} {column}"]
                )
            gone, shut = (tables[f"{name} {what}"]["pid"].to_numpy() for what in ("gone", "shut"))
            self.index["state"][shut] = SHUT
            self.index["state"][gone] = FREE
            new = tables[f"{name} index"]
            rows = {f: new[f].to_numpy() for f in new.column_names}
            pids = rows["pid"]
            self._resize(max(int(pids.max(initial=-1)) + 1, len(self.index["state"])))
            self._set(pids, rows["code"], rows["arrived"], rows["constant"], rows["state"])
            if not self.exact:
                keys = tables[f"{name} keys"]
                columns = [keys[f"key {i}"].combine_chunks() for i in range(len(self.kinds))]
                self.hashed.remove(gone)
                of = keys["pid"].to_numpy()
                self.hashed.insert(Keys(self.index["code"][of], columns), of)
        if self.exact:
            pids = self._pids(OPEN, constant=True)
            self.open.insert(self.index["code"][pids], pids)
        self._free = np.flatnonzero(self.index["state"] == FREE).astype(np.int32)
        tables, patterns = snapshots[-1], values["pids"]
        written: list[list[list[tuple[Any, Any]]]] = [[[] for _ in self.kinds] for _ in patterns]
        for column in range(len(self.kinds)):
            for row in tables[f"{name} patterns {column}"].to_pylist():
                written[row["form"]][column].append((row["low"], row["high"]))
        forms = [Punctuation(tuple(Pattern(tuple(i)) for i in one)) for one in written]
        self.boxes = list(zip(forms, patterns, strict=True))[: values["boxes"]]
        self.forms = dict(zip(patterns[values["boxes"] :], forms[values["boxes"] :], strict=True))
        self.sequence = self._saved_until = values["sequence"]
        self.indexed, self.purged = values["indexed"], values["purged"]
        self.closed_early = values["closed_early"]


def forget_closed_by_both(a: PunctuationSet, b: PunctuationSet, newly: Closed) -> None:
    """Forget values that both streams have closed, because no tuple with these values will come,
    and none is held.

    newly: the punctuations that `a` has just closed. An interval with an open end, which comes from
    a watermark, is kept, so that late tuples are still recognised as late; there are at most two
    per column.
    """
    for column, table in a.intervals.items():
        mine, theirs = table.closed(), b.intervals[column].closed()
        if len(mine[0]) and len(theirs[0]):
            table.forget(*theirs)
            b.intervals[column].forget(*mine)
    if not a.exact:
        if len(newly.constants.codes):
            both = newly.constants.take(np.flatnonzero(b.match(newly.constants) == CLOSED))
            for one in (a, b):
                one.forget(one.hashed.find(both)[1])
        if newly.others:
            met = [x.closed_by(y) for x, y in ((a, b), (b, a))]
            for one, pids in zip((a, b), met, strict=True):
                one.forget(pids)
    closed = [[p for p, pid in s.boxes if pid == CLOSED] for s in (b, a)]
    for s, others in zip((a, b), closed, strict=True):
        s.boxes = [
            (p, pid)
            for p, pid in s.boxes
            if pid != CLOSED or not any(q.contains(p) for q in others)
        ]
