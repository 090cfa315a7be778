"""How the buckets of R are shared out among the partitions."""

import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pytest

from loads import COLUMNS, ON, STREAM, SmallLoad
from semistream.streaming.plan import EVEN, Plan


@pytest.fixture
def load(tmp_path):
    load = SmallLoad(tmp_path / "home", "sqlite://")
    load.publish()
    return load


def plan_of(load, partitions):
    version = load.places.snapshots / "part" / "v000001"
    return Plan("elevatorjoin", 100_000, "inner", {}, ON, COLUMNS, partitions, str(version))


def sample(load, rows, hottest=0.0):
    """Some of it is one key's."""
    sales = [row | {"sku": "c7"} if load.random.random() < hottest else row for row in load.sales(rows).to_pylist()]
    return pa.RecordBatch.from_pylist(sales, STREAM)


def tuples_of(plan, tuples):
    with_key = tuples.filter(tuples["sku"].is_valid())
    return np.bincount(plan.placement(STREAM).partitions(with_key), minlength=plan.partitions)


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_partitions_of_a_skewed_stream_get_as_many_tuples(load, partitions):
    asked, seen, later = plan_of(load, partitions), sample(load, 20_000), sample(load, 20_000)
    plan = asked.balance(seen)
    hottest = np.bincount(asked.placement(STREAM).buckets(seen) + 1).max()
    bound = max(len(seen) / partitions, hottest)  # a bucket is not divided
    assert tuples_of(plan, seen).max() <= EVEN * bound < tuples_of(asked, seen).max()
    assert tuples_of(plan, later).max() <= EVEN**2 * bound
    owned = [plan.relation(p) for p in range(partitions)]
    assert sum(r.tuple_count for r in owned) == load.parts and min(r.tuple_count for r in owned) > 0
    slowest, tuples = plan.slowest(seen)
    assert tuples["sku"].null_count == 0 and tuples.num_rows == tuples_of(plan, seen)[slowest]
    assert owned[slowest].tuple_count > 0.9 * load.parts / partitions
    for r in owned:
        r.close()


def test_a_key_more_frequent_than_a_partitions_share_has_it_alone(load):
    seen = sample(load, 20_000, hottest=0.5)
    plan = plan_of(load, 4).balance(seen)
    counts, hot = tuples_of(plan, seen), plan.placement(STREAM).partitions(seen.filter(pa.compute.equal(seen["sku"], "c7")))[0]
    assert plan.owners.count(hot) == 1 and np.delete(counts, hot).max() <= EVEN * np.delete(counts, hot).min()


def test_of_few_tuples_all_partitions_get_as_much_of_r(load):
    plan = plan_of(load, 4).balance(sample(load, 1))
    assert np.ptp(np.bincount(plan.owners)) <= 1


def test_what_is_about_even_stays_as_it_is(load):
    asked = plan_of(load, 4)
    assert asked.balance(sample(load, 0)) == asked and plan_of(load, 1).balance(sample(load, 10)).owners == ()
    former = asked.balance(sample(load, 20_000))
    seen = sample(load, 20_000)
    assert asked.balance(seen).owners != former.owners == asked.balance(seen, former).owners
    hotter = sample(load, 20_000, hottest=0.4)
    assert asked.balance(hotter, former).owners == asked.balance(hotter).owners
    assert asked.balance(seen, plan_of(load, 3).balance(seen)).owners == asked.balance(seen).owners
    assert former.asked() == asked and not former.open_questions and asked.open_questions
    assert Plan.from_json(json.loads(json.dumps(asdict(former)))) == former
    older = asdict(replace(former, owners=()))
    del older["owners"]
    assert Plan.from_json(older) == asked


@pytest.mark.parametrize("balanced", [False, True])
def test_spark_places_tuples_as_tasks_do(spark, load, balanced):
    tuples = sample(load, 500)
    plan = plan_of(load, 3).balance(tuples) if balanced else plan_of(load, 3)
    placement = plan.placement(STREAM)
    df = spark.createDataFrame(pa.Table.from_batches([tuples.filter(tuples["sku"].is_valid())]))
    placed = df.select("sku", placement.expression().alias("partition")).toArrow().combine_chunks()
    back = tuples.filter(tuples["sku"].is_valid())
    assert placed["sku"].to_pylist() == back["sku"].to_pylist()
    assert placed["partition"].to_pylist() == placement.partitions(back).tolist()


def test_a_load_shares_out_its_first_tuples_and_keeps_to_it(spark, tmp_path):
    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.publish()
    for rows in (6000, 3000):
        load.add_file(rows)
    load.run(spark)
    progress = load.settings().directory(load.places) / "progress.json"
    owners = json.loads(progress.read_text())["plan"]["owners"]
    load.add_file(2000)
    load.run(spark)
    load.check()
    assert json.loads(progress.read_text())["plan"]["owners"] == owners
    read = dict(load.query("SELECT partition, sum(rows_read) FROM load_batches GROUP BY partition"))
    assert max(read.values()) <= 1.1 * min(read.values())
    modulo = plan_of(load, 2).placement(STREAM).partitions(pa.RecordBatch.from_pylist(load.stream, STREAM))
    apart = np.bincount(modulo)
    assert apart.max() > 1.2 * apart.min()
