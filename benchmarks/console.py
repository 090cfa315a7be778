"""How long a user of `semistream join` waits: whole processes, from Parquet files to a Parquet
file, compared with DuckDB and Polars.

Each peer is a new process, on as many cores as the case says. Its files leave the page cache before
it begins. Semistream has M. DuckDB's memory_limit is the memory that Semistream's process may take:
its base and M. Polars has no limit. "ready" joins with a snapshot that was published before; "from
files" publishes R first. The answer is read from the file that the process wrote.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import COLUMNS, Files, Stream
from benchmarks.harness import Bench, Result, Sample, Unavailable
from benchmarks.processes import answer_of, children_seconds, forget, program

BASE = 220_000_000  # bytes of a process of `semistream join` besides M, see docs/loading.md
DUCKDB = """
import sys
import duckdb
stream, master, out, threads, memory, scratch, columns = sys.argv[1:]
connection = duckdb.connect(config={"threads": int(threads), "memory_limit": memory + "B",
                                    "temp_directory": scratch,
                                    "preserve_insertion_order": False})
connection.execute(f"COPY (SELECT s.key, s.id, s.quantity, {columns} "
                   f"FROM '{stream}/*.parquet' s JOIN '{master}/*.parquet' r ON s.key = r.key) "
                   f"TO '{out}' (FORMAT parquet)")
"""
POLARS = """
import sys
import polars
stream, master, out = sys.argv[1:]
polars.scan_parquet(stream).join(polars.scan_parquet(master), on="key").sink_parquet(out)
"""


@dataclass(frozen=True)
class Settings:
    masters: tuple[int, ...] = (200_000, 2_000_000)  # R_t
    stream: int = 2_000_000  # tuples of S
    memory: int = 25_000_000  # M, bytes
    skew: float = 1.0
    cores: tuple[int, ...] = (1, 2)
    algorithms: tuple[str, ...] = ("auto", "elevatorjoin")  # the first is the command's default
    peers: tuple[str, ...] = ("duckdb", "polars")


SCALES = {
    "smallest": Settings(masters=(20_000,), stream=50_000, memory=1_500_000, cores=(1,)),
    "small": Settings(),
    "full": Settings(masters=(2_000_000, 20_000_000), stream=20_000_000, memory=250_000_000),
}


def run(bench: Bench, s: Settings) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for tuples in s.masters:
        bench.files.snapshot(tuples, COLUMNS)
        for number in (n for n in s.cores if n <= len(cores)):
            case = Case(bench.files, tuples, s, tuple(cores[:number]))
            case.make()
            peers: dict[str, Callable[[], Run]] = {
                name: Peer(case, MAKERS[name], name) for name in s.peers
            }
            for algorithm in s.algorithms:
                peers |= {
                    f"{algorithm}, from files": Peer(case, _from_files, algorithm),
                    f"{algorithm}, ready": Peer(case, _ready, algorithm),
                }
            what = f"R={tuples:,} S={s.stream:,} M={s.memory / 1e6:g} MB"
            bench.compare(
                "console",
                f"{what}, {number} cores" if number > 1 else f"{what}, 1 core",
                peers,
                next(iter(peers)),
            )


@dataclass(frozen=True)
class Case:
    files: Files
    master: int
    settings: Settings
    cores: tuple[int, ...]

    def make(self) -> None:
        assert self.stream.is_dir() and self.table.is_dir()

    @property
    def tuples(self) -> Stream:
        return Stream(self.master, self.settings.skew)

    @property
    def stream(self) -> Path:
        return self.files.stream_parquet(self.tuples, 1, self.settings.stream)

    @property
    def table(self) -> Path:
        """The directory of R's Parquet files."""
        return self.files.master_parquet(self.master, COLUMNS)


@dataclass(frozen=True)
class Peer:
    case: Case
    command: Callable[[Run], list[str | Path]]
    name: str

    def __call__(self) -> Run:
        return Run(self)


def _duckdb(run: Run) -> list[str | Path]:
    case, columns = run.of.case, ", ".join(f"r.{n}" for n in COLUMNS.names[1:])
    return [
        sys.executable,
        "-c",
        DUCKDB,
        case.stream,
        case.table,
        run.out,
        str(len(case.cores)),
        str(run.limit),
        run.home / "scratch",
        columns,
    ]


def _polars(run: Run) -> list[str | Path]:
    return [sys.executable, "-c", POLARS, run.of.case.stream, run.of.case.table, run.out]


def _join(run: Run) -> list[str | Path]:
    case = run.of.case
    return [
        sys.executable,
        "-m",
        "semistream.cli",
        "join",
        "--algorithm",
        run.of.name,
        "--stream",
        case.stream,
        "--on",
        "key",
        "--memory",
        str(case.settings.memory),
        "--out",
        run.out,
    ]


def _from_files(run: Run) -> list[str | Path]:
    return [*_join(run), "--master", run.of.case.table]


def _ready(run: Run) -> list[str | Path]:
    case = run.of.case
    return [*_join(run), "--snapshot", case.files.snapshot(case.master, COLUMNS)]


MAKERS = {"duckdb": _duckdb, "polars": _polars}


class Run:
    """One process, from its start to its end."""

    def __init__(self, of: Peer):
        self.of, self.memory_peak, self.note = of, 0, ""
        self.limit = of.case.settings.memory + BASE
        self.home = of.case.files.runs / f"console-{os.getpid()}"
        self.out = self.home / "out.parquet"
        self.home.mkdir(parents=True)
        if of.name in MAKERS:
            try:
                __import__(of.name)
            except ImportError as e:
                raise Unavailable(str(e)) from None
        os.sched_setaffinity(0, of.case.cores)  # its children inherit the cores

    def measure(self) -> Sample:
        while True:
            try:
                return self._run()
            except RuntimeError as e:
                if "Out of Memory" not in str(e):
                    raise
                self.limit = int(1.25 * self.limit)
                self.note = f"memory_limit {self.limit / 1e6:,.0f} MB is the least that works"

    def _run(self) -> Sample:
        case = self.of.case
        for directory in (case.stream, case.table, case.files.snapshot(case.master, COLUMNS)):
            forget(directory)
        environment = {"TMPDIR": str(self.home), "POLARS_MAX_THREADS": str(len(case.cores))}
        command, before = self.of.command(self), children_seconds()
        with program(command, self.home / "log", environment) as running:
            self.memory_peak = running.resident_peak()
            seconds = running.end()
        written = self.out.stat().st_size
        return Sample(
            case.settings.stream,
            seconds,
            cpu_seconds=children_seconds() - before,
            extra={"output MB": written / 1e6},
        )

    def finish(self) -> Result:
        case, answer = self.of.case, answer_of([self.out])
        shutil.rmtree(self.home)
        return Result(
            answer,
            case.tuples.expected(case.settings.stream),
            case.settings.memory,
            rss_peak=self.memory_peak,
            note=self.note,
        )
