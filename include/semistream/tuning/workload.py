"""What a real stream and a real master relation are to the cost models."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.cost_models import Cut, Frequencies, Workload
from semistream.joins.base import JoinSpec
from semistream.joins.front import cached_bytes
from semistream.joins.keyroom import KeyRoom
from semistream.joins.partitionroom import PartitionRoom
from semistream.joins.parts import Cache, WaitingRoom, is_variable, variable_bytes
from semistream.joins.registry import open_join
from semistream.joins.sequential import StreamTuples
from semistream.master import MasterRelation

LOOKED_UP = 256  # values of a sample that are looked for in R, to learn how many are absent, and how many tuples others have


def describe(sample: pa.RecordBatch, master: MasterRelation, on: Sequence[tuple[str, str]], columns: Sequence[str] | None = None,
             frequencies: Frequencies | None = None, batch_tuples: float = float("inf")) -> Workload:
    """A workload with the sizes that tuples like the sample's have in the operators; its frequencies are the sample's if not
    given."""
    spec = join_spec(sample.schema, master, on, columns)
    held = StreamTuples(spec).batch(pa.RecordBatch.from_arrays(sample.columns, schema=spec.stream)) if sample.num_rows else None
    strings = float(variable_bytes(held).mean()) + 1 if held is not None and any(is_variable(f.type)
                                                                                 for f in held.schema) else 0.0
    schema, v_r = StreamTuples(spec).held, cached_bytes(spec)
    look = _look(spec, sample)
    frequencies = frequencies or observe(spec, sample, look)
    return Workload(
        master_tuples=master.tuple_count, disk_tuple_bytes=max(float(master.tuple_bytes), 1.0) * master.buffers,
        stream_tuple_bytes=WaitingRoom.tuple_bytes(schema, strings), indexed_tuple_bytes=KeyRoom.tuple_bytes(schema, strings),
        elevator_tuple_bytes=PartitionRoom.tuple_bytes(schema, strings),
        cached_tuple_bytes=v_r, cached_key_bytes=Cache.ENTRY, resident_tuple_bytes=8 + v_r,
        frequencies=frequencies, page_tuples=max(float(master.with_partition(1).partition_tuples), 1.0),
        fan_out=look.fan_out, matches=look.fan_out * (1 - frequencies.absent), batch_tuples=batch_tuples,
        reads_ahead=master.buffers > 1,
        cut=functools.lru_cache(maxsize=256)(functools.partial(_cut, master)))


def join_spec(stream: pa.Schema, master: MasterRelation, on: Sequence[tuple[str, str]],
              columns: Sequence[str] | None) -> JoinSpec:
    return open_join("meshjoin", memory=1 << 50, stream=stream, master=master, on=on, columns=columns,
                     parameters={"disk_tuples": 1}).spec


def observe(spec: JoinSpec, sample: pa.RecordBatch, look: Look | None = None) -> Frequencies:
    """The stream's frequencies as a sample shows them: an observed histogram in the place of Zipf's law."""
    look, (_, counts) = look or _look(spec, sample), _values(spec, sample)
    absent = sample.num_rows - int(counts.sum())
    counts = counts[np.random.default_rng(0).permutation(len(counts))]
    gone = int(np.searchsorted(np.cumsum(counts), look.absent * counts.sum(), side="right")) if look.absent else 0
    here, lost = int(counts[gone:].sum()), int(counts[:gone].sum())
    return replace(Frequencies.observed(counts[gone:], max(int(spec.master.tuple_count / look.fan_out), 1), absent + lost),
                   lost=Frequencies.observed(counts[:gone], gone, absent + here) if gone else None)


class Look(NamedTuple):
    """What some of a sample's values have in R."""

    absent: float = 0.0  # share of the stream tuples whose value R does not have
    fan_out: float = 1.0  # master tuples of a value that it has


def _look(spec: JoinSpec, sample: pa.RecordBatch) -> Look:
    """Where R has no index, as if each value had one master tuple."""
    values, counts = _values(spec, sample)
    if spec.master.sequential or not len(values) or not spec.master.tuple_count:
        return Look()
    some = np.random.default_rng(0).choice(values, min(LOOKED_UP, len(values)), replace=False, p=counts / counts.sum())
    pages = spec.master.with_partition(1)
    found = np.array([sum(int((pages.read_codes(n) == code).sum()) for n in range(*span))
                      for code, span in zip(some, pages.partitions_of(some), strict=True)])
    return Look(float((found == 0).mean()), float(found[found > 0].mean()) if found.any() else 1.0)


def _values(spec: JoinSpec, sample: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """(the sample's key codes, how often each comes)."""
    codes, valid = spec.keys.stream_codes(pa.RecordBatch.from_arrays(sample.columns, schema=spec.stream))
    return np.unique(codes[valid], return_counts=True)


def _cut(master: MasterRelation, disk_tuples: int) -> Cut:
    cut = master.with_partition(disk_tuples)
    count = max(cut.partition_count, 1)
    return Cut(count, cut.tuple_count / count, cut.partition_bytes, cut.partition_tuples)
