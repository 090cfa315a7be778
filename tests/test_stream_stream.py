"""The app of two streams, in Spark."""

import pytest

from semistream.errors import ConfigError
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
    pair.run(spark, memory="400KB", end=True)
    peak = pair.query("SELECT max(memory_peak), min(memory_budget) FROM load_batches")[0]
    assert peak[0] <= peak[1]
    pair.check()
