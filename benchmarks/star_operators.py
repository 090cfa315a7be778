"""The operators of a star as a peer, in one process, with one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pyarrow as pa

from benchmarks.data import Files
from benchmarks.harness import Result, Sample, peak_rss
from benchmarks.star_data import TUPLE_BYTES, DimensionData, Sales
from benchmarks.warm_up import warm_up
from semistream.joins.star import RoleJoin, Star, StarOutput
from semistream.master.published import current_version
from semistream.master.snapshot import SnapshotRelation
from semistream.sizing import choose, open_join

CHOSEN = "star, chosen split"
LEAST = 20_000  # bytes of an operator besides the tuples that it holds
SAMPLED = 100_000  # sales from which sizes are chosen

Split = Sequence[tuple[str, int]]  # (algorithm, bytes) of each dimension; auto: the models choose


def relation(files: Files, dimension: DimensionData) -> SnapshotRelation:
    """Return a dimension, read past the page cache."""
    root = dimension.snapshot(files)
    return SnapshotRelation(root / str(current_version(root)), direct=True)


def open_split(files: Files, sales: Sales, split: Split) -> Star:
    """Open a star whose joins have these algorithms and bytes."""
    sample, joins = sales.batch(0, SAMPLED), list[RoleJoin]()
    for dimension, (algorithm, memory) in zip(sales.dimensions, split, strict=True):
        schema = joins[-1].join.output_schema if joins else sales.schema
        master, on = relation(files, dimension), [(dimension.key, dimension.key)]
        parameters = {}
        if algorithm == "auto":
            choice = choose(sample, master, memory, on)
            algorithm, parameters = choice.algorithm, choice.parameters
        join = open_join(
            algorithm, memory=memory, stream=schema, master=master, on=on, parameters=parameters
        )
        joins.append(RoleJoin(f"d{dimension.number}", join))
    return Star(joins)


@dataclass(frozen=True)
class Operators:
    """How to make the peer. split: None for what is chosen; seconds: least time of a run; warm_up:
    most seconds before it."""

    files: Files
    sales: Sales
    memory: int
    split: Split | None
    batch: int
    seconds: float
    warm_up: float

    def __call__(self) -> OperatorsPeer:
        return OperatorsPeer(self)


class OperatorsPeer:
    """A star fed with one stream, run after run; its output is written as Arrow."""

    def __init__(self, of: Operators):
        pa.set_cpu_count(1)
        self.of, self.answer, self.fed = of, of.sales.answer(), 0
        self.seconds = self.cpu = 0.0
        self.star = open_split(of.files, of.sales, of.split)
        self.out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), self.star.output_schema)
        settled = [
            warm_up(each.join, self._feed, of.seconds, most_seconds=of.warm_up)
            for each in self.star.joins
        ]
        self.settled = all(settled)

    def measure(self) -> Sample:
        """Process sales until the time is over, and each dimension that is read was read once (at
        most five times as long)."""
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
            f"{each.join.spec.algorithm} {each.join.arena.budget / 1e6:.3g}"
            for each in self.star.joins
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


def splits(sales: Sales, memory: int, steps: int) -> dict[str, Split]:
    """Return a grid of splits of M by name. The smallest dimensions get twice their bytes and
    LEAST, as long as that is a quarter of M at most, so that they are held whole; the rest is dealt
    out among the others, each of `steps` parts to one."""
    whole: dict[int, int] = {}
    for d in sorted(sales.dimensions, key=lambda d: d.tuples):
        if sum(whole.values()) + (size := 2 * d.tuples * TUPLE_BYTES + LEAST) <= memory // 4:
            whole[d.number] = size
    large = [d.number for d in sales.dimensions if d.number not in whole]
    rest = memory - sum(whole.values())
    out: dict[str, Split] = {}
    for parts in product(range(1, steps), repeat=len(large)):
        if sum(parts) == steps:
            given = dict(zip(large, (rest * part // steps for part in parts), strict=True)) | whole
            name = "split " + ":".join(map(str, parts))
            out[name] = [("auto", given[d.number]) for d in sales.dimensions]
    return out
