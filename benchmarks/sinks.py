"""Rows per second into SQLite, MariaDB and Delta: the project's sinks compared with each library's
own best bulk path.

One partition's joined rows (an id, a quantity, 14 BIGINT columns) are written in one transaction
into an empty table with the same columns and keys, from the same Arrow table. The project's sinks
also create the rows' keys and write the ledger row. MariaDB's peer is LOAD DATA of a file that was
written before. adbc_ingest loads a second SQLite library into the process, whose locks undo the
first one's. Both are bounds, not rivals.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import csv
from sqlalchemy import column, select, table, text

from benchmarks.data import COLUMNS, STREAM, Answer, Files, Stream, master_batches
from benchmarks.harness import ROOT, Bench, Result, Sample, Unavailable, peak_rss
from semistream.joins.stream_probing import PROBE_ROWS
from semistream.streaming.sinks.base import with_key
from semistream.streaming.sinks.delta import DeltaSink
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import Spool
from semistream.warehouse import connect, create_all
from semistream.warehouse.bulk import fetch
from semistream.warehouse.load_ids import load_id
from semistream.warehouse.records import Commit, InputCounts, LoadRecord
from semistream.warehouse.schema import load_batches, load_inputs
from semistream.warehouse.tables import quoted

ADDED = pa.schema(list(COLUMNS)[1:])


@dataclass(frozen=True)
class Settings:
    rows: int = 200_000
    databases: tuple[str, ...] = ("sqlite", "mariadb", "delta")


SCALES = {
    "smallest": Settings(rows=5_000, databases=("sqlite", "delta")),
    "small": Settings(),
    "full": Settings(rows=2_000_000),
}


def run(bench: Bench, s: Settings) -> None:
    for database in s.databases:
        server = start_mariadb(bench) if database == "mariadb" else None
        try:
            if database == "mariadb" and server is None:
                continue
            url = server.fresh() if server is not None else ""
            peers = {
                name: Sink(bench.files, s.rows, database, name, url) for name in WAYS[database]
            }
            bench.compare(
                "sinks", f"{database}, {s.rows:,} rows", peers, next(n for n in peers if n != OURS)
            )
        finally:
            if server is not None:
                server.stop()


def start_mariadb(bench: Bench):
    """Start a private server of the tests' class and return it. If there is no mariadbd, add a row
    that says so and return None."""
    sys.path.insert(0, str(ROOT / "tests"))
    from conftest import MARIADBD, MariaDB

    if not MARIADBD:
        bench.add(
            "sinks",
            "mariadb",
            "-",
            {"note": "cannot run: no mariadbd (apt-get install mariadb-server-core)"},
        )
        return None
    directory = bench.files.runs / "mariadb"
    directory.mkdir(parents=True)
    server = MariaDB(directory)
    server.install()
    server.start()
    return server


@dataclass(frozen=True)
class Sink:
    files: Files
    rows: int
    database: str
    way: str
    url: str

    def __call__(self) -> SinkPeer:
        return SinkPeer(self)


class Given(Spool):
    """The rows of a partition, given in memory instead of a file of the spool."""

    def __init__(self, rows: pa.Table):
        super().__init__(rows.schema, (STREAM,), (("id",),))
        self.rows = rows

    def joined(self) -> pa.Table:
        return self.rows


class SinkPeer:
    def __init__(self, of: Sink):
        self.of, self.runs = of, 0
        if of.way == ADBC:
            try:
                import adbc_driver_sqlite.dbapi  # noqa: F401
            except ImportError as e:
                raise Unavailable(str(e)) from None
        self.home = of.files.runs / f"sink-{of.database}-{of.way}".replace(" ", "-")
        stream, master = Stream(of.rows), pa.Table.from_batches(master_batches(of.rows, COLUMNS))
        tuples = stream.batch(0, of.rows)
        found = master.take(pa.array(tuples.column("key").to_numpy() - 1))
        self.rows = pa.table(
            [*tuples.columns, *(found[c].combine_chunks() for c in ADDED.names)],
            schema=pa.schema([*STREAM, *ADDED]),
        )
        self.whole = with_key(self.rows, load_id(1, 0, 0, 0))
        self.answer, self.expected = Answer(), stream.expected(of.rows)
        self.measure()  # the first run of a process takes longer

    def measure(self) -> Sample:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.runs += 1
        place = self.of.url or str(self.home / f"output-{self.runs}")
        if self.of.database == "sqlite":
            place = f"sqlite:///{place}"
        seconds = WAYS[self.of.database][self.of.way](self, place)
        answer = Answer()
        answer.add(self._read(place))
        if self.answer in (Answer(), self.expected):  # a wrong answer is kept
            self.answer = answer
        return Sample(self.of.rows, seconds)

    def finish(self) -> Result:
        shutil.rmtree(self.home, ignore_errors=True)
        return Result(self.answer, self.expected, rss_peak=peak_rss())

    def _read(self, place: str) -> pa.Table:
        if self.of.database == "delta":
            from deltalake import DeltaTable

            return ds.dataset(DeltaTable(place).file_uris(), format="parquet").to_table()
        engine = connect(place)
        with engine.connect() as connection:
            query = select(*(column(quoted(n)) for n in self.rows.column_names)).select_from(
                table("fact")
            )
            rows = pa.Table.from_batches(fetch(connection, query, self.rows.schema))
        engine.dispose()
        return rows


# ---- ways to write into each; they return the seconds


def tables(place: str) -> SqlSink:
    """Return a sink with empty tables."""
    sink = SqlSink(Warehouse(place, "fact", ("master_sk",), 60.0))
    create_all(sink.warehouse.engine)
    with sink.warehouse.engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS fact"))
        for of_loads in (load_inputs, load_batches):
            connection.execute(of_loads.delete())
    sink.prepare(STREAM, ADDED, ("id",))
    return sink


def record() -> LoadRecord:
    """Return the record of a load without tuples."""
    counts = InputCounts("master", 0, 0, 0, {}, 0, "state", "master", "v000001")
    return LoadRecord("benchmark", 0, 0, 0, "", (counts,), 0, 0, 0)


def sql_sink(peer: SinkPeer, place: str) -> float:
    sink = tables(place)
    with Given(peer.rows) as given:
        start = time.perf_counter()
        sink.write(record(), given)
        return time.perf_counter() - start


def executemany(peer: SinkPeer, place: str) -> float:
    tables(place).warehouse.engine.dispose()
    columns = ", ".join(f'"{n}"' for n in peer.whole.column_names)
    with closing(sqlite3.connect(place.removeprefix("sqlite:///"))) as connection:
        start = time.perf_counter()
        with connection:
            connection.executemany(
                f"INSERT INTO fact ({columns}) VALUES ({', '.join('?' * peer.whole.num_columns)})",
                zip(*(c.to_pylist() for c in peer.whole.columns), strict=True),
            )
        return time.perf_counter() - start


def adbc(peer: SinkPeer, place: str) -> float:
    import adbc_driver_sqlite.dbapi

    tables(place).warehouse.engine.dispose()
    with (
        adbc_driver_sqlite.dbapi.connect(place.removeprefix("sqlite:///")) as connection,
        connection.cursor() as cursor,
    ):
        start = time.perf_counter()
        cursor.adbc_ingest("fact", peer.whole, mode="append")
        connection.commit()
        return time.perf_counter() - start


def load_data(peer: SinkPeer, place: str) -> float:
    sink, file = tables(place), peer.home / "rows.csv"
    csv.write_csv(peer.whole, file, csv.WriteOptions(include_header=False))
    columns = ", ".join(f"`{n}`" for n in peer.whole.column_names)
    start = time.perf_counter()
    with sink.warehouse.engine.begin() as connection:
        connection.exec_driver_sql(
            f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE fact FIELDS "
            f"TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ({columns})"
        )
    return time.perf_counter() - start


def delta_sink(peer: SinkPeer, place: str) -> float:
    warehouse = Warehouse(f"sqlite:///{place}.db", "fact", ("master_sk",), 60.0)
    create_all(warehouse.engine)
    checkpoint = peer.home / "checkpoint"
    checkpoint.mkdir()
    sink = DeltaSink(place, str(checkpoint), warehouse).prepare(STREAM, ADDED, ("id",))
    with Given(peer.rows) as given:
        start = time.perf_counter()
        given.writer = writer = sink.writer(peer.rows.schema, "benchmark", 0, 0, 0)
        for rows in peer.rows.to_batches(PROBE_ROWS):
            writer.write(rows)
        loaded = sink.write(record(), given)
        sink.commit(Commit("benchmark", 0, 0, "fact", place, 1, 0), [loaded])
        return time.perf_counter() - start


def write_deltalake(peer: SinkPeer, place: str) -> float:
    import deltalake

    deltalake.DeltaTable.create(place, peer.whole.schema)
    start = time.perf_counter()
    deltalake.write_deltalake(place, peer.whole, mode="append")
    return time.perf_counter() - start


OURS, ADBC = "semistream", "adbc_ingest"
WAYS: dict[str, dict[str, Callable[[SinkPeer, str], float]]] = {
    "sqlite": {"executemany": executemany, ADBC: adbc, OURS: sql_sink},
    "mariadb": {"LOAD DATA, file ready": load_data, OURS: sql_sink},
    "delta": {"write_deltalake": write_deltalake, OURS: delta_sink},
}
