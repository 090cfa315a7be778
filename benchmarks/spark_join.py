"""Spark's stream-static join compared with the streaming app: the same files, micro-batches, cores
and driver memory.

Both read S as micro-batches of one Parquet file. Spark joins each with R in Parquet, in the order
of the keys, and writes Parquet; the app joins with its snapshot of R and writes a Delta table.
Besides Spark's own plan, there are plans that a user could choose: the micro-batch or R is
broadcast, or R is cached. The rate is that of the batches after the warm-up, from commit to commit:
finished tuples, without waiting ones. "end to end" is all tuples over all seconds, from Spark's
start to the end of the drain.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from deltalake import DeltaTable

from benchmarks.data import COLUMNS, MASTER_BYTES, Answer, Files, Stream
from benchmarks.harness import ROOT, Bench, Result, Sample, Unavailable
from benchmarks.processes import (
    LOOK,
    Program,
    answer_of,
    commits,
    forget,
    program,
    spark_environment,
)
from benchmarks.spark_static import NOTHING

APP = ROOT / "spark_apps" / "semi_stream_join.py"


@dataclass(frozen=True)
class Settings:
    masters: tuple[int, ...] = (500_000,)  # R_t
    batch: int = 200_000  # tuples of a micro-batch
    batches: int = 6
    warm_up: int = 3  # of them
    spark_batches: int = 0  # for Spark's join, which has no state to fill; 0: all
    share: float = 10.0  # M, percent of R
    least_memory: int = 30_000_000  # least M, bytes
    algorithms: tuple[str, ...] = ("elevatorjoin",)
    variants: tuple[str, ...] = ("as is",)
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {
    "smallest": Settings(
        batch=20_000, batches=2, warm_up=1, variants=("as is",), algorithms=("ssbj",)
    ),
    "small": Settings(),
    "full": Settings(
        masters=(2_000_000, 20_000_000, 100_000_000),
        batch=1_000_000,
        batches=8,
        least_memory=300_000_000,
        algorithms=("auto", "elevatorjoin"),
        variants=("as is", "broadcast S", "R cached", "broadcast R"),
    ),
}
BROADCAST_BYTES = 500_000_000  # the largest R that is broadcast


def run(bench: Bench, s: Settings) -> None:
    for master in s.masters:
        stream, size = Stream(master), master * MASTER_BYTES
        case = Case(
            bench.files,
            stream,
            s.batch,
            s.batches,
            s.warm_up,
            s.driver_memory,
            f"local[{s.cores},4]",
        )
        few = s.spark_batches or s.batches
        others = replace(case, batches=few, warm_up=min(s.warm_up, few // 2))
        case.make()
        others.make()
        spark = {
            f"spark, {v}": Spark(others, v)
            for v in s.variants
            if v != "broadcast R" or size <= BROADCAST_BYTES
        }
        memory = max(int(s.share / 100 * size), s.least_memory)
        ours = {a: App(case, a, memory) for a in s.algorithms}
        bench.compare(
            "spark",
            f"R={master:,} M={memory / 1e6:,.0f}MB batch={s.batch:,}",
            {**spark, **ours},
            next(iter(spark)),
        )


@dataclass(frozen=True)
class Case:
    files: Files
    stream: Stream
    batch: int
    batches: int
    warm_up: int
    driver_memory: str
    master: str  # of Spark

    @property
    def tuples(self) -> Path:
        return self.files.stream_parquet(self.stream, self.batches, self.batch)

    def make(self) -> None:
        self.files.snapshot(self.stream.master, COLUMNS)
        self.files.master_parquet(self.stream.master, COLUMNS)
        _ = self.tuples

    def count(self, first: int = 0) -> int:
        """Return the number of tuples of the micro-batches from ``first`` on."""
        return self.batch * (self.batches - first)

    def expected(self) -> Answer:
        return self.stream.expected(self.count())

    def environment(self, home: Path) -> dict[str, str]:
        return spark_environment(self.master, self.driver_memory, home / "scratch")


class ProgramPeer:
    """A program that starts again for each run, with nothing left from the former run."""

    look = LOOK  # s between measurements of the memory

    def __init__(self, case: Case, name: str, memory: int = 0):
        self.case, self.memory = case, memory
        self.home = case.files.runs / name.replace(" ", "-").replace(",", "")
        self.answer, self.expected = Answer(), case.expected()
        self.memory_peak = self.rss_peak = 0

    def finish(self) -> Result:
        shutil.rmtree(self.home, ignore_errors=True)
        return Result(self.answer, self.expected, self.memory, self.memory_peak, self.rss_peak)

    def measure(self) -> Sample:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        os.sync()  # flushes what the previous peer wrote
        sample = self._run()
        answer = self._answer()
        if self.answer in (Answer(), self.expected):  # a wrong answer is kept
            self.answer = answer
        return sample

    def _run(self) -> Sample:
        raise NotImplementedError

    def _answer(self) -> Answer:
        raise NotImplementedError

    def _end(self, running: Program) -> float:
        """Wait for the end and return the seconds. Raises Unavailable if Spark's memory did not
        suffice."""
        try:
            return running.end()
        except RuntimeError:
            text = running.log.read_text(errors="replace")
            found = re.search("Not enough memory to build and broadcast|OutOfMemoryError", text)
            if found is None:
                raise
            raise Unavailable(f"{found[0]}, with {self.case.driver_memory}") from None

    def _sample(
        self,
        running: Program,
        seconds: float,
        ends: dict[int, float],
        finished: int | None = None,
        bytes_read: int = 0,
    ) -> Sample:
        """Return the sample of a run. seconds: the time of the whole run; ends: commit times;
        finished: tuples after the warm-up, if these are not the tuples read."""
        case = self.case
        first, last = ends[case.warm_up - 1], ends[case.batches - 1]
        if finished is None:
            finished = case.count(case.warm_up)
        return Sample(
            finished,
            last - first,
            bytes_read,
            extra={
                "end to end tuples/s": case.count() / seconds,
                "busy cores": running.cores(first, last),
            },
        )


@dataclass(frozen=True)
class Spark:
    case: Case
    variant: str

    def __call__(self) -> SparkPeer:
        return SparkPeer(self)


class SparkPeer(ProgramPeer):
    def __init__(self, of: Spark):
        super().__init__(of.case, f"spark {of.variant}")
        self.of = of

    def _command(self) -> list[str | Path]:
        masters = self._masters()
        for master in masters:
            forget(master)
        return [
            sys.executable,
            "-m",
            "benchmarks.spark_static",
            self.of.variant,
            *masters,
            self.case.tuples,
            self.home / "output",
            self.home / "query",
        ]

    def _masters(self) -> list[Path]:
        """Return the directories of the relations with which S is joined."""
        return [self.case.files.master_parquet(self.case.stream.master, COLUMNS)]

    def _run(self) -> Sample:
        with program(self._command(), self.home / "log", self._environment(), self.look) as running:
            seconds = self._end(running)
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        return self._sample(running, seconds, commits(self.home / "query"))

    def _environment(self) -> dict[str, str]:
        """Return the environment. Spark's own join has the JVM's defaults; the app's empty job has
        the app's options."""
        options = {} if self.of.variant == NOTHING else {"SPARK_SUBMIT_OPTS": ""}
        return self.case.environment(self.home) | options

    def _answer(self) -> Answer:
        return answer_of([*(self.home / "output").glob("*.parquet")])


@dataclass(frozen=True)
class App:
    case: Case
    algorithm: str
    memory: int
    partitions: int = 0
    sink: str = ""  # sql, or a Delta table

    def __call__(self) -> AppPeer:
        return AppPeer(self)


class AppPeer(ProgramPeer):
    def __init__(self, of: App, environment: Mapping[str, str] = MappingProxyType({})):
        super().__init__(of.case, f"app {of.algorithm} {of.partitions} {of.sink}", of.memory)
        self.of, self.environment = of, environment

    def _run(self) -> Sample:
        command: list[str | Path] = [sys.executable, APP, *self._arguments(), "--max-files", "1"]
        environment = self.case.environment(self.home) | paths_of(self.home) | self.environment
        with program(command, self.home / "log", environment, self.look) as running:
            seconds = running.end()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        with sqlite3.connect(self.home / "warehouse.db") as ledger:
            finished, read = ledger.execute(
                "SELECT sum(matched + unmatched), sum(bytes_read) FROM "
                "load_batches WHERE drain = 0 AND batch >= ?",
                [self.case.warm_up],
            ).fetchone()
            self.memory_peak = max(
                self.memory_peak,
                *(
                    row[0]
                    for row in ledger.execute(
                        "SELECT sum(memory_peak) FROM load_batches GROUP BY batch, drain"
                    )
                ),
            )
        return self._sample(
            running, seconds, commits(self.home / "checkpoint" / "query"), finished, read
        )

    def _arguments(self) -> list[str]:
        """Return the app's arguments, after the snapshots were dropped from the page cache."""
        root = self.case.files.snapshot(self.case.stream.master, COLUMNS)
        forget(root)
        return arguments(
            self.home,
            {"master/key": root},
            self.case.tuples,
            self.of.algorithm,
            self.memory,
            self.of.partitions,
            self.of.sink,
        )

    def _answer(self) -> Answer:
        return (
            answer_of(DeltaTable(self.home / "output").file_uris())
            if not self.of.sink
            else Answer()
        )


ONE_ROLE = MappingProxyType({"master": {"name": "master"}, "on": {"key": "key"}})


def paths_of(home: Path) -> dict[str, str]:
    return {"SEMISTREAM_HOME": str(home), "WAREHOUSE_URL": f"sqlite:///{home / 'warehouse.db'}"}


def arguments(
    home: Path,
    snapshots: Mapping[str, Path],
    stream: Path,
    algorithm: str,
    memory: int,
    partitions: int = 0,
    sink: str = "",
    joined: Mapping[str, Any] = ONE_ROLE,
) -> list[str]:
    """Return the app's arguments for a job on these files, with a new home and a new Delta table.

    snapshots: directories of the dimensions' versions, by dimension and key (master/key); joined:
    the settings of the job that say with what its stream is joined.
    """
    for name, root in snapshots.items():
        link = home / "snapshots" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root)
    job = {
        "name": "benchmark",
        "stream": {"format": "parquet", "path": str(stream), "id": ["id"]},
        **joined,
        "fact_table": "fact_benchmark",
    }
    (home / "job.yaml").write_text(yaml.safe_dump(job))
    return [
        "--job",
        str(home / "job.yaml"),
        "--algorithm",
        algorithm,
        "--memory",
        str(memory),
        "--partitions",
        str(partitions),
        "--checkpoint",
        str(home / "checkpoint"),
        "--sink",
        sink or str(home / "output"),
    ]
