"""`algorithm: auto`, and what `semistream tune` recommends."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from loads import STREAM, SmallLoad
from semistream.cli import main
from semistream.errors import ConfigError, NotEnoughMemory
from semistream.joins.registry import REGISTRY
from semistream.master.published import current_version
from semistream.settings import JoinSettings
from semistream.sizing import known_costs
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.star_plan import choose_joins
from semistream.streaming.progress import Progress

AUTO = {"algorithm": "auto", "parameters": {}}


@pytest.fixture
def load(tmp_path) -> SmallLoad:
    load = SmallLoad(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.publish()
    load.add_file(3000)
    return load


def test_auto_chooses_by_the_first_batch_and_says_why(spark, load):
    load.add_file(2000)
    summary = load.run(spark, **AUTO)
    load.check()
    assert summary.algorithm in REGISTRY
    assert summary.reason.startswith("auto, by 3,000 stream tuples")
    told = load.query("SELECT DISTINCT algorithm, reason FROM load_batches")
    assert told == [(summary.algorithm, summary.reason)]
    plan = Progress.read(load.paths.checkpoints / "sales", RolePlan).plan.joins[0]
    assert plan.auto and plan.algorithm == summary.algorithm
    assert plan.parameters == summary.parameters


def test_auto_looks_again_when_nothing_waits_and_for_a_new_master(spark, load):
    first = load.run(spark, **AUTO)
    load.publish("new part")
    load.add_file(1000)
    again = load.run(spark, **AUTO)
    assert again.reason.startswith("auto, by 1,000")
    assert again.master_version > first.master_version
    load.add_file(500)
    named = load.run(spark, algorithm="meshjoin", reason="for a trial")
    assert load.query("SELECT DISTINCT algorithm, reason FROM load_batches WHERE batch = 2") == [
        ("meshjoin", "for a trial")
    ]
    assert named.waiting == 0
    load.check_ledger()


def test_auto_is_chosen_in_a_moment(spark, load):
    load.run(spark, **AUTO)
    plan = Progress.read(load.paths.checkpoints / "sales", RolePlan).plan.initial()
    sample = pa.RecordBatch.from_pylist(load.stream, STREAM)
    started = time.thread_time()
    assert choose_joins(plan, sample, known_costs()).algorithm in REGISTRY
    assert time.thread_time() - started < 3


@pytest.mark.parametrize(
    "values",
    [{"parameters": {"disk_tuples": 128}}, {"algorithm": "AUTO", "parameters": ["disk_tuples=1"]}],
)
def test_auto_takes_no_parameters(values):
    with pytest.raises(ConfigError, match="auto, the default: it chooses them"):
        JoinSettings.load({"algorithm": "auto"} | values)


def test_the_memory_that_a_refusal_names_is_enough_for_the_app(spark, load):
    with pytest.raises(NotEnoughMemory, match="'memory' must be at least") as e:
        load.run(None, **AUTO, memory="1KB")
    assert e.value.value == 1000  # M of both partitions
    summary = load.run(spark, **AUTO, memory=e.value.least)
    load.check()
    assert summary.algorithm in REGISTRY


@pytest.mark.parametrize("algorithm", ["auto", "ssbj", "elevatorjoin"])
@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_the_memory_that_a_refusal_names_is_enough_in_all_partitions(load, algorithm, partitions):
    sample = load.sales(3000).combine_chunks().to_batches()[0]
    snapshots = load.paths.snapshots / "part" / "code"

    def plan(memory):
        return RolePlan(
            algorithm,
            memory // partitions,
            "inner",
            {},
            (("sku", "code"),),
            partitions,
            str(snapshots / current_version(snapshots)),
            auto=algorithm == "auto",
        )

    for few in (8 * partitions, 300 * partitions):
        with pytest.raises(NotEnoughMemory) as e:
            plan(few).choose(sample.slice(0, 0), known_costs())
        assert e.value.value == few
        chosen = plan(e.value.least).choose(sample, known_costs())
        of = chosen.placement((sample.schema,)).partitions(sample)
        for p in range(partitions):
            join = chosen.open(sample.schema, p)
            out = [*join.process(sample.filter(pa.array(of == p))), *join.drain()]
            assert sum(o.joined.num_rows + o.unmatched.num_rows for o in out) == (of == p).sum()
            join.master.close()


@pytest.fixture
def files(tmp_path):
    """A skewed stream and its master data as CSV; (stream, master)."""
    random = np.random.default_rng(3)
    csv.write_csv(
        pa.table({"id": np.arange(30_000), "sku": random.zipf(1.4, 30_000) % 20_000}),
        tmp_path / "sales.csv",
    )
    csv.write_csv(
        pa.table({"code": np.arange(20_000), "name": [f"part number {i}" for i in range(20_000)]}),
        tmp_path / "parts.csv",
    )
    return tmp_path / "sales.csv", tmp_path / "parts.csv"


def test_auto_for_files(files, tmp_path, capsys):
    stream, master = files
    out = tmp_path / "stats.json"
    assert (
        main(
            [
                "join",
                "--algorithm",
                "auto",
                "--stream",
                str(stream),
                "--master",
                str(master),
                "--on",
                "sku=code",
                "--memory",
                "400KB",
                "--out",
                str(tmp_path / "out.parquet"),
                "--stats",
                str(out),
            ]
        )
        == 0
    )
    stats = json.loads(out.read_text())
    assert stats["algorithm"] in REGISTRY and stats["matched"] == 30_000
    assert stats["memory_peak"] <= 400_000
    assert stats["reason"].startswith(f"{stats['algorithm']}: ")
    told = capsys.readouterr().out
    assert f"auto: {stats['algorithm']}" in told
    # the prediction is of this run, which has about so many tuples
    tuples = int(re.search(r"run of about ([\d,]+) tuples", told)[1].replace(",", ""))
    assert 0.8 * stats["rows_read"] < tuples < 1.25 * stats["rows_read"]
    # beside the rate inside the join stands the one that a user sees
    assert f"end to end         {stats['rate']:,.0f}" in re.sub(" {2,}", " " * 9, told)
    assert stats["rate"] == pytest.approx(stats["rows_read"] / stats["seconds"])
    assert stats["rate"] < stats["service_rate"]
    # those of the process, of which the join has only a part
    whole, start = map(
        float, re.search(r"seconds +([\d.]+) +in all, ([\d.]+) to start", told).groups()
    )
    assert whole - start == pytest.approx(stats["seconds"], abs=0.2) and start > 0


def tune(capsys, *arguments: str) -> dict:
    assert main(["tune", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tune_recommends_for_each_budget(files, capsys):
    stream, master = files
    told = tune(
        capsys,
        "--stream",
        stream,
        "--master",
        master,
        "--on",
        "sku=code",
        "--memory",
        "200KB,800KB",
    )
    assert [r["memory"] for r in told["recommended"]] == [200_000, 800_000]
    for best in told["recommended"]:
        mine = [p for p in told["points"] if p["memory"] == best["memory"]]
        assert {p["algorithm"] for p in mine} == set(REGISTRY)
        assert best["rate"] == max(p["predicted_rate"] for p in mine) and not best["measured"]
        assert all(sum(p["predicted_memory"].values()) <= best["memory"] / 2 for p in mine)
    assert told["recommended"][0]["rate"] < told["recommended"][1]["rate"]


@pytest.mark.slow
def test_tune_shows_measured_beside_predicted_and_what_cannot_work(files, capsys):
    stream, master = files
    arguments = [
        "--stream",
        stream,
        "--master",
        master,
        "--on",
        "sku=code",
        "--memory",
        "1KB,400KB",
        "--algorithms",
        "ssbj,hybridjoin",
        "--grid",
        "2",
        "--measure",
    ]
    told = tune(capsys, *arguments)
    small, large = ([p for p in told["points"] if p["memory"] == m] for m in (1000, 400_000))
    assert [p["state"] for p in small] == ["failed"] * 2
    assert all("'memory'" in p["error"] for p in small)
    assert len(large) == 4 and all(p["rate"] > 0 and p["memory_peak"] <= 400_000 for p in large)
    assert sum(p["best"] for p in large) == 2
    assert [r["memory"] for r in told["recommended"]] == [400_000]
    assert told["recommended"][0]["measured"]
    assert main(["tune", *map(str, arguments)]) == 0
    shown = capsys.readouterr().out
    assert "measured" in shown and "M is too small" in shown and "Best: " in shown


def test_tune_says_what_more_operators_would_bring(files, capsys):
    stream, master = files
    arguments = [
        "--stream",
        stream,
        "--master",
        master,
        "--on",
        "sku=code",
        "--memory",
        "400KB,4MB",
        "--algorithms",
        "elevatorjoin,ssbj,sscj",
        "--scale-out",
        "4,1,2",
    ]
    told = tune(capsys, *arguments)["scale_out"]
    assert [(p["memory"], p["operators"]) for p in told] == [
        (m, n) for n in (1, 2, 4) for m in (400_000, 4_000_000)
    ]
    for p in told:
        assert p["memory_each"] == p["memory"] // p["operators"] and p["rate"] > 0
        assert p["algorithm"] in REGISTRY
        assert 0.8 / p["operators"] <= p["share"] <= 1
    one, two, four = (p for p in told if p["memory"] == 400_000)
    assert two["share"] == pytest.approx(0.5, rel=0.05)  # though one key has a third of the stream
    # two int64
    assert one["share"] == 1 and one["shuffled"] == 0
    assert four["shuffled"] == 1.5 * two["shuffled"] == 0.75 * 16
    assert one["master_each"] > 1.5 * two["master_each"] > 2 * four["master_each"]
    assert one["rate"] < two["rate"] < four["rate"]
    assert main(["tune", *map(str, arguments)]) == 0
    assert "M = 4,000,000 bytes, by number of operators" in capsys.readouterr().out
    assert main(["tune", *map(str, arguments[:-1]), "1,100000"]) == 2
    assert "the buckets of the snapshot" in capsys.readouterr().err


def test_tune_for_a_job(load, capsys, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(load.paths.home))
    told = tune(
        capsys,
        load.yaml(),
        "--memory",
        "200KB",
        "--partitions",
        "1",
        "--algorithms",
        "meshjoin,ssbj",
    )
    assert "1 operator, 3,000 master tuples" in told["about"]
    assert told["recommended"][0]["algorithm"] == "ssbj"


@pytest.mark.parametrize("memory", ["100KB", "1MB", "4MB", "64MB"])
def test_tune_when_much_or_all_of_the_master_data_fits(memory, tmp_path, capsys):
    """Few keys, wide tuples, some without a master tuple: every model has an answer."""
    stream = pa.table(
        {
            "id": range(20_000),
            "sku": [f"k{i * i % 700}" for i in range(20_000)],
            "note": ["x" * 90] * 20_000,
        }
    )
    csv.write_csv(stream, tmp_path / "s.csv")
    csv.write_csv(
        pa.table({"sku": [f"k{i}" for i in range(650)], "name": ["y" * 60] * 650}),
        tmp_path / "m.csv",
    )
    told = tune(
        capsys,
        "--stream",
        tmp_path / "s.csv",
        "--master",
        tmp_path / "m.csv",
        "--on",
        "sku",
        "--memory",
        memory,
    )
    assert all(p["predicted_rate"] > 0 for p in told["points"])
    assert len(told["points"]) == len(REGISTRY)


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], "'job'"),
        (["--stream", "s.csv"], "'master'"),
        (["nowhere.yaml"], "'job'"),
        (["tpch", "--memory", "lots"], "'memory"),
        (["tpch", "--grid", "0"], "'grid'"),
    ],
)
def test_tune_says_what_is_missing(arguments, named, capsys):
    assert main(["tune", *arguments]) == 2
    assert named in capsys.readouterr().err
