"""The reason why keys of a stream match no master row: which keys would match if both sides had the
same form, and the setting ``formats`` that converts them to this form."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.column_format import ColumnFormat
from semistream.files.convert import readable
from semistream.files.formats import prepared
from semistream.master.snapshot import SnapshotRelation
from semistream.reasons import Reason

SAMPLE = 1000  # unmatched keys that are looked at
# A smaller share of unmatched tuples is what most sources have, and not worth a pass over R.
SHARE = 0.05
ROWS, SECONDS = 2_000_000, 1.0  # the most rows of R that are read, and the longest time
READ_BYTES, READ_ROWS = 4_000_000, 8192  # of R, at a time
CROWDED = 500_000  # rows of R whose keys are compared with each other
CANDIDATES = 20_000  # the most keys of R that are compared with the sample
LEAST = 0.01  # share of the sampled keys that must match for a form to be proposed
KEPT = 0.99  # share of the matches that fewer forms must keep
SEPARATOR = "\x1f"  # between the columns of a composite key
NO_WORDS = pa.array([], pa.string())


@dataclass(frozen=True)
class Form:
    """A form in which keys can be compared. setting: the part of a column's ``formats`` that
    converts keys to the form; words: a description of the form for use within a sentence."""

    setting: dict[str, Any]
    words: str


# in the order in which forms are given up: those that change more of a text come first
FORMS = (
    Form({"fraction": "strip"}, "as integers"),
    Form({"zeros": "strip"}, "without leading zeros"),
    Form({"unicode": "NFC"}, "in NFC"),
    Form({"case": "fold"}, "ignoring case"),
    Form({"trim": True}, "after trimming"),
)


class SampledKeys:
    """A sample of the join keys of tuples without a match, at most 2 ``SAMPLE``, drawn evenly over
    the stream. The distance between two drawn tuples is random, because a fixed distance could
    coincide with a period of the stream.

    columns: the positions of the stream's join columns, in the order of R's.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[int]):
        self._names, self._columns = list(names), list(columns)
        # mean distance of samples; tuples seen; next sample
        self._distance, self._seen, self._next = 1, 0, 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, unmatched: pa.RecordBatch) -> None:
        """Draw some of these tuples, and add the keys of drawn tuples that matched no master row.
        unmatched: stream tuples as an operator returns them, with the reason in the last column."""
        before, self._seen = self._seen, self._seen + unmatched.num_rows
        positions = list[int]()
        while self._next < self._seen:
            positions.append(self._next - before)
            self._next += (
                int(self._random.integers(1, 2 * self._distance)) if self._distance > 1 else 1
            )
        if not positions:
            return
        *keys, reasons = (
            unmatched.column(i).take(pa.array(positions))
            for i in (*self._columns, unmatched.num_columns - 1)
        )
        drawn = pa.RecordBatch.from_arrays(keys, names=self._names)
        self._batches.append(drawn.filter(pc.equal(reasons, Reason.NO_MATCH)))
        while sum(batch.num_rows for batch in self._batches) > 2 * SAMPLE:
            held = pa.concat_batches(self._batches)
            half = self._random.choice(held.num_rows, held.num_rows // 2, replace=False)
            self._batches = [held.take(pa.array(np.sort(half)))]
            self._distance *= 2

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng(0)  # made where it is needed, as its import takes 10 ms

    def keys(self) -> pa.RecordBatch | None:
        """Return the sampled keys as rows; None if no tuple was drawn."""
        return pa.concat_batches(self._batches) if self._batches else None


@dataclass(frozen=True)
class NearMisses:
    """Sampled keys that would match some row of R in another form.

    keys, matches: the numbers of distinct keys that were examined, and that matched; forms: the
    forms to convert to, by stream column; formats: the setting for this conversion, by stream
    column, including the format that its master column already has; example: a sampled key, and the
    key of R that it would match; rows, of: the numbers of R's rows that were read, and of all its
    rows; merged: the number of R's keys, among those that were compared with each other, that would
    become equal to another one; merging: two such keys.
    """

    keys: int
    matches: int
    forms: dict[str, tuple[Form, ...]]
    formats: dict[str, ColumnFormat]
    example: tuple[tuple[Any, ...], tuple[Any, ...]]
    rows: int
    of: int
    merged: int = 0
    merging: tuple[tuple[Any, ...], ...] = ()

    @property
    def declaration(self) -> str:
        """The setting in a job's notation: ``{product: {trim: true}}``."""
        return f"{{{', '.join(f'{c}: {_yaml(form)}' for c, form in self.formats.items())}}}"

    @property
    def flags(self) -> str:
        """The setting as flags of the command line."""
        return " ".join(f"--formats '{c}={_yaml(form)}'" for c, form in self.formats.items())

    def __str__(self) -> str:
        said = [
            f"{_listed([form.words for form in forms])} in {column}"
            for column, forms in self.forms.items()
        ]
        # the two texts of an example look the same where only their Unicode form differs
        written = (
            ascii if any("unicode" in f.setting for of in self.forms.values() for f in of) else repr
        )
        one, other = (written(key[0] if len(key) == 1 else key) for key in self.example)
        part = (
            ""
            if self.rows >= self.of
            else f" (of {self.of:,} master rows, {self.rows:,} were read)"
        )
        merged = ""
        if self.merging:
            two = " and ".join(written(key[0] if len(key) == 1 else key) for key in self.merging)
            merged = (
                f"; but {self.merged:,} different {'key' if self.merged == 1 else 'keys'} of the "
                f"master data would become equal to another one, as {two}"
            )
        return (
            f"of {self.keys:,} unmatched keys {self.matches:,} would match {_listed(said)}, for "
            f"instance {one} and {other}{part}{merged}"
        )


def is_suspicious(matched: int, unmatched: int) -> bool:
    """Return whether the share of tuples without a match is high enough to look for near misses.
    matched, unmatched: numbers of tuples, both without the tuples that have no key."""
    return unmatched > SHARE * (matched + unmatched)


def comparable(kinds: Sequence[pa.DataType]) -> bool:
    """Return whether keys of these canonical types may have other notations."""
    return any(map(pa.types.is_string, kinds)) and not any(map(pa.types.is_binary, kinds))


def near_misses(keys: pa.RecordBatch, relation: SnapshotRelation) -> NearMisses | None:
    """Find the smallest set of forms in which most keys without a match have one. Return None if no
    key column is a text, or if fewer than ``LEAST`` of the keys would match.

    keys: the stream's join columns of tuples without a match, in the order of R's; at most
    ``SAMPLE`` distinct keys are examined. All forms are applied in one pass over R's key columns.
    Forms in which different keys of R are equal are left out if enough keys match without them.
    Then forms are dropped one by one, as long as ``KEPT`` of the matches stay.
    """
    kinds = relation.keys.types
    texts = [i for i, kind in enumerate(kinds) if pa.types.is_string(kind)]
    columns = relation.keys.canonical(keys.columns)
    distinct = _distinct(columns) if comparable(kinds) else []
    count = min(len(distinct), SAMPLE)
    sample = [distinct[i * len(distinct) // count] for i in range(count)]
    if not sample:
        return None
    known = {i: relation.manifest.formats.get(relation.keys.master[i], {}) for i in texts}
    wanted = _Keys(sample, kinds)
    forms = {i: list(FORMS) for i in texts}
    candidates, rows = _candidates(relation, wanted, forms)
    compared = _Compared(wanted, _Keys(candidates, kinds))
    most = len(compared.matches(forms))
    if most * relation.tuple_count < LEAST * len(sample) * max(rows, 1):
        return None
    if not most:
        return None
    crowded = _Keys(_crowded(relation, forms), kinds)
    apart = _Compared(wanted, crowded).apart(forms)
    least = max(LEAST * len(sample) * max(rows, 1) / relation.tuple_count, 1)
    forms = compared.fewest(apart if len(compared.matches(apart)) >= least else forms)
    named = {i: tuple(reversed(of)) for i, of in forms.items() if of}
    if not named:
        return None
    matches = compared.matches(forms)
    merged, merging = _Compared(wanted, crowded).merged(forms)
    return NearMisses(
        len(sample),
        len(matches),
        {keys.schema.names[i]: of for i, of in named.items()},
        {
            keys.schema.names[i]: ColumnFormat.model_validate(known[i] | _format(of))
            for i, of in named.items()
        },
        next(iter(matches.items())),
        rows,
        relation.tuple_count,
        merged,
        merging,
    )


Forms = dict[int, list[Form]]  # by the number of the text column


def needed_forms(keys: Sequence[pa.Array], master: Sequence[pa.Array]) -> dict[int, dict[str, Any]]:
    """Return the part of ``formats`` that most of the keys need to match the master's, by the
    number of the column. keys, master: distinct keys, an array for each join column; the types of
    both sides are equal."""
    kinds = [column.type for column in keys]
    compared = _Compared(_Keys(_distinct(keys), kinds), _Keys(_distinct(master), kinds))
    texts = [i for i, kind in enumerate(kinds) if pa.types.is_string(kind)]
    forms = compared.fewest({i: list(FORMS) for i in texts})
    return {i: _format(of) for i, of in forms.items() if of}


class _Keys:
    """Keys as tuples of values. kinds: their canonical types."""

    def __init__(self, keys: list[tuple[Any, ...]], kinds: Sequence[pa.DataType]):
        self.keys, self.kinds = keys, kinds
        self.columns = [pa.array([key[i] for key in keys], kind) for i, kind in enumerate(kinds)]


def _distinct(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(zip(*(c.to_pylist() for c in columns), strict=True)))


class _Compared:
    """A sample of keys and keys of R, which can be compared in any forms."""

    def __init__(self, sample: _Keys, master: _Keys):
        self._sample, self._master = sample, master

    def matches(self, forms: Forms) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return the sampled keys that match in these forms, each with a matching key of R."""
        there = dict(zip(self._written(self._master, forms), self._master.keys, strict=True))
        return {
            key: there[form]
            for key, form in zip(self._sample.keys, self._written(self._sample, forms), strict=True)
            if form in there
        }

    def fewest(self, forms: Forms) -> Forms:
        """Return the smallest subset of these forms in which most of the matches stay."""
        most = len(self.matches(forms))
        for form in FORMS:
            for i in forms:
                fewer = forms | {i: [other for other in forms[i] if other is not form]}
                if len(self.matches(fewer)) >= KEPT * most:
                    forms = fewer
        return forms

    def merged(self, forms: Forms) -> tuple[int, tuple[tuple[Any, ...], ...]]:
        """Return how many of R's keys are equal to another one in these forms, and two of them."""
        first, two = dict[tuple[Any, ...], tuple[Any, ...]](), tuple[tuple[Any, ...], ...]()
        for key, form in zip(self._master.keys, self._written(self._master, forms), strict=True):
            if (other := first.setdefault(form, key)) != key:
                two = two or (other, key)
        return len(self._master.keys) - len(first), two

    def apart(self, forms: Forms) -> Forms:
        """Return those of these forms in which all of R's keys still differ, preferring forms that
        change less of a text."""
        found: Forms = {i: [] for i in forms}
        for form in reversed(FORMS):
            for i in forms:
                more = found | {i: [form, *found[i]]}
                if form in forms[i] and not self.merged(more)[0]:
                    found = more
        return found

    def _written(self, keys: _Keys, forms: Forms) -> Iterator[tuple[Any, ...]]:
        columns = [
            _in_form(column, forms[i]) if i in forms else column
            for i, column in enumerate(keys.columns)
        ]
        return zip(*(column.to_pylist() for column in columns), strict=True)


def _candidates(
    relation: SnapshotRelation, wanted: _Keys, forms: Forms
) -> tuple[list[tuple[Any, ...]], int]:
    """Read R's key columns. Return the keys that may match one of ``wanted`` in all forms, and the
    number of rows read."""
    sought = _skeletons(wanted.columns, lambda i, column: _in_form(column, forms[i]), forms)
    found, rows = dict[tuple[Any, ...], None](), 0
    with closing(some_keys(relation, SECONDS)) as parts:
        for columns in parts:
            near = pc.is_in(
                _skeletons(columns, lambda i, column: _in_form_if_needed(column, forms[i]), forms),
                sought,
            )
            found |= dict.fromkeys(_distinct([column.filter(near) for column in columns]))
            rows += len(near)
            if len(found) > CANDIDATES:
                break
    return list(found), rows


def _crowded(relation: SnapshotRelation, forms: Forms) -> list[tuple[Any, ...]]:
    """Return the different keys of R that may be equal to another one in all forms. At most
    ``CROWDED`` rows are read, and ``CANDIDATES`` keys returned."""
    read, rows = list[pa.RecordBatch](), 0
    with closing(some_keys(relation, SECONDS)) as parts:
        for columns in parts:
            text = _skeletons(
                columns, lambda i, column: _in_form_if_needed(column, forms[i]), forms
            )
            names = [*map(str, range(len(columns))), "text"]
            read.append(pa.RecordBatch.from_arrays([*columns, text], names=names))
            rows += len(text)
            if rows >= CROWDED:
                break
    different = pa.Table.from_batches(read)
    different = different.group_by(different.schema.names).aggregate([])
    counts = pc.value_counts(different["text"])
    often = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    several = different.filter(pc.is_in(different["text"], often)).slice(0, CANDIDATES)
    return _distinct(several.columns[:-1])


def some_keys(
    relation: SnapshotRelation, seconds: float
) -> Generator[Sequence[pa.Array], None, None]:
    """Yield R's canonical key columns, part by part, for about these seconds. If R has more than
    ``ROWS`` rows, only evenly spaced parts are read."""
    width, began = max(int(relation.tuple_bytes), 1), time.monotonic()
    with closing(relation.with_partition(min(READ_ROWS, max(READ_BYTES // width, 1)))) as r:
        for partition in range(0, r.partition_count, -(-r.tuple_count // ROWS) or 1):
            read = r.read(partition, r.keys.master)
            yield r.keys.canonical(read.column(name) for name in r.keys.master)
            if time.monotonic() - began > seconds:
                break


def _skeletons(
    columns: Sequence[pa.Array], written: Callable[[int, pa.Array], pa.Array], forms: Forms
) -> pa.Array:
    """Return a text for each key. Keys that are equal in all forms have the same text; other keys
    seldom do. Comparing these texts takes a tenth of the time of converting keys to the forms."""
    texts = [
        _skeleton(written(i, column)) if i in forms else readable(column)
        for i, column in enumerate(columns)
    ]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, SEPARATOR)


def _skeleton(texts: pa.Array) -> pa.Array:
    texts = pc.utf8_trim_whitespace(pc.ascii_lower(texts))
    return pc.ascii_rtrim(pc.ascii_ltrim(texts, "0"), ".0")


def _in_form(texts: pa.Array, forms: Sequence[Form]) -> pa.Array:
    """Convert texts as the setting ``formats`` would."""
    return prepared(texts, _format_of(forms), NO_WORDS)[0]


def _in_form_if_needed(texts: pa.Array, forms: Sequence[Form]) -> pa.Array:
    """Convert only the texts that are not ASCII. An ASCII text has the same skeleton before and
    after the conversion."""
    plain = pc.string_is_ascii(texts)
    if pc.all(plain).as_py() is not False:
        return texts
    other = pc.invert(plain)
    return pc.replace_with_mask(texts, other, _in_form(texts.filter(other), forms))


def _format(forms: Sequence[Form]) -> dict[str, Any]:
    return {name: value for form in forms for name, value in form.setting.items()}


def _format_of(forms: Sequence[Form]) -> ColumnFormat:
    return ColumnFormat.model_validate(_format(forms))


def _yaml(form: ColumnFormat) -> str:
    said = form.normal_form.items()
    return f"{{{', '.join(f'{k}: {str(v).lower() if v is True else v}' for k, v in said)}}}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
