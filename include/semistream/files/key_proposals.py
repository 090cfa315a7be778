"""Proposals of keys, found from some rows of both files: the columns by which a stream is joined
with a master file, and the columns that identify the stream's tuples."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat, declared
from semistream.files import nearest_keys
from semistream.files.convert import readable
from semistream.files.detection import DetectedFile
from semistream.files.near_misses import SEPARATOR, needed_forms

TUPLES = 5000  # stream tuples whose keys are looked up
LEAST = 0.3  # share of these that must have a master row
FORMED = 300  # distinct keys that are compared in several forms
CANDIDATES, COLUMNS = 10, 3  # pairs of columns that composite keys are made of, and the most in one
# a score is the match rate times these parts, which add up to 1
BASE, NAMES, VARIETY = 0.4, 0.4, 0.2
COMPOSITE = 0.1  # by which the score of a composite key must be better than a single column's
SURE = 0.6  # score from which a proposal is made without a doubt
ID_NAME = re.compile(
    r"(^|[_\W])(id|nr|no|key|code|number|nummer|uuid|sk|pk)$|id$|nr$", re.IGNORECASE
)
INTEGER = r"^-?\d{1,18}$"
NEARLY = 0.95  # share of distinct values from which a column with such a name is proposed as id


class Pair(NamedTuple):
    """A stream column and a master column. rate: share of the stream's keys that have a master row,
    in any notation; score: how likely the two columns are to be joined, 0 to 1."""

    stream: str
    master: str
    rate: float
    score: float


@dataclass(frozen=True)
class KeyProposal:
    """A proposed join key.

    on: pairs of columns; rate: share of the looked-up tuples that have a master row, in any
    notation; tuples: the number of looked-up tuples; distinct: number of
    distinct keys divided by the number of the master's rows; business_key: columns that identify a
    master row, if the key does not; formats: the formats, by stream column, including the normal
    forms that the keys need; stream_texts, master_texts: columns to be read as texts;
    stream_integers: columns to be read as integers; others: further pairs that match.
    """

    on: dict[str, str]
    rate: float
    tuples: int
    distinct: float
    score: float
    business_key: tuple[str, ...] = ()
    formats: dict[str, ColumnFormat] = field(default_factory=dict)
    stream_texts: tuple[str, ...] = ()
    master_texts: tuple[str, ...] = ()
    stream_integers: tuple[str, ...] = ()
    others: tuple[Pair, ...] = ()

    @property
    def sure(self) -> bool:
        return self.score >= SURE


class Ids(NamedTuple):
    """Columns that identify a stream tuple. duplicates: the number of tuples with an id that
    occurred before."""

    columns: tuple[str, ...]
    duplicates: int


def propose_key(stream: DetectedFile, master: DetectedFile) -> KeyProposal | None:
    """Return the most likely join key of a master file; None if none of its columns has the
    stream's values."""
    rows = _spread(stream.rows.num_rows)
    keys = {c: plain(stream.key(c).take(rows)) for c in stream.columns if _is_key(stream, c)}
    theirs = {c: plain(master.key(c)) for c in master.columns if _is_key(master, c)}
    pairs = _pairs(keys, theirs, master.name)
    found = [
        _scored(chosen, keys, theirs)
        for count in range(1, COLUMNS + 1)
        for chosen in itertools.combinations(pairs[:CANDIDATES], count)
        if len({p.stream for p in chosen}) == len({p.master for p in chosen}) == count
    ]
    if not (found := [f for f in found if f[1] >= LEAST]):
        return None
    unique = [f for f in found if f[2] == 1] or [max(found, key=lambda f: (round(f[2], 2), f[3]))]
    chosen, rate, distinct, score = max(
        unique, key=lambda f: f[3] - COMPOSITE * (len(f[0]) > 1) - 0.01 * len(f[0])
    )
    used = {p.stream for p in chosen}
    others = tuple(p for p in pairs if p.stream not in used and p.score >= SURE)
    return _with_forms(
        KeyProposal(
            {p.stream: p.master for p in chosen},
            rate,
            len(rows),
            distinct,
            score,
            () if distinct == 1 else identifying(master).columns,
            others=others,
        ),
        stream,
        master,
        rows,
    )


def given_key(stream: DetectedFile, master: DetectedFile, on: dict[str, str]) -> KeyProposal:
    """Return a join key that the user gave, with the same statistics as a proposed key."""
    rows = _spread(stream.rows.num_rows)
    keys = {c: plain(stream.key(c).take(rows)) for c in on}
    theirs = {c: plain(master.key(c)) for c in on.values()}
    pairs = [Pair(s, m, 1.0, 1.0) for s, m in on.items()]
    _, rate, distinct, _ = _scored(pairs, keys, theirs)
    business = () if distinct == 1 else identifying(master).columns
    return _with_forms(
        KeyProposal(on, rate, len(rows), distinct, 1.0, business), stream, master, rows
    )


def identifying(of: DetectedFile) -> Ids:
    """Return the columns that identify a row of a file: a single column, or else the smallest
    combination. The result is empty if every combination leaves more than a few equal rows."""
    count = of.rows.num_rows
    columns = [c for c in of.columns if _is_key(of, c)]
    distinct = {c: _distinct([of.written(c)]) for c in columns}
    full = [c for c in columns if not of.rows.column(c).null_count]
    named = sorted(full, key=lambda c: (not ID_NAME.search(c), columns.index(c)))
    for c in named:
        if distinct[c] == count:
            return Ids((c,), 0)
    near = [c for c in named if ID_NAME.search(c) and distinct[c] >= NEARLY * count]
    varied = sorted(full, key=lambda c: -distinct[c])[:CANDIDATES]
    for size in (2, 3):
        for some in itertools.combinations(sorted(varied, key=columns.index), size):
            if _distinct([of.written(c) for c in some]) == count and not near:
                return Ids(some, 0)
    return Ids((near[0],), count - distinct[near[0]]) if near else Ids((), 0)


def plain(texts: pa.Array) -> pa.Array:
    """Return keys in a form that does not depend on their notation; an empty one is null."""
    texts = nearest_keys.plain(texts)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _is_key(of: DetectedFile, column: str) -> bool:
    """Return whether a column may be part of a key."""
    kind = of.rows.schema.field(column).type
    whole = pa.types.is_decimal(kind) and kind.scale == 0
    return (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or whole
    )


def _spread(rows: int) -> pa.Array:
    """Return the positions of the rows whose keys are looked up, spread evenly over all rows."""
    count = min(rows, TUPLES)
    return pa.array((np.arange(count) * (rows / max(count, 1))).astype(np.int64))


def _pairs(keys: dict[str, pa.Array], theirs: dict[str, pa.Array], file: str) -> list[Pair]:
    """Return the pairs of columns that may be joined, the likeliest first. theirs: the master's
    keys by column; file: the master file's name."""
    pairs = []
    for m, values in theirs.items():
        there = pc.unique(values.drop_null())
        for s, column in keys.items():
            known = column.drop_null()
            rate = float(np.asarray(pc.is_in(known, there)).mean()) if len(known) else 0.0
            if rate < LEAST:
                continue
            variety = len(pc.unique(known)) / max(min(len(there), len(known)), 1)
            likeness = _likeness(s, m, file)
            pairs.append(
                Pair(s, m, rate, rate * (BASE + NAMES * likeness + VARIETY * min(variety, 1.0)))
            )
    return sorted(pairs, key=lambda p: -p.score)


def _likeness(stream: str, master: str, file: str) -> float:
    """Return the similarity of two columns' names, 0 to 1. file: the master file's name, which is
    often a part of the stream column's name."""
    s, m, f = (re.sub(r"[\W_]+", "", name).lower() for name in (stream, master, file))
    if s == m or s in (f + m, f.removesuffix("s") + m):
        return 1.0
    if len(min(s, m, key=len)) > 2 and (s.endswith(m) or m.endswith(s)):
        return 0.8
    if len(f) > 2 and (s.startswith(f[:-1]) or f.startswith(s)):
        return 0.7
    return 0.6 * SequenceMatcher(None, s, m).ratio()


def _scored(
    pairs: Sequence[Pair], keys: dict[str, pa.Array], theirs: dict[str, pa.Array]
) -> tuple[Sequence[Pair], float, float, float]:
    """Score several pairs as one key. Return (pairs, share of the stream's keys that have a master
    row, distinct keys divided by the master's rows, score)."""
    there = _joined([theirs[p.master] for p in pairs]).drop_null()
    known = _joined([keys[p.stream] for p in pairs]).drop_null()
    distinct = pc.unique(there)
    rate = float(np.asarray(pc.is_in(known, distinct)).mean()) if len(known) else 0.0
    score = sum(p.score / p.rate for p in pairs) / len(pairs) * rate
    return pairs, rate, len(distinct) / max(len(there), 1), score


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Return the keys of several columns as texts. A key is null if one of its columns is null."""
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, SEPARATOR)


def _distinct(columns: Sequence[pa.Array]) -> int:
    return len(pc.unique(_joined(columns).drop_null()))


def _with_forms(
    key: KeyProposal, stream: DetectedFile, master: DetectedFile, rows: pa.Array
) -> KeyProposal:
    """Return the key with the types and normal forms that its columns need to match exactly, and
    with the share that then matches."""
    key = replace(key, rate=_matched(key.on, stream, master, rows))
    ours, their_texts, integers, columns = [], [], [], []
    for s, m in key.on.items():
        kinds = stream.rows.schema.field(s).type, master.rows.schema.field(m).type
        if _stored_as_integers(master, kinds[1]) and _are_integers(stream, s):
            integers.append(s)
            continue
        if not _one_type(*kinds):
            ours.append(s)
            their_texts.append(m)
        text = pa.types.is_string(kinds[0]) or not _one_type(*kinds)
        sides = [
            of.written(c) if text else of.rows.column(c).combine_chunks()
            for of, c in ((stream, s), (master, m))
        ]
        columns.append([sides[0].take(rows), sides[1]])
    if not columns:
        return replace(key, stream_integers=tuple(integers))
    columns = [[readable(side) for side in c] for c in columns]
    sample, matching = _comparable([c[0] for c in columns], [c[1] for c in columns])
    forms = needed_forms(sample, matching)
    formats = {s: forms[i] for i, s in enumerate(key.on) if i in forms}
    return KeyProposal(
        **{
            **vars(key),
            "formats": {
                s: _with_form(stream.formats.get(s), s, form) for s, form in formats.items()
            },
            "stream_texts": tuple(ours),
            "master_texts": tuple(their_texts),
            "stream_integers": tuple(integers),
        }
    )


def _matched(
    on: Mapping[str, str], stream: DetectedFile, master: DetectedFile, rows: pa.Array
) -> float:
    """Return the share of the stream's tuples at these rows that have a master row, in any
    notation. A tuple without a key has none; an empty text is a key."""
    ours = _joined([nearest_keys.plain(stream.key(s).take(rows)) for s in on])
    theirs = _joined([nearest_keys.plain(master.key(m)) for m in on.values()]).drop_null()
    found = np.asarray(pc.is_in(ours, pc.unique(theirs)))
    return float(found.mean()) if len(found) else 0.0


def _stored_as_integers(of: DetectedFile, kind: pa.DataType) -> bool:
    """Return whether a file itself has integers, where CSV and JSON only have texts of them."""
    return bool(of.kind == "parquet" and pa.types.is_integer(kind))


def _are_integers(of: DetectedFile, column: str) -> bool:
    """Return whether a column of texts has only integers, perhaps with leading zeros."""
    if not pa.types.is_string(of.rows.schema.field(column).type):
        return False
    texts = pc.utf8_trim_whitespace(of.written(column)).drop_null()
    return bool(len(texts) and pc.all(pc.match_substring_regex(texts, INTEGER)).as_py())


def _comparable(
    ours: Sequence[pa.Array], theirs: Sequence[pa.Array]
) -> tuple[list[pa.Array], list[pa.Array]]:
    """Return some distinct keys of the stream, first those that no key of the master equals as they
    are, and the keys of the master that may be equal to them."""
    mine = _joined([plain(c) for c in ours])
    there = _joined([plain(c) for c in theirs])
    found = pc.and_(mine.is_valid(), pc.is_in(mine, pc.unique(there.drop_null())))
    written = _joined(ours)
    _, first = np.unique(np.asarray(pc.fill_null(written, "")), return_index=True)
    chosen = np.intersect1d(np.flatnonzero(np.asarray(found)), first)
    equal = np.asarray(pc.is_in(written.take(pa.array(chosen)), pc.unique(_joined(theirs))))
    chosen = np.concatenate([chosen[~equal][: FORMED // 2], chosen[equal]])[:FORMED]
    near = pc.is_in(there, mine.take(pa.array(chosen))) if len(chosen) else None
    return [c.take(pa.array(chosen, pa.int64())) for c in ours], [
        c.filter(near) if near is not None else c.slice(0, 0) for c in theirs
    ]


def _one_type(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(
        one == other
        or (pa.types.is_integer(one) and pa.types.is_integer(other))
        or (pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz == other.tz)
    )


def _with_form(known: ColumnFormat | None, column: str, form: dict[str, Any]) -> ColumnFormat:
    before = known.model_dump(exclude_defaults=True) if known else {}
    return declared(column, before | form)
