"""The cost of the app without tuples: an empty micro-batch, and a restart with a million waiting
tuples.

Empty micro-batches: the time from commit to commit of Parquet files without rows, for which the app
starts no job; here tuples/s are batches/s. "the app's job, empty" is the time that Spark takes for
the app's session and the job of a micro-batch, without the app. Restart: the app was killed after
its first micro-batch was committed, while the tuples of that batch waited; it starts again on its
checkpoint with one more tuple. The time is measured from the process's start to the commit of that
tuple. It is compared with the same start with one tuple waiting, and with Spark's own: the app's
session and an empty job, from the process's start to its commit.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.data import COLUMNS, MASTER_BYTES, Answer, Stream
from benchmarks.harness import Bench, Sample
from benchmarks.processes import answer_of, commits, program
from benchmarks.spark_join import (
    APP,
    App,
    AppPeer,
    Case,
    ProgramPeer,
    Spark,
    SparkPeer,
    arguments,
    paths_of,
)
from benchmarks.spark_static import NOTHING


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 60.0  # M, percent of R
    waiting: int = 1_000_000  # tuples read before the crash
    batches: int = 15  # empty ones
    warm_up: int = 5  # of them
    algorithm: str = "elevatorjoin"
    # algorithm of the restarts: its tuples wait until they fill M
    waits: str = "hybridjoin"
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {
    "smallest": Settings(master=50_000, waiting=20_000, batches=4, warm_up=2),
    "small": Settings(),
    "full": Settings(master=20_000_000, share=10.0, batches=50, warm_up=20),
}


def run(bench: Bench, s: Settings) -> None:
    memory, master = int(s.share / 100 * s.master * MASTER_BYTES), f"local[{s.cores},4]"
    empty = Case(bench.files, Stream(s.master), 0, s.batches, s.warm_up, s.driver_memory, master)
    empty.make()
    bench.compare(
        "start",
        "empty micro-batch",
        {
            "spark": Empty(Spark(empty, "as is")),
            "the app's job, empty": Empty(Spark(empty, NOTHING)),
            "semistream, delta": Empty(App(empty, s.algorithm, memory)),
            "semistream, sql": Empty(App(empty, s.algorithm, memory, sink="sql")),
        },
        "spark",
    )
    case = replace(empty, batch=s.waiting, batches=1)
    bench.compare(
        "start",
        f"restart, {s.waiting:,} tuples given before",
        {
            "spark's own start": Start(replace(case, batch=1)),
            "one waits": Restart(replace(case, batch=1), s.waits, memory),
            "all wait": Restart(case, s.waits, memory),
        },
        "spark's own start",
    )


@dataclass(frozen=True)
class Empty:
    """A peer whose micro-batches, not their tuples, are counted."""

    of: App | Spark

    def __call__(self) -> ProgramPeer:
        peer: ProgramPeer = AppPeer(self.of) if isinstance(self.of, App) else SparkPeer(self.of)
        plain = peer._run

        def counted() -> Sample:
            sample = plain()
            count = peer.case.batches - peer.case.warm_up
            return replace(
                sample, tuples=count, extra={"ms a batch": 1000 * sample.seconds / count}
            )

        peer._run = counted  # type: ignore[method-assign]
        return peer


@dataclass(frozen=True)
class Start:
    """Spark alone, to the commit of its first micro-batch."""

    case: Case

    def __call__(self) -> StartPeer:
        return StartPeer(Spark(self.case, NOTHING))


class StartPeer(SparkPeer):
    def __init__(self, of: Spark):
        super().__init__(of)
        self.expected = Answer()

    def _run(self) -> Sample:
        with program(
            self._command(), self.home / "log", self.case.environment(self.home)
        ) as running:
            seconds = running.until(lambda: 0 in commits(self.home / "query"))
            running.end()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        return Sample(1, seconds)


@dataclass(frozen=True)
class Restart:
    case: Case
    algorithm: str
    memory: int

    def __call__(self) -> RestartPeer:
        return RestartPeer(self)


class RestartPeer(ProgramPeer):
    def __init__(self, of: Restart):
        super().__init__(of.case, f"restart {of.case.batch}", of.memory)
        self.expected, self.algorithm = self.case.stream.expected(self.case.batch + 1), of.algorithm

    def _run(self) -> Sample:
        case, home = self.case, self.home
        tuples = home / "stream"
        shutil.copytree(case.tuples, tuples)
        settings = arguments(
            home,
            {"master/key": case.files.snapshot(case.stream.master, COLUMNS)},
            tuples,
            self.algorithm,
            self.memory,
        )
        command: list[str | Path] = [sys.executable, APP, *settings, "--max-files", "1"]
        environment = case.environment(home) | paths_of(home)
        endless = [*command, "--trigger", "1 second", "--max-wait", "3600"]
        with program(endless, home / "log", environment) as first:
            first.until(lambda: self._committed(0))
            first.kill()
        with sqlite3.connect(home / "warehouse.db") as ledger:
            waiting = ledger.execute("SELECT sum(waiting) FROM load_batches").fetchone()[0]
        pq.write_table(self._one_more(), home / "one.parquet")
        (home / "one.parquet").rename(tuples / "one.parquet")
        with program(command, home / "log", environment) as second:
            seconds = second.until(lambda: self._committed(1))
            second.end()
        self.rss_peak = max(self.rss_peak, second.memory_peak)
        return Sample(1, seconds, extra={"waited": waiting})

    def _committed(self, batch: int) -> bool:
        """Return whether Spark and the ledger, which may be later, have both recorded the batch."""
        if batch not in commits(self.home / "checkpoint" / "query"):
            return False
        with sqlite3.connect(self.home / "warehouse.db") as ledger:
            return bool(
                ledger.execute(
                    "SELECT count(*) FROM load_commits WHERE batch = ?", [batch]
                ).fetchone()[0]
            )

    def _one_more(self):
        import pyarrow as pa

        return pa.Table.from_batches([self.case.stream.batch(self.case.batch, 1)])

    def _answer(self) -> Answer:
        return answer_of(DeltaTable(self.home / "output").file_uris())
