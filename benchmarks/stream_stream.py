"""Two streams: orders joined with their lines, in process compared with DuckDB's join of the same
two files, and in Spark compared with Spark's own join of two streams.

An order has one to seven lines, four in the mean, all within a span of time after it. Orders come
in the order of their times, lines in the order of their times, and keys are scattered. In process
the join gets a piece of each file in turn, on one core. "nothing purged": the join knows no
guarantee and holds all tuples. M is enough for all tuples, or for a tenth, so that the other tuples
wait on disk. DuckDB has one thread.

In Spark both peers read the same micro-batches, one file of each stream, on the same cores, and
join by key and by time: a line is at most the span after its order, and a watermark of each stream
without delay lets both forget older tuples. Spark keeps its state in RocksDB and writes Parquet;
the app holds M and writes a Delta table. The rate is in tuples of both streams, from commit to
commit after the warm-up.

The same comparison with Spark uses the files of the shipped job tpch_orders, TPC-H at scale factor
0.1. Orders come in the order of their dates, lines in the order of their orders' keys. The job
guarantees that an order comes once and that its lines come together. Spark joins by key and by
date, because a line is shipped within 121 days. Its watermark of the lines has to wait for all
seven years, because any date may still come.

"outgrown": nothing can be forgotten, because a line may come at any time after its order, and the
driver has little memory. Spark keeps its state in RocksDB, or in its own memory.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable

from benchmarks.data import COLUMNS, STREAM, Answer, Files, Stream, _sum_expected, master_batches
from benchmarks.harness import ROOT, Bench, Result, Sample, peak_rss
from benchmarks.processes import answer_of, commits, program
from benchmarks.spark_join import Case, ProgramPeer, paths_of
from semistream.paths import Paths
from semistream.stream_joins import LEFT, RIGHT, Within, open_stream_join
from semistream.workloads.jobs import load_stream_stream_job
from semistream.workloads.shipped import STREAM_FILES, prepare

APP = ROOT / "spark_apps" / "stream_stream_join.py"
LEAST = 1 << 20  # bytes of M
START = 86_400  # s; Spark's watermark begins at 0, and drops tuples that are not later


@dataclass(frozen=True)
class Settings:
    orders: int = 300_000
    span: int = 30_000  # orders that come while the lines of one order come
    files: int = 6  # files of each stream, one a micro-batch
    warm_up: int = 3  # of them
    memory: int = 64_000_000  # M of the app, bytes
    piece: int = 65_536  # orders that the join gets at a time, and four times as many lines
    driver_memory: str = "2g"
    cores: int = 2
    parts: tuple[str, ...] = ("in process", "spark", "tpch", "outgrown")
    little: int = 16_000_000  # M of the app if nothing can be forgotten
    little_driver_memory: str = "700m"


SCALES = {
    "smallest": Settings(orders=4_000, span=500, files=2, warm_up=1, parts=("in process",)),
    "small": Settings(),
    "full": Settings(orders=1_500_000, span=50_000, files=8, memory=256_000_000),
}


def run(bench: Bench, s: Settings) -> None:
    streams = Orders(bench.files, s.orders, s.span, s.files)
    if "in process" in s.parts:
        whole, tenth = 2 * streams.held, max(streams.held // 10, LEAST)
        ours = {
            "pjoin, unique orders": Join(streams, "pjoin", whole, s.piece, unique=True),
            "pjoin, watermarks": Join(streams, "pjoin", whole, s.piece, within=True),
            "nothing purged": Join(streams, "xjoin", whole, s.piece),
            "pjoin, unique orders, M a tenth": Join(streams, "pjoin", tenth, s.piece, unique=True),
            "nothing purged, M a tenth": Join(streams, "xjoin", tenth, s.piece),
        }
        bench.compare(
            "stream-stream",
            f"in process, orders={s.orders:,}",
            {"duckdb": DuckDB(streams), **ours},
            "duckdb",
        )
    if "spark" in s.parts:
        case = StreamCase(
            bench.files,
            Stream(s.orders),
            0,
            s.files,
            s.warm_up,
            s.driver_memory,
            f"local[{s.cores},4]",
            streams,
        )
        peers: dict[str, Callable[[], ProgramPeer]] = {
            "spark, rocksdb": partial(SparkPeer, case),
            "app, watermarks": partial(AppPeer, case, s.memory, False),
            "app, unique orders": partial(AppPeer, case, s.memory, True),
        }
        bench.compare(
            "stream-stream",
            f"spark, orders={s.orders:,} M={s.memory / 1e6:,.0f}MB",
            peers,
            "spark, rocksdb",
        )
    if "outgrown" in s.parts:
        never = Orders(bench.files, s.orders, s.orders, s.files)
        case = StreamCase(
            bench.files,
            Stream(s.orders),
            0,
            s.files,
            s.warm_up,
            s.little_driver_memory,
            f"local[{s.cores},4]",
            never,
        )
        bench.compare(
            "stream-stream",
            f"outgrown, orders={s.orders:,} M={s.little / 1e6:,.0f}MB",
            {
                "spark, rocksdb": partial(SparkPeer, case),
                "spark, its own memory": partial(SparkPeer, case, "heap"),
                "app, watermarks": partial(AppPeer, case, s.little, False),
            },
            "spark, rocksdb",
        )
    if "tpch" in s.parts:
        tpch = Tpch(bench.files)
        case = StreamCase(
            bench.files,
            Stream(1),
            0,
            STREAM_FILES // tpch.at_once,
            1,
            s.driver_memory,
            f"local[{s.cores},4]",
            tpch,
        )
        bench.compare(
            "stream-stream",
            f"tpch_orders, M={s.memory / 1e6:,.0f}MB",
            {
                "spark, rocksdb": partial(SparkPeer, case),
                "app, the shipped job": partial(AppPeer, case, s.memory, None),
            },
            "spark, rocksdb",
        )


@dataclass(frozen=True)
class Orders:
    """Orders 1..n and their lines, as Parquet files. Times are seconds from ``START`` on; an
    order's time is given by its number in the stream."""

    files: Files
    orders: int
    span: int
    parts: int
    at_once: ClassVar[int] = 1  # files of a micro-batch
    # columns of key and time, and seconds that a line comes out of order
    columns: ClassVar[tuple[str, ...]] = ("key", "o_time", "key", "l_time")
    delay: ClassVar[int] = 0

    @property
    def held(self) -> int:
        """The approximate bytes of both streams' tuples in the state."""
        return self.orders * (120 + 8 + 32) + 4 * self.orders * (28 + 32)

    def keys(self) -> np.ndarray:
        """Return the keys in the order in which the orders come, int64[n]."""
        return np.random.default_rng(1).permutation(self.orders).astype(np.int64) + 1

    def lines(self) -> pa.Table:
        rng = np.random.default_rng(2)
        of = np.repeat(np.arange(self.orders), rng.integers(1, 8, self.orders))
        behind = of + rng.integers(0, self.span + 1, len(of))
        order = np.argsort(behind, kind="stable")
        ids = np.arange(len(of), dtype=np.int64)
        columns = [self.keys()[of[order]], ids, (ids % 97).astype(np.int32), _times(behind[order])]
        return pa.table(columns, names=[*STREAM.names, "l_time"])

    def expected(self) -> Answer:
        lines = self.lines()
        sums = _sum_expected(*(lines[name].to_numpy() for name in STREAM.names))
        return Answer(lines.num_rows, int(sums) % 2**64)

    @property
    def left(self) -> Path:
        def make(at: Path) -> None:
            by_key = pa.Table.from_batches(master_batches(self.orders, COLUMNS))
            table = by_key.take(pa.array(self.keys() - 1))
            _write(table.append_column("o_time", _times(np.arange(self.orders))), at, self.parts)

        return self.files.made(f"orders-{START}-{self.orders}-{self.parts}.parquet", make)

    @property
    def right(self) -> Path:
        name = f"order-lines-{START}-{self.orders}-{self.span}-{self.parts}.parquet"
        return self.files.made(name, lambda at: _write(self.lines(), at, self.parts))

    @staticmethod
    def answer(files: Sequence[str | Path]) -> Answer:
        return answer_of(files)

    def prepare(self, home: Path, unique: bool | None) -> str:
        """Prepare the job for the app and return its ``--job``. unique: whether the job guarantees
        unique orders, instead of watermarks."""
        left = {"format": "parquet", "path": str(self.left), "id": ["key"]}
        right = {"format": "parquet", "path": str(self.right), "id": ["id"]}
        job = {
            "name": "benchmark",
            "left": left,
            "right": right,
            "on": {"key": "key"},
            "fact_table": "fact_benchmark",
        }
        if unique:
            left["unique"] = True
        else:
            job["within"] = {"left": "o_time", "right": "l_time", "distance": self.span}
            left["watermark"] = {"column": "o_time", "delay": 0}
            right["watermark"] = {"column": "l_time", "delay": 0}
        (home / "job.yaml").write_text(yaml.safe_dump(job))
        return str(home / "job.yaml")


@dataclass(frozen=True)
class Tpch:
    """The files of the shipped job."""

    files: Files
    at_once: ClassVar[int] = 4
    columns: ClassVar[tuple[str, ...]] = ("o_orderkey", "o_orderdate", "l_orderkey", "l_shipdate")
    span: ClassVar[int] = 121 * 86_400
    delay: ClassVar[int] = 2_600 * 86_400

    @property
    def home(self) -> Path:
        return self.files.made(
            "tpch-orders",
            lambda at: prepare(
                load_stream_stream_job("tpch_orders", Paths(home=at)), Paths(home=at)
            ),
        )

    @property
    def left(self) -> Path:
        return self.home / "data" / "tpch_orders" / "left"

    @property
    def right(self) -> Path:
        return self.home / "data" / "tpch_orders" / "right"

    @staticmethod
    def answer(files: Sequence[str | Path]) -> Answer:
        answer = Answer()
        if files:
            answer.add(
                _as_answered(
                    pq.read_table(
                        [str(f) for f in files], columns=["o_orderkey", "o_custkey", "l_linenumber"]
                    )
                )
            )
        return answer

    def expected(self) -> Answer:
        orders = pq.read_table(self.left, columns=["o_orderkey", "o_custkey"]).sort_by("o_orderkey")
        lines = pq.read_table(self.right, columns=["l_orderkey", "l_linenumber"])
        at = np.searchsorted(orders["o_orderkey"].to_numpy(), lines["l_orderkey"].to_numpy())
        answer = Answer()
        answer.add(
            _as_answered(
                orders.take(pa.array(at)).append_column("l_linenumber", lines["l_linenumber"])
            )
        )
        return answer

    def prepare(self, home: Path, unique: bool | None) -> str:
        """Prepare the shipped job, which declares its own guarantees, and return its name."""
        (home / "data").symlink_to(self.home / "data")
        return "tpch_orders"


def _as_answered(joined: pa.Table) -> pa.Table:
    """Rename order key, customer key and line number to the columns that an ``Answer`` expects."""
    return joined.rename_columns(STREAM.names).cast(STREAM).combine_chunks()


def _times(seconds: np.ndarray) -> pa.Array:
    return pa.array((START + seconds.astype(np.int64)) * 1_000_000).cast(pa.timestamp("us"))


def _write(table: pa.Table, at: Path, parts: int) -> None:
    at.mkdir()
    size = -(-table.num_rows // parts)
    for number in range(parts):
        pq.write_table(
            table.slice(number * size, size),
            at / f"part-{number:05d}.parquet",
            row_group_size=max(size // 4, 1),
        )


# ---- in process


@dataclass(frozen=True)
class Join:
    streams: Orders
    algorithm: str
    memory: int
    piece: int
    unique: bool = False
    within: bool = False

    def __call__(self) -> JoinPeer:
        return JoinPeer(self)


class JoinPeer:
    """One join of both streams from their files to Arrow."""

    def __init__(self, of: Join):
        pa.set_cpu_count(1)
        self.of, self.answer = of, Answer()
        self.spent = 0.0
        self.stats = self._join(64).stats  # compiles the kernels; the answer is ignored
        self.answer = Answer()

    def measure(self) -> Sample:
        self.spent, cpu = 0.0, time.process_time()
        join = self._join(0)
        self.stats = join.stats
        rows = sum(side.rows_read for side in join.stats.sides)
        return Sample(
            rows,
            self.spent,
            join.stats.bytes_read,
            time.process_time() - cpu,
            {
                "tuples held at most": sum(s.held_peak for s in join.stats.sides),
                "tuples to disk": join.stats.relocated,
            },
        )

    def finish(self) -> Result:
        return Result(
            self.answer,
            self.of.streams.expected(),
            self.of.memory,
            self.stats.memory_peak,
            peak_rss(),
        )

    def _join(self, few: int):
        of = self.of
        files = [sorted(p.glob("*.parquet")) for p in (of.streams.left, of.streams.right)]
        schemas = [pq.read_schema(f[0]) for f in files]
        span = timedelta(seconds=of.streams.span)
        join = open_stream_join(
            of.algorithm,
            memory=of.memory,
            left=schemas[0],
            right=schemas[1],
            on=[("key", "key")],
            within=Within("o_time", "l_time", span) if of.within else None,
        )
        out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), join.output_schema)

        def take(outputs) -> None:
            start = time.perf_counter()
            for output in outputs:
                if output.joined is not None:
                    out.write_batch(output.joined)
                    self.spent += time.perf_counter() - start
                    self.answer.add(output.joined)
                    start = time.perf_counter()
            self.spent += time.perf_counter() - start

        for pair in zip(*files, strict=True):
            readers = [
                pq.ParquetFile(f).iter_batches(size, use_threads=False)
                for f, size in zip(pair, (of.piece, 4 * of.piece), strict=True)
            ]
            going = [True, True]
            while any(going):
                for side in (LEFT, RIGHT):
                    start = time.perf_counter()
                    batch = next(readers[side], None)
                    self.spent += time.perf_counter() - start
                    going[side] = batch is not None
                    if batch is None:
                        continue
                    take(join.process(side, batch.slice(0, few) if few else batch))
                    if of.unique and side == LEFT:
                        take(join.punctuate(LEFT, batch.select(["key"])))
                    if of.within:
                        name = ("o_time", "l_time")[side]
                        latest = batch.column(name)[-1].as_py()
                        take(
                            join.punctuate(
                                side,
                                [{name: {"range": [None, latest - timedelta(microseconds=1)]}}],
                            )
                        )
                if few:
                    break
        take(join.drain())
        return join


@dataclass(frozen=True)
class DuckDB:
    streams: Orders

    def __call__(self) -> DuckDBPeer:
        return DuckDBPeer(self)


class DuckDBPeer:
    """One hash join of the two streams' files, with unlimited memory, to Arrow."""

    def __init__(self, of: DuckDB):
        import duckdb

        pa.set_cpu_count(1)
        self.of, self.answer = of, Answer()
        self.connection = duckdb.connect(config={"threads": 1, "preserve_insertion_order": False})
        payload = ", ".join(f"o.{n}" for n in COLUMNS.names[1:])
        left, right = (f"'{p}/*.parquet'" for p in (of.streams.left, of.streams.right))
        self.query = (
            f"SELECT l.key, l.id, l.quantity, l.l_time, o.o_time, {payload} "
            f"FROM {left} o JOIN {right} l ON o.key = l.key"
        )
        self.connection.execute("SET enable_progress_bar = false")

    def measure(self) -> Sample:
        before, spent = self.answer.rows, 0.0
        cpu, start = time.process_time(), time.perf_counter()
        reader = self.connection.sql(self.query).to_arrow_reader(131_072)
        out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), reader.schema)
        for joined in reader:
            out.write_batch(joined)
            spent += time.perf_counter() - start
            self.answer.add(joined)
            start = time.perf_counter()
        spent += time.perf_counter() - start
        rows = self.of.streams.orders + self.answer.rows - before
        return Sample(rows, spent, 0, time.process_time() - cpu)

    def finish(self) -> Result:
        return Result(self.answer, self.of.streams.expected(), 0, 0, peak_rss())


# ---- in Spark


@dataclass(frozen=True)
class StreamCase(Case):
    streams: Orders | Tpch

    def expected(self) -> Answer:
        return self.streams.expected()

    def count(self, first: int = 0) -> int:
        return sum(
            pq.ParquetFile(f).metadata.num_rows
            for p in (self.streams.left, self.streams.right)
            for f in sorted(p.glob("*.parquet"))[first * self.streams.at_once :]
        )


class SparkPeer(ProgramPeer):
    case: StreamCase

    def __init__(self, case: StreamCase, state: str = "rocksdb"):
        super().__init__(case, f"spark streams {state}")
        self.state = state

    def _run(self) -> Sample:
        streams = self.case.streams
        command = [
            sys.executable,
            "-m",
            "benchmarks.spark_streams",
            self.state,
            streams.left,
            streams.right,
            *streams.columns,
            str(streams.span),
            str(streams.delay),
            str(streams.at_once),
            self.home / "output",
            self.home / "query",
        ]
        with program(
            command, self.home / "log", self.case.environment(self.home) | {"SPARK_SUBMIT_OPTS": ""}
        ) as running:
            seconds = self._end(running)
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        return self._sample(running, seconds, commits(self.home / "query"))

    def _answer(self) -> Answer:
        return self.case.streams.answer([*(self.home / "output").glob("*.parquet")])


class AppPeer(ProgramPeer):
    case: StreamCase

    def __init__(self, case: StreamCase, memory: int, unique: bool | None):
        super().__init__(case, f"app streams {unique}", memory)
        self.unique = unique

    def _run(self) -> Sample:
        streams = self.case.streams
        command = [
            sys.executable,
            APP,
            "--job",
            streams.prepare(self.home, self.unique),
            "--memory",
            str(self.memory),
            "--checkpoint",
            self.home / "checkpoint",
            "--sink",
            self.home / "output",
            "--max-files",
            str(streams.at_once),
            "--end",
        ]
        with program(
            command, self.home / "log", self.case.environment(self.home) | paths_of(self.home)
        ) as running:
            seconds = running.end()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        with sqlite3.connect(self.home / "warehouse.db") as ledger:
            self.memory_peak = max(
                self.memory_peak,
                *(
                    row[0]
                    for row in ledger.execute(
                        "SELECT sum(memory_peak) FROM load_batches GROUP BY batch, drain"
                    )
                ),
            )
        return self._sample(running, seconds, commits(self.home / "checkpoint" / "query"))

    def _answer(self) -> Answer:
        return self.case.streams.answer(DeltaTable(self.home / "output").file_uris())
