"""How long a tuple takes from its file's arrival to the commit that makes its row visible.

A file arrives every 0.37 s, by a rename into the stream's directory, at a steady rate of tuples.
This is no part of the trigger's interval, so that the files come at all times between two triggers.
The app and Spark's stream-static join load it with the same trigger into tables on disk, in a left
join, so that a tuple without a match is a row too. A tuple arrives when its file arrives. It is
visible when the table's log has the commit of its row. The measured tuples are those of a window
after the warm-up; more tuples follow, so that the end of the stream has no effect. The small form
has all algorithms in some 20 s each and rate, a third of it warm-up. Hot keys are R's most frequent
hundredth, rare keys are R's others, and absent keys are not in R. The rate is 1 / p99, in 1/s, and
the ratio says how many times sooner than in Spark a tuple is visible.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import COLUMNS, MASTER_BYTES, Answer, Stream, _sum_expected
from benchmarks.harness import Bench, Sample, Unavailable
from benchmarks.processes import commits, program, rows_of
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
from semistream.joins import REGISTRY
from semistream.workloads.zipf import ZipfKeys

EVERY = 0.37  # s between two files
ABSENT = 20  # one tuple in so many has a key that R lacks
HOT = 100  # the hot keys are R's most frequent part in so many
LATE = 60  # s after the last file's arrival at which all tuples must be visible
ALL = tuple(sorted(REGISTRY))


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 6.0  # M, percent of R
    rates: tuple[int, ...] = (100, 10_000, 300_000)  # tuples/s
    trigger: float = 1.0  # s
    warm_up: float = 5.0  # s
    seconds: float = 7.5  # length of the window
    tail: float = 1.0  # s after it
    algorithms: tuple[str, ...] = ALL
    spark: int = 1  # 1: also Spark
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {
    "smallest": Settings(
        master=50_000,
        share=60.0,
        rates=(2_000,),
        warm_up=3.0,
        seconds=3.0,
        tail=3.0,
        algorithms=("elevatorjoin",),
        spark=0,
    ),
    "small": Settings(),
    "full": Settings(warm_up=30, seconds=60, tail=6),
}


def run(bench: Bench, s: Settings) -> None:
    memory = int(s.share / 100 * s.master * MASTER_BYTES)
    for rate in s.rates:
        case = Case(
            bench.files,
            Stream(s.master),
            int(rate * EVERY),
            int((s.warm_up + s.seconds + s.tail) / EVERY),
            1,
            s.driver_memory,
            f"local[{s.cores},4]",
        )
        bench.files.snapshot(s.master, COLUMNS)
        bench.files.master_parquet(s.master, COLUMNS)
        arrivals = Arrivals(case, s.warm_up, s.seconds)
        peers = {a: Latency(App(case, a, memory), arrivals, s.trigger) for a in s.algorithms}
        if s.spark:
            peers["spark"] = Latency(Spark(case, "as is"), arrivals, s.trigger)
        bench.compare(
            "latency",
            f"{rate:,} tuples/s, trigger {s.trigger:g} s",
            peers,
            "spark" if s.spark else s.algorithms[0],
        )


@dataclass(frozen=True)
class Arrivals:
    """The files of a stream, and the times at which they arrive. The tuples of file n have the ids
    n rows, n rows + 1, …"""

    case: Case
    warm_up: float
    seconds: float

    def table(self, number: int) -> pa.Table:
        batch = self.case.stream.batch(number * self.case.batch, self.case.batch)
        keys, ids = batch.column("key").to_numpy().copy(), batch.column("id").to_numpy()
        absent = ids % ABSENT == 0
        keys[absent] = self.case.stream.master + 1 + ids[absent]
        return pa.table([pa.array(keys), *batch.columns[1:]], schema=batch.schema)

    def expected(self, files: int) -> Answer:
        """Return the answer of the tuples that have a match."""
        answer = Answer()
        for number in range(files):
            table = self.table(number)
            table = table.filter(pa.array(table["id"].to_numpy() % ABSENT != 0)).combine_chunks()
            answer.rows += table.num_rows
            answer.checksum = (
                (
                    answer.checksum
                    + int(_sum_expected(*(c.chunk(0).to_numpy() for c in table.columns)))
                )
                % 2**64
                if table.num_rows
                else answer.checksum
            )
        return answer

    def write(self, beside: Path) -> None:
        beside.mkdir()
        for number in range(self.case.batches):
            pq.write_table(self.table(number), beside / f"part-{number:05d}.parquet")

    def come(self, beside: Path, stream: Path, arrived: list[float]) -> None:
        """Move each file into the stream's directory at its time, and record when the file arrived,
        in s since the epoch. beside: the directory of the waiting files."""
        begun = time.monotonic()
        for number, file in enumerate(sorted(beside.iterdir())):
            time.sleep(max(begun + number * EVERY - time.monotonic(), 0))
            file.touch()
            file.rename(stream / file.name)
            arrived.append(time.time())

    def latencies(self, arrived: list[float], visible: dict[float, list[str]]) -> Sample:
        """Return the latencies of the window's tuples. visible: the output's files by the time of
        their commit."""
        rows, first = self.case.batch, int(self.warm_up / EVERY)
        last = first + int(self.seconds / EVERY)
        came, seen = np.array(arrived), np.full(last * rows, np.nan)
        keys = np.zeros(last * rows, np.int64)
        for at, files in visible.items():
            for file in files:
                table = pq.read_table(file, columns=["id", "key"])
                ids = table["id"].to_numpy()
                mine = ids < last * rows
                seen[ids[mine]], keys[ids[mine]] = at, table["key"].to_numpy()[mine]
        ids = np.arange(first * rows, last * rows)
        waited = seen[ids] - came[ids // rows]
        if np.isnan(waited).any():
            raise RuntimeError(f"{np.isnan(waited).sum():,} tuples never became visible")
        count = self.case.stream.master
        hot = np.isin(
            keys[ids],
            ZipfKeys(count, self.case.stream.skew, seed=1, scattered=True).keys_of(
                np.arange(1, max(count // HOT, 1) + 1)
            ),
        )
        absent = ids % ABSENT == 0
        extra = {}
        for kind, which in (
            ("all", np.ones(len(ids), bool)),
            ("hot", hot & ~absent),
            ("rare", ~hot & ~absent),
            ("absent", absent),
        ):
            if which.any():
                p50, p99 = np.percentile(waited[which], [50, 99])
                extra |= {
                    f"{kind} p50": p50,
                    f"{kind} p99": p99,
                    f"{kind} longest": waited[which].max(),
                }
        return Sample(1, float(extra["all p99"]), extra={k: float(v) for k, v in extra.items()})


@dataclass(frozen=True)
class Latency:
    """A peer whose files arrive while it runs."""

    of: App | Spark
    arrivals: Arrivals
    trigger: float

    def __call__(self) -> ProgramPeer:
        return (AppLatency if isinstance(self.of, App) else SparkLatency)(self)


def fed(
    peer: AppLatency | SparkLatency,
    of: Latency,
    command: list[str | Path],
    environment: dict[str, str],
    query: Path,
    stop: Path | None,
) -> list[float]:
    """Run a program while files arrive, until all their tuples are visible. Return when each file
    arrived. stop: the file that asks the program to end; if None, the program is killed.

    Raises Unavailable, with the error of the log, if the program fails or is too late.
    """
    home, stream, arrived = peer.home, peer.home / "stream", list[float]()
    case = of.of.case
    try:
        with program(command, home / "log", environment) as running:
            running.until(lambda: 0 in commits(query))  # the file without tuples
            of.arrivals.come(home / "next", stream, arrived)
            running.until(
                lambda: rows_of(map(Path, chain(*peer._visible().values()))) >= case.count(),
                time.monotonic() - running.started + LATE,
            )
            if stop is None:
                running.kill()
            else:
                stop.touch()
                running.end()
    except RuntimeError as e:
        lines = str(e).strip().splitlines()
        told = [line for line in lines if re.match(rf"{APP.name}: |\S*(Error|Exception)\b", line)]
        raise Unavailable((told or lines)[-1]) from None
    peer.rss_peak = max(peer.rss_peak, running.memory_peak)
    return arrived


def ready(peer: AppLatency | SparkLatency, of: Latency) -> Path:
    """Return the stream's directory, which has one file without tuples. The other files are in a
    second directory next to it."""
    stream = peer.home / "stream"
    stream.mkdir()
    of.arrivals.write(peer.home / "next")
    pq.write_table(of.arrivals.table(0).slice(0, 0), stream / "empty.parquet")
    return stream


class AppLatency(AppPeer):
    def __init__(self, of: Latency):
        assert isinstance(of.of, App)
        super().__init__(of.of)
        self.latency, self.expected = of, of.arrivals.expected(of.of.case.batches)

    def _run(self) -> Sample:
        case = self.case
        stream = ready(self, self.latency)
        settings = arguments(
            self.home,
            {"master/key": case.files.snapshot(case.stream.master, COLUMNS)},
            stream,
            self.of.algorithm,
            self.memory,
        )
        command: list[str | Path] = [
            sys.executable,
            APP,
            *settings,
            "--join-type",
            "left",
            "--trigger",
            f"{1000 * self.latency.trigger:g} milliseconds",
        ]
        checkpoint = self.home / "checkpoint"
        arrived = fed(
            self,
            self.latency,
            command,
            case.environment(self.home) | paths_of(self.home),
            checkpoint / "query",
            checkpoint / "stop",
        )
        return self.latency.arrivals.latencies(arrived, self._visible())

    def _visible(self) -> dict[float, list[str]]:
        out = {}
        for log in (self.home / "output" / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in log.read_text().splitlines()]
            out[log.stat().st_mtime] = [
                str(self.home / "output" / unquote(a["add"]["path"])) for a in actions if "add" in a
            ]
        return out

    def _answer(self) -> Answer:
        return matched([file for files in self._visible().values() for file in files])


class SparkLatency(SparkPeer):
    def __init__(self, of: Latency):
        assert isinstance(of.of, Spark)
        super().__init__(of.of)
        self.latency, self.expected = of, of.arrivals.expected(of.of.case.batches)

    def _run(self) -> Sample:
        stream = ready(self, self.latency)
        master = self.case.files.master_parquet(self.case.stream.master, COLUMNS)
        command = [
            sys.executable,
            "-m",
            "benchmarks.spark_static",
            self.of.variant,
            master,
            stream,
            self.home / "output",
            self.home / "query",
            "--how",
            "left",
            "--trigger",
            f"{1000 * self.latency.trigger:g} milliseconds",
        ]
        arrived = fed(self, self.latency, command, self._environment(), self.home / "query", None)
        return self.latency.arrivals.latencies(arrived, self._visible())

    def _visible(self) -> dict[float, list[str]]:
        out, seen = dict[float, list[str]](), set[str]()
        logs = [
            log
            for log in (self.home / "output" / "_spark_metadata").iterdir()
            if not log.name.startswith(".")
        ]
        # every tenth log, such as "9.compact", also has the entries before it
        for log in sorted(logs, key=lambda log: int(log.name.partition(".")[0])):
            entries = (json.loads(line)["path"] for line in log.read_text().splitlines()[1:])
            new = [path for path in entries if path not in seen]
            seen.update(new)
            out[log.stat().st_mtime] = [unquote(path).removeprefix("file://") for path in new]
        return out

    def _answer(self) -> Answer:
        return matched([file for files in self._visible().values() for file in files])


def matched(files: list[str]) -> Answer:
    """Return the answer of the joined rows that have a match."""
    answer = Answer()
    for file in files:
        table = pq.read_table(file)
        answer.add(table.filter(table["c0"].is_valid()))
    return answer
