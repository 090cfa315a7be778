"""Loads of several roles in one pass: what the warehouse then has, restarts, new versions, the
proof."""

import pytest

from semistream import quality
from star_loads import ROLES, star_load

THREE = ("part", "buyer", "seller")


@pytest.fixture
def star(tmp_path, warehouse_url):
    return star_load(tmp_path, warehouse_url)


@pytest.fixture
def sqlite_star(tmp_path):
    return star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}", THREE)


def verify(load, **options):
    load.provision_beside()
    return quality.verify(
        load.places.warehouse_url,
        "sales",
        job=load.job,
        reports_dir=load.places.home / "reports",
        snapshots=load.places.snapshots,
        **options,
    )


@pytest.mark.parametrize("algorithm", ["elevatorjoin", "ssbj", "auto"])
def test_a_load_of_four_roles_is_the_oracles_and_is_proven(spark, star, algorithm):
    parameters = {} if algorithm == "auto" else {"disk_tuples": 64}
    for rows in (1500, 0, 1800):
        star.add_file(rows)
    settings = {"algorithm": algorithm, "parameters": parameters}
    summary = star.run(spark, **settings)
    star.check()
    joined, unmatched = star.expected()
    assert summary["rows_read"] == 3300 and summary["waiting"] == 0
    assert summary["output_rows"] == joined.total() and summary["unmatched"] == unmatched.total()
    assert summary["inputs"].keys() == {*ROLES}
    assert summary["memory_peak"] <= summary["memory_budget"] == 700_000
    star.add_file(700)
    assert star.run(spark, **settings)["rows_read"] == 700
    star.check()
    result = verify(star)
    assert result.success, str(result)
    names = {r.name for r in result.results}
    each = ("surrogate_keys", "enriched_columns", "sample_joined", "unmatched_share")
    assert {f"{role}_{check}" for role in ROLES for check in each} <= names
