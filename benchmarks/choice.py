"""The choice of `auto` compared with the fastest of all algorithms, over R, M, columns, skew,
absent keys, drift and the length of S.

The operators run in process, with one thread; R is in the page cache. A rate is that of the whole
run, from the first tuple until all waiting tuples are drained: the stream's tuples per second of
processor time, without the sink's. Every algorithm gets the sizes that its model finds best for the
run. A run that takes half as long again as the fastest so far is stopped. The choice, and the
algorithms that come within a third of the fastest, run again in random order, repetition by
repetition. A ratio of at least 0.8 is a right choice: the best takes at most a quarter less time.
Other points are in ``EXCEPTIONS``, with the reason.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import ON, STREAM, Answer, Files
from benchmarks.elevatorjoin_ablation import add
from benchmarks.harness import MB, Bench, WrongAnswer
from semistream.errors import ConfigError
from semistream.joins import REGISTRY, SemiStreamJoin
from semistream.master.publish import publish_snapshot
from semistream.master.published import current_version
from semistream.master.snapshot import SnapshotRelation
from semistream.sizing import choose, open_join
from semistream.sizing.choice import Choice
from semistream.workloads.zipf import ZipfKeys

BATCH = 65_536  # tuples processed at a time, and the size of the sample for `auto`
RIGHT = 0.8  # the share of the fastest rate from which a choice is right
NEAR, STOPPED = 4 / 3, 1.5  # of the fastest time: up to there a run is repeated; from there stopped
LEAST = 0.3  # seconds before which no run is stopped
DEALT = 56  # random points of the grid, some of them equal
# names of points at which another algorithm is faster than the choice, with the reason
DRIFT = (
    "The models do not know that keys drift: they expect of a cache what it answers in a "
    "stream without drift."
)
CLOSE = (
    "The models have the two joins within a sixth of each other, which is within their error. "
    "ELEVATORJOIN's stops cost more there than its model says."
)
EXCEPTIONS = {
    "R 50k x 4 M 2.6 MB zipf 0 absent 40% 4 drifts S 800k": CLOSE,
    "R 50k x 4 M 1.2 MB zipf 1.3 absent 5% 4 drifts S 200k": DRIFT,
    "R 500k x 14 M 3 MB zipf 1.3 absent 40% 4 drifts S 500k": DRIFT,
    "R 50k x 14 M 1.2 MB zipf 0.5 absent 40% S 800k": CLOSE,
    "R 200k x 14 M 31.2 MB zipf 0.5 absent 40% S 1500k": CLOSE,
    "R 200k x 4 M 4.8 MB zipf 0.5 absent 40% S 800k": CLOSE,
    "R 500k x 14 M 12 MB zipf 0.5 absent 0% S 1500k": CLOSE,
    "R 50k x 4 M 0.4 MB zipf 1 absent 5% S 50k": CLOSE,
    "R 50k x 4 M 1.2 MB zipf 1 absent 5% 4 drifts S 800k": DRIFT,
}


@dataclass(frozen=True)
class Point:
    """A point of the grid. master: R_t; columns: the number of R's columns of 8 bytes, including
    the key; memory: M, bytes; skew: Zipf's exponent; absent: percent of S whose keys R lacks;
    drifts: how often the frequent keys change; tuples: the number of tuples of S."""

    master: int
    columns: int
    memory: int
    skew: float
    absent: int
    drifts: int
    tuples: int

    @property
    def name(self) -> str:
        return (
            f"R {self.master // 1000}k x {self.columns} M {self.memory / MB:.3g} MB "
            f"zipf {self.skew:g} absent {self.absent}%"
            f"{f' {self.drifts} drifts' if self.drifts else ''} S {self.tuples // 1000}k"
        )


@dataclass(frozen=True)
class Settings:
    points: int = 63
    skip: int = 0  # points to skip, for several processes that share them
    longest: int = 1_500_000  # tuples of S


SCALES = {
    "smallest": Settings(points=2, longest=50_000),
    "small": Settings(),
    "full": Settings(longest=50_000_000),
}


def grid(s: Settings) -> list[Point]:
    """Return points in which each value of each factor occurs equally often. The first and the last
    points are those for which an earlier version chose the wrong algorithm, or are similar to
    these. R and S are larger in the last ones."""
    if s.points <= 2:
        return [
            Point(20_000, 4, MB, 1.0, 5, 0, s.longest),
            Point(20_000, 14, MB, 0.0, 0, 1, s.longest),
        ][: s.points]
    seen = [
        Point(500_000, 4, 32 * MB, 1.0, 5, 0, 1_000_000),
        Point(500_000, 4, 32 * MB, 1.0, 5, 0, 3_000_000),
        Point(400_000, 14, 50 * MB, 0.0, 0, 0, 1_000_000),
        Point(400_000, 14, 13 * MB, 0.0, 0, 0, 1_000_000),
        Point(400_000, 14, 50 * MB, 0.0, 5, 0, 2_000_000),
        Point(200_000, 4, 13 * MB, 1.0, 5, 0, 200_000),
        Point(200_000, 4, 13 * MB, 1.0, 40, 4, 1_000_000),
    ]
    order = random.Random(6)

    def dealt(values: list[Any]) -> list[Any]:
        return order.sample((values * DEALT)[:DEALT], DEALT)

    rows = zip(
        dealt([50_000, 200_000, 500_000]),
        dealt([4, 14]),
        dealt([0.05, 0.2, 0.6, 1.3]),
        dealt([0.0, 0.5, 1.0, 1.3]),
        dealt([0, 5, 40]),
        dealt([0, 0, 0, 4]),
        dealt([1, 4, 16]),
        strict=True,
    )
    drawn = [
        Point(r, c, int(share * r * 8 * (c + 1)), skew, absent, drifts, min(times * r, s.longest))
        for r, c, share, skew, absent, drifts, times in rows
    ]
    large = [
        Point(1_000_000, 4, 32 * MB, 1.0, 5, 0, 3_000_000),
        Point(2_000_000, 14, 64 * MB, 1.0, 0, 0, 10_000_000),
        Point(2_000_000, 14, 250 * MB, 1.0, 0, 0, 10_000_000),
    ]
    return [*list(dict.fromkeys(seen + drawn))[: s.points - len(large)], *large]


def master(files: Files, point: Point) -> SnapshotRelation:
    """Return R with the keys 2, 4, … 2 R_t."""
    schema = pa.schema(
        [("key", pa.int64()), *((f"c{i}", pa.int64()) for i in range(1, point.columns))]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, point.master, BATCH):
            key = pa.array(2 * np.arange(first + 1, min(first + BATCH, point.master) + 1))
            yield pa.RecordBatch.from_arrays([key] * point.columns, schema=schema)

    root = files.made(
        f"snapshot-{point.master}-{point.columns}-even",
        lambda at: publish_snapshot(batches(), schema, at, "master", ["key"]),
    )
    return SnapshotRelation(root / str(current_version(root)))


def batch(point: Point, number: int) -> pa.RecordBatch:
    """Return tuples with even keys, and with odd keys, which R lacks. Half of the odd keys are as
    frequent as the even ones, half of them are uniform."""
    first = number * BATCH
    rows, chance = min(BATCH, point.tuples - first), np.random.default_rng(number)
    drift = point.tuples // (point.drifts + 1) if point.drifts else 0
    keys = ZipfKeys(point.master, point.skew, seed=1, scattered=True, drift=drift)
    drawn, share = chance.random(rows), point.absent / 100
    codes = 2 * np.where(
        drawn < share / 2, chance.integers(1, point.master, rows), keys.draw(first, rows)
    ) - (drawn < share)
    ids = np.arange(first, first + rows)
    return pa.RecordBatch.from_arrays([codes, ids, np.ones(rows, np.int32)], schema=STREAM)


def chosen(point: Point, relation: SnapshotRelation, sample: pa.RecordBatch) -> Choice:
    """Return what `auto` chooses for the point, with the costs of a typical machine."""
    return choose(sample, relation, point.memory, ON, tuples=point.tuples)


def run(bench: Bench, s: Settings) -> None:
    pa.set_cpu_count(1)
    for point in grid(SCALES["smallest"]):  # compiles the kernels
        Rivals(bench, point).compare(1)
    wrong = []
    for point in grid(s)[s.skip :]:
        bench.say(point.name)
        row = Rivals(bench, point).compare(bench.runs)
        bench.add("choice", point.name, row.pop("peer"), row)
        wrong += [] if row["right"] else [point.name]
    if wrong:
        raise WrongAnswer(f"choice: {', '.join(wrong)}")


class Stopped(Exception):
    """A run took too long."""


class Rivals:
    """The algorithms at one point."""

    def __init__(self, bench: Bench, point: Point):
        self.bench, self.point, self.relation = bench, point, master(bench.files, point)
        self.batches = [batch(point, n) for n in range(-(-point.tuples // BATCH))]
        self.choice = chosen(point, self.relation, self.batches[0])
        self.expected, self.answers = Answer(), [Answer()]
        for b in self.batches:
            add(self.expected, b.filter(pa.array(b["key"].to_numpy() % 2 == 0)))

    def compare(self, runs: int) -> dict[str, Any]:
        """Compare the algorithms and return a row of the results."""
        mine, times = self.choice.algorithm, {}
        predicted = {p.algorithm: p.rate for p in self.choice.ranking}
        for name in sorted(REGISTRY, key=lambda a: (a != mine, -predicted.get(a, 0.0))):
            most = max(STOPPED * min(times.values()), LEAST) if times else 0.0
            if (seconds := self._seconds(name, most)) is not None:
                times[name] = seconds
        near = [a for a in times if a == mine or times[a] <= NEAR * min(times.values())]
        rounds = [
            times,
            *(
                {a: self._seconds(a) for a in random.sample(near, len(near))}
                for _ in range(1, runs)
            ),
        ]
        medians = {a: float(np.median([r[a] for r in rounds])) for a in near}
        best = min(medians, key=lambda a: medians[a])
        answer = self.answers[-1]
        right = all(a == self.expected for a in self.answers[1:])
        return {
            "peer": mine,
            "baseline": best,
            "point": asdict(self.point),
            "rate": self.point.tuples / medians[mine],
            "seconds": medians[mine],
            "ratio": float(np.median([r[best] / r[mine] for r in rounds])),
            "runs": runs,
            "parameters": self.choice.parameters,
            "predicted": predicted,
            "rates": {a: self.point.tuples / medians.get(a, times[a]) for a in times},
            "rows": answer.rows,
            "checksum": f"{answer.checksum:016x}",
            "right": right,
            "memory_budget": self.point.memory,
            "note": f"{best} {self.point.tuples / medians[best]:,.0f}; expected "
            + ", ".join(f"{a} {r:,.0f}" for a, r in list(predicted.items())[:4]),
        }

    def _seconds(self, algorithm: str, most: float = 0.0) -> float | None:
        """Return the processor seconds of a run; None if M is too small, or if it takes more than
        `most`."""
        try:
            join, answer = self._open(algorithm), Answer()
            seconds = self._joined(join, answer, most)
        except (ConfigError, Stopped):
            return None
        self.answers.append(answer)
        return seconds

    def _open(self, algorithm: str) -> SemiStreamJoin:
        parameters = self.choice.parameters if algorithm == self.choice.algorithm else {}
        return open_join(
            algorithm,
            memory=self.point.memory,
            stream=STREAM,
            master=self.relation,
            on=ON,
            parameters=parameters,
            sample=self.batches[0],
            tuples=self.point.tuples,
        )

    def _joined(self, join: SemiStreamJoin, answer: Answer, most: float) -> float:
        """Run the join and return its seconds; only the join is timed."""
        spent = 0.0
        for steps in [*map(join.process, self.batches), join.drain()]:
            while True:
                start = time.process_time()
                output = next(steps, None)
                spent += time.process_time() - start
                if most and spent > most:
                    raise Stopped
                if output is None:
                    break
                add(answer, output.joined)
        return spent
