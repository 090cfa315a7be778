"""Which columns of the Parquet files that we write have a dictionary, and which are compressed."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.files.sink import OutputFile
from semistream.parquet_encoding import encoding
from semistream.streaming.sinks.delta_files import data_writer

N = 20_000
random = np.random.default_rng(5)
COLUMNS = pa.table(
    {
        "random": random.integers(-(2**62), 2**62, N),
        "small": random.integers(0, 5_000, N),
        "kind": random.integers(0, 50, N),
        "text": [f"text {i}" for i in range(N)],
        "word": [f"word {i % 20}" for i in range(N)],
        "flag": [i % 2 == 0 for i in range(N)],
        "nothing": pa.nulls(N, pa.float64()),
        "list": [[i, i + 1] for i in range(N)],
        "struct": [{"a": i, "b": {"c": str(i)}} for i in range(N)],
        "map": pa.array([[("x", i)] for i in range(N)], pa.map_(pa.string(), pa.int64())),
    }
)
WANTED = {
    "random": (False, "UNCOMPRESSED"),
    "small": (False, "SNAPPY"),
    "kind": (True, "SNAPPY"),
    "text": (False, "ZSTD"),
    "word": (True, "ZSTD"),
    "flag": (False, "ZSTD"),
    "nothing": (True, "SNAPPY"),
    "list.list.element": (True, "ZSTD"),
    "struct.a": (True, "ZSTD"),
    "struct.b.c": (True, "ZSTD"),
    "map.key_value.key": (True, "ZSTD"),
    "map.key_value.value": (True, "ZSTD"),
}


def found(path):
    group = pq.read_metadata(path).row_group(0)
    return {
        c.path_in_schema: (c.has_dictionary_page, c.compression)
        for c in map(group.column, range(group.num_columns))
    }


def console(path, table):
    with OutputFile("out", path, table.schema) as file:
        for batch in table.to_batches(max_chunksize=3000):
            file.write(batch)
        file.finish()
        file.publish()


def delta(path, table):
    with data_writer(path, table, ()) as writer:
        writer.write_table(table.cast(writer.schema))


@pytest.mark.parametrize("write", [console, delta])
def test_files_and_delta_tables_have_one_rule(write, tmp_path):
    write(tmp_path / "t.parquet", COLUMNS)
    assert found(tmp_path / "t.parquet") == WANTED
    assert pq.read_table(tmp_path / "t.parquet").cast(COLUMNS.schema).equals(COLUMNS)


def test_a_column_of_one_value_has_a_dictionary_whatever_the_sample_says():
    first = pa.table({"load_id": [7], "n": [1]})
    assert encoding(first, ["load_id"])["use_dictionary"] == ["load_id"]


def test_the_first_rows_alone_do_not_decide():
    """A join's first rows may all have the keys of one partition of R."""
    few = np.arange(10_000) % 7
    first = pa.table({"n": np.concatenate([few, random.integers(-(2**62), 2**62, 90_000)])})
    assert encoding(first)["use_dictionary"] == []
    assert encoding(first.slice(0, 10_000))["use_dictionary"] == ["n"]


def test_numbers_that_follow_each_other_are_compressed_without_a_dictionary(tmp_path):
    """A join finishes the tuples of a partition of R together, and those of a key in a row."""
    values = random.integers(-(2**62), 2**62, N // 8)
    runs = pa.table({"n": values[np.sort(random.integers(0, N // 8, N))]})
    mixed = pa.table({"n": values[random.integers(0, N // 16, N)]})
    assert encoding(runs)["use_dictionary"] == [] and encoding(runs)["compression"]["n"] == "snappy"
    assert encoding(mixed)["use_dictionary"] == ["n"]
    console(tmp_path / "t.parquet", runs)
    pq.write_table(runs, tmp_path / "d.parquet", compression="snappy")
    assert (tmp_path / "t.parquet").stat().st_size < (tmp_path / "d.parquet").stat().st_size


def test_a_file_without_rows_can_be_written(tmp_path):
    console(tmp_path / "t.parquet", COLUMNS.slice(0, 0))
    assert pq.read_table(tmp_path / "t.parquet").schema == COLUMNS.schema


def test_numbers_are_not_larger_in_the_file_than_in_memory(tmp_path):
    """With a dictionary they would be, by the indices."""
    table = COLUMNS.select(["random"])
    console(tmp_path / "t.parquet", table)
    assert (tmp_path / "t.parquet").stat().st_size < table.nbytes + 2000


def test_a_page_has_as_many_numbers_as_fit_into_its_bytes(tmp_path):
    rows = 120_000
    table = pa.table({"n": np.random.default_rng(1).integers(-(2**62), 2**62, rows)})
    console(tmp_path / "t.parquet", table)
    column = pq.read_metadata(tmp_path / "t.parquet").row_group(0).column(0)
    assert column.total_uncompressed_size - 8 * rows < 100  # the header of one page
