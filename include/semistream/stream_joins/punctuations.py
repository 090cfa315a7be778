"""Punctuations (Ding, Mehta, Rundensteiner, Heineman, section 2.2): patterns over the join columns
that no later tuple matches.

In plain form, which sources and JSON use, a punctuation is a mapping of join columns to patterns,
where a missing column is a wildcard. A pattern is a value (constant), ``{"range": [low, high]}``
(closed; None stands for an open end), ``{"in": [values]}``, ``{"any": true}`` or ``{"none":
true}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ConfigError
from semistream.job import SIDES
from semistream.joins.stored_types import as_stored
from semistream.keys import canonical, codes, is_exact
from semistream.stream_joins.spec import StreamJoinSpec

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # codes
Interval = tuple[Any, Any]


@dataclass(frozen=True)
class Pattern:
    """A pattern of one attribute, as a union of disjoint closed intervals in ascending order. None
    stands for an open end. A wildcard is ((None, None),), a constant ((v, v),), the empty pattern
    ()."""

    intervals: tuple[Interval, ...] = ((None, None),)

    @property
    def is_wildcard(self) -> bool:
        return self.intervals == ((None, None),)

    @property
    def is_constant(self) -> bool:
        return (
            len(self.intervals) == 1
            and self.intervals[0][0] is not None
            and self.intervals[0][0] == self.intervals[0][1]
        )

    def matches(self, column: pa.Array) -> np.ndarray:
        """Return which values of an array match, bool[n]. The array has its canonical type and no
        nulls."""
        if self.is_wildcard:
            return np.ones(len(column), bool)
        out = np.zeros(len(column), bool)
        points = [a for a, b in self.intervals if a is not None and a == b]
        if points:
            out |= pc.is_in(column, pa.array(points, column.type)).to_numpy(zero_copy_only=False)
        for low, high in self.intervals:
            if low is None or low != high:
                inside = np.ones(len(column), bool)
                for bound, compare in ((low, pc.greater_equal), (high, pc.less_equal)):
                    if bound is not None:
                        inside &= compare(column, pa.scalar(bound, column.type)).to_numpy(
                            zero_copy_only=False
                        )
                out |= inside
        return out

    def overlaps(self, other: Pattern) -> bool:
        return any(_meet(a, b) for a in self.intervals for b in other.intervals)

    def contains(self, other: Pattern) -> bool:
        """Return whether each interval of the other pattern lies in an interval of this one."""
        return all(
            any(
                (a is None or (c is not None and a <= c))
                and (b is None or (d is not None and d <= b))
                for a, b in self.intervals
            )
            for c, d in other.intervals
        )

    def plain(self) -> Any:
        """Return the pattern in plain form."""
        if self.is_constant:
            return self.intervals[0][0]
        if self.is_wildcard or not self.intervals:
            return {"any" if self.intervals else "none": True}
        if all(a is not None and a == b for a, b in self.intervals):
            return {"in": [a for a, _ in self.intervals]}
        return {"range": list(self.intervals[0])}

    @classmethod
    def of(cls, plain: Any, name: str, kind: pa.DataType, ordered: bool = True) -> Pattern:
        """Parse a pattern in plain form. Raises ConfigError for anything that is not a pattern of
        the column's type. ordered: whether the type allows ranges."""

        def value(v: Any) -> Any:
            try:
                scalar = (pa.array([v]).cast(kind) if isinstance(v, str) else pa.array([v], kind))[
                    0
                ].as_py()
            except (
                pa.ArrowInvalid,
                pa.ArrowTypeError,
                pa.ArrowNotImplementedError,
                OverflowError,
            ) as e:
                raise ConfigError(
                    "punctuation", f"must have values of the type of {name}, {kind}", v, str(e)
                ) from None
            if scalar is None:
                raise ConfigError(
                    "punctuation",
                    "must have values that are not null",
                    {name: v},
                    "Null keys never match.",
                )
            return scalar

        if not isinstance(plain, Mapping):
            constant = value(plain)
            return cls(((constant, constant),))
        match dict(plain):
            case {"any": True, **more} if not more:
                return cls()
            case {"none": True, **more} if not more:
                return cls(())
            case {"in": [*values], **more} if not more:
                return cls(tuple((v, v) for v in sorted({value(v) for v in values})))
            case {"range": [low, high], **more} if not more:
                if not ordered:
                    raise ConfigError(
                        "punctuation",
                        "must have no range of an unsigned 64-bit column",
                        {name: plain},
                        "Cast the column, or name the values.",
                    )
                a, b = (None if v is None else value(v) for v in (low, high))
                return cls(() if a is not None and b is not None and a > b else ((a, b),))
        raise ConfigError(
            "punctuation",
            "must be a value, {range: [low, high]}, {in: [values]}, {any: true} or {none: true}",
            {name: plain},
            "Write it so.",
        )


def _meet(a: Interval, b: Interval) -> bool:
    return (a[0] is None or b[1] is None or a[0] <= b[1]) and (
        b[0] is None or a[1] is None or b[0] <= a[1]
    )


@dataclass(frozen=True)
class Punctuation:
    """A punctuation: a pattern for each join column, in the columns' order."""

    patterns: tuple[Pattern, ...]

    @property
    def is_empty(self) -> bool:
        return any(not p.intervals for p in self.patterns)

    @property
    def constrained(self) -> tuple[int, ...]:
        """Join columns that are not wildcards."""
        return tuple(i for i, p in enumerate(self.patterns) if not p.is_wildcard)

    def matches(self, values: Sequence[pa.Array]) -> np.ndarray:
        """Return which keys match, bool[n]. values: the keys by column, in canonical types."""
        out = np.ones(len(values[0]), bool)
        for pattern, column in zip(self.patterns, values, strict=True):
            out &= pattern.matches(column)
        return out

    def overlaps(self, other: Punctuation) -> bool:
        return all(a.overlaps(b) for a, b in zip(self.patterns, other.patterns, strict=True))

    def contains(self, other: Punctuation) -> bool:
        return all(a.contains(b) for a, b in zip(self.patterns, other.patterns, strict=True))

    def plain(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return the punctuation in plain form. columns: the names of the join columns."""
        return {
            c: p.plain() for c, p in zip(columns, self.patterns, strict=True) if not p.is_wildcard
        }


class Keys(NamedTuple):
    """Keys without nulls: codes int64[n], and their values by join column in canonical types. If
    codes are exact, the values are left out."""

    codes: np.ndarray
    values: list[pa.Array]

    def take(self, rows: np.ndarray) -> Keys:
        at = pa.array(rows)
        return Keys(self.codes[rows], [v.take(at) for v in self.values])


def parse(
    spec: StreamJoinSpec, side: int, punctuations: pa.RecordBatch | Iterable[Mapping[str, Any]]
) -> tuple[Keys, list[Punctuation], list[tuple[int, int]]]:
    """Return parsed punctuations of a side: constants of all join columns; other punctuations; and
    ranges over the time of ``within``, as (low, high). Raises ConfigError for a column that is not
    a join column, and for anything that is not a pattern."""
    if isinstance(punctuations, pa.RecordBatch):
        return _constants(spec, side, punctuations), [], []
    columns, schema = spec.key_columns(side), spec.schemas[side]
    found: list[Punctuation] = []
    times: list[tuple[int, int]] = []
    for plain in punctuations:
        if spec.within and set(plain) == {spec.within.columns[side]}:
            column, kind = spec.within.columns[side], spec.within.kind
            low, high = code_intervals(Pattern.of(plain[column], column, kind), kind)
            times += zip(low.tolist(), high.tolist(), strict=True)
            continue
        if unknown := set(plain) - set(columns):
            raise ConfigError(
                "punctuation",
                f"must name join columns of the {SIDES[side]} stream: {', '.join(columns)}",
                sorted(unknown)[0],
                "Punctuations over other columns tell a join nothing.",
            )
        patterns = []
        for name, kind in zip(columns, spec.keys.types, strict=True):
            unsigned = pa.types.is_uint64(schema.field(name).type)
            pattern = Pattern.of(
                plain.get(name, {"any": True}),
                name,
                pa.uint64() if unsigned else kind,
                not unsigned,
            )
            if unsigned and not pattern.is_wildcard:  # in the form of key codes
                values = canonical(
                    pa.array([a for a, _ in pattern.intervals], pa.uint64()), kind
                ).to_pylist()
                pattern = Pattern(tuple((v, v) for v in sorted(values)))
            patterns.append(pattern)
        found.append(Punctuation(tuple(patterns)))
    constant = [p for p in found if all(x.is_constant for x in p.patterns)]
    arrays = [
        pa.array([p.patterns[i].intervals[0][0] for p in constant], k)
        for i, k in enumerate(spec.keys.types)
    ]
    others = [p for p in found if not p.is_empty and not all(x.is_constant for x in p.patterns)]
    return Keys(codes(arrays, spec.keys.types)[0], arrays), others, times


def _constants(spec: StreamJoinSpec, side: int, batch: pa.RecordBatch) -> Keys:
    """Return the constants in a batch, without constants that have a null. Raises ConfigError if a
    join column is missing."""
    columns = spec.key_columns(side)
    if missing := [c for c in columns if c not in batch.schema.names]:
        raise ConfigError(
            "punctuation", "must have all join columns", batch.schema.names, f"Add {missing[0]}."
        )
    schema = pa.schema([spec.schemas[side].field(c) for c in columns])
    stored = as_stored(batch.select(list(columns)), schema)
    arrays = spec.keys.canonical(stored.columns)
    code, valid = codes(arrays, spec.keys.types)
    if valid.all():
        return Keys(code, arrays)
    return Keys(code[valid], [a.filter(pa.array(valid)) for a in arrays])


def column_codes(column: pa.Array, kind: pa.DataType) -> np.ndarray:
    """Return the codes of an exact column, int64[n]."""
    return codes([column], (kind,))[0]


def values_of(code: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return the values that exact codes represent."""
    if pa.types.is_boolean(kind):
        return pa.array(code.astype(bool))
    if pa.types.is_date32(kind):
        return pa.array(code.astype(np.int32), pa.date32())
    if pa.types.is_decimal(kind):
        words = np.empty((len(code), 2), np.int64)
        words[:, 0], words[:, 1] = code, code >> 63
        return pa.Array.from_buffers(kind, len(code), [None, pa.py_buffer(words)])
    return pa.array(code, pa.int64()).cast(kind)


def code_intervals(pattern: Pattern, kind: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
    """Return (low, high), each int64[k], ascending: the codes of an exact column that match.
    Adjacent intervals are merged."""
    ends = [
        [
            open_end if i[e] is None else int(column_codes(pa.array([i[e]], kind), kind)[0])
            for i in pattern.intervals
        ]
        for e, open_end in ((0, LEAST), (1, MOST))
    ]
    merged: list[list[int]] = []
    for low, high in zip(*ends, strict=True):
        if merged and low == merged[-1][1] + 1:
            merged[-1][1] = high
        else:
            merged.append([low, high])
    return np.array([a for a, _ in merged], np.int64), np.array([b for _, b in merged], np.int64)


def exact_columns(spec: StreamJoinSpec) -> tuple[int, ...]:
    """Return the join columns whose values have the same order as their codes."""
    return tuple(i for i, k in enumerate(spec.keys.types) if is_exact(k))
