"""The keys of R that are nearest to given ones, by their edit distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.files.convert import readable
from semistream.files.near_misses import SEPARATOR, some_keys
from semistream.master.snapshot import SnapshotRelation

SECONDS = 3.0  # the longest time for reading R
EDITS = 2  # the most edits by which a near key differs
# characters that a key needs for each of these edits; a short key would be near every other one
SIGNS = 3
KEPT = 3  # nearest keys of R that are kept for each key
# the bit of each byte in a signature; all bytes of signs beyond ASCII have one
BITS = np.array([1 << (b % 64 if b < 128 else 63) for b in range(256)], np.uint64)

Key = tuple[Any, ...]


class NearestKeys(NamedTuple):
    """The nearest keys of R to each of some keys, nearest first. rows, of: the numbers of R's rows
    that were read, and of all its rows."""

    found: list[list[Key]]
    rows: int
    of: int


class _Texts(NamedTuple):
    """Keys as texts. lengths: in characters, int64[n]; signatures: uint64[n], with a bit for each
    character that occurs; an edit changes at most two bits."""

    texts: pa.Array
    lengths: np.ndarray
    signatures: np.ndarray


def nearest_keys(keys: pa.RecordBatch, relation: SnapshotRelation) -> NearestKeys:
    """Find the keys of R that differ from each key in at most ``EDITS`` characters, or fewer for
    short keys.

    keys: join columns in the order of R's. Blanks at the ends, case, leading zeros, and ".0" after
    an integer make no difference. Of a large R, or one that is slow to read, only some rows are
    read: see ``some_keys``.
    """
    wanted = _texts(relation.keys.canonical(keys.columns))
    points = [_points([text])[0] for text in wanted.texts.to_pylist()]
    near: list[list[tuple[int, int, str, Key]]] = [[] for _ in points]
    rows = 0
    for columns in some_keys(relation, SECONDS):
        there = _texts(columns)
        for n, text in enumerate(points):
            near[n] = _nearest(text, wanted, n, there, columns, near[n])
        rows += len(there.texts)
    return NearestKeys([[key for *_, key in each] for each in near], rows, relation.tuple_count)


def _nearest(
    text: np.ndarray,
    wanted: _Texts,
    n: int,
    there: _Texts,
    columns: Sequence[pa.Array],
    known: list[tuple[int, int, str, Key]],
) -> list[tuple[int, int, str, Key]]:
    """Return the nearest keys among the known ones and further candidates, each as (edits,
    difference in length, text, key). text: the code points of the wanted key n, uint32[m]; there:
    the candidates."""
    most = min(EDITS, len(text) // SIGNS)
    longer = np.abs(there.lengths - len(text))
    unlike = np.bitwise_count(there.signatures ^ wanted.signatures[n])
    candidates = np.flatnonzero((longer <= most) & (unlike <= 2 * most))
    if not len(candidates):
        return known
    texts = there.texts.take(pa.array(candidates)).to_pylist()
    edits = distances(text, _points(texts), there.lengths[candidates])
    found = dict.fromkeys(known)
    for i in np.flatnonzero(edits <= most).tolist():
        row = int(candidates[i])
        key = tuple(column[row].as_py() for column in columns)
        found[int(edits[i]), int(longer[row]), texts[i], key] = None
    return sorted(found, key=lambda of: of[:3])[:KEPT]


def distances(text: np.ndarray, others: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the edit distances (Levenshtein) between a text and others, int64[n].

    text: code points, uint32[m]; others: uint32[n, width]; lengths: int64[n], the code points of
    each.
    """
    count, width = others.shape
    positions = np.arange(width + 1)
    row = np.broadcast_to(positions, (count, width + 1))
    for i, sign in enumerate(text):
        best = np.full((count, width + 1), i + 1)
        np.minimum(row[:, :-1] + (others != sign), row[:, 1:] + 1, out=best[:, 1:])
        # each skipped character of the other text costs one: take the least over all earlier
        # positions
        row = np.minimum.accumulate(best - positions, axis=1) + positions
    return row[np.arange(count), lengths]


def _texts(columns: Sequence[pa.Array]) -> _Texts:
    written = [plain(c) if pa.types.is_string(c.type) else readable(c) for c in columns]
    texts = written[0] if len(written) == 1 else pc.binary_join_element_wise(*written, SEPARATOR)
    texts = pc.fill_null(texts, "")
    ends = np.cumsum(np.asarray(pc.binary_length(texts)), dtype=np.int64)
    signatures = np.zeros(len(texts), np.uint64)
    filled = np.flatnonzero(np.diff(ends, prepend=0))
    if len(filled):
        data = np.frombuffer(b"".join(texts.cast(pa.binary()).to_pylist()), np.uint8)
        starts = np.concatenate([[0], ends[:-1]])[filled]
        signatures[filled] = np.bitwise_or.reduceat(BITS[data], starts)
    lengths = np.asarray(pc.utf8_length(texts)).astype(np.int64)
    return _Texts(texts, lengths, signatures)


def plain(texts: pa.Array) -> pa.Array:
    """Return keys in a form that does not depend on their notation: without blanks around them, in
    lower case, without leading zeros, and without a fraction of zeros."""
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)\.0+$", r"\1")
    return pc.replace_substring_regex(texts, r"^0+([0-9])", r"\1")


def _points(texts: Sequence[str]) -> np.ndarray:
    """Return the code points of texts, uint32[n, longest]. Shorter texts are padded with zeros."""
    together = np.array(texts, dtype=np.str_)
    return together.view(np.uint32).reshape(len(texts), together.itemsize // 4)
