"""Query 13 of Nexmark, bids enriched from a bounded side input: Semistream compared with Spark and
Flink.

The side input has 10,000 keys in Nexmark; here it also has a million and 20 million, which do not
fit into M. All peers read the bids as Parquet files and write their rows to files. Spark runs a
stream-static join, with one file in each micro-batch. Flink runs a lookup join, which is how
Nexmark states the query, with queries to a MariaDB server by JDBC and a cache of a tenth of the
side input; and a batch join. Semistream's peers are `semistream join` and the app. The rates are
defined as in the benchmark `flink`; Spark's rate is measured from its first micro-batch to its last
commit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.data import Answer
from benchmarks.flink_cluster import install
from benchmarks.flink_database import Tables, database
from benchmarks.flink_join import (
    BATCH,
    CONSOLE,
    LOOK,
    LOOKUP,
    OURS,
    Arrivals,
    Console,
    Flink,
    Loading,
)
from benchmarks.harness import MB, Bench, Sample
from benchmarks.nexmark_data import BID, Bids, SideFiles, side_batches
from benchmarks.processes import Program, answer_of, commits
from benchmarks.spark_join import Case, ProgramPeer, Spark, SparkPeer

SPARK = "spark, stream-static join"
TABLES = Tables({"value": "VARCHAR(15)"}, dict.fromkeys(BID.names[1:], "BIGINT"))
LEAST_CACHED = 10_000  # keys


@dataclass(frozen=True)
class Settings:
    keys: tuple[int, ...] = (10_000, 20_000_000)  # of the side input
    bids: int = 1_000_000
    files: int = 4
    memory: int = 64  # M, MB
    heap: str = "1g"  # of Flink's tasks; of Spark's driver
    looked_up: int = 1_000_000  # the most keys that go into the database


SCALES = {
    "smallest": Settings(keys=(10_000,), bids=20_000, files=2),
    "small": Settings(),
    "full": Settings(
        keys=(10_000, 1_000_000, 20_000_000), bids=8_000_000, files=8, looked_up=20_000_000
    ),
}


def run(bench: Bench, s: Settings) -> None:
    install()
    files = SideFiles(bench.files.root, bench.files.owner)
    for keys in s.keys:
        case = Arrivals(files, Bids(keys), s.bids // s.files, s.files, 0, s.heap, "local[2,4]")
        case.make()
        memory = s.memory * MB
        peers: dict[str, Callable[[], ProgramPeer]] = {
            CONSOLE: Console(case, memory),
            OURS: Loading(case, memory),
            SPARK: StreamStatic(case),
            BATCH: Flink(case, BATCH, memory, TABLES),
        }
        with ExitStack() as stack:
            if keys <= s.looked_up:
                server = stack.enter_context(database(files, side_batches(keys), TABLES))
                peers[LOOKUP] = Flink(
                    case, LOOKUP, memory, TABLES, server, max(keys // 10, LEAST_CACHED)
                )
            bench.compare("nexmark", f"q13, {keys:,} keys M={s.memory}MB", peers, CONSOLE)


@dataclass(frozen=True)
class StreamStatic:
    case: Case

    def __call__(self) -> StreamStaticPeer:
        return StreamStaticPeer(Spark(self.case, "as is"))


class StreamStaticPeer(SparkPeer):
    look = LOOK

    def _sample(
        self,
        running: Program,
        seconds: float,
        ends: dict[int, float],
        finished: int | None = None,
        bytes_read: int = 0,
    ) -> Sample:
        query = self.home / "query"
        first = (query / "offsets" / "0").stat().st_mtime
        return Sample(
            self.case.count(),
            max(commits(query).values()) - first,
            extra={
                "by wall tuples/s": self.case.count() / seconds,
                "resident MB": running.memory_peak / MB,
            },
        )

    def _answer(self) -> Answer:
        return answer_of([*(self.home / "output").glob("*.parquet")], self.case.stream.expected(0))
