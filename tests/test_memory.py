"""What processes take beside M, as the operating system or Arrow counts it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.files import open_source
from semistream.master import open_snapshot, publish_snapshot
from semistream.source_files import open_parquet

MEGABYTE = 1_000_000


@pytest.mark.parametrize("groups", [1, 8])
def test_reading_parquet_takes_memory_neither_by_the_file_nor_by_its_row_groups(tmp_path, groups):
    rows = 2_000_000
    random = np.random.default_rng(1)
    table = pa.table({name: random.integers(0, 2**60, rows) for name in ("k", "a", "b", "c")})
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=rows // groups,
                   use_dictionary=False)
    assert (tmp_path / "m.parquet").stat().st_size > 60 * MEGABYTE
    before, peak, seen = pa.total_allocated_bytes(), 0, 0
    for chunk in open_source("stream", tmp_path / "m.parquet").chunks():
        seen += chunk.rows.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert seen == rows and peak < 20 * MEGABYTE
    with open_parquet(tmp_path / "m.parquet") as file:
        for _ in file.iter_batches(65_536, use_threads=False):
            assert pa.total_allocated_bytes() - before < 20 * MEGABYTE


@pytest.mark.parametrize("distinct", [1, 50, 10**15])
def test_a_bucket_larger_than_the_memory_is_sorted_in_pieces(tmp_path, distinct):
    rows = 400_000
    random = np.random.default_rng(2)
    table = pa.table({"k": random.integers(0, distinct, rows), "v": np.arange(rows),
                      "s": [f"{i % 1000:040d}" for i in range(rows)]})
    before, peak = pa.total_allocated_bytes(), [0]

    def watch(_):
        peak[0] = max(peak[0], pa.total_allocated_bytes() - before)

    manifest = publish_snapshot((b for b in table.to_batches(max_chunksize=5000)), table.schema,
                                tmp_path, "m", ["k"],
                                bucket_count=1, memory=4 * MEGABYTE, progress=watch)
    assert manifest.tuple_count == rows and manifest.unique == (distinct > rows)
    assert peak[0] < 4 * MEGABYTE
    relation = open_snapshot(tmp_path)
    seen = []
    for number in range(relation.partition_count):
        codes, read = relation.read_codes(number), relation.read(number, ["k", "v", "s"])
        assert (np.diff(codes) >= 0).all()
        seen.append(read)
    found = pa.Table.from_batches(seen).sort_by("v")
    assert found.equals(table.cast(found.schema))
    assert not list(tmp_path.glob("*/run-*"))
