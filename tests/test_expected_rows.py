"""How many rows a load has to have, by the sketches of its keys."""

from __future__ import annotations

import shutil

import pytest

import sink_loads
from semistream.quality.verification import VerificationResult
from sink_loads import BATCHES, Loader, alter, change, check, failed, publish, rows_of


@pytest.fixture
def sketched(tmp_path, monkeypatch):
    """Loaders that keep sketches, of larger batches than others: most of an estimate's bound is
    its sample's, which is smaller for more."""
    monkeypatch.setattr(sink_loads, "PER_BATCH", 4200)

    def load(many: bool = False, left: bool = False, batches: int = BATCHES, drain: bool = True):
        loader = Loader(f"sqlite:///{tmp_path / 'warehouse.db'}", tmp_path, many, left)
        loader.sketched, loader.version = True, publish(loader, tmp_path / "snapshots")
        loader.load(range(batches), drain)
        return loader

    return load


def expected(result: VerificationResult) -> list[dict]:
    """What the check of the expected rows has found; it was made."""
    return rows_of(result, "expected_rows")


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"many": True}, {"left": True}])
def test_keys_tell_how_many_rows_are_to_be_loaded(sketched, form, tmp_path):
    """A loss of 8 of 10 rows is seen, one of a few is not: the bound is wider."""
    loader, settings = sketched(**form), {"snapshots": tmp_path / "snapshots", "sample": 0}
    rows = 10_920 * (2 if "many" in form else 1)  # 13 of 15 have a sku, 14 of 15 of these a product
    result = check(loader, **settings)
    assert result.success and expected(result) == [] and not result.notes
    alter(loader, "DELETE FROM fact_sales WHERE order_id < 120")
    assert failed(check(loader, **settings)) == {"fact_rows", "same_rows", "none_missing"}
    alter(loader, "DELETE FROM fact_sales WHERE order_id > 2520")
    result = check(loader, **settings)
    assert "expected_rows" in failed(result)
    [found] = expected(result)
    assert found["rows_loaded"] < found["at_least"] == found["estimate"] - found["bound"] < rows
    assert abs(found["estimate"] - rows) <= found["bound"] < 0.7 * rows
    assert found["at_most"] == found["estimate"] + found["bound"]


def test_more_rows_than_the_keys_tell(sketched, tmp_path):
    loader = sketched()
    with loader.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE copy AS SELECT * FROM fact_sales")
        change(connection, "UPDATE copy SET load_row = load_row + 10000")
        change(connection, "INSERT INTO fact_sales SELECT * FROM copy")
    result = check(loader, snapshots=tmp_path / "snapshots", sample=0)
    [found] = expected(result)
    assert found["rows_loaded"] == 2 * 10_920 > found["at_most"]


@pytest.mark.slow
def test_rows_are_expected_of_what_was_read_since_nothing_waited(sketched, tmp_path):
    """What waits at the end may be missing, also many times; and what waited when the last
    verification ended was read before, and is loaded behind it."""
    loader = sketched(many=True, batches=2, drain=False)
    assert sum(map(len, loader.waiting.values())) == 600
    settings = {"snapshots": tmp_path / "snapshots", "sample": 0}
    assert check(loader, **settings).success
    loader.load(range(2, 3))
    assert check(loader, since_last=True, **settings).success
    alter(loader, "DELETE FROM fact_sales WHERE order_id < 12000")
    [found] = expected(check(loader, **settings))
    assert abs(found["estimate"] - 2 * 10_920) <= found["bound"]


@pytest.mark.slow
def test_rows_are_expected_version_by_version_where_all_loads_kept_a_sketch(sketched, tmp_path):
    loader, settings = sketched(batches=1), {"snapshots": tmp_path / "snapshots", "sample": 0}
    first, loader.version = loader.version, publish(loader, tmp_path / "snapshots")
    loader.load(range(1, 2))
    alter(loader, "DELETE FROM fact_sales")
    result = check(loader, **settings)
    assert [r["version"] for r in expected(result)] == [first, loader.version]
    loader.sketched = False
    loader.load(range(2, 3))
    result = check(loader, **settings)
    assert [r["version"] for r in expected(result)] == [first]
    assert f"Some loads with version {loader.version}" in result.notes[0]
    file = max(
        (tmp_path / "snapshots" / "sales" / "sku" / first).glob("*.codes"),
        key=lambda path: path.stat().st_size,
    )
    file.write_bytes(bytes(file.stat().st_size))
    result = check(loader, **settings)
    assert "is damaged" in result.notes[1] and str(file) in result.notes[1]
    shutil.rmtree(tmp_path / "snapshots" / "sales" / "sku" / first)
    result = check(loader, **settings)
    assert "expected_rows" not in {r.name for r in result.results}
    assert f"Version {first} of the master data is no longer kept" in result.notes[1]
