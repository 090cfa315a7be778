"""Facts are compared with the version of the master data that they were loaded with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from semistream.warehouse.schema import masters
from semistream.warehouse.taking_out import Stretch, take_out
from sink_loads import (
    BATCHES,
    ON_SQLITE,
    Loader,
    alter,
    check,
    failed,
    now,
    publish,
    rows_of,
    run_count,
)

RENAMED = "UPDATE dim_sales SET name = 'renamed'"


@pytest.fixture
def snapshots(tmp_path):
    return tmp_path / "snapshots"


def load_with(loader: Loader, snapshots: Path, batches: range, *changes: str) -> str:
    """Load these batches with a new version of the master data, after these changes; gives the
    version."""
    alter(loader, *changes)
    loader.version = publish(loader, snapshots)
    loader.load(batches)
    return loader.version


def test_master_data_changed(loader, snapshots):
    first = load_with(loader, snapshots, range(1))
    changes = (
        f"{RENAMED}, colour = 'red' WHERE sku = 'p00'",
        "INSERT INTO dim_sales (sku, name) VALUES ('x9', 'new')",
    )
    assert first != load_with(loader, snapshots, range(1, 3), *changes)
    result = check(loader, snapshots=snapshots)
    assert result.success and not result.notes, str(result)
    alter(
        loader,
        "UPDATE fact_sales SET name = 'renamed' WHERE order_id = 20",
        "UPDATE fact_sales SET name = 'Product 0' WHERE order_id = 60",
    )
    result = check(loader, snapshots=snapshots, sample=0)
    assert {(r["order_id"], r["in_dimension"]) for r in rows_of(result, "enriched_columns")} == {
        (20, "Product 0 100%: 'new'"),
        (60, "renamed"),
    }, "also those of a version before"
    result = check(loader, snapshots=snapshots)
    assert failed(result) == {"sample_joined", "enriched_columns", "same_rows"}
    assert {
        (r["order_id"], r["master_version"], r["joined_again"])
        for r in rows_of(result, "sample_joined")
    } == {(20, first, "Product 0 100%: 'new'"), (60, loader.version, "renamed")}
    shutil.rmtree(snapshots / "sales" / "sku" / first)
    result = check(loader, snapshots=snapshots)
    assert [r["order_id"] for r in rows_of(result, "sample_joined")] == [60]
    assert "no longer kept" in result.notes[0] and result.notes[0] in result.report.read_text()


@pytest.mark.parametrize("verified", ["as a whole", "with what was taken out since", ""])
@ON_SQLITE
def test_a_version_that_is_gone_is_said_to_be(loader, snapshots, verified):
    """Its facts were compared while it was there, or the verdict says that they were not."""
    first = load_with(loader, snapshots, range(1))
    if verified == "as a whole":
        assert check(loader, snapshots=snapshots).success
    load_with(loader, snapshots, range(1, 2), RENAMED)
    if verified == "with what was taken out since":
        assert check(loader, snapshots=snapshots).success
        with loader.engine.begin() as connection:
            take_out(connection, "sales", [Stretch((0, 1), (1, 1))], None)
        (loader.directory / "orders-1.parquet").unlink()
        loader.load(range(2, 3))
    shutil.rmtree(snapshots / "sales" / "sku" / first)
    result = check(loader, snapshots=snapshots)
    assert result.success
    what = (
        "52 facts and 8 unmatched tuples were loaded with a version of the master data that is no "
        f"longer kept ({first})"
    )
    if verified:
        assert not result.unseen and any(
            n.startswith(f"{what}: they were compared") for n in result.notes
        )
    else:
        assert result.unseen == [f"{what}: they were not compared with it"]
        assert (
            result.unseen[0] in result.proof
            and "as far as can be seen" in result.report.read_text()
        )
    again = check(loader, snapshots=snapshots)
    assert again.unseen == result.unseen, "to have passed over it once is not to have seen it"


@ON_SQLITE
def test_a_version_that_is_damaged_is_said_to_be(loader, snapshots):
    first = load_with(loader, snapshots, range(1))
    load_with(loader, snapshots, range(1, 2), RENAMED)
    for file in (snapshots / "sales" / "sku" / first).glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:200])
    alter(loader, "UPDATE fact_sales SET quantity = 77 WHERE order_id = 20")
    result = check(loader, snapshots=snapshots)
    assert failed(result) == {"same_rows"}
    assert f"facts of version {first} of the master data were not all compared" in result.unseen[0]
    assert "Not all of these loads could be joined again" in result.report.read_text()
    assert any("cannot be read" in note for note in result.notes)


def provision_again(loader: Loader, changes: int) -> None:
    """As provisioning changes a dimension, which is not yet published: every name, and colours
    where there was none."""
    row = {
        "table_name": "dim_sales",
        "arrow_schema": "",
        "business_key": "[]",
        "rows": 1,
        "provisioned_at": now(),
    }
    with loader.engine.begin() as connection:
        connection.execute(masters.delete())
        connection.execute(masters.insert().values(name="sales", changes=changes, **row))
        connection.execute(
            loader.dimension.update().values(
                name=f"name {changes}", colour="red" if changes > 1 else None
            )
        )


@pytest.fixture
def provisioned(loader, snapshots):
    """A load with the version that is published of a provisioned dimension."""
    provision_again(loader, 1)
    loader.version = publish(loader, snapshots, 1)
    loader.load(range(BATCHES))
    return loader


def test_master_data_changed_and_not_yet_published(provisioned, snapshots):
    """The facts are held against the version that they were loaded with."""
    assert not check(provisioned, snapshots=snapshots).notes
    provision_again(provisioned, 2)
    result = check(provisioned, snapshots=snapshots)
    assert result.success and not result.notes, str(result)
    alter(provisioned, "UPDATE fact_sales SET name = 'name 2' WHERE order_id = 20")
    result = check(provisioned, snapshots=snapshots)
    assert failed(result) == {"sample_joined", "enriched_columns", "same_rows"}
    assert [(r["order_id"], r["joined_again"]) for r in rows_of(result, "sample_joined")] == [
        (20, "name 1")
    ]
    publish(provisioned, snapshots, 2)
    assert rows_of(check(provisioned, snapshots=snapshots), "sample_joined") == rows_of(
        result, "sample_joined"
    )


def test_master_data_changed_while_it_was_verified(provisioned, snapshots, monkeypatch):
    """What is found then is looked at again, and reported once."""
    from semistream.quality import verification

    original, found = verification.run_checkpoint, []

    def meanwhile(*args):
        if not found:
            provision_again(provisioned, 2)
        found.append(original(*args))
        return found[-1]

    monkeypatch.setattr(verification, "run_checkpoint", meanwhile)
    result = check(provisioned, snapshots=snapshots)
    assert [success for success, _, _ in found] == [False, True] and result.success
    assert run_count(provisioned) == 1 and result.index.read_text().count("<a href") == 1
    assert list((provisioned.reports / "validations").rglob("*.html")) == [result.report]
