"""The contribution of each idea of ELEVATORJOIN: the whole algorithm, compared with variants that
lack one idea.

The operators run in process, with one thread; R is read past the page cache; keys follow Zipf's
law. Part of the stream has keys that R lacks, between R's keys. R's index and the grouping of
waiting tuples by partition cannot be switched off. SSBJ, with a cache inequality and no index, and
SSCJ, with an index, a cache and waiting tuples by key, stand for variants without them. The sweep
over R, which bounds a tuple's wait, cannot be switched off either. The partition-based join, which
caches whole partitions and reads the one for which the most tuples wait, stands for a variant
without the sweep. Without a cache, this join and ELEVATORJOIN differ only in the order of their
reads. Rates are per second of processor time, because the variants differ in what they compute. The
bytes that they read are also shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import MASTER_BYTES, ON, OPAQUE, STREAM, Answer, Files, master_batches
from benchmarks.harness import Bench, Result, Sample, peak_rss
from semistream.joins import JoinOutput, cost_balance
from semistream.master.publish import publish_snapshot
from semistream.master.published import current_version
from semistream.master.snapshot import SnapshotRelation
from semistream.sizing import open_join
from semistream.workloads.zipf import ZipfKeys

WHOLE = "elevatorjoin"
ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    shares: tuple[float, ...] = (1.0, 10.0)  # M, percent of R
    absent: tuple[float, ...] = (0.0, 30.0)  # percent of the stream that has no match
    skew: float = 1.0
    drift: int = 0  # tuples after which other keys are frequent; 0: never
    batch: int = 65_536
    cycles: int = 8  # R-cycles before the first run
    seconds: float = 0.5  # of processor time
    variants: tuple[str, ...] = ("all",)


SCALES = {
    "smallest": Settings(
        master=30_000, shares=(10.0,), absent=(30.0,), batch=10_000, cycles=2, seconds=0.05
    ),
    "small": Settings(),
    "full": Settings(master=20_000_000, seconds=5.0),
}


@dataclass(frozen=True)
class Variant:
    """The settings of a peer. parameters: the operator's parameters; constants: other values for
    constants of `joins/cost_balance.py`."""

    files: Files
    settings: Settings
    memory: int
    absent: float  # share of the stream
    algorithm: str = WHOLE
    parameters: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> VariantPeer:
        return VariantPeer(self)


def run(bench: Bench, s: Settings) -> None:
    master(bench.files, s.master)
    for share in s.shares:
        for absent in s.absent:
            whole = Variant(
                bench.files, s, int(share / 100 * s.master * MASTER_BYTES), absent / 100
            )
            peers = {
                WHOLE: whole,
                "no index: ssbj": replace(whole, algorithm="ssbj"),
                "no grouping: sscj": replace(whole, algorithm="sscj"),
                "no sweep: partition-join": replace(whole, algorithm="partition-join"),
                "no cache": replace(whole, parameters={"cache_tuples": 1}),
                "neither of these: partition-join": replace(
                    whole, algorithm="partition-join", parameters={"cache_share": 0}
                ),
                "phi = 1, SSBJ's": replace(whole, parameters={"disk_share": 1.0}),
                "phi = 0.001, any repeated": replace(whole, parameters={"disk_share": 1e-3}),
                "no hysteresis": replace(whole, constants={"HYSTERESIS": 1.0}),
                "no absent values": replace(whole, constants={"ABSENT_VALUES": False}),
                "no filter": replace(whole, parameters={"filter_bits": -1}),
                "a filter of 8 bits": replace(whole, parameters={"filter_bits": 8}),
                "neither of the last two": replace(
                    whole, parameters={"filter_bits": -1}, constants={"ABSENT_VALUES": False}
                ),
            }
            if not absent:
                peers = {
                    n: p
                    for n, p in peers.items()
                    if not n.endswith(("absent values", "filter", "bits", "two"))
                }
            case = f"R={s.master:,} M={share:g}% absent {absent:g}%"
            bench.compare(
                "elevatorjoin-ablation",
                case,
                {
                    n: p
                    for n, p in peers.items()
                    if n == WHOLE or "all" in s.variants or n in s.variants
                },
                WHOLE,
            )


def master(files: Files, tuples: int) -> SnapshotRelation:
    """Return R with the keys 2, 4, … 2 R_t, read past the page cache."""

    def even() -> Iterator[pa.RecordBatch]:
        for batch in master_batches(tuples, OPAQUE):
            key = pa.array(2 * batch["key"].to_numpy())
            yield pa.RecordBatch.from_arrays([key, batch["payload"]], schema=OPAQUE)

    root = files.made(
        f"snapshot-{tuples}-even",
        lambda at: publish_snapshot(even(), OPAQUE, at, "master", ["key"]),
    )
    return SnapshotRelation(root / str(current_version(root)), direct=True)


class VariantPeer:
    """An operator that gets one stream, run after run."""

    def __init__(self, of: Variant):
        pa.set_cpu_count(1)
        for name, value in of.constants.items():
            setattr(cost_balance, name, value)
        self.of, self.fed, self.expected, self.answer = of, 0, Answer(), Answer()
        s, self.cpu = of.settings, 0.0
        self.keys = ZipfKeys(s.master, s.skew, scattered=True, drift=s.drift)
        self.join = open_join(
            of.algorithm,
            memory=of.memory,
            stream=STREAM,
            on=ON,
            master=master(of.files, s.master),
            sample=self._batch(0),
            parameters=of.parameters,
        )
        while self.join.stats.r_cycles < s.cycles:
            self._feed()

    def measure(self) -> Sample:
        stats, before, cpu, start = (
            self.join.stats,
            replace(self.join.stats),
            self.cpu,
            time.perf_counter(),
        )
        while self.cpu - cpu < self.of.settings.seconds:
            self._feed()
        done = stats.matched + stats.unmatched - before.matched - before.unmatched
        hits = stats.cache_hits - before.cache_hits
        spent = self.cpu - cpu
        return Sample(
            done,
            spent,
            stats.bytes_read - before.bytes_read,
            spent,
            {
                "% at once": 100 * hits / done,
                "bytes of R a tuple": (stats.bytes_read - before.bytes_read) / done,
                "wall s": time.perf_counter() - start,
            },
        )

    def finish(self) -> Result:
        self._pass_on(self.join.drain())
        stats = self.join.stats
        return Result(
            self.answer, self.expected, self.join.arena.budget, stats.memory_peak, peak_rss()
        )

    def _batch(self, number: int) -> pa.RecordBatch:
        """Return tuples with even keys, and with odd keys, which R lacks. Half of the odd keys are
        as frequent as the even ones, half of them are uniform."""
        s, random = self.of.settings, np.random.default_rng(number)
        keys = self.keys.draw(number * s.batch, s.batch)
        uniform = random.integers(1, s.master, s.batch)
        chance = random.random(s.batch)
        keys = 2 * np.where(chance < self.of.absent / 2, uniform, keys)
        keys -= chance < self.of.absent
        ids = np.arange(number * s.batch, (number + 1) * s.batch)
        return pa.RecordBatch.from_arrays([keys, ids, np.ones(s.batch, np.int32)], schema=STREAM)

    def _feed(self) -> None:
        batch = self._batch(self.fed)
        self.fed += 1
        add(self.expected, batch.filter(pa.array(batch["key"].to_numpy() % 2 == 0)))
        self._pass_on(self.join.process(batch))

    def _pass_on(self, outputs: Iterator[JoinOutput]) -> None:
        """Add the joined rows to the answer; only the join is timed."""
        while True:
            cpu = time.process_time()
            output = next(outputs, None)
            self.cpu += time.process_time() - cpu
            if output is None:
                return
            add(self.answer, output.joined)


def add(answer: Answer, rows: pa.RecordBatch) -> None:
    """Add rows to an answer, with a hash of key and id."""
    key, number = (rows[n].to_numpy().view(np.uint64) for n in ("key", "id"))
    answer.rows += rows.num_rows
    answer.checksum = (
        answer.checksum + int(((key * ODD) ^ number * ODD >> np.uint64(7)).sum(dtype=np.uint64))
    ) % 2**64
