"""The operators of a star as a peer, in one process, with one thread: one operator that has all of
M, or P of them, one after the other, each with its part of M and of each R."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import Files
from benchmarks.harness import Result, Sample, peak_rss
from benchmarks.star_data import DimensionData, Sales
from benchmarks.warm_up import warm_up
from semistream.cost_models import TYPICAL
from semistream.joins.registry import HASH_JOIN
from semistream.joins.star import RoleJoin, Star, StarOutput
from semistream.master.published import current_version
from semistream.master.snapshot import SnapshotRelation
from semistream.settings import AUTO
from semistream.sizing import choose, open_join, role_plan
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.shares import choices
from semistream.sizing.star import StarRole, size_star, widened
from semistream.sizing.star_plan import choose_joins, size_plans

CHOSEN, EVEN = "chosen split", "even split"
SAMPLED = 100_000  # sales from which sizes are chosen


@dataclass(frozen=True)
class Share:
    """A dimension's part of M, in bytes, and its algorithm. auto: whether the cost models choose
    the algorithm."""

    dimension: int
    memory: int
    algorithm: str = AUTO


def relation(files: Files, dimension: DimensionData) -> SnapshotRelation:
    """Return a dimension as a relation that is read past the page cache."""
    root = dimension.snapshot(files)
    return SnapshotRelation(root / str(current_version(root)), direct=True)


def chosen(files: Files, sales: Sales, memory: int) -> list[Share]:
    """Return the split that the cost models choose, in the order of execution."""
    roles = []
    for d in sales.dimensions:
        columns = {name: name for name in d.added}
        roles.append(StarRole(str(d.number), relation(files, d), ((d.key, d.key),), columns))
    sizes = size_star(roles, sales.batch(0, SAMPLED), memory)
    for role in roles:
        role.master.close()
    return [
        Share(int(share.role), share.memory, HASH_JOIN.name if share.whole else AUTO)
        for share in sizes.shares
    ]


def splits(shares: Sequence[Share], steps: int) -> dict[str, list[Share]]:
    """Return a grid of other splits by name. Dimensions that are held whole keep their share. The
    memory of the others is divided into `steps` parts, which are dealt out in every way that gives
    each dimension at least one part; one further split is even."""
    waits = [share for share in shares if share.algorithm == AUTO]
    memory = sum(share.memory for share in waits)
    grid = [p for p in product(range(1, steps), repeat=len(waits)) if sum(p) == steps]
    found = {EVEN: (1,) * len(waits)} | {"split " + ":".join(map(str, p)): p for p in grid}
    out = {}
    for name, parts in found.items():
        if name == EVEN or len(set(parts)) > 1:
            each = iter([memory * part // sum(parts) for part in parts])
            out[name] = [
                replace(share, memory=next(each)) if share in waits else share for share in shares
            ]
    return out


def open_star(files: Files, sales: Sales, shares: Sequence[Share]) -> Star:
    """Open a star whose joins have these shares of M, in this order."""
    carried, joins = sales.batch(0, SAMPLED), list[RoleJoin]()
    for share in shares:
        dimension = sales.dimensions[share.dimension]
        schema = joins[-1].join.output_schema if joins else sales.schema
        master, on = relation(files, dimension), [(dimension.key, dimension.key)]
        algorithm, parameters = share.algorithm, dict[str, Any]()
        if algorithm == AUTO:
            choice = choose(carried, master, share.memory, on)
            algorithm, parameters = choice.algorithm, choice.parameters
        join = open_join(
            algorithm,
            memory=share.memory,
            stream=schema,
            master=master,
            on=on,
            parameters=parameters,
            sample=carried,
        )
        joins.append(RoleJoin(f"d{dimension.number}", join))
        carried = widened(carried, master, {name: name for name in dimension.added})
    return Star(joins)


class Grid:
    """The P operators of a plan, which share the stream's tuples and each R."""

    def __init__(self, plan: Plan[RolePlan], sales: Sales):
        self.stars = [
            role_plan.open_star(plan.joins, sales.schema, p) for p in range(plan.partitions)
        ]
        self.joins = [each for star in self.stars for each in star.joins]
        self.output_schema = self.stars[0].output_schema
        self.placement, self.placed = plan.placement((sales.schema,)), 0

    def process(self, tuples: pa.RecordBatch) -> Iterator[StarOutput]:
        numbers = np.arange(self.placed, self.placed + len(tuples))
        self.placed += len(tuples)
        for partition, mine in self.placement.split(tuples, numbers):
            yield from self.stars[partition].process(mine)

    def drain(self) -> Iterator[StarOutput]:
        for star in self.stars:
            yield from star.drain()

    @property
    def waiting(self) -> int:
        return sum(star.waiting for star in self.stars)


def grids(
    files: Files, sales: Sales, memory: int, partitions: int
) -> dict[tuple[int, ...], Plan[RolePlan]]:
    """Return the plans of P operators by their shares, each with the best sizes for it. The first
    one splits only the largest R."""
    dimensions = sales.dimensions
    joins = []
    for d in dimensions:
        root = d.snapshot(files)
        largest = d.tuples == max(each.tuples for each in dimensions)
        joins.append(
            RolePlan(
                AUTO,
                memory // (partitions * len(dimensions)),
                "inner",
                {},
                ((d.key, d.key),),
                partitions,
                str(root / str(current_version(root))),
                {name: name for name in d.added},
                f"d{d.number}",
                parts=0 if largest else 1,
                stride=1 if largest else 0,
                auto=True,
                share=len(dimensions),
                number=d.number,
            )
        )
    sample = sales.batch(0, SAMPLED)
    return {
        tuple(plan.shares.values()): choose_joins(
            size_plans([plan], sample, TYPICAL), sample, TYPICAL
        )
        for plan in choices(Plan(tuple(joins)))
    }


@dataclass(frozen=True)
class Operators:
    """The settings of a peer. split: one operator's parts of M, or the plan of several operators;
    seconds: least time of a run; warm_up: most seconds before the run."""

    files: Files
    sales: Sales
    split: Sequence[Share] | Plan[RolePlan]
    batch: int
    seconds: float
    warm_up: float

    def __call__(self) -> OperatorsPeer:
        return OperatorsPeer(self)

    def open(self) -> Star | Grid:
        if isinstance(self.split, Plan):
            return Grid(self.split, self.sales)
        return open_star(self.files, self.sales, self.split)

    @property
    def memory(self) -> int:
        """M, in bytes."""
        if isinstance(self.split, Plan):
            return self.split.partitions * self.split.memory
        return sum(share.memory for share in self.split)


class OperatorsPeer:
    """A star that gets one stream, run after run. Its output is written as Arrow."""

    def __init__(self, of: Operators):
        pa.set_cpu_count(1)
        self.of, self.answer, self.fed = of, of.sales.answer(), 0
        self.seconds = self.cpu = 0.0
        self.star = of.open()
        self.out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), self.star.output_schema)
        # a dimension that is held whole has nothing to settle, and takes almost no time of its own
        waits = [
            each.join for each in self.star.joins if each.join.spec.algorithm != HASH_JOIN.name
        ]
        window = of.seconds / max(len(waits), 1)
        settled = [warm_up(join, self._feed, window, most_seconds=of.warm_up) for join in waits]
        self.settled = all(settled)

    def measure(self) -> Sample:
        """Process sales until the time is over and each dimension that is read was read once. After
        five times the time, the second condition no longer counts."""
        before = [replace(each.join.stats) for each in self.star.joins]
        start, cpu, finished = self.seconds, self.cpu, self._finished
        while True:
            self._feed()
            spent, done = self.seconds - start, self._finished - finished
            read = [
                each.join.stats.disk_tuples_read - former.disk_tuples_read
                for each, former in zip(self.star.joins, before, strict=True)
            ]
            whole = all(
                not tuples or tuples >= each.join.master.tuple_count
                for tuples, each in zip(read, self.star.joins, strict=True)
            )
            if done > 0 and spent >= self.of.seconds and (whole or spent >= 5 * self.of.seconds):
                break
        return Sample(
            done,
            spent,
            sum(
                each.join.stats.bytes_read - former.bytes_read
                for each, former in zip(self.star.joins, before, strict=True)
            ),
            self.cpu - cpu,
        )

    def finish(self) -> Result:
        self._pass_on(self.star.drain())
        split = ", ".join(
            f"{each.role} {each.join.spec.algorithm} {each.join.arena.budget / 1e6:.3g}"
            for each in self.star.joins[: len(self.of.sales.dimensions)]
        )
        return Result(
            self.answer,
            self.of.sales.expected(self.fed),
            self.of.memory,
            sum(each.join.stats.memory_peak for each in self.star.joins),
            peak_rss(),
            f"MB: {split}" + ("" if self.settled else f"; not settled after {self.of.warm_up:g} s"),
            self.settled,
        )

    @property
    def _finished(self) -> int:
        """The sales that no longer wait."""
        return self.fed - self.star.waiting

    def _feed(self) -> None:
        batch = self.of.sales.batch(self.fed, self.of.batch)
        self.fed += batch.num_rows
        self._pass_on(self.star.process(batch))

    def _pass_on(self, outputs: Iterator[StarOutput]) -> None:
        """Write the joined rows and add them to the answer. Only the joins and the writing are
        timed."""
        while True:
            start, cpu = time.perf_counter(), time.process_time()
            output = next(outputs, None)
            if output is not None and output.joined is not None:
                self.out.write_batch(output.joined)
            self.seconds += time.perf_counter() - start
            self.cpu += time.process_time() - cpu
            if output is None:
                return
            if output.joined is not None:
                self.answer.add(output.joined)
