"""The app of two streams, in Spark."""

import numpy as np
import pytest

from semistream.errors import ConfigError
from semistream.quality import verify
from stream_pairs import Pair


@pytest.fixture
def pair(tmp_path, warehouse_url):
    return Pair(tmp_path / "home", warehouse_url)


def sqlite(tmp_path, join_type="inner"):
    return Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", join_type)


def test_tuples_meet_across_batches_and_runs(spark, pair):
    for _ in range(3):
        pair.add(400, 300)
    summary = pair.run(spark)
    assert summary["rows_read"] == 2100 and summary["waiting"] and sum(
        summary["sides"].values()) == summary["waiting"]
    pair.check(ended=False)
    pair.add(0, 500)  # only one side has more
    pair.add(300)
    pair.run(spark, end=True)
    pair.check()


@pytest.mark.parametrize("join_type", ["left", "right", "full"])
def test_outer_rows_come_when_the_streams_have_ended(spark, tmp_path, join_type):
    pair = sqlite(tmp_path, join_type)
    for _ in range(2):
        pair.add(300, 300)
    pair.run(spark)
    assert not [row for row in pair.unmatched() if row[1] == "no_partner"]
    pair.run(spark, end=True)
    pair.check()
    pair.add(1)
    with pytest.raises(ConfigError, match="'end' was given with batch"):
        pair.run(spark)


def test_what_does_not_fit_waits_on_disk(spark, tmp_path):
    pair = sqlite(tmp_path)
    for _ in range(4):
        pair.add(3000, 2000)
    pair.run(spark, memory="400KB", algorithm="xjoin", end=True)
    peak = pair.query("SELECT max(memory_peak), min(memory_budget) FROM load_batches")[0]
    assert peak[0] <= peak[1]
    pair.check()


def test_promises_let_tuples_go(spark, tmp_path):
    """Orders are unique, their lines clustered: what is complete is not held."""
    pair = sqlite(tmp_path, "full")
    pair.change(left={"unique": True}, right={"clustered": True})
    for first in (0, 300, 600):
        pair.put("left", pair.tuples("left", 300, np.arange(first, first + 300)))
        pair.put("right", pair.tuples("right", 600, np.repeat(np.arange(first, first + 300), 2)))
    summary = pair.run(spark)
    newest = [t for t in pair.rows["left"][600:] if t["order_no"] is not None]
    assert summary["sides"] == {"left": len(newest), "right": 0}
    pair.run(spark, end=True)
    pair.check()


def test_a_load_is_proven(spark, pair, tmp_path):
    """What is complete is proven, while tuples are held and behind the end; what was taken away or
    changed is found."""
    pair.change(left={"unique": True})
    for first in (0, 200):
        pair.put("left", pair.tuples("left", 200, np.arange(first, first + 200)))
        pair.add(right=300)
    pair.run(spark)
    assert_proven(pair, tmp_path)
    pair.run(spark, end=True)
    pair.check()
    assert_proven(pair, tmp_path)
    ids = pair.query("SELECT min(id), max(line) FROM fact_orders")[0]
    for change, found in (
            (f"DELETE FROM fact_orders WHERE id = {ids[0]}", "left_none_missing"),
            (f"UPDATE fact_orders SET right_order_no = 'o0' WHERE line = {ids[1]}", "equal_keys"),
            ("DELETE FROM unmatched WHERE side = 'right' AND reason = 'no_partner'",
             "right_none_missing")):
        pair.execute(change)
        assert found in {check.name for check in prove(pair, tmp_path).failed}


def prove(pair, tmp_path):
    return verify(pair.places.warehouse_url, "orders", reports_dir=tmp_path / "reports")


def assert_proven(pair, tmp_path):
    result = prove(pair, tmp_path)
    assert result.success, result
    names = {check.name for check in result.results}
    assert {"side_arithmetic", "left_none_missing", "right_sample_pairs", "no_pair_twice",
            "right_source_rows", "left_source_files"} <= names
