"""What it costs that master rows come late: the load of a stream of which some keys have no master
row yet, then the version of the dimension that brings these rows.

The app runs with ``late: resolve`` and an interval trigger, as a load does that never ends. It
loads the stream, with a version of R that lacks one key in so many; their tuples are in
``unmatched``. Then the whole R is published. The rate is that of the micro-batches after the first
one, from commit to commit. "load s" is the time of all tuples at this rate, without the app's start
and without the first micro-batch, which is slower. "resolve s": from the new version's publication
to the commit of the last tuple that became a fact by it; this includes the wait until the app looks
for a version, and finding these tuples in ``unmatched``. "resolve, % of load" is the one time over
the other. The answer has all tuples of the stream.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlalchemy import column, select, table

from benchmarks.data import COLUMNS, MASTER_BYTES, STREAM, Answer, Stream, master_batches
from benchmarks.harness import Bench, Sample
from benchmarks.processes import commits, program
from benchmarks.spark_join import APP, ONE_ROLE, App, AppPeer, Case, arguments, paths_of
from semistream.master.publish import publish_snapshot
from semistream.warehouse import connect
from semistream.warehouse.bulk import fetch

TRIGGER = "1 second"
JOINED = pa.schema([*STREAM, *list(COLUMNS)[1:]])


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 10.0  # M, percent of R
    late: int = 100  # one key in so many comes late
    batch: int = 500_000  # tuples of a micro-batch
    batches: int = 4
    sinks: tuple[str, ...] = ("sql", "delta")
    algorithm: str = "elevatorjoin"
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {
    "smallest": Settings(master=20_000, share=60.0, batch=10_000, batches=2, sinks=("delta",)),
    "small": Settings(),
    "full": Settings(batches=20),
}


def run(bench: Bench, s: Settings) -> None:
    case = Case(
        bench.files, Stream(s.master), s.batch, s.batches, 1, s.driver_memory, f"local[{s.cores},4]"
    )
    _ = case.tuples
    memory = int(s.share / 100 * s.master * MASTER_BYTES)
    peers = {sink: Late(case, s, memory, sink) for sink in s.sinks}
    bench.compare(
        "late",
        f"R={s.master:,} S={s.batch * s.batches:,}, one key in {s.late} late",
        peers,
        s.sinks[0],
    )


@dataclass(frozen=True)
class Late:
    """The app into a sink, sql or delta."""

    case: Case
    settings: Settings
    memory: int
    sink: str

    def __call__(self) -> LatePeer:
        return LatePeer(self)


class LatePeer(AppPeer):
    def __init__(self, of: Late):
        sink = of.sink if of.sink == "sql" else ""
        super().__init__(App(of.case, of.settings.algorithm, of.memory, sink=sink))
        self.late = of.settings.late

    def _run(self) -> Sample:
        root = self.home / "snapshots" / "master" / "key"
        root.mkdir(parents=True)
        self._publish(root, self.late)
        settings = arguments(
            self.home,
            {},
            self.case.tuples,
            self.of.algorithm,
            self.memory,
            sink=self.of.sink,
            joined={**ONE_ROLE, "late": "resolve"},
        )
        command = [sys.executable, APP, *settings, "--max-files", "1", "--trigger", TRIGGER]
        checkpoint = self.home / "checkpoint"
        environment = self.case.environment(self.home) | paths_of(self.home)
        with program(command, self.home / "log", environment) as running:
            running.until(self._is_loaded)
            running.until(lambda: self.case.batches - 1 in commits(checkpoint / "query"))
            loaded = commits(checkpoint / "query")
            late = self._open()
            self._publish(root, 0)
            published = time.time()
            running.until(lambda: self._ask("SELECT sum(resolved) FROM load_batches") == late)
            resolve = time.time() - published
            (checkpoint / "stop").touch()
            running.end()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        seconds = loaded[self.case.batches - 1] - loaded[0]
        load = seconds * self.case.count() / self.case.count(1)
        return Sample(
            self.case.count(1),
            seconds,
            extra={
                "late tuples": late,
                "load s": load,
                "resolve s": resolve,
                "resolve, % of load": 100 * resolve / load,
            },
        )

    def _publish(self, root: Path, late: int) -> None:
        """Publish R as a new version. late: one key in so many is left out; 0: none."""
        batches = master_batches(self.case.stream.master, COLUMNS)
        if late:
            batches = (
                batch.filter(pa.array(batch.column("key").to_numpy() % late != 0))
                for batch in batches
            )
        publish_snapshot(batches, COLUMNS, root, "master", ["key"])

    def _ask(self, query: str) -> int:
        """Return a number from the ledger, 0 while its tables are not there."""
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.ledger)) as ledger:
            return ledger.execute(query).fetchone()[0] or 0
        return 0

    def _is_loaded(self) -> bool:
        """Return whether the stream has been read, and nothing waits."""
        finished = self._ask("SELECT sum(matched + unmatched) FROM load_batches")
        return finished == self.case.count()

    def _open(self) -> int:
        return self._ask("SELECT count(*) FROM unmatched WHERE resolved_by IS NULL")

    @property
    def ledger(self) -> Path:
        return self.home / "warehouse.db"

    def _answer(self) -> Answer:
        if self.of.sink != "sql":
            return super()._answer()
        answer, facts = Answer(), table("fact_benchmark", *map(column, JOINED.names))
        with connect(f"sqlite:///{self.ledger}").connect() as connection:
            for batch in fetch(connection, select(*facts.c), JOINED):
                answer.add(batch)
        return answer
