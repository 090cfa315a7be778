"""How a micro-batch is joined, and the durable note of which one is being worked on."""

from __future__ import annotations

import heapq
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numba import njit

from semistream.config import AUTO
from semistream.cost_models import Costs
from semistream.durable import read_checked, write_checked
from semistream.errors import NotEnoughMemory, StateError
from semistream.joins import SemiStreamJoin, open_join
from semistream.keys import JoinKeys, bucket_expression, bucket_of, buckets, quoted, resolve_keys
from semistream.master import Manifest, SnapshotRelation
from semistream.source_files import SourceFile
from semistream.warehouse.tables import surrogate_key

if TYPE_CHECKING:
    from pyspark.sql import Column

RESTORE = "Restore it, or load the source anew after: semistream reset APP."
EVEN = 1.05  # times the tuples of the best sharing out: not worth another one
DEALT = -1  # the owner of a bucket whose tuples are dealt out to all


@dataclass(frozen=True)
class Placement:
    """Which partition a stream tuple belongs to. owners: that of each bucket of R, int[buckets], or DEALT."""

    stream: pa.Schema
    keys: JoinKeys  # in the order that R is bucketed by
    owners: np.ndarray
    count: int  # P

    def buckets(self, batch: pa.RecordBatch) -> np.ndarray:
        """int[n], -1 where a key is null."""
        codes, valid = self.keys.stream_codes(batch)
        return np.where(valid, buckets(codes, self.keys.exact, len(self.owners)), -1)

    def partitions(self, batch: pa.RecordBatch, first: int = 0) -> np.ndarray:
        """int[n]. What is dealt out, as are tuples without a key, goes by a hash of its row number. first: that of the first."""
        codes, valid = self.keys.stream_codes(batch)
        return _partitions(codes, valid, self.keys.exact, self.owners, self.count, first)

    def split(self, batch: pa.RecordBatch, first: int = 0) -> list[pa.RecordBatch]:
        """The tuples of each partition, in their order."""
        order, starts = _by_partition(self.partitions(batch, first), self.count)
        batch = batch.take(pa.array(order))
        return [batch.slice(start, end - start) for start, end in pairwise(starts.tolist())]

    def expression(self) -> Column:
        """The same as a Spark column expression. Rows have no number there: what is dealt out goes by a hash of the tuple."""
        from pyspark.sql import functions as F

        owner = F.get(F.lit(self.owners.tolist()), bucket_expression(self.keys.stream, self.keys.types, len(self.owners)))
        without_key = reduce(or_, (quoted(name).isNull() for name in self.keys.stream))
        tuple_hash = F.xxhash64(*(quoted(f.name) for f in self.stream if not pa.types.is_nested(f.type)))
        return F.when(without_key | (owner == DEALT), F.pmod(tuple_hash, F.lit(self.count)).cast("int")).otherwise(owner)


@njit(cache=True)
def _partitions(codes, valid, exact, owners, count, first):
    out = np.empty(len(codes), np.int32)
    for i in range(len(codes)):
        owner = owners[bucket_of(codes[i], exact, len(owners))] if valid[i] else DEALT
        out[i] = owner if owner != DEALT else bucket_of(first + i, True, count)
    return out


@njit(cache=True)
def _by_partition(of, count):
    """(row numbers, those of the same partition together; where in them each partition starts, and the last ends)."""
    starts = np.zeros(count + 1, np.int64)
    for partition in of:
        starts[partition + 1] += 1
    starts = np.cumsum(starts)
    order, at = np.empty(len(of), np.int32), starts.copy()
    for row in range(len(of)):
        order[at[of[row]]] = row
        at[of[row]] += 1
    return order, starts


@dataclass(frozen=True)
class Plan:
    """What all partitions of a batch have in common; a batch begun with a plan is finished with it."""

    algorithm: str
    memory: int  # bytes of one partition, M/P
    join_type: str
    parameters: dict[str, Any]
    on: tuple[tuple[str, str], ...]  # (stream column, master column)
    columns: tuple[str, ...] | None  # master columns to add; None: all but the join columns
    partitions: int  # P
    snapshot: str  # directory of the master's version
    surrogate_key: bool = True  # add it to the columns, where the master has one
    reason: str = ""  # why this algorithm
    auto: bool = False  # algorithm and parameters are, or are to be, the cost models' choice
    owners: tuple[int, ...] = ()  # the partition of each bucket of R, or DEALT; none: the bucket's number modulo P

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        on = tuple((s, m) for s, m in values["on"])
        columns = None if values["columns"] is None else tuple(values["columns"])
        return cls(**{**values, "on": on, "columns": columns, "owners": tuple(values.get("owners", ()))})

    def relation(self, partition: int) -> SnapshotRelation:
        """The buckets of R that a partition's operator needs."""
        owners = self._owners(Manifest.read(Path(self.snapshot)))
        return SnapshotRelation(self.snapshot, buckets=np.flatnonzero((owners == partition) | (owners == DEALT)).tolist())

    def open(self, stream: pa.Schema, partition: int) -> SemiStreamJoin:
        """The operator of one partition. Raises ConfigError for whatever cannot work, in terms of the M of all partitions."""
        relation = self.relation(partition)
        try:
            return open_join(self.algorithm, memory=self.memory, stream=stream, master=relation, on=self.on,
                             columns=self.added(relation), join_type=self.join_type, parameters=self.parameters)
        except NotEnoughMemory as e:
            each = f"{self.algorithm}, {e.least:,} for each of {self.partitions} partitions"
            raise NotEnoughMemory(self.partitions * e.least, self.partitions * self.memory,
                                  each if self.partitions > 1 else self.algorithm) from None

    def added(self, relation: SnapshotRelation) -> tuple[str, ...] | None:
        """The master columns to add, its surrogate key among them; None: all but the join columns."""
        columns, sk = self.columns, surrogate_key(relation.name)
        if self.surrogate_key and columns is not None and sk in relation.schema.names and sk not in columns:
            columns = (sk, *columns)
        return columns

    @property
    def open_questions(self) -> bool:
        """Whether a sample of the stream is to decide anything; the algorithm, where it is open, in each run anew."""
        return self.auto or (self.partitions > 1 and not self.owners)

    def asked(self) -> Plan:
        """The plan before anything was chosen."""
        asked = replace(self, owners=())
        return replace(asked, algorithm=AUTO, parameters={}, reason="") if self.auto else asked

    def choose(self, sample: pa.RecordBatch, costs: Costs, former: Plan | None = None) -> Plan:
        """With the buckets of R shared out, and where that was asked for the algorithm and parameters that the models find best
        for a sample of the stream.

        They are those of the slowest partition, on which the others wait. What M is too small for in some partition gives way:
        the models' sizes, their algorithm, the sharing out. Raises NotEnoughMemory when it is too small for every algorithm.
        """
        plan = self.balance(sample, former)
        plans = [plan, replace(plan, owners=self.owners)]
        if self.auto:
            from semistream.tuning import SMALLEST

            small = replace(self, algorithm=SMALLEST[0], parameters={}, reason=f"{SMALLEST[0]}: what needs the least memory")
            plans = [replace(small, owners=plan.owners), small]
            with suppress(NotEnoughMemory):
                chosen = plan._by_the_models(sample, costs)
                plans = [chosen, replace(chosen, parameters={}), *plans]
        for plan in plans:
            try:
                plan.check(sample.schema)
                return plan
            except NotEnoughMemory as e:
                refusal = e
        raise refusal

    def check(self, stream: pa.Schema) -> None:
        """Open the operators of all partitions, one after another. Raises ConfigError for whatever cannot work."""
        refusals = []
        for partition in range(self.partitions):
            try:
                self.open(stream, partition).master.close()
            except NotEnoughMemory as e:
                refusals.append(e)
        if refusals:
            raise max(refusals, key=lambda e: e.least)

    def _by_the_models(self, sample: pa.RecordBatch, costs: Costs) -> Plan:
        from semistream.tuning import choose

        plan = self
        mine, tuples = plan.slowest(sample)
        relation = plan.relation(mine)
        try:
            choice = choose(tuples, relation, self.memory, self.on, self.added(relation), costs=costs)
        finally:
            relation.close()
        reason = (f"auto, by {sample.num_rows:,} stream tuples, {tuples.num_rows:,} of them in partition {mine} of "
                  f"{self.partitions}. {choice.reason}")
        return replace(plan, algorithm=choice.algorithm, parameters=choice.parameters, reason=reason)

    def balance(self, sample: pa.RecordBatch, former: Plan | None = None) -> Plan:
        """With the buckets of R shared out so that all partitions have as many of a sample's tuples, as far as that can be.

        As a former plan had it, if that is about as even: what its operators know of their buckets is worth more. Not at all
        without a sample.
        """
        if self.partitions == 1 or not sample.num_rows:
            return self
        placement = self.placement(sample.schema)
        of = placement.buckets(sample)
        tuples = 1 + np.bincount(of[of >= 0], minlength=len(placement.owners))  # 1: R takes its time too
        owners = share_out(tuples, self.partitions)
        if former is not None and former.partitions == self.partitions and len(former.owners) == len(owners):
            before = loads(np.array(former.owners), tuples, self.partitions)
            if before.max() <= EVEN * loads(owners, tuples, self.partitions).max():
                return replace(self, owners=former.owners)
        return replace(self, owners=tuple(owners.tolist()))

    def slowest(self, sample: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
        """The partition with most different keys in a sample, and its tuples. Those of a frequent key come through the cache: the
        operator that has it, and for that less of R, waits for the others."""
        placement = self.placement(sample.schema)
        codes, valid = placement.keys.stream_codes(sample)
        of = placement.partitions(sample)
        _, different = np.unique(codes[valid], return_index=True)
        slowest = int(np.bincount(of[valid][different], minlength=self.partitions).argmax())
        return slowest, sample.filter(pa.array(valid & (of == slowest)))

    def placement(self, stream: pa.Schema) -> Placement:
        manifest = Manifest.read(Path(self.snapshot))
        of_master = {m: s for s, m in self.on}
        keys = resolve_keys(stream, manifest.schema, [(of_master[m], m) for m in manifest.key_columns])
        return Placement(stream, keys, self._owners(manifest), self.partitions)

    def _owners(self, manifest: Manifest) -> np.ndarray:
        return np.array(self.owners) if self.owners else np.arange(manifest.bucket_count) % self.partitions


def share_out(tuples: np.ndarray, partitions: int) -> np.ndarray:
    """The owner of each bucket of R, int[buckets], by how many stream tuples come to it.

    The fullest bucket first, each to the partition that has the fewest tuples so far (Graham's LPT rule). A bucket with more than
    a partition's share of the tuples, as a very frequent key's, is dealt out where the slowest has less to do for it: all
    partitions then read that bucket of R too.
    """
    fullest, total = np.argsort(-tuples, kind="stable"), tuples.sum()
    plans = []
    for dealt in range(partitions):
        owners = np.full(len(tuples), DEALT)
        heap = [(0, p) for p in range(partitions)]
        for bucket in fullest[dealt:]:
            load, owner = heap[0]
            owners[bucket] = owner
            heapq.heapreplace(heap, (load + int(tuples[bucket]), owner))
        plans.append((loads(owners, tuples, partitions).max() / total + dealt / len(tuples), dealt, owners))
    return min(plans)[2]


def loads(owners: np.ndarray, tuples: np.ndarray, partitions: int) -> np.ndarray:
    """How many tuples each partition gets, float[partitions]."""
    dealt = owners == DEALT
    return np.bincount(owners[~dealt], tuples[~dealt], minlength=partitions) + tuples[dealt].sum() / partitions


@dataclass(frozen=True)
class Progress:
    """``<checkpoint>/progress.json``: the batch, or drain, being worked on, or the latest one that was.

    It is written before any task starts. Whatever is noted here is finished, with this plan and from these states, before
    anything else is begun; so a task that outlives its driver does the same work as its successor, and the ledger keeps one.
    states: join state files after the batch before, by partition; none where nothing is taken over. source: which part of the
    source the micro-batch is, as ``load_commits.source_offsets`` says it; sources: its files, as they were when it began; own:
    whether the tasks read these themselves, or Spark brings the tuples.
    """

    batch: int
    drain: int
    plan: Plan
    states: dict[int, str] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    sources: tuple[SourceFile, ...] = ()
    own: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """Those that the tasks read themselves."""
        return tuple(s.path for s in self.sources) if self.own else ()

    @classmethod
    def read(cls, checkpoint: Path) -> Progress | None:
        """Raises StateError when the note is damaged."""
        path = checkpoint / "progress.json"
        values = read_checked(path, RESTORE)
        if values is None:
            return None
        try:
            return cls(values["batch"], values["drain"], Plan.from_json(values["plan"]),
                       {int(p): f for p, f in values["states"].items()}, values["source"],
                       tuple(SourceFile(*s) for s in values["sources"]), values["own"])
        except (ValueError, KeyError, TypeError) as e:
            raise StateError(f"{path} is of another version: {e!r}. {RESTORE}") from None

    def write(self, checkpoint: Path) -> None:
        write_checked(checkpoint / "progress.json", asdict(self))
