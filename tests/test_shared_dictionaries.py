"""Parquet files of joined rows: R's columns are dictionaries of R's tuples, with shared indices."""

from __future__ import annotations

import math
from decimal import Decimal

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from semistream.files import thrift
from semistream.files.join import join_files
from semistream.files.settings import JoinFiles
from semistream.files.shared_dictionaries import _hybrid
from semistream.files.sink import OutputFile

random = np.random.default_rng(30)


def rows(count, tuples, order="stream"):
    """Return joined rows of a stream with `tuples` tuples of R. order: stream, or that of R."""
    of = random.integers(0, tuples, count) ** 3 // tuples**2
    if order == "R":
        of = np.sort(of)
    numbers, index = np.unique(of, return_inverse=True)
    columns = {
        "number": random.integers(-(2**62), 2**62, len(numbers)),
        "text": [f"text {i}" * (i % 3) for i in numbers],
        "price": random.random(len(numbers)),
        "day": pa.array(numbers.astype(np.int32)).cast(pa.date32()),
        "amount": pa.array(numbers).cast(pa.decimal128(25, 2)),
        "kind": numbers % 3,
        "flag": numbers % 2 == 0,
        "sometimes": pa.array(numbers, mask=numbers % 2 == 0),
        "never": pa.nulls(len(numbers), pa.int64()),
    }
    shared = pa.array(index.astype(np.int32))
    outer = pa.array(index.astype(np.int32), mask=index % 2 == 0)
    refer = pa.DictionaryArray.from_arrays
    return pa.record_batch(
        {
            "id": random.permutation(count),
            "note": [f"note {i}" for i in range(count)],
            **{name: refer(shared, pa.array(values)) for name, values in columns.items()},
            "outer": refer(outer, pa.array(columns["number"])),
            "other": refer(pa.array(index.astype(np.int32)), pa.array(columns["number"])),
        }
    )


def plain(batches):
    table = pa.Table.from_batches(batches)
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    return table.cast(pa.schema(list(map(pa.field, table.schema.names, kinds))))


BATCHES = {
    "in R's order": [rows(5000, 900, "R"), rows(3000, 900, "R")],
    "in the stream's order": [rows(5000, 900), rows(3000, 3)],
    "small batches": [rows(20, 5) for _ in range(400)],
    "one tuple": [rows(100, 1)],
    "one row": [rows(1, 1)],
    "more than two bytes can number": [rows(300_000, 150_000), rows(1000, 7)],
    "nothing repeated": [rows(500, 10**6)],
    "none": [rows(1, 1).slice(0, 0)],
}


def write(path, batches):
    with OutputFile("out", path, batches[0].schema) as file:
        for batch in batches:
            file.write(batch)
        file.finish()
        file.publish()


@pytest.mark.parametrize("name", BATCHES)
def test_every_reader_reads_the_values(name, tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.files.sink.GATHERED_BYTES", 100_000)  # several row groups
    path, wanted = tmp_path / "t.parquet", plain(BATCHES[name])
    write(path, BATCHES[name])
    found = pq.read_table(path)
    assert found.schema == wanted.schema and found.equals(wanted)
    assert duckdb.sql(f"FROM '{path}'").to_arrow_table().cast(wanted.schema).equals(wanted)
    assert polars.read_parquet(path).to_arrow().cast(wanted.schema).equals(wanted)
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
    assert pa.concat_tables(groups or [wanted]).equals(wanted)


def test_a_tuple_of_r_is_written_once(tmp_path):
    batch = rows(20_000, 500)
    tuples = len(batch.column("number").dictionary)
    write(tmp_path / "t.parquet", [batch])
    group = pq.read_metadata(tmp_path / "t.parquet").row_group(0)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    number, values = columns["number"], batch.column("number").dictionary.to_numpy()
    assert number.total_compressed_size < 8 * tuples + 2 * len(batch) + 100
    assert (number.statistics.min, number.statistics.max) == (values.min(), values.max())
    assert number.statistics.null_count == 0 and number.num_values == len(batch)
    # few different values have a dictionary of their own, which is smaller than that of tuples
    assert columns["kind"].total_compressed_size < len(batch) // 3
    assert group.total_byte_size == sum(c.total_uncompressed_size for c in columns.values())


def test_readers_skip_row_groups_by_the_statistics(tmp_path):
    path, batches = tmp_path / "t.parquet", [rows(2000, 100)]
    write(path, batches)
    wanted = plain(batches)
    first = wanted["number"][0].as_py()
    for number in (first, 2**62 + 1):
        found = pq.read_table(path, filters=[("number", "=", number)])
        assert len(found) == sum(x == number for x in wanted["number"].to_pylist())


@pytest.mark.parametrize("algorithm", ["auto", "elevatorjoin", "partition-join", "meshjoin"])
def test_a_join_s_file_has_shared_dictionaries(algorithm, tmp_path):
    stream = pa.table({"id": range(40_000), "k": random.zipf(1.3, 40_000) % 5000})
    master = pa.table(
        {
            "k": random.permutation(4000),
            **{f"c{i}": random.integers(-(2**62), 2**62, 4000) for i in range(9)},
            "name": [f"name {i}" for i in range(4000)],
        }
    )
    for name, table in (("stream", stream), ("master", master)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for out in ("out.parquet", "out.csv"):
        given = {"on": "k", "memory": "300KB", "algorithm": algorithm, "out": tmp_path / out}
        files = {name: tmp_path / f"{name}.parquet" for name in ("stream", "master")}
        join_files(JoinFiles.load(given | files))
    query = "SELECT s.*, m.* EXCLUDE k FROM stream s JOIN master m USING (k) ORDER BY id"
    wanted = duckdb.sql(query).to_arrow_table()
    found = pq.read_table(tmp_path / "out.parquet").sort_by("id")
    assert found.cast(wanted.schema).equals(wanted)
    in_text = arrow_csv.read_csv(tmp_path / "out.csv").sort_by("id")
    assert in_text.cast(wanted.schema).equals(wanted)  # the same rows without dictionaries
    group = pq.read_metadata(tmp_path / "out.parquet").row_group(0)
    sizes = [group.column(i).total_compressed_size for i in range(2, 11)]
    assert max(sizes) < group.num_rows * 4


def decoded(data, width, count):
    """Decode Parquet's hybrid of runs and literals."""
    out, at = [], 0
    while len(out) < count:
        head = shift = 0
        while True:
            head |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        size = (head >> 1) * width if head & 1 else -(-width // 8)
        bits = int.from_bytes(data[at : at + size], "little")
        if head & 1:
            out += [bits >> i * width & 2**width - 1 for i in range(8 * (head >> 1))]
        else:
            out += [bits] * (head >> 1)
        at += size
    assert at == len(data) and out[count:] == [0] * (len(out) - count)
    return out[:count]


@pytest.mark.parametrize("width", [1, 3, 8, 9, 17, 24])
@pytest.mark.parametrize("longest", [1, 7, 8, 9, 30, 1000])
def test_runs_and_literals(width, longest):
    runs = random.integers(1, longest + 1, 300)
    index = np.repeat(random.integers(0, 2**width, 300), runs).astype(np.int32)
    for part in (index, index[:5], index[:0]):
        out = np.empty((len(part) + 8) * (width // 8 + 2) + 16, np.uint8)
        size = _hybrid(part, width, out)
        assert decoded(out[:size].tolist(), width, len(part)) == part.tolist()
        assert size <= len(part) * (width + 1) / 8 + width + 8


def test_thrift_is_written_as_it_was_read(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(plain([rows(100, 20)]), path, write_page_index=True)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer, used = thrift.read(memoryview(data[-8 - size : -8]))
    assert used == size and thrift.write(footer) == data[-8 - size : -8]


TYPED = {
    "decimal": [Decimal(i) / 10 for i in range(-25, 25)],
    "large text": pa.array([f"x{i % 7}" for i in range(50)], pa.large_string()),
    "category": pa.array([f"x{i % 7}" for i in range(50)]).dictionary_encode(),
    "bytes": [bytes([i, 255]) for i in range(50)],
    "fixed": pa.array([bytes([i, 1]) for i in range(50)], pa.binary(2)),
    "boolean": [i % 2 == 0 for i in range(50)],
    "day": pa.array(range(50), pa.date32()),
    "microseconds": pa.array(range(50), pa.timestamp("us", "Europe/Vienna")),
    "nanoseconds": pa.array(range(50), pa.timestamp("ns")),
    "time": pa.array(range(50), pa.time64("us")),
    "byte": pa.array(range(50), pa.int8()),
    "unsigned": pa.array(range(50), pa.uint32()),
    "half": pa.array([i / 4 for i in range(50)], pa.float16()),
    "number": [math.nan if i % 5 == 0 else i / 3 for i in range(50)],
    "some": [None if i % 3 else i for i in range(50)],
    "texts": [None if i % 3 else f"x{i}" for i in range(50)],
    "duration": pa.array(range(50), pa.duration("s")),
}


@pytest.mark.parametrize("join_type", ["inner", "left"])
def test_a_join_of_files_writes_each_type_of_r(run, join_type):
    master = pa.table({"k": pa.array(range(50)), **TYPED})
    pq.write_table(master, "m.parquet")
    keys = pa.array([i * 7 % 60 for i in range(20_000)])
    pq.write_table(pa.table({"k": keys}), "s.parquet")
    files = "join --stream s.parquet --master m.parquet --on k --out o.parquet --memory 1MB"
    code, _, err = run(*files.split(), "--join-type", join_type)
    assert code == 0, err
    joined = pq.read_table("o.parquet")
    assert len(joined) == (20_000 if join_type == "left" else pc.sum(pc.less(keys, 50)).as_py())
    rows = master.take(pc.if_else(pc.less(joined["k"], 50), joined["k"], None))
    for name in TYPED:
        column = rows[name].combine_chunks()
        wanted = column.dictionary_decode() if name == "category" else column
        # the very values, as a NaN is not equal to itself
        assert joined[name].cast(wanted.type).to_pylist().__repr__() == repr(wanted.to_pylist())
