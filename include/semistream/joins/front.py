"""The front stage: H_R, the cache of master tuples that every stream tuple meets first.

The stream-probing phase is one for all cache joins (SSBJ, CMESHJOIN, SSJ, SSCJ). What enters H_R differs: SSBJ decides by its
cache inequality, the others by frequency detection.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa

from semistream.joins import kernels
from semistream.joins.base import NO_MATCH, JoinOutput, JoinSpec, Partition, SemiStreamJoin
from semistream.joins.parts import Cache, is_variable

PROBE_ROWS = 65_536  # stream tuples per step of the cache phase


class KeyTable:
    """Distinct key codes, findable."""

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self._table = np.empty(len(keys) + len(keys) // 2 + 2, np.int32)
        kernels.table_build(self._table, keys)

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Index of each code among the keys, or -1."""
        out = np.empty(len(codes), np.int32)
        kernels.table_find(codes, self._table, self.keys, out)
        return out


def probe_front(join: SemiStreamJoin, cache: Cache, block: pa.RecordBatch,
                codes: np.ndarray) -> Generator[JoinOutput, None, np.ndarray]:
    """The stream-probing phase: join what H_R knows. Returns the rows that it does not know, int64[n].

    A tuple whose key is cached and that still has no match has none in R: all master tuples of a cached key are there.
    """
    entries, counts, hits = cache.probe(codes)
    if not hits:
        return np.arange(len(codes))
    matched = np.zeros(len(codes), bool)
    for rows, slots in cache.pairs(entries, counts):
        stream, master = block.take(pa.array(rows)).columns, cache.store.get(slots)
        same = join._same_keys(stream, master)
        if same is not None and not same.all():
            keep, rows = pa.array(same), rows[same]
            stream, master = [c.filter(keep) for c in stream], [c.filter(keep) for c in master]
        matched[rows] = True
        if len(rows):
            yield join._joined(stream, master)
    join.stats.cache_hits += hits
    join.stats.matched += int(matched.sum())
    absent = np.flatnonzero((entries >= 0) & ~matched)
    if len(absent):
        yield join._unmatched(block.take(pa.array(absent)).columns, NO_MATCH)
    return np.flatnonzero(entries < 0)


def partitions_with(spec: JoinSpec, keys: np.ndarray) -> Iterator[Partition]:
    """The disk partitions that may hold tuples of these keys: by the index if R has one, else all."""
    if not len(keys):
        return
    if spec.master.sequential:
        numbers = np.arange(spec.master.partition_count)
    else:
        ranges = np.unique(spec.master.partitions_of(keys), axis=0)
        numbers = np.unique(np.concatenate([np.arange(a, b) for a, b in ranges]))
    for number in numbers:
        yield Partition(spec, int(number))


def has_strings(schema: pa.Schema) -> bool:
    return any(is_variable(f.type) for f in schema)


def cached_bytes(spec: JoinSpec) -> float:
    """v_R as held in H_R: payload and link, strings at the average length of R's."""
    fixed = Cache.tuple_bytes(spec.fetched_schema, 0)
    if not has_strings(spec.fetched_schema):
        return fixed
    widths = (max(f.type.bit_width // 8, 1) if pa.types.is_primitive(f.type) else 8 for f in spec.master.schema)
    return fixed + max(spec.master.tuple_bytes - 8 - sum(widths), 0)
