"""Sizes that a user left open: found in one place, by the cost models, and kept."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest

from faults import crash_at
from loads import COLUMNS, ON, STREAM, SmallLoad
from semistream.cli import main
from semistream.cost_models import MODELS, TYPICAL
from semistream.cost_models.costs import PHASES
from semistream.errors import NotEnoughMemory
from semistream.joins import REGISTRY
from semistream.joins.spec import join_spec
from semistream.master.memory import MemoryRelation
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import describe, known_costs, open_join, opening, tune
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.progress import Progress
from semistream.workloads.zipf import ZipfKeys

TUPLES, PAGE = 20_000, 64
SAMPLE = pa.RecordBatch.from_pydict(
    {"id": range(5000), "k": ZipfKeys(TUPLES, 1.0, seed=4, scattered=True).draw(0, 5000)}
)
MEMORIES = [1_000, 10_000, 50_000, 200_000, 1_000_000, 10_000_000]
WITH_OPEN_SIZES = [
    a
    for a, e in REGISTRY.items()
    if any(e.parameters.model_fields[n].default == 0 for n in MODELS[a].sizes)
]


@pytest.fixture(scope="module")
def relation(tmp_path_factory):
    root = tmp_path_factory.mktemp("snapshots")
    table = pa.table(
        {"k": np.arange(1, TUPLES + 1), "v": np.arange(TUPLES), "w": np.arange(TUPLES) / 2}
    )
    publish_snapshot(
        table.to_batches(), table.schema, root, "r", ["k"], bucket_count=4, page_tuples=PAGE
    )
    with closing(open_snapshot(root)) as relation:
        yield relation


def on_a_disk(seconds):
    """Typical costs, but that each read takes so long; and iterations themselves are free."""
    phases = {
        p: replace(
            getattr(TYPICAL, p), read_partition=seconds, payload=0.0, iteration=0.0, probe=0.0
        )
        for p in PHASES
    }
    return replace(TYPICAL, **phases, detection=0.0)


QUICK, SLOW = on_a_disk(1e-7), on_a_disk(5e-2)


def opened(relation, algorithm, memory, parameters=None, **more):
    return open_join(
        algorithm,
        memory=memory,
        stream=SAMPLE.schema,
        master=relation,
        on=[("k", "k")],
        parameters=parameters,
        **more,
    )


def sizes(join):
    return {n: getattr(join.parameters, n) for n in MODELS[join.spec.algorithm].sizes}


def test_every_algorithm_leaves_its_disk_buffer_open():
    assert list(REGISTRY) == WITH_OPEN_SIZES


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("algorithm", WITH_OPEN_SIZES)
def test_what_was_open_is_filled(relation, algorithm, memory):
    try:
        join = opened(relation, algorithm, memory, sample=SAMPLE)
    except NotEnoughMemory as e:
        assert memory < 500_000
        join = opened(relation, algorithm, e.least, sample=SAMPLE)
    assert all(sizes(join).values()) and join.arena.used <= join.spec.memory


@pytest.mark.parametrize("algorithm", WITH_OPEN_SIZES)
def test_sizes_are_those_of_the_model_where_they_can_be_had(relation, algorithm):
    spec = join_spec(algorithm, 400_000, SAMPLE.schema, relation, [("k", "k")])
    join = opened(relation, algorithm, 400_000, sample=SAMPLE)
    fixed = {
        n: size for n, size in sizes(join).items() if type(join.parameters).model_fields[n].default
    }
    assert (
        sizes(join) == tune(algorithm, describe(spec, SAMPLE), 400_000, TYPICAL, **fixed).parameters
    )


@pytest.mark.parametrize(
    ("algorithm", "given"), [(a, n) for a in WITH_OPEN_SIZES for n in MODELS[a].sizes]
)
def test_what_was_given_is_kept_and_the_others_are_found_for_it(relation, algorithm, given):
    value = 0.25 if given == "cache_share" else 3 if given == "slices" else 2 * PAGE
    join = opened(relation, algorithm, 400_000, {given: value}, sample=SAMPLE)
    assert sizes(join)[given] == value and all(sizes(join).values())
    spec = join_spec(algorithm, 400_000, SAMPLE.schema, relation, [("k", "k")])
    fixed = {
        n: size
        for n, size in sizes(join).items()
        if n == given or type(join.parameters).model_fields[n].default
    }
    assert (
        sizes(join) == tune(algorithm, describe(spec, SAMPLE), 400_000, TYPICAL, **fixed).parameters
    )


@pytest.mark.parametrize("algorithm", WITH_OPEN_SIZES)
def test_on_a_dearer_disk_more_is_read_at_a_time(relation, algorithm):
    here, there = (
        sizes(opened(relation, algorithm, 400_000, sample=SAMPLE, costs=c))["disk_tuples"]
        for c in (QUICK, SLOW)
    )
    assert there > 1.5 * here


@pytest.mark.parametrize("algorithm", ["hybridjoin", "sscj", "elevatorjoin"])
def test_a_partition_far_beyond_the_average_makes_the_disk_buffer_smaller(algorithm):
    """Every hundredth tuple is large."""
    wide = pa.table(
        {"k": np.arange(4000), "v": ["w" * (9000 if i % 1000 < 10 else 10) for i in range(4000)]}
    )
    master = MemoryRelation("r", wide, ["k"], 5)
    join = opened(master, algorithm, 400_000, sample=SAMPLE, costs=SLOW)
    assert 0.25 * 400_000 < join.master.partition_bytes * master.buffers <= 0.5 * 400_000
    assert join.arena.used <= 400_000
    assert sizes(join).get("cache_tuples", 2) > 1


@pytest.mark.parametrize("algorithm", ["ssj", "cmeshjoin", "sscj", "ssbj", "elevatorjoin"])
def test_where_all_of_r_is_cached_the_first_pass_reads_much_at_a_time(relation, algorithm):
    spec = join_spec(algorithm, 10_000_000, SAMPLE.schema, relation, [("k", "k")])
    work = describe(spec, SAMPLE)
    found = tune(algorithm, work, 10_000_000, TYPICAL)
    assert found.w_s == 0 and found.sizes["disk_tuples"] > TUPLES / 4
    given = {n: v for n, v in found.sizes.items() if n != "disk_tuples"}
    assert found.mu >= tune(algorithm, work, 10_000_000, TYPICAL, disk_tuples=PAGE, **given).mu
    join = opened(relation, algorithm, 10_000_000, sample=SAMPLE)
    assert sizes(join) == found.parameters


def test_a_sample_changes_what_is_found(relation):
    skewed, uniform = (
        pa.RecordBatch.from_pydict({"id": range(5000), "k": k})
        for k in (np.arange(5000) % 50 + 1, np.arange(5000) * 4 + 1)
    )
    some, none = (
        opened(relation, "tuned-x-hybridjoin", 400_000, sample=s).parameters.resident_tuples
        for s in (skewed, uniform)
    )
    assert some >= 50 > none


def test_an_empty_sample_is_none(relation):
    spec = join_spec("ssj", 400_000, SAMPLE.schema, relation, [("k", "k")])
    assert (
        describe(spec, SAMPLE.slice(0, 0)).frequencies.name
        == describe(spec).frequencies.name
        == "Zipf 1"
    )


class TestPlan:
    @pytest.fixture
    def load(self, tmp_path):
        load = SmallLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
        load.publish()
        return load

    @staticmethod
    def plan(load, algorithm="tuned-x-hybridjoin", **parameters):
        version = load.paths.snapshots / "part" / "code" / "v000001"
        return RolePlan(
            algorithm, 100_000, "inner", parameters, ON, 2, str(version), {c: c for c in COLUMNS}
        )

    def test_what_was_chosen_is_told_from_what_was_given(self, load):
        sample = load.sales(3000).combine_chunks().to_batches()[0]
        asked = self.plan(load, disk_tuples=128)
        plan = asked.choose(sample, TYPICAL)
        assert plan.chosen == ("resident_tuples",) and plan.parameters["resident_tuples"] > 0
        assert plan.parameters["disk_tuples"] == 128 and plan.open_questions
        assert RolePlan.from_json(json.loads(json.dumps(asdict(plan)))) == plan
        assert replace(plan.initial(), owners=()) == asked
        given = self.plan(load, disk_tuples=128, resident_tuples=50).choose(sample, TYPICAL)
        assert given.chosen == () and not given.open_questions

    def test_it_is_opened_by_all_partitions_with_the_same_sizes_and_without_a_model(
        self, load, monkeypatch
    ):
        sample = load.sales(3000).combine_chunks().to_batches()[0]
        plan = self.plan(load).choose(sample, TYPICAL)
        monkeypatch.setattr(opening, "tune", None)
        monkeypatch.setattr(opening, "describe", None)
        found = []
        for partition in range(2):
            join = plan.open(STREAM, partition)
            found.append(sizes(join))
            join.master.close()
        assert found[0] == found[1] == {n: plan.parameters[n] for n in plan.chosen}

    def test_calibrated_costs_are_what_counts(self, load):
        sample = load.sales(3000).combine_chunks().to_batches()[0]
        here, there = (
            self.plan(load, "hybridjoin").choose(sample, c).parameters for c in (QUICK, SLOW)
        )
        assert there["disk_tuples"] > 1.5 * here["disk_tuples"]

    def test_a_restart_with_other_costs_keeps_the_sizes_while_tuples_wait(
        self, spark, load, monkeypatch
    ):
        settings = {"algorithm": "hybridjoin", "parameters": {}}
        QUICK.save(load.paths.home / "costs.yaml")
        load.add_file(3000)
        with monkeypatch.context() as patch:  # before the drain at the end begins
            crash_at(patch, "semistream.streaming.progress.Progress.write", "before", 2)
            with pytest.raises(OSError, match="crash"):
                load.run(spark, **settings)
        progress = load.paths.checkpoints / "sales"
        before = Progress.read(progress, RolePlan).plan.joins[0]
        assert before.chosen == ("disk_tuples",)
        assert load.query("SELECT sum(waiting) FROM load_batches")[0][0] > 0
        SLOW.save(load.paths.home / "costs.yaml")
        load.add_file(1000)
        load.run(spark, **settings)
        assert Progress.read(progress, RolePlan).plan.joins[0].parameters == before.parameters
        load.add_file(1000)
        load.run(spark, **settings)  # nothing waited
        assert (
            Progress.read(progress, RolePlan).plan.joins[0].parameters["disk_tuples"]
            > before.parameters["disk_tuples"]
        )
        load.check()


def test_join_of_files_knows_the_machine_and_the_stream(tmp_path, monkeypatch):
    """A named algorithm gets its sizes as `auto` would choose them for it."""
    from pyarrow import csv

    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    csv.write_csv(pa.Table.from_batches([SAMPLE]), tmp_path / "s.csv")
    csv.write_csv(
        pa.table({"k": np.arange(1, TUPLES + 1), "v": np.arange(TUPLES)}), tmp_path / "m.csv"
    )
    seen = []
    real = opening.tune
    monkeypatch.setattr(
        opening, "tune", lambda *a, **k: seen.append((a, real(*a, **k))) or seen[-1][1]
    )

    def found():
        files = {
            f"--{name}": str(tmp_path / file)
            for name, file in (("stream", "s.csv"), ("master", "m.csv"), ("out", "o.csv"))
        }
        assert (
            main(
                [
                    "join",
                    "--algorithm",
                    "hybridjoin",
                    "--on",
                    "k",
                    "--memory",
                    "400KB",
                    *chain(*files.items()),
                ]
            )
            == 0
        )
        (_, work, _, costs), prediction = seen[-1]
        assert work.frequencies.name == "observed in 5,000 tuples"
        return costs, prediction.sizes["disk_tuples"]

    assert found()[0] == TYPICAL
    there = {}
    for costs in (QUICK, SLOW):
        costs.save(tmp_path / "costs.yaml")
        told, there[costs.scan.read_partition] = found()
        assert told == known_costs(tmp_path) != TYPICAL
    assert there[5e-2] > 1.25 * there[1e-7]
