"""The project's operators as peers, in one process, and the hash join in main memory with which
they are compared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import ON, STREAM, Answer, Files, Stream
from benchmarks.harness import Result, Sample, peak_rss
from benchmarks.warm_up import warm_up
from semistream.cost_models import MODELS, TYPICAL, Frequencies
from semistream.joins import JoinOutput, JoinState, SemiStreamJoin
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.master_cache import MasterCache
from semistream.joins.spec import JoinSpec, join_spec
from semistream.joins.stored_types import has_strings
from semistream.joins.stream_probing import PROBE_ROWS, probe
from semistream.joins.stream_table.by_key import ByKey
from semistream.master.relation import MasterRelation
from semistream.settings import Settings
from semistream.sizing import describe, open_join, tune

HASH_JOIN = "hash join, all of R"


class HashJoin(SemiStreamJoin):
    """The stream-probing phase with all of R in H_R: a hash join in main memory, with the same
    kernels."""

    def __init__(self, spec: JoinSpec):
        size = spec.master.tuple_count * (
            MasterCache.bytes_per_tuple(spec.fetched_schema, 0) + MasterCache.ENTRY
        )
        assert not has_strings(spec.fetched_schema)
        super().__init__(replace(spec, memory=int(size)), Settings())
        self.arena.reserve("H_R", int(size))
        count = spec.master.tuple_count
        self.cache = MasterCache(spec.fetched_schema, count, count, 0)
        numbers = range(spec.master.partition_count)
        self.cache.stage(
            np.concatenate([spec.master.read_codes(n) for n in numbers]), np.zeros(count)
        )
        first = 0
        for partition in (DiskPartition(spec, n) for n in numbers):
            rows = np.arange(len(partition.codes))
            self.cache.stage_tuples(partition.payload, rows, first + rows, size)
            first += len(rows)
        self.cache.switch()
        self.h_s = ByKey(self.layout, 1)  # nothing ever waits in it

    def _open(self, strings: float) -> None:
        pass

    def _take(self, batch: pa.RecordBatch, codes: np.ndarray) -> Iterator[JoinOutput]:
        for first in range(0, len(codes), PROBE_ROWS):
            yield from probe(
                self.cache,
                batch.slice(first, PROBE_ROWS),
                codes[first : first + PROBE_ROWS],
                self.output,
            )

    @property
    def passes(self) -> float:
        return 0.0

    def iterate(self) -> Iterator[JoinOutput]:
        return iter(())

    def _state(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        raise NotImplementedError

    def _restore(self, state: JoinState) -> None:
        raise NotImplementedError


def open_operator(
    algorithm: str, master: MasterRelation, memory: int, skew: float, batch: int
) -> SemiStreamJoin:
    """Open an operator at the sizes that its cost model finds best, or at its own choice if it has
    no model. Raises ConfigError if M is too small."""
    if algorithm == HASH_JOIN:
        return HashJoin(join_spec(HASH_JOIN, 1 << 50, STREAM, master, ON))
    parameters: dict[str, Any] = {}
    if algorithm in MODELS:
        sample = Stream(master.tuple_count, skew).batch(0, 1024)
        spec = join_spec(algorithm, memory, STREAM, master, ON)
        work = describe(spec, sample, Frequencies.zipf(master.tuple_count, skew), batch)
        parameters = tune(algorithm, work, memory, TYPICAL).parameters
    return open_join(
        algorithm, memory=memory, stream=STREAM, master=master, on=ON, parameters=parameters
    )


@dataclass(frozen=True)
class Operator:
    """The settings of a peer. ``OperatorPeer`` is created in the peer's process.

    batch: stream tuples processed at a time; seconds: least time of a run; warm_up: most seconds
    before the run, within which the rate should settle.
    """

    files: Files
    schema: pa.Schema
    algorithm: str
    memory: int
    stream: Stream
    batch: int
    seconds: float
    warm_up: float

    def __call__(self) -> OperatorPeer:
        return OperatorPeer(self)


class OperatorPeer:
    """An operator that gets one stream, run after run. Its output is written as Arrow."""

    def __init__(self, of: Operator):
        pa.set_cpu_count(1)
        self.of, self.answer, self.fed = of, Answer(), 0
        self.seconds = self.cpu = 0.0
        master = of.files.relation(of.stream.master, of.schema)
        self.join = open_operator(of.algorithm, master, of.memory, of.stream.skew, of.batch)
        self.out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), self.join.output_schema)
        self.settled = warm_up(self.join, self._feed, of.seconds, of.stream.drift, of.warm_up)

    def measure(self) -> Sample:
        """Process batches until the time is over, some tuples are finished and, if R is read at
        all, as many tuples were read as R has. After five times the time, the last condition no
        longer counts."""
        stats, before = self.join.stats, replace(self.join.stats)
        finished = self._finished
        start, cpu = self.seconds, self.cpu
        while True:
            self._feed()
            spent, read = self.seconds - start, stats.disk_tuples_read - before.disk_tuples_read
            done = self._finished - finished
            if (
                done
                and spent >= self.of.seconds
                and (not read or read >= self.of.stream.master or spent >= 5 * self.of.seconds)
            ):
                hits = stats.cache_hits - before.cache_hits
                return Sample(
                    done,
                    spent,
                    stats.bytes_read - before.bytes_read,
                    self.cpu - cpu,
                    {"% through the cache": 100 * hits / done},
                )

    def finish(self) -> Result:
        self._pass_on(self.join.drain())
        stats = self.join.stats
        note = "" if self.settled else f"not settled after {self.of.warm_up:g} s"
        return Result(
            self.answer,
            self.of.stream.expected(self.fed),
            self.join.arena.budget,
            stats.memory_peak,
            peak_rss(),
            note,
            self.settled,
        )

    @property
    def _finished(self) -> int:
        return self.join.stats.matched + self.join.stats.unmatched

    def _feed(self) -> None:
        batch = self.of.stream.batch(self.fed, self.of.batch)
        self.fed += batch.num_rows
        self._pass_on(self.join.process(batch))

    def _pass_on(self, outputs: Iterator[JoinOutput]) -> None:
        """Write the joined rows and add them to the answer. Only the join and the writing are
        timed."""
        while True:
            start, cpu = time.perf_counter(), time.process_time()
            output = next(outputs, None)
            if output is not None:
                self.out.write_batch(output.joined)
            self.seconds += time.perf_counter() - start
            self.cpu += time.process_time() - cpu
            if output is None:
                return
            self.answer.add(output.joined)
