"""Apache Flink's joins compared with Semistream's: the same Parquet files as input, Parquet files
as output, two cores, M bytes.

R has 14 integers; the keys of S follow Zipf's law, and one in twenty is not in R. Flink's streaming
join keeps R in RocksDB, with M of managed memory. Its batch join has M for its hash tables. Its
lookup join queries a MariaDB server by JDBC and caches a tenth of R. Semistream's are `semistream
join`, which reads R from Parquet as the batch join does, and the app, which has R as a snapshot as
the streaming join has R in its state and the lookup join in the database. The rate is computed from
the run time: for Flink a job's duration as Flink reports it, but for its streaming join the time
from S's arrival, with R in the state, to the last commit; for the app the time from its first
micro-batch to its last commit; for the console that of the whole command. "by wall" is all tuples
over all seconds, including the start of the programs. Resident: the sum of the proportional set
sizes of all processes, without the submitting one and the database. Latency: from a file's arrival
to the commit that makes the last of its rows visible.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.data import COLUMNS, Answer, Stream, master_batches
from benchmarks.flink_cluster import Cluster, cluster, install
from benchmarks.flink_database import Server, Tables, database, declared
from benchmarks.harness import MB, Bench, Sample
from benchmarks.processes import Program, answer_of, forget, program, rows_of
from benchmarks.spark_join import APP, App, AppPeer, Case, ProgramPeer, arguments, paths_of

STREAMING, BATCH, LOOKUP = "flink, streaming join", "flink, batch join", "flink, lookup join"
# s between two files whose latency is measured; each of them comes at another time of a second, of
# which triggers and checkpoints are multiples
EVERY = 0.097
LOOK = 0.5  # s between measurements of the memory
CONSOLE, OURS = "semistream join", "semistream, spark app"


@dataclass(frozen=True)
class Settings:
    master: int = 500_000  # R_t
    tuples: int = 2_000_000  # of S
    few: int = 100_000  # tuples of S for the streaming join
    looked_up: int = 200_000  # tuples of S for the lookup join
    memories: tuple[int, ...] = (16,)  # M, MB
    cached: float = 10.0  # size of the lookup join's cache, percent of R
    rate: int = 10_000  # tuples that arrive a second, to measure the latency
    seconds: int = 8  # seconds of arrivals that are measured
    warm_up: int = 4  # seconds of arrivals before, which do not count
    heap: str = "1g"  # of Flink's tasks; of Spark's driver
    files: int = 4  # of S


SCALES = {
    "smallest": Settings(
        master=20_000, tuples=40_000, few=20_000, looked_up=20_000, seconds=3, warm_up=1, files=2
    ),
    "small": Settings(),
    "full": Settings(
        master=2_000_000,
        tuples=10_000_000,
        few=300_000,
        looked_up=1_000_000,
        memories=(64, 250),
        seconds=20,
        warm_up=15,
        files=8,
    ),
}


def run(bench: Bench, s: Settings) -> None:
    install()
    stream = Absent(s.master)
    whole = Arrivals(bench.files, stream, s.tuples // s.files, s.files, 0, s.heap, "local[2,4]")
    few = replace(whole, batch=s.few // s.files)
    looked_up = replace(whole, batch=s.looked_up // s.files)
    fed = replace(
        whole,
        batch=int(EVERY * s.rate),
        batches=int((s.warm_up + s.seconds) / EVERY),
        warm_up=int(s.warm_up / EVERY),
    )
    for case in (whole, few, looked_up, fed):
        case.make()
    with database(bench.files, master_batches(s.master, COLUMNS), TABLES) as server:
        lookup = Flink(
            looked_up,
            LOOKUP,
            s.memories[0] * MB,
            server=server,
            cached=int(s.cached / 100 * s.master),
        )
        for number, megabytes in enumerate(s.memories):
            memory = megabytes * MB
            peers = {
                CONSOLE: Console(whole, memory),
                OURS: Loading(whole, memory),
                STREAMING: Flink(few, STREAMING, memory),
                BATCH: Flink(whole, BATCH, memory),
            }
            if number == 0:  # it does not depend on M
                peers[LOOKUP] = lookup
            bench.compare("flink", f"R={s.master:,} M={megabytes}MB", peers, CONSOLE)
        bench.compare(
            "flink",
            f"latency, {s.rate:,} tuples/s",
            {OURS: Loading(fed, s.memories[0] * MB), LOOKUP: replace(lookup, case=fed)},
            OURS,
        )


# ---- what is joined


@dataclass(frozen=True)
class Absent(Stream):
    """S with a key that R lacks in every twentieth tuple."""

    def batch(self, first: int, rows: int) -> pa.RecordBatch:
        tuples = super().batch(first, rows)
        beyond = np.where(tuples["id"].to_numpy() % 20 == 0, self.master, 0)
        return tuples.set_column(0, "key", pa.array(tuples["key"].to_numpy() + beyond))

    def expected(self, tuples: int) -> Answer:
        return Present(self.master, self.skew, self.drift).expected(tuples)


class Present(Absent):
    """The tuples of ``Absent`` whose keys are in R."""

    def batch(self, first: int, rows: int) -> pa.RecordBatch:
        tuples = super().batch(first, rows)
        return tuples.filter(pc.less_equal(tuples["key"], self.master))

    def expected(self, tuples: int) -> Answer:
        return Stream.expected(self, tuples)


class Arrivals(Case):
    """R, and S in files of equally many tuples. The first ``warm_up`` files do not count in
    latencies."""

    @property
    def tuples(self) -> Path:
        def make(at: Path) -> None:
            at.mkdir()
            for number in range(self.batches):
                rows = pa.Table.from_batches([self.stream.batch(number * self.batch, self.batch)])
                pq.write_table(rows, at / f"part-{number:05d}.parquet")

        name = f"{type(self.stream).__name__.lower()}-{self.stream.master}"
        return self.files.made(f"{name}-{self.batches}x{self.batch}.parquet", make)


TABLES = Tables(dict.fromkeys(COLUMNS.names[1:], "BIGINT"), {"id": "BIGINT", "quantity": "INT"})


# ---- Flink


EXPERT: Mapping[str, Any] = {
    "taskmanager.numberOfTaskSlots": 2,
    "parallelism.default": 2,
    "pipeline.object-reuse": True,
    "jobmanager.memory.process.size": "1g",
    "taskmanager.memory.process.size": None,
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.interval": "1 s",
    "table.exec.mini-batch.enabled": True,
    "table.exec.mini-batch.allow-latency": "500 ms",
    "table.exec.mini-batch.size": 5000,
}
SELECTS = {
    STREAMING: "SELECT /*+ STATE_TTL('s' = '1 s') */ {} FROM s JOIN r ON s.`key` = r.`key`",
    BATCH: "SELECT {} FROM s JOIN r ON s.`key` = r.`key`",
    LOOKUP: "SELECT {} FROM (SELECT *, PROCTIME() AS t FROM s) AS s "
    "JOIN r FOR SYSTEM_TIME AS OF s.t ON s.`key` = r.`key`",
}


@dataclass(frozen=True)
class Flink:
    case: Case
    join: str
    memory: int  # managed memory of the task manager
    tables: Tables = TABLES
    server: Server | None = None
    cached: int = 0  # tuples of R

    def __call__(self) -> FlinkPeer:
        return FlinkPeer(self)

    def statements(self, stream: Path, output: Path, watched: bool) -> list[str]:
        """Return the SQL statements of the job. watched: whether the job watches for further files
        of S."""
        options = {"source.monitor-interval": "100 ms"} if watched else {}
        of_r = files_of(self.case.files.master_parquet(self.case.stream.master, COLUMNS))
        if self.server is not None:
            of_r = {
                "connector": "jdbc",
                "driver": "org.mariadb.jdbc.Driver",
                "table-name": "r",
                "url": f"jdbc:mariadb://127.0.0.1:{self.server.port}/r?useServerPrepStmts=true",
                "username": "root",
                "password": "",
                "lookup.cache": "PARTIAL",
                "lookup.partial-cache.max-rows": str(self.cached),
            }
        key, added = declared({"key": "BIGINT"}), declared(self.tables.master)
        s = [*key, *declared(self.tables.stream)]
        joined = ", ".join(
            [
                *(f"s.`{n}`" for n in ("key", *self.tables.stream)),
                *(f"r.`{n}`" for n in self.tables.master),
            ]
        )
        return [
            table("r", [*key, *added, "PRIMARY KEY (`key`) NOT ENFORCED"], of_r),
            table("s", s, files_of(stream) | options),
            table("joined", [*s, *added], files_of(output)),
            "INSERT INTO joined " + SELECTS[self.join].format(joined),
        ]


def files_of(path: Path) -> dict[str, str]:
    return {"connector": "filesystem", "path": path.as_uri(), "format": "parquet"}


def table(name: str, columns: list[str], options: Mapping[str, str]) -> str:
    given = ", ".join(f"'{k}' = '{v}'" for k, v in options.items())
    return f"CREATE TABLE {name} ({', '.join(columns)}) WITH ({given})"


class FlinkPeer(ProgramPeer):
    def __init__(self, of: Flink):
        super().__init__(of.case, of.join, of.memory)
        self.of, self.output = of, self.home / "output"

    def _run(self) -> Sample:
        settings = {
            **EXPERT,
            "taskmanager.memory.managed.size": f"{self.of.memory}b",
            "taskmanager.memory.task.heap.size": self.of.case.driver_memory,
            "execution.checkpointing.dir": (self.home / "checkpoints").as_uri(),
        }
        forget(self.case.files.master_parquet(self.case.stream.master, COLUMNS))
        start = time.monotonic()
        with cluster(self.home / "cluster", settings, LOOK) as running:
            sample = self._measured(running)
            wall = time.monotonic() - start
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        if not self.case.warm_up:
            sample.extra["by wall tuples/s"] = self.case.count() / wall
        sample.extra.update(running.memory())
        if self.of.server is not None:
            sample.extra.update(self.of.server.memory())
        return sample

    def _measured(self, running: Cluster) -> Sample:
        if self.case.warm_up:
            return self._latency(running)
        if self.of.join == STREAMING:
            return self._behind_state(running)
        job = self._submit(running, self.case.tuples)
        return Sample(self.case.count(), running.end(job))

    def _behind_state(self, running: Cluster) -> Sample:
        """Measure a run in which S arrives after R is in the state."""
        arrived, began = self.home / "stream", time.monotonic()
        job = self._submit(running, arrived, watched=True)
        until(lambda: running.consumed(job) >= self.case.stream.master)
        loaded, start = time.monotonic() - began, time.time()
        deliver(sorted(self.case.tuples.iterdir()), arrived, 0)
        until(lambda: running.job(job) and rows_of(self._visible()) >= self.expected.rows)
        return Sample(
            self.case.count(),
            max(self._visible().values()) - start,
            extra={"s until R was loaded": loaded},
        )

    def _latency(self, running: Cluster) -> Sample:
        stream = self.home / "stream"
        job = self._submit(running, stream, watched=True)
        return latency(
            self.case,
            stream,
            self._visible,
            lambda condition: until(lambda: running.job(job) and condition()),
        )

    def _submit(self, running: Cluster, stream: Path, watched: bool = False) -> str:
        stream.mkdir(exist_ok=True)
        batch = {"execution.runtime-mode": "batch"} if self.of.join == BATCH else {}
        return running.submit(
            self.of.statements(stream, self.output, watched), self.home / "submit.log", batch
        )

    def _visible(self) -> dict[Path, float]:
        """Return the files of committed rows, and the time of each commit, which renames the
        file."""
        return {p: p.stat().st_ctime for p in sorted(self.output.glob("part-*"))}

    def _answer(self) -> Answer:
        return answer_of([*self._visible()], self.case.stream.expected(0))


def until(condition: Callable[[], object], timeout: float = 1800) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not there after {timeout} s")
        time.sleep(0.1)


# ---- files that arrive, and when their rows are visible


def deliver(files: Sequence[Path], directory: Path, every: float) -> list[float]:
    """Let files arrive in a directory, one each ``every`` seconds. Return the times of arrival, in
    seconds since the epoch."""
    came, start = [], time.monotonic()
    for number, path in enumerate(files):
        time.sleep(max(0.0, start + number * every - time.monotonic()))
        shutil.copyfile(path, directory / f".{path.name}")
        (directory / f".{path.name}").rename(directory / path.name)
        came.append(time.time())
    return came


def latency(
    case: Case,
    directory: Path,
    visible: Callable[[], Mapping[Path, float]],
    wait: Callable[[Callable[[], object]], object],
) -> Sample:
    """Return the latencies of a case's files after the warm-up. The first file arrives alone; the
    others follow on schedule. visible: returns the files with committed rows and their commit
    times; wait: blocks until a condition holds."""
    expected, (first, *others) = case.expected().rows, sorted(case.tuples.iterdir())
    came = deliver([first], directory, 0)
    wait(lambda: rows_of(visible()))
    came += deliver(others, directory, EVERY)
    wait(lambda: rows_of(visible()) >= expected)
    waited = (last_visible(visible(), case.batch, len(came)) - came)[case.warm_up :]
    return Sample(
        case.count(case.warm_up),
        came[-1] - came[case.warm_up],
        extra={
            "p50 s": float(np.median(waited)),
            "p99 s": float(np.quantile(waited, 0.99)),
            "largest s": float(waited.max()),
        },
    )


def last_visible(found: Mapping[Path, float], rows: int, files: int) -> np.ndarray:
    """Return the time at which the last row of each file of S became visible, from the ids in files
    of joined rows."""
    visible = np.zeros(files)
    for path, at in found.items():
        numbers = np.unique(pq.read_table(path, columns=["id"])["id"].to_numpy() // rows)
        visible[numbers] = np.maximum(visible[numbers], at)
    return visible


# ---- ours


@dataclass(frozen=True)
class Console:
    case: Case
    memory: int

    def __call__(self) -> ConsolePeer:
        return ConsolePeer(self.case, CONSOLE, self.memory)


class ConsolePeer(ProgramPeer):
    def _run(self) -> Sample:
        master = self.case.files.master_parquet(self.case.stream.master, COLUMNS)
        forget(master)
        command = [
            Path(sys.executable).parent / "semistream",
            "join",
            "--stream",
            self.case.tuples,
            "--master",
            master,
            "--on",
            "key",
            "--memory",
            str(self.memory),
            "--out",
            self.home / "out.parquet",
            "--stats",
            self.home / "stats.json",
        ]
        with program(command, self.home / "log", {"TMPDIR": str(self.home)}, LOOK) as running:
            wall = running.end()
        stats = json.loads((self.home / "stats.json").read_text())
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        self.memory_peak = max(self.memory_peak, stats["memory_peak"])
        return Sample(
            self.case.count(),
            stats["seconds"],
            extra={"by wall tuples/s": self.case.count() / wall, **running.memory()},
        )

    def _answer(self) -> Answer:
        return answer_of([self.home / "out.parquet"], self.case.stream.expected(0))


@dataclass(frozen=True)
class Loading:
    """The settings of the app as a peer. Its files arrive one by one if the case has a warm-up."""

    case: Case
    memory: int

    def __call__(self) -> AppPeer:
        of = App(self.case, "auto", self.memory)
        return FedPeer(of) if self.case.warm_up else LoadingPeer(of)


class LoadingPeer(AppPeer):
    look = LOOK

    def _sample(
        self,
        running: Program,
        seconds: float,
        ends: dict[int, float],
        finished: int | None = None,
        bytes_read: int = 0,
    ) -> Sample:
        first = (self.home / "checkpoint" / "query" / "offsets" / "0").stat().st_mtime
        return Sample(
            self.case.count(),
            max(self._visible().values()) - first,
            bytes_read,
            extra={"by wall tuples/s": self.case.count() / seconds, **running.memory()},
        )

    def _visible(self) -> dict[Path, float]:
        """Return the files of the Delta table with the time at which each was committed."""
        log = (self.home / "output" / "_delta_log").glob("*.json")
        return {
            self.home / "output" / action["add"]["path"]: commit.stat().st_mtime
            for commit in log
            for action in map(json.loads, commit.read_text().splitlines())
            if "add" in action
        }

    def _answer(self) -> Answer:
        return answer_of([*self._visible()], self.case.stream.expected(0))


class FedPeer(LoadingPeer):
    def _run(self) -> Sample:
        stream, case, checkpoint = self.home / "stream", self.case, self.home / "checkpoint"
        stream.mkdir()
        settings = arguments(
            self.home,
            {"master/key": case.files.snapshot(case.stream.master, COLUMNS)},
            stream,
            self.of.algorithm,
            self.memory,
        )
        command = [
            sys.executable,
            APP,
            *settings,
            "--trigger",
            "1 second",
            "--source-columns",
            "key BIGINT, id BIGINT, quantity INT",
        ]
        environment = case.environment(self.home) | paths_of(self.home)
        with program(command, self.home / "log", environment, self.look) as running:
            sample = latency(case, stream, self._visible, running.until)
            (checkpoint / "stop").touch()
            running.end()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        sample.extra.update(running.memory())
        return sample
