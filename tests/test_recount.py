"""Sources that are read again for the proof."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from semistream.job import StreamSpec
from sink_loads import BATCHES, ON_SQLITE, check


def test_source_gone(loader):
    loader.load(range(BATCHES))
    (loader.directory / "orders-1.parquet").unlink()
    result = check(loader)
    assert result.success and len(result.results) == 19
    assert "orders-1.parquet is gone" in result.notes[0]
    assert "not counted again" in result.report.read_text()


@pytest.mark.parametrize("form", ["parquet", "csv"])
@ON_SQLITE
def test_source_without_its_id(loader, form):
    loader.load(range(BATCHES))
    file = loader.directory / "orders-1.parquet"
    if form == "parquet":
        pq.write_table(pq.read_table(file).drop_columns(["order_id"]), file)
    else:
        loader.read_from(1, file, "csv")
        file.write_text("sku,quantity\np01,1\n")
    result = check(loader)
    assert result.success and f"{file} has no column order_id" in result.notes[0]


SOURCES = {
    "csv": ('id,name\n1,a\n2,"b,\nb"\nthree,c\n4\n5,d\n', {}, 5, [1, 2, 5]),
    "csv without header": ("1;a\n2;b\n", {"header": "false", "sep": ";"}, 2, [1, 2]),
    "json": ('{"id": 1}\n\n{"id": 2\n{"name": "x"}\n{"id": 4}\n', {}, 4, [1, 4]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_text_sources(name, tmp_path):
    from semistream.quality.recount import ids_of_file, with_stream_id

    text, options, rows, ids = SOURCES[name]
    kind, file = name.split()[0], tmp_path / "part 1.txt"
    file.write_text(text)
    spec = StreamSpec(
        format=kind,
        options=options,
        columns=None if "id,name" in text else "id BIGINT, name STRING",
        id=("id",),
    )
    pieces = list(ids_of_file(file, spec, None))
    assert sum(n for n, _ in pieces) == rows
    schema = pa.schema(
        [("quality_batch", pa.int64()), ("id", pa.int64()), ("quality_id", pa.string())]
    )
    found = pa.concat_tables(with_stream_id(7, b, 1, schema) for _, b in pieces)
    assert found.to_pydict() == {
        "quality_batch": [7] * len(ids),
        "id": ids,
        "quality_id": [str(i) for i in ids],
    }


def test_options_of_a_file_hold_when_a_source_is_counted_again(tmp_path):
    from semistream.quality.recount import ids_of_file

    (options := tmp_path / "options.yaml").write_text('{header: "false", sep: ;}')
    options.chmod(0o600)
    (file := tmp_path / "part.txt").write_text("1;a\n2;b\n")
    spec = StreamSpec(
        format="csv", options_file=str(options), columns="id BIGINT, name STRING", id=("id",)
    )
    pieces = list(ids_of_file(file, spec, None))
    assert pa.concat_batches([b for _, b in pieces])["id"].to_pylist() == ["1", "2"]


def test_numbered_sources(warehouse):
    from semistream.streaming.sources.contract import CannotRecount, Part
    from semistream.streaming.sources.registry import find_source

    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("order_id", sa.BigInteger)
    outbox = sa.Table("outbox", sa.MetaData(), *columns)
    outbox.create(warehouse)
    with warehouse.begin() as connection:
        connection.execute(outbox.insert(), [{"id": i, "order_id": 100 + i} for i in range(1, 10)])
    part = Part({"id": 3}, {"id": 7})
    source = find_source(StreamSpec(format="outbox", options={"table": "outbox"}, id=("order_id",)))
    (split,) = source.splits(part)
    assert [
        (n, b.to_pydict()) for n, b in source.recount(split, warehouse).read(("order_id",))
    ] == [(4, {"order_id": [104, 105, 106, 107]})]
    source = find_source(StreamSpec(format="zipf", id=("id",)))
    (split,) = source.splits(Part(None, part.end))
    assert [
        (n, b.column("id").to_pylist()) for n, b in source.recount(split, warehouse).read(("id",))
    ] == [(7, [1, 2, 3, 4, 5, 6, 7])]
    with pytest.raises(CannotRecount, match="kafka"):
        find_source(StreamSpec(format="kafka")).splits(part)
