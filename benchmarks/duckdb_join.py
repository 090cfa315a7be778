"""DuckDB with one join for each micro-batch, compared with the operators, whose tuples may wait
beyond a micro-batch. All have the same M and one thread.

DuckDB has R in its own file, sorted by key or with a primary key's index, and memory_limit = M, or
the least limit with which DuckDB runs. Its file leaves the page cache before every micro-batch; the
snapshot is read past the page cache.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.data import COLUMNS, MASTER_BYTES, OPAQUE, Answer, Files, Stream, master_batches
from benchmarks.harness import Bench, Result, Sample, Unavailable, peak_rss, read_bytes
from benchmarks.operators import Operator

FORMS = {"opaque": OPAQUE, "columns": COLUMNS}


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 10.0  # M, percent of R
    batches: tuple[int, ...] = (100_000, 1_000_000)  # tuples of a micro-batch
    algorithms: tuple[str, ...] = ("ssbj", "sscj", "elevatorjoin")
    layouts: tuple[str, ...] = ("sorted", "indexed")
    forms: tuple[str, ...] = ("columns",)  # forms of R's payload: 13 columns, or one of 104 bytes
    skew: float = 1.0
    seconds: float = 0.3
    warm_up: float = 20.0  # at most


SCALES = {
    "smallest": Settings(
        master=50_000,
        share=30.0,
        batches=(20_000,),
        algorithms=("ssbj",),
        layouts=("sorted",),
        seconds=0.02,
        warm_up=0.3,
    ),
    "small": Settings(),
    "full": Settings(master=20_000_000, forms=("columns", "opaque"), seconds=5.0, warm_up=600.0),
}


def run(bench: Bench, s: Settings) -> None:
    memory, stream = int(s.share / 100 * s.master * MASTER_BYTES), Stream(s.master, s.skew)
    for form in s.forms:
        schema = FORMS[form]
        bench.files.snapshot(s.master, schema)
        files = {layout: database(bench.files, s.master, form, layout) for layout in s.layouts}
        for rows in s.batches:
            duck = {
                f"duckdb, {layout}": DuckDB(file, schema, memory, stream, rows, s.seconds)
                for layout, file in files.items()
            }
            ours = {
                name: Operator(
                    bench.files, schema, name, memory, stream, rows, s.seconds, s.warm_up
                )
                for name in s.algorithms
            }
            bench.compare(
                "duckdb",
                f"R={s.master:,} M={s.share:g}% batch={rows:,} {form}",
                {**duck, **ours},
                next(iter(duck)),
            )


def database(files: Files, tuples: int, form: str, layout: str) -> Path:
    """Return R in a DuckDB file, in the order of the keys; if the layout is "indexed", with a
    primary key, too."""
    import duckdb

    def make(at: Path) -> None:
        types = ", ".join(
            f"{f.name} {'BIGINT' if f.type == pa.int64() else 'BLOB'} NOT NULL" for f in FORMS[form]
        )
        with duckdb.connect(str(at)) as connection:
            connection.execute(
                f"CREATE TABLE r ({types}{', PRIMARY KEY (key)' if layout == 'indexed' else ''})"
            )
            rows = master_batches(tuples, FORMS[form])
            connection.register("batches", pa.RecordBatchReader.from_batches(FORMS[form], rows))
            connection.execute("INSERT INTO r SELECT * FROM batches")
            connection.execute("CHECKPOINT")

    return files.made(f"master-{tuples}-{form}-{layout}.duckdb", make)


@dataclass(frozen=True)
class DuckDB:
    file: Path
    schema: pa.Schema
    memory: int
    stream: Stream
    batch: int
    seconds: float

    def __call__(self) -> DuckDBPeer:
        return DuckDBPeer(self)


class DuckDBPeer:
    def __init__(self, of: DuckDB):
        try:
            import duckdb
        except ImportError as e:
            raise Unavailable(f"{e}: install the extra dev") from None
        pa.set_cpu_count(1)
        self.of, self.answer, self.fed = of, Answer(), 0
        self.limit = of.memory
        columns = ", ".join(f"r.{n}" for n in of.schema.names[1:])
        self.query = f"SELECT s.key, s.id, s.quantity, {columns} FROM s JOIN r ON s.key = r.key"
        self.connection = duckdb.connect(
            str(of.file), read_only=True, config={"threads": 1, "preserve_insertion_order": False}
        )
        self.out: pa.RecordBatchStreamWriter | None = None
        while not self._works():
            self.limit = int(1.25 * self.limit)
        self.measure()  # fills its memory up to memory_limit

    def measure(self) -> Sample:
        spent, first, read = 0.0, self.fed, read_bytes()
        while spent < self.of.seconds:
            batch = self.of.stream.batch(self.fed, self.of.batch)
            spent += self._join(batch)
            self.fed += batch.num_rows
        return Sample(self.fed - first, spent, read_bytes() - read, 0.0)

    def _works(self) -> bool:
        """Return whether the limit suffices, which is found by trying a micro-batch."""
        self.connection.execute(f"SET memory_limit = '{self.limit}B'")
        try:
            self._join(self.of.stream.batch(0, self.of.batch), check=False)
            return True
        except Exception as e:  # DuckDB's exception, or Arrow's that wraps it
            if "Out of Memory" not in str(e):
                raise
            return False

    def finish(self) -> Result:
        note = (
            ""
            if self.limit == self.of.memory
            else f"memory_limit {self.limit / 1e6:,.1f} MB is the least that works"
        )
        used = self.connection.execute(
            "SELECT sum(memory_usage_bytes) FROM duckdb_memory()"
        ).fetchall()[0][0]
        return Result(
            self.answer, self.of.stream.expected(self.fed), self.limit, int(used), peak_rss(), note
        )

    def _join(self, batch: pa.RecordBatch, check: bool = True) -> float:
        """Return the seconds that a micro-batch took, including the time to write its rows as
        Arrow."""
        with open(self.of.file, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.connection.register("s", pa.Table.from_batches([batch]))
        spent, start = 0.0, time.perf_counter()
        reader = self.connection.sql(self.query).to_arrow_reader(131_072)
        if self.out is None:
            self.out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), reader.schema)
        while True:
            joined = next(reader, None)
            if joined is not None:
                self.out.write_batch(joined)
            spent += time.perf_counter() - start
            if joined is None:
                return spent
            if check:
                self.answer.add(joined)
            start = time.perf_counter()
