"""How the buckets of R are shared out among the partitions."""

import json
from contextlib import closing
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from loads import COLUMNS, ON, STREAM, SmallLoad
from semistream.keys import master_keys
from semistream.keys_spark import partition_expression
from semistream.master.snapshot import SnapshotRelation
from semistream.partitioning import DEALT, Axis, Placement, share_out
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import EVEN, RolePlan
from semistream.sketches import SampledSketch
from semistream.streaming.output_size import estimate_output
from semistream.streaming.sources.file_reader import FileReader


@pytest.fixture
def load(tmp_path):
    load = SmallLoad(tmp_path / "home", "sqlite://")
    load.publish()
    return load


def plan_of(load, partitions):
    version = load.paths.snapshots / "part" / "code" / "v000001"
    return RolePlan(
        "elevatorjoin",
        100_000,
        "inner",
        {"disk_tuples": 64},
        ON,
        partitions,
        str(version),
        {c: c for c in COLUMNS},
    )


def sample(load, rows, hottest=0.0):
    """Some of it is one key's; a hundredth has none."""
    sales = load.sales(rows).to_pylist()
    for row, luck in zip(sales, load.random.random(rows), strict=True):
        row["sku"] = "c7" if luck < hottest else None if luck > 0.99 else row["sku"]
    return pa.RecordBatch.from_pylist(sales, STREAM)


def tuples_of(plan, tuples):
    with_key = tuples.filter(tuples["sku"].is_valid())
    return np.bincount(plan.placement((STREAM,)).partitions(with_key), minlength=plan.partitions)


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_partitions_of_a_skewed_stream_get_as_many_tuples(load, partitions):
    initial, seen, later = plan_of(load, partitions), sample(load, 20_000), sample(load, 20_000)
    plan = initial.balance(seen)
    assert (
        tuples_of(plan, seen).max()
        <= EVEN * len(seen) / partitions
        < tuples_of(initial, seen).max()
    )
    assert tuples_of(plan, later).max() <= EVEN**2 * len(seen) / partitions
    needed = [plan.relation(p) for p in range(partitions)]
    dealt = [b for b, owner in enumerate(plan.owners) if owner == DEALT]
    # the most frequent keys have a quarter and a tenth of the stream
    assert len(dealt) == (2 if partitions == 8 else 0)
    with closing(SnapshotRelation(plan.snapshot, buckets=dealt)) as everyones:
        assert (
            sum(r.tuple_count for r in needed)
            == load.parts + (partitions - 1) * everyones.tuple_count
        )
    slowest, tuples = plan.slowest(seen)
    assert tuples["sku"].null_count == 0
    assert needed[slowest].tuple_count > 0.9 * load.parts / partitions
    for r in needed:
        r.close()


def test_of_a_very_frequent_key_all_partitions_get_as_many_tuples(load):
    seen = sample(load, 20_000, hottest=0.5)
    plan = plan_of(load, 4).balance(seen)
    placement, hot = plan.placement((STREAM,)), seen.filter(pc.equal(seen["sku"], "c7"))
    assert plan.owners[placement.axes[0].buckets(hot)[0]] == DEALT
    shares = np.bincount(placement.partitions(hot), minlength=4) / len(hot)
    assert shares.min() > 0.9 / 4
    assert tuples_of(plan, seen).max() <= EVEN**2 * len(seen) / 4


@pytest.mark.parametrize("columns", [["number"], ["text"], ["number", "text"]])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_a_tuple_goes_to_the_owner_of_its_bucket(columns, count):
    numbers = [None if i % 50 == 0 else i for i in range(1000)]
    tuples = pa.record_batch({"number": numbers, "text": pa.array(map(str, range(1000)))})
    owners = np.random.default_rng(1).integers(DEALT, 3, count)
    axis = Axis(master_keys(tuples.schema, columns), owners, 3)
    of = axis.buckets(tuples)
    found = Placement(tuples.schema, (axis,), 3).partitions(tuples)
    assert (of < 0).sum() == (20 if "number" in columns else 0) and of.max() == count - 1
    owned = (of >= 0) & (owners[of] != DEALT)
    assert found[owned].tolist() == owners[of[owned]].tolist() and set(found[~owned]) <= {0, 1, 2}


def test_a_bucket_is_not_dealt_out_for_little():
    tuples = np.full(4, 100)
    tuples[0] = 130  # of 430, 5% more than a quarter; but a quarter of R more for all
    assert sorted(share_out(tuples, 4)) == [0, 1, 2, 3]
    tuples[0] = 500
    assert share_out(tuples, 4).tolist().count(DEALT) == 1


def test_dealt_out_tuples_go_the_same_way_each_time(load):
    seen = sample(load, 1000, hottest=0.5)
    placement = plan_of(load, 4).balance(seen).placement((STREAM,))
    whole = placement.partitions(seen)
    pieces = [
        placement.partitions(part, i + np.arange(part.num_rows))
        for i in range(0, 1000, 300)
        for part in [seen.slice(i, 300)]
    ]
    assert whole.tolist() == np.concatenate(pieces).tolist()


def test_of_few_tuples_all_partitions_get_as_much_of_r(load):
    plan = plan_of(load, 4).balance(sample(load, 1))
    assert np.ptp(np.bincount(plan.owners)) <= 1


def test_what_is_about_even_stays_as_it_is(load):
    initial = plan_of(load, 4)
    assert initial.balance(sample(load, 0)) == initial
    assert plan_of(load, 1).balance(sample(load, 10)).owners == ()
    former = initial.balance(sample(load, 20_000))
    seen = sample(load, 20_000)
    assert initial.balance(seen).owners != former.owners == initial.balance(seen, former).owners
    hotter = sample(load, 20_000, hottest=0.4)
    assert initial.balance(hotter, former).owners == initial.balance(hotter).owners
    assert (
        initial.balance(seen, plan_of(load, 3).balance(seen)).owners == initial.balance(seen).owners
    )
    assert former.initial() == initial and not former.open_questions and initial.open_questions
    plan = Plan((former, initial))
    assert Plan.from_json(json.loads(json.dumps(asdict(plan))), RolePlan) == plan


def test_a_history_counts_beside_a_small_sample_and_gives_way_to_a_large_one(load):
    initial = plan_of(load, 4)

    def sketch(tuples):
        codes, valid = initial.keys(STREAM).stream_codes(tuples)
        sampled = SampledSketch()
        sampled.add(codes[valid])
        return sampled.sketch

    def slowest(plan, tuples):
        found = tuples_of(plan, tuples)
        return found.max() / found.mean()

    known, run = sketch(sample(load, 20_000)), sample(load, 20_000)
    few = [sample(load, 100) for _ in range(8)]
    with_it, without = (
        [slowest(initial.balance(tuples, None, history), run) for tuples in few]
        for history in (known, None)
    )
    assert max(with_it) < 1.1 < np.mean(without)
    seen, other = sample(load, 50_000, hottest=0.4), sample(load, 20_000, hottest=0.4)
    assert slowest(initial.balance(seen, None, known), other) < 1.1
    nothing = SampledSketch().sketch
    assert initial.balance(few[0], None, nothing) == initial.balance(few[0])


@pytest.mark.parametrize("balanced", [False, True])
def test_spark_places_tuples_as_tasks_do(spark, load, balanced):
    tuples = sample(load, 2000, hottest=0.5)
    plan = plan_of(load, 3).balance(tuples) if balanced else plan_of(load, 3)
    placement = plan.placement((STREAM,))
    df = spark.createDataFrame(pa.Table.from_batches([tuples]))

    def placed(df):
        rows = (
            df.withColumn("partition", partition_expression(placement))
            .orderBy("id")
            .toArrow()
            .combine_chunks()
        )
        assert rows.drop_columns(["partition"]).to_batches()[0] == tuples
        return rows["partition"].to_numpy()

    found = placed(df)
    (axis,) = placement.axes
    dealt = np.append(axis.owners, DEALT)[axis.buckets(tuples)] == DEALT
    assert found[~dealt].tolist() == placement.partitions(tuples)[~dealt].tolist()
    shares = np.bincount(found[dealt], minlength=3) / dealt.sum()
    assert shares.min() > 0.25 if balanced else dealt.sum() == tuples["sku"].null_count
    # a task that is tried again gets what it got
    assert placed(df.repartition(5)).tolist() == found.tolist()


def test_the_output_of_joins_one_after_the_other_is_estimated(load):
    plan, tuples = plan_of(load, 1), sample(load, 5000)
    one, _ = estimate_output([plan], tuples, 100_000)
    two, _ = estimate_output([plan, plan], tuples, 100_000)
    assert 0 < one < 100_000
    assert two == pytest.approx(one**2 / 100_000, rel=1e-3)


def test_a_load_shares_out_its_first_tuples_and_keeps_to_it(spark, tmp_path):
    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.publish()
    for rows in (6000, 3000):
        load.add_file(rows)
    load.run(spark)
    progress = load.checkpoint / "progress.json"
    owners = json.loads(progress.read_text())["values"]["plan"]["joins"][0]["owners"]
    load.add_file(2000)
    load.run(spark)
    load.check()
    assert json.loads(progress.read_text())["values"]["plan"]["joins"][0]["owners"] == owners
    read = dict(load.query("SELECT partition, sum(rows_read) FROM load_batches GROUP BY partition"))
    assert max(read.values()) <= 1.1 * min(read.values())
    modulo = (
        plan_of(load, 2)
        .placement((STREAM,))
        .partitions(pa.RecordBatch.from_pylist(load.stream, STREAM))
    )
    apart = np.bincount(modulo)
    assert apart.max() > 1.2 * apart.min()


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_load_with_a_very_frequent_key(spark, tmp_path, monkeypatch, exchanged):
    monkeypatch.setattr(FileReader, "replicated", lambda *_: not exchanged)
    load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.publish()
    tuples = pa.Table.from_batches([sample(load, 3000, hottest=0.6)])
    load.stream = tuples.to_pylist()
    pq.write_table(tuples, load.stream_directory / "part-00000.parquet")
    load.run(spark, partitions=4)
    load.check()
    read = [
        rows for (rows,) in load.query("SELECT sum(rows_read) FROM load_batches GROUP BY partition")
    ]
    assert len(read) == 4 and max(read) <= 1.15 * min(read)
