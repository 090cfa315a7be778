"""The cost of the app without tuples: an empty micro-batch, a restart with a million waiting
tuples, and files of few tuples.

Empty micro-batches: the time from commit to commit of Parquet files without rows, for which the app
starts no job; here tuples/s are batches/s. "the app's job, empty" is the time that Spark takes for
the app's session and the job of a micro-batch, without the app. Restart: the app was killed after
its first micro-batch was committed, while the tuples of that batch waited; it starts again on its
checkpoint with one more tuple. The time is measured from the process's start to the commit of that
tuple. It is compared with the same start with one tuple waiting, and with Spark's own: the app's
session and an empty job, from the process's start to its commit. Files of few tuples: the processor
time of all processes, less that of a run with one file, for each further file; here tuples/s are
files per second of processor time. "wall ms a file" is the time that the user waits for it.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.data import COLUMNS, MASTER_BYTES, Answer, Stream
from benchmarks.harness import Bench, Sample
from benchmarks.processes import (
    adopt_orphans,
    answer_of,
    await_orphans,
    children_seconds,
    commits,
    program,
)
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
    files: int = 10_000  # of few tuples
    few: int = 100  # tuples of such a file
    cases: tuple[str, ...] = ("empty", "restart", "files")
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {
    "smallest": Settings(master=50_000, waiting=20_000, batches=4, warm_up=2, files=50),
    "small": Settings(),
    "full": Settings(master=20_000_000, share=10.0, batches=50, warm_up=20),
}


def run(bench: Bench, s: Settings) -> None:
    memory, master = int(s.share / 100 * s.master * MASTER_BYTES), f"local[{s.cores},4]"
    empty = Case(bench.files, Stream(s.master), 0, s.batches, s.warm_up, s.driver_memory, master)
    for case in s.cases:
        CASES[case](bench, s, empty, memory)


def _empty(bench: Bench, s: Settings, empty: Case, memory: int) -> None:
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


def _restart(bench: Bench, s: Settings, empty: Case, memory: int) -> None:
    case = replace(empty, batch=s.waiting, batches=1)
    case.make()
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


def _files(bench: Bench, s: Settings, empty: Case, memory: int) -> None:
    case = replace(empty, batch=s.few, batches=s.files)
    case.make()
    bench.compare(
        "start",
        f"{s.files:,} files of {s.few:,} tuples",
        {
            "semistream join": Small(case, s.algorithm, memory, join_command),
            "semistream, delta": Small(case, s.algorithm, memory, app_command),
        },
        "semistream join",
    )


CASES = {"empty": _empty, "restart": _restart, "files": _files}


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


@dataclass(frozen=True)
class Small:
    """A program that reads small files. command: a function that returns the program's command, of
    the peer, the directory of the stream, and a home directory."""

    case: Case
    algorithm: str
    memory: int
    command: Callable[[SmallPeer, Path, Path], list[str | Path]]

    def __call__(self) -> SmallPeer:
        return SmallPeer(self)


class SmallPeer(ProgramPeer):
    def __init__(self, of: Small):
        super().__init__(of.case, f"small {of.command.__name__}", of.memory)
        self.of = of

    def _run(self) -> Sample:
        adopt_orphans()
        one = self.home / "one"
        one.mkdir()
        shutil.copy(min(self.case.tuples.iterdir()), one)
        before = self._spent(one, self.home / "before")
        after = self._spent(self.case.tuples, self.home / "all")
        further = self.case.batches - 1
        cpu, wall = ((b - a) / further for a, b in zip(before, after, strict=True))
        return Sample(
            further,
            cpu * further,
            cpu_seconds=after[0],
            extra={"ms a file": 1000 * cpu, "wall ms a file": 1000 * wall},
        )

    def _spent(self, stream: Path, home: Path) -> tuple[float, float]:
        """Run the program and return the processor seconds of all its processes, and its time."""
        home.mkdir()
        before, command = children_seconds(), self.of.command(self, stream, home)
        environment = self.case.environment(home) | paths_of(home)
        with program(command, self.home / "log", environment) as running:
            wall = running.end()
        await_orphans()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        return children_seconds() - before, wall

    def _answer(self) -> Answer:
        home = self.home / "all"
        joined = home / "out.parquet"
        return answer_of([joined] if joined.exists() else DeltaTable(home / "output").file_uris())


def join_command(peer: SmallPeer, stream: Path, home: Path) -> list[str | Path]:
    case, of = peer.case, peer.of
    options = ("--algorithm", of.algorithm, "--memory", str(of.memory), "--on", "key")
    snapshot = case.files.snapshot(case.stream.master, COLUMNS)
    files: tuple[str | Path, ...] = ("--stream", stream, "--snapshot", snapshot)
    words = (sys.executable, "-m", "semistream.cli", "join")
    return [*words, *options, *files, "--out", home / "out.parquet"]


def app_command(peer: SmallPeer, stream: Path, home: Path) -> list[str | Path]:
    case, of = peer.case, peer.of
    snapshots = {"master/key": case.files.snapshot(case.stream.master, COLUMNS)}
    return [sys.executable, APP, *arguments(home, snapshots, stream, of.algorithm, of.memory)]
