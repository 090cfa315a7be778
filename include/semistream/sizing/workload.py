"""The description of a real stream and a real master relation for the cost models."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.cost_models import Cut, Frequencies, Workload
from semistream.joins.master_cache import MasterCache, cached_bytes
from semistream.joins.non_swappable import resident_bytes
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamLayout
from semistream.joins.stream_table.by_chunk import ByChunk
from semistream.joins.stream_table.by_key import ByKey
from semistream.joins.stream_table.by_partition import ByPartition
from semistream.master.relation import MasterRelation

# tuples of a sample whose values are looked up in R, to learn how many are absent and how many
# master tuples the others have
LOOKED_UP = 256


def describe(
    spec: JoinSpec,
    sample: pa.RecordBatch | None = None,
    frequencies: Frequencies | None = None,
    batch_tuples: float = float("inf"),
    stream_tuples: float = float("inf"),
) -> Workload:
    """Return a workload with the bytes that tuples like the sample's take in the operators.

    frequencies: frequencies of the keys; by default those of the sample. Without a sample or with
    an empty one, they follow Zipf's law with exponent 1, which the papers assume. stream_tuples:
    the number of the stream's tuples in this run, if known.
    """
    tuples = _in_stored_types(spec, sample) if sample else None
    layout, master = StreamLayout.of(spec), spec.master
    strings, schema = layout.strings(tuples) if tuples else 0.0, layout.held
    values, counts = _values(spec, tuples) if tuples else (np.zeros(0, np.int64),) * 2
    found = _look_up(spec, values, counts)
    frequencies = frequencies or observe(spec, tuples, counts, found)
    return Workload(
        master_tuples=master.tuple_count,
        disk_tuple_bytes=max(float(master.tuple_bytes), 1.0) * master.buffers,
        stream_tuple_bytes=ByChunk.bytes_per_tuple(schema, strings),
        indexed_tuple_bytes=ByKey.bytes_per_tuple(schema, strings),
        elevator_tuple_bytes=ByPartition.bytes_per_tuple(schema, strings),
        cached_tuple_bytes=cached_bytes(spec),
        cached_key_bytes=MasterCache.ENTRY,
        resident_tuple_bytes=resident_bytes(spec),
        frequencies=frequencies,
        page_tuples=max(float(master.with_partition(1).partition_tuples), 1.0),
        fan_out=found.fan_out,
        matches=found.fan_out * (1 - frequencies.absent),
        batch_tuples=batch_tuples,
        tuples=stream_tuples,
        gaps=found.gaps,
        reads_ahead=master.buffers > 1,
        cut=functools.lru_cache(maxsize=256)(functools.partial(_cut, master)),
    )


def _in_stored_types(spec: JoinSpec, sample: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(sample.columns, schema=spec.stream)


def observe(
    spec: JoinSpec, sample: pa.RecordBatch | None, counts: np.ndarray, found: LookUp
) -> Frequencies:
    """Return the stream's frequencies as observed in a sample, for use instead of Zipf's law.
    counts: int64[n], how often each of the sample's values occurs."""
    different = max(int(spec.master.tuple_count / found.fan_out), 1)
    if sample is None:
        return Frequencies.zipf(different, 1.0)
    absent = sample.num_rows - int(counts.sum())
    counts = counts[np.random.default_rng(0).permutation(len(counts))]
    gone = (
        int(np.searchsorted(np.cumsum(counts), found.absent * counts.sum(), side="right"))
        if found.absent
        else 0
    )
    here, lost = int(counts[gone:].sum()), int(counts[:gone].sum())
    return replace(
        Frequencies.observed(counts[gone:], different, absent + lost),
        lost=Frequencies.observed(counts[:gone], _richness(counts[:gone]), absent + here)
        if gone
        else None,
    )


def _richness(counts: np.ndarray) -> int:
    """Return a lower bound of the number of distinct values, by Chao's estimate (1984): f_1^2 / (2
    f_2) more than the sample has, where f_r values occurred r times. counts: int[n], how often each
    value occurred."""
    once, twice = (int((counts == r).sum()) for r in (1, 2))
    return len(counts) + once * (once - 1) // (2 * (twice + 1))


class LookUp(NamedTuple):
    """The result of looking up some of a sample's values in R."""

    absent: float = 0.0  # share of the stream tuples whose value R does not have
    fan_out: float = 1.0  # master tuples of a value that R has
    gaps: float = 0.0  # share of the absent ones that R's index does not recognise


def _look_up(spec: JoinSpec, values: np.ndarray, counts: np.ndarray) -> LookUp:
    """Look up some of the sample's values in R. Without values, assume that each value has one
    master tuple. values, counts: int64[n], different key codes, and how often each occurs."""
    if not len(values) or not spec.master.tuple_count:
        return LookUp()
    # tuples are drawn, not values, so that a frequent value counts as often as it comes
    drawn = np.random.default_rng(0).choice(len(values), LOOKED_UP, p=counts / counts.sum())
    which, times = np.unique(drawn, return_counts=True)
    some = values[which]
    pages = spec.master.with_partition(1)
    spans = pages.partitions_of(some)
    found = np.array(
        [
            sum(int((pages.read_codes(n) == code).sum()) for n in range(*span))
            for code, span in zip(some, spans, strict=True)
        ]
    )
    lost, waits = times * (found == 0), spans[:, 0] < spans[:, 1]
    return LookUp(
        float(lost.sum() / times.sum()),
        float(found[found > 0].mean()) if found.any() else 1.0,
        float(lost[waits].sum() / max(lost.sum(), 1)),
    )


def _values(spec: JoinSpec, sample: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return (the sample's key codes, how often each occurs)."""
    codes, valid = spec.keys.stream_codes(_in_stored_types(spec, sample))
    return np.unique(codes[valid], return_counts=True)


def _cut(master: MasterRelation, disk_tuples: int) -> Cut:
    cut = master.with_partition(disk_tuples)
    count = max(cut.partition_count, 1)
    return Cut(count, cut.tuple_count / count, cut.partition_bytes, cut.partition_tuples)
