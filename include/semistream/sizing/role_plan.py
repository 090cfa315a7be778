"""The plan of P operators that join a stream with a dimension: the algorithm, its parameters, and
each operator's buckets of R. Settings that the user left open are chosen from a sample of the
stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from semistream.cost_models import TYPICAL, Costs
from semistream.cost_models.bound import Demand
from semistream.errors import NotEnoughMemory
from semistream.job import surrogate_key
from semistream.joins import SemiStreamJoin
from semistream.joins.registry import HASH_JOIN, Algorithm, find_algorithm
from semistream.joins.spec import output_names
from semistream.joins.star import Inferring, RoleJoin, RoleKind, Star
from semistream.keys import JoinKeys, buckets, resolve_keys
from semistream.master.manifest import Manifest
from semistream.master.snapshot import SnapshotRelation
from semistream.partitioning import DEALT, Axis, Placement, loads, share_out
from semistream.settings import AUTO, Settings
from semistream.sizing.choice import SMALLEST, choose
from semistream.sizing.opening import open_choices, open_join, open_sizes
from semistream.sizing.plan import JoinPlan
from semistream.sketches import SkimmedSketch

# Simulated with 8 partitions and Zipf's law with exponent 1. After a first batch of 300 to 1,000
# tuples, the slowest partition has 1.04 to 1.06 times its share; without a history, 1.11 to 1.18
# times. If other keys are frequent than before, it has 1.04 times its share with a sample of
# 100,000, with and without a history.
HISTORY = 10_000
# keep the former assignment of buckets if its maximum load is within 5% of the best
EVEN = 1.05


@dataclass(frozen=True)
class RolePlan(JoinPlan):
    """The plan of a join with a dimension in one of its roles."""

    snapshot: str  # directory of the dimension's version
    # dimension columns to add, with their names in the output; None: all but the join columns
    columns: dict[str, str] | None = None
    role: str = ""  # names the surrogate key and prefixes columns; "": the dimension's name
    surrogate_key: bool = True  # add it to the columns, where the dimension has one
    # R is split into so many parts, see ``partitioning.Axis``; 0: into P
    parts: int = 0
    # of the axis; the largest R of a star has stride 1; 0: R has no axis, and one part
    stride: int = 1
    auto: bool = False  # the cost models choose algorithm and parameters, or have chosen them
    # the part of each bucket of R, or DEALT; if empty, the bucket's number modulo the parts
    owners: tuple[int, ...] = ()
    chosen: tuple[str, ...] = ()  # the parameters that the cost models chose
    many: bool = False  # a tuple may have several rows of the dimension
    # the surrogate key that a left join gives to tuples without a row; None: null
    unknown: int | None = None
    sizes_reason: str = ""  # why M is split so, in the first join of a star
    infer: bool = False  # a tuple without a row gets an inferred member of the dimension

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        lists = {name: tuple(values[name]) for name in ("owners", "chosen")}
        return super().from_json({**values, **lists})

    @property
    def label(self) -> str:
        return self.role

    @property
    def version(self) -> str:
        return Path(self.snapshot).name

    @property
    def fact_key(self) -> str:
        """The output column with the surrogate key."""
        return surrogate_key(self.role)

    @property
    def reasons(self) -> tuple[str, ...]:
        return (self.sizes_reason, self.reason)

    @property
    def split(self) -> int:
        return self.parts or self.partitions

    @property
    def largest(self) -> bool:
        return self.stride == 1

    def part(self, partition: int) -> int:
        """Return the part of R that a partition has."""
        return partition // self.stride % self.split if self.stride else 0

    @property
    def whole(self) -> bool:
        """Whether the cost models have chosen to hold R whole in memory."""
        return self.algorithm == HASH_JOIN.name and self.auto

    @property
    def may_be_whole(self) -> bool:
        """Whether R may be held whole in memory, by the cost models' choice or the user's."""
        return self.auto or self.algorithm == HASH_JOIN.name

    @property
    def kind(self) -> RoleKind:
        return RoleKind(self.role, self.join_type == "inner", self.many)

    def relation(self, partition: int) -> SnapshotRelation:
        """Return the part of R, some of its buckets, with which the operator of this partition
        joins."""
        owners = self._owners(Manifest.read(Path(self.snapshot)))
        mine = (owners == self.part(partition)) | (owners == DEALT)
        return SnapshotRelation(self.snapshot, buckets=np.flatnonzero(mine).tolist())

    def open(
        self,
        stream: pa.Schema,
        partition: int,
        costs: Costs = TYPICAL,
        sample: pa.RecordBatch | None = None,
    ) -> SemiStreamJoin:
        """Open the operator of one partition. Open sizes are chosen for a sample. Raises
        ConfigError if the operator cannot be opened; NotEnoughMemory names the M of all partitions
        together."""
        relation = self.relation(partition)
        try:
            return open_join(
                self.algorithm,
                memory=self.memory,
                stream=stream,
                master=relation,
                on=self.on,
                columns=self.added(stream, relation),
                join_type=self.join_type,
                parameters=self.parameters,
                costs=costs,
                sample=sample,
            )
        except NotEnoughMemory as e:
            raise self.not_enough(e) from None

    def joined(self, sample: pa.RecordBatch) -> pa.RecordBatch:
        """Return tuples with the columns that the join adds, filled with nulls: a sample of the
        next join's stream."""
        relation = self.relation(0)
        try:
            added = self.added(sample.schema, relation)
        finally:
            relation.close()
        fields = [relation.schema.field(c).with_name(name) for c, name in added.items()]
        columns = [*sample.columns, *(pa.nulls(sample.num_rows, f.type) for f in fields)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*sample.schema, *fields]))

    def added(self, stream: pa.Schema, relation: SnapshotRelation) -> dict[str, str]:
        """Return the dimension columns to add, including the surrogate key, with their names in the
        output."""
        role, key = self.role or relation.name, surrogate_key(relation.name)
        joined = {m for _, m in self.on}
        columns = (
            self.columns
            if self.columns is not None
            else {c: c for c in relation.schema.names if c not in joined}
        )
        if self.surrogate_key and key in relation.schema.names:
            columns = ({} if key in columns else {key: ""}) | columns | {key: surrogate_key(role)}
        unnamed = [c for c, name in columns.items() if c == name]
        return columns | output_names(stream, role, unnamed)

    @property
    def open_questions(self) -> bool:
        """Whether a sample of the stream is needed. An algorithm or sizes that the user left open
        are chosen again in each run."""
        return (
            self.auto
            or self.share > 1  # how M is split
            or bool(self.chosen or self._left_open(open_sizes))
            or (self.split > 1 and not self.owners)
        )

    def _left_open(self, of: Callable[[Algorithm, Settings], list[str]]) -> list[str]:
        """Return the names of parameters that the user left open. of: a function that returns the
        algorithm's open sizes, or its other open choices."""
        if self.algorithm == AUTO:
            return []
        entry = find_algorithm(self.algorithm)
        return of(entry, entry.parameters.load(self.parameters))

    def initial(self) -> Self:
        """Return the user's original plan, without the choices made from a sample."""
        given = {name: value for name, value in self.parameters.items() if name not in self.chosen}
        initial = replace(
            self,
            parts=0 if self.largest else 1,
            stride=1 if self.largest else 0,
            owners=(),
            parameters=given,
            chosen=(),
            memory=self.even or self.memory,
            even=0,
            sizes_reason="",
        )
        return replace(initial, algorithm=AUTO, parameters={}, reason="") if self.auto else initial

    def choose(
        self,
        sample: pa.RecordBatch,
        costs: Costs,
        former: Self | None = None,
        history: SkimmedSketch | None = None,
        demand: Demand | None = None,
    ) -> Self:
        """Return the plan with an owner for each bucket of R. If the user left algorithm or sizes
        open, the plan gets those that the cost models find best for a sample of the stream.

        They are chosen for the slowest partition, because the others wait for it. If M is too small
        for the choice in some partition, the plan gives up the chosen sizes, then the chosen
        algorithm, then the owners. former, history: see ``balance``; demand: see ``choose``, for
        all partitions together. Raises NotEnoughMemory if M is too small for every algorithm.
        """
        balanced = self.balance(sample, former, history)
        plans = [balanced, replace(balanced, owners=self.owners)]
        if self.auto and not self.whole:
            small = replace(
                self,
                algorithm=SMALLEST,
                parameters={},
                reason=f"{SMALLEST}: what needs the least memory",
            )
            plans = [replace(small, owners=balanced.owners), small]
            with suppress(NotEnoughMemory):
                plans = [balanced._by_the_models(sample, costs, demand), *plans]
        for plan in plans:
            try:
                return plan._sized(sample, costs)
            except NotEnoughMemory as e:
                refusal = e
        raise refusal

    def _sized(self, sample: pa.RecordBatch, costs: Costs) -> Self:
        """Return the plan with the open sizes that are best in the slowest partition. If M is too
        small for them in another partition, they stay open, and each operator chooses sizes for its
        partition. Raises ConfigError if an operator cannot be opened."""
        if still_open := self._left_open(open_sizes):
            with suppress(NotEnoughMemory):
                slowest, tuples = self.slowest(sample)
                join = self.open(sample.schema, slowest, costs, tuples)
                join.master.close()
                chosen = (
                    *still_open,
                    *(n for n in self._left_open(open_choices) if getattr(join.parameters, n)),
                )
                sizes = {n: getattr(join.parameters, n) for n in chosen}
                plan = replace(self, parameters=self.parameters | sizes, chosen=chosen)
                plan.check(sample.schema)
                return plan
        self.check(sample.schema)
        return self

    def check(self, stream: pa.Schema) -> None:
        """Open the operators of all partitions, one after another. Raises ConfigError if one cannot
        be opened."""
        refusals = []
        for partition in range(self.partitions):
            try:
                self.open(stream, partition).master.close()
            except NotEnoughMemory as e:
                refusals.append(e)
        if refusals:
            raise max(refusals, key=lambda e: e.least)

    def _by_the_models(self, sample: pa.RecordBatch, costs: Costs, demand: Demand | None) -> Self:
        mine, tuples = self.slowest(sample)
        relation = self.relation(mine)
        if demand is not None:
            share = max(tuples.num_rows, 1) / max(sample.num_rows, 1)
            demand = demand._replace(share=share, whole=self.whole_reads(relation))
        try:
            choice = choose(
                tuples,
                relation,
                self.memory,
                self.on,
                self.added(sample.schema, relation),
                costs=costs,
                demand=demand,
            )
        finally:
            relation.close()
        reason = (
            f"auto, by {sample.num_rows:,} stream tuples, {tuples.num_rows:,} of them in "
            f"partition {mine} of {self.partitions}. {choice.reason}"
        )
        return replace(
            self, algorithm=choice.algorithm, parameters=choice.parameters, reason=reason
        )

    def whole_reads(self, relation: SnapshotRelation) -> float:
        """Return how many bytes of R all operators read, per byte that an operator with this part
        of R reads."""
        all_of_r = relation.manifest.tuple_count
        return self.partitions / self.split * all_of_r / max(relation.tuple_count, 1)

    def balance(
        self,
        sample: pa.RecordBatch,
        former: Self | None = None,
        history: SkimmedSketch | None = None,
    ) -> Self:
        """Return the plan with an owner for each bucket of R, so that its parts get about equally
        many of the sample's tuples.

        history: a sketch of the keys of earlier loads, which together count as much as HISTORY
        tuples of the sample. A former plan's owners are kept if their maximum load is within 5% of
        the best, so that the operators keep their caches. An empty sample changes nothing.
        """
        if self.split == 1 or not sample.num_rows:
            return self
        (axis,) = self.placement((sample.schema,)).axes
        of = axis.buckets(sample)
        # each bucket counts as one tuple more, since its part of R has to be read
        tuples = 1 + np.bincount(of[of >= 0], minlength=len(axis.owners))
        if history is not None and history.inserted:
            tuples += _expected(history, axis)
        owners = share_out(tuples, self.split)
        if former is not None and former.split == self.split and len(former.owners) == len(owners):
            before = loads(np.array(former.owners), tuples, self.split)
            if before.max() <= EVEN * loads(owners, tuples, self.split).max():
                return replace(self, owners=former.owners)
        return replace(self, owners=tuple(owners.tolist()))

    def slowest(self, sample: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
        """Return the partition with the most distinct keys in the sample, and its tuples of the
        sample.

        Distinct keys are counted instead of tuples, because tuples of a frequent key are joined
        through the cache.
        """
        codes, valid = self.keys(sample.schema).stream_codes(sample)
        of = self.placement((sample.schema,)).partitions(sample)
        _, different = np.unique(codes[valid], return_index=True)
        slowest = int(np.bincount(of[valid][different], minlength=self.partitions).argmax())
        return slowest, sample.filter(pa.array(valid & (of == slowest)))

    def keys(self, stream: pa.Schema) -> JoinKeys:
        """Return the join's keys in the column order by which R is bucketed."""
        manifest = Manifest.read(Path(self.snapshot))
        of_master = {m: s for s, m in self.on}
        return resolve_keys(
            stream, manifest.schema, [(of_master[m], m) for m in manifest.key_columns]
        )

    def placement(self, streams: Sequence[pa.Schema], side: int = 0) -> Placement:
        """Return the assignment of tuples to partitions as far as their key in this join decides.
        Their numbers decide the rest."""
        stream = streams[side]
        owners = self._owners(Manifest.read(Path(self.snapshot)))
        axis = Axis(self.keys(stream), owners, self.split, self.stride)
        return Placement(stream, (axis,) if self.stride else (), self.partitions)

    def _owners(self, manifest: Manifest) -> np.ndarray:
        return (
            np.array(self.owners) if self.owners else np.arange(manifest.bucket_count) % self.split
        )


def open_star(
    joins: Sequence[RolePlan],
    stream: pa.Schema,
    partition: int,
    costs: Costs = TYPICAL,
    members: Callable[[RolePlan, str], Inferring] | None = None,
) -> Star:
    """Open the operators of one partition. The stream of each operator is the output of the
    previous one. joins: in the order of execution; members: a function that opens the inferred
    members of a role's dimension, given the role's plan and the dimension. Raises ConfigError if
    they cannot be opened."""
    opened: list[RoleJoin] = []
    for plan in joins:
        join = plan.open(opened[-1].join.output_schema if opened else stream, partition, costs)
        inferred = members(plan, join.master.name) if plan.infer and members is not None else None
        opened.append(RoleJoin(plan.role or join.master.name, join, plan.many, members=inferred))
    order = sorted(range(len(joins)), key=lambda i: joins[i].number)
    return Star(opened, [opened[i].role for i in order])


def _expected(history: SkimmedSketch, axis: Axis) -> np.ndarray:
    """Return the expected number of tuples in each bucket, of HISTORY tuples in total,
    int[buckets]. Tuples of frequent keys go to their buckets, the others evenly to all buckets."""
    dense, count = history.skim(), len(axis.owners)
    of = buckets(dense.codes, axis.keys.exact, count)
    frequent = np.bincount(of, dense.frequencies, minlength=count)
    rest = max(history.inserted - dense.frequencies.sum(), 0) / count
    return np.rint((frequent + rest) * HISTORY / history.inserted).astype(np.int64)
