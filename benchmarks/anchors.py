"""The join of a micro-batch in other systems: look-ups in a key-value store, and query engines.

RocksDB (MultiGet, a block cache of M, direct reads), LMDB and SQLite (page cache of M) look up each
distinct key of a micro-batch. Polars' streaming engine and DataFusion join the micro-batch with R
in Parquet. Each has one thread. R's files leave the page cache before every micro-batch; within a
micro-batch, LMDB and SQLite use the page cache. LMDB and Polars have no setting for M: for them the
resident memory is reported. A system that is not installed is reported as such: `uv pip install
--group bench`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import MASTER_BYTES, OPAQUE, STREAM, Answer, Files, Stream, master_batches
from benchmarks.harness import Bench, Result, Sample, Unavailable, peak_rss, read_bytes
from benchmarks.operators import Operator
from benchmarks.processes import forget

JOINED = pa.schema([*STREAM, OPAQUE.field(1)])


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 10.0  # M, percent of R
    batches: tuple[int, ...] = (100_000,)  # tuples of a micro-batch
    peers: tuple[str, ...] = ("sqlite", "lmdb", "rocksdb", "polars", "datafusion")
    algorithms: tuple[str, ...] = ("elevatorjoin",)
    skew: float = 1.0
    seconds: float = 1.0
    warm_up: float = 20.0  # at most


SCALES = {
    "smallest": Settings(
        master=50_000, share=30.0, batches=(5_000,), algorithms=("ssbj",), seconds=0.02, warm_up=0.3
    ),
    "small": Settings(),
    "full": Settings(master=20_000_000, batches=(100_000, 1_000_000), seconds=5.0, warm_up=600.0),
}


def run(bench: Bench, s: Settings) -> None:
    memory, stream = int(s.share / 100 * s.master * MASTER_BYTES), Stream(s.master, s.skew)
    bench.files.snapshot(s.master, OPAQUE)
    for rows in s.batches:
        others = {
            name: Anchor(bench.files, name, memory, stream, rows, s.seconds) for name in s.peers
        }
        ours = {
            name: Operator(bench.files, OPAQUE, name, memory, stream, rows, s.seconds, s.warm_up)
            for name in s.algorithms
        }
        bench.compare(
            "anchors",
            f"R={s.master:,} M={s.share:g}% batch={rows:,}",
            {**others, **ours},
            next(iter(others)),
        )


@dataclass(frozen=True)
class Anchor:
    files: Files
    name: str
    memory: int
    stream: Stream
    batch: int
    seconds: float

    def __call__(self) -> AnchorPeer:
        try:
            return PEERS[self.name](self)
        except ImportError as e:
            raise Unavailable(f"{e}; uv pip install --group bench") from None


class AnchorPeer(ABC):
    limited = True  # whether M can be set

    def __init__(self, of: Anchor):
        pa.set_cpu_count(1)
        self.of, self.answer, self.fed = of, Answer(), 0
        self.out = pa.ipc.new_stream(pa.OSFile("/dev/null", "wb"), JOINED)
        self.path = self._open()
        self.measure()  # runs the first micro-batches, which take longer

    @abstractmethod
    def _open(self) -> Path:
        """Open R, which the first call creates, and return the directory of its files."""

    @abstractmethod
    def _join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows of a micro-batch, in the columns of JOINED."""

    def measure(self) -> Sample:
        spent, first, read = 0.0, self.fed, read_bytes()
        while spent < self.of.seconds:
            batch = self.of.stream.batch(self.fed, self.of.batch)
            forget(self.path)
            spent += self._timed(self._join(batch))
            self.fed += batch.num_rows
        return Sample(self.fed - first, spent, read_bytes() - read)

    def finish(self) -> Result:
        note = "" if self.limited else "takes what memory it likes"
        return Result(
            self.answer,
            self.of.stream.expected(self.fed),
            self.of.memory,
            rss_peak=peak_rss(),
            note=note,
        )

    def _timed(self, joined: Iterator[pa.RecordBatch]) -> float:
        """Return the seconds that the join and writing its rows as Arrow took, without the time for
        checking the rows."""
        spent = 0.0
        while True:
            start = time.perf_counter()
            rows = next(joined, None)
            if rows is not None:
                self.out.write_batch(rows)
            spent += time.perf_counter() - start
            if rows is None:
                return spent
            self.answer.add(rows)


# ---- look-ups


class LookUp(AnchorPeer):
    """A peer that looks up each distinct key of a micro-batch, in the order of the keys."""

    @abstractmethod
    def _get(self, keys: np.ndarray) -> list[bytes]:
        """Return the payloads of these keys, int64[n], all of which exist."""

    def _join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys, rows = np.unique(batch.column(0).to_numpy(), return_inverse=True)
        payload = pa.FixedSizeBinaryArray.from_buffers(
            OPAQUE.field(1).type, len(keys), [None, pa.py_buffer(b"".join(self._get(keys)))]
        )
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, payload.take(pa.array(rows))], schema=JOINED
        )


def stored(keys: np.ndarray) -> list[bytes]:
    """Return the keys in the form in which the stores have them: eight bytes each, which sort like
    the keys."""
    text = keys.astype(">i8").tobytes()
    return [text[i : i + 8] for i in range(0, len(text), 8)]


def pairs(of: Anchor) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """Yield R in parts: keys and payloads."""
    for batch in master_batches(of.stream.master, OPAQUE):
        yield batch.column(0).to_numpy(), batch.column(1).to_pylist()


class Sqlite(LookUp):
    def _open(self) -> Path:
        def make(at: Path) -> None:
            at.mkdir()
            with sqlite3.connect(at / "r.db") as connection:
                connection.execute("CREATE TABLE r (key INTEGER PRIMARY KEY, payload BLOB)")
                for keys, payloads in pairs(self.of):
                    connection.executemany(
                        "INSERT INTO r VALUES (?, ?)", zip(keys.tolist(), payloads, strict=True)
                    )

        path = self.of.files.made(f"master-{self.of.stream.master}.sqlite", make)
        self.connection = sqlite3.connect(path / "r.db")
        self.connection.execute(f"PRAGMA cache_size = -{self.of.memory // 1024}")
        self.connection.execute("CREATE TEMP TABLE s (key INTEGER PRIMARY KEY)")
        return path

    def _get(self, keys: np.ndarray) -> list[bytes]:
        self.connection.execute("DELETE FROM s")
        self.connection.executemany("INSERT INTO s VALUES (?)", ((k,) for k in keys.tolist()))
        found = self.connection.execute(
            "SELECT r.payload FROM s CROSS JOIN r ON r.key = s.key ORDER BY s.key"
        )
        return [payload for (payload,) in found]


class Lmdb(LookUp):
    limited = False  # it uses the system's page cache

    def _open(self) -> Path:
        import lmdb

        def make(at: Path) -> None:
            with lmdb.open(
                str(at), map_size=4 * MASTER_BYTES * self.of.stream.master + (1 << 20)
            ) as environment:
                for keys, payloads in pairs(self.of):
                    with environment.begin(write=True) as transaction:
                        transaction.cursor().putmulti(
                            zip(stored(keys), payloads, strict=True), append=True
                        )

        path = self.of.files.made(f"master-{self.of.stream.master}.lmdb", make)
        self.environment = lmdb.open(str(path), readonly=True, lock=False, readahead=False)
        return path

    def _get(self, keys: np.ndarray) -> list[bytes]:
        with self.environment.begin() as transaction:
            return [payload for _, payload in transaction.cursor().getmulti(stored(keys))]


class RocksDB(LookUp):
    def _open(self) -> Path:
        import rocksdict as rocks

        def options() -> Any:
            table, found = rocks.BlockBasedOptions(), rocks.Options(raw_mode=True)
            table.set_block_cache(rocks.Cache(self.of.memory))
            table.set_cache_index_and_filter_blocks(True)
            found.set_block_based_table_factory(table)
            found.set_use_direct_reads(True)
            found.set_compression_type(rocks.DBCompressionType.none())
            return found

        def make(at: Path) -> None:
            store = rocks.Rdict(str(at), options())
            for keys, payloads in pairs(self.of):
                writes = rocks.WriteBatch(raw_mode=True)
                for key, payload in zip(stored(keys), payloads, strict=True):
                    writes.put(key, payload)
                store.write(writes)
            store.flush()
            store.compact_range(None, None)
            store.close()

        path = self.of.files.made(f"master-{self.of.stream.master}.rocksdb", make)
        self.store = rocks.Rdict(str(path), options(), access_type=rocks.AccessType.read_only())
        return path

    def _get(self, keys: np.ndarray) -> list[bytes]:
        return self.store[stored(keys)]


# ---- engines


class Polars(AnchorPeer):
    limited = False

    def _open(self) -> Path:
        os.environ["POLARS_MAX_THREADS"] = "1"  # Polars reads it when it is imported
        import polars

        path = self.of.files.master_parquet(self.of.stream.master, OPAQUE)
        self.polars, self.r = polars, polars.scan_parquet(path / "*.parquet")
        return path

    def _join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        s = self.polars.from_arrow(pa.Table.from_batches([batch])).lazy()
        joined = s.join(self.r, on="key").collect(engine="streaming").to_arrow()
        yield from joined.cast(JOINED).to_batches()


class DataFusion(AnchorPeer):
    def _open(self) -> Path:
        import datafusion

        path = self.of.files.master_parquet(self.of.stream.master, OPAQUE)
        runtime = datafusion.RuntimeEnvBuilder().with_disk_manager_os()
        self.context = datafusion.SessionContext(
            datafusion.SessionConfig().with_target_partitions(1),
            runtime.with_fair_spill_pool(self.of.memory),
        )
        self.context.register_parquet("r", str(path))
        return path

    def _join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self.context.register_record_batches("s", [[batch]])
        joined = self.context.sql(
            "SELECT s.key, s.id, s.quantity, r.payload FROM s JOIN r ON s.key = r.key"
        )
        for rows in joined.execute_stream():
            yield from pa.Table.from_batches([rows.to_pyarrow()]).cast(JOINED).to_batches()
        self.context.deregister_table("s")


PEERS: dict[str, Callable[[Anchor], AnchorPeer]] = {
    "sqlite": Sqlite,
    "lmdb": Lmdb,
    "rocksdb": RocksDB,
    "polars": Polars,
    "datafusion": DataFusion,
}
