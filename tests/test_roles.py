"""Dimensions and the roles that they play in jobs: where they are declared, and the snapshots by
the keys that jobs join on."""

import csv
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from loads import transaction
from semistream import workloads
from semistream.cli import main
from semistream.cost_models import TYPICAL
from semistream.errors import ConfigError
from semistream.job import Job
from semistream.master.published import current_version, key_name, snapshot_roots
from semistream.paths import Paths
from semistream.pipeline import provision_steps, steps
from semistream.sizing.plan import Plan
from semistream.sizing.star_plan import choose_joins, has_open_questions
from semistream.streaming.app import App, make_planner
from semistream.streaming.settings import LoadSettings
from semistream.tuning.settings import TuneSettings
from semistream.tuning.sweep import Sweep
from semistream.tuning.tuning_input import open_tuning_input

PRODUCTS = [("a", "e1", "apple"), ("b", "e2", "bread"), ("c", "e3", "corn")]
STREAM = pa.schema(
    [("id", pa.int64()), ("sku", pa.string()), ("ean", pa.string()), ("name", pa.string())]
)


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    monkeypatch.delenv("WAREHOUSE_URL", raising=False)
    with open(tmp_path / "product.csv", "w") as file:
        csv.writer(file).writerows([("sku", "ean", "label"), *PRODUCTS])
    return Paths.from_environment()


def declare(paths, values=None, directory="dimensions"):
    file = paths.home / directory / "product.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        yaml.safe_dump(values or {"path": str(paths.home / "product.csv"), "business_key": ["sku"]})
    )
    return file


def write(paths, name, **values) -> str:
    """A job's file."""
    file = paths.home / "jobs" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    (paths.home / "stream").mkdir(exist_ok=True)
    file.write_text(
        yaml.safe_dump(
            {
                "name": name,
                "stream": {"path": str(paths.home / "stream"), "id": ["id"]},
                "fact_table": f"fact_{name}",
                **values,
            },
            sort_keys=False,  # the order of the roles
        )
    )
    return str(file)


def planner(paths, job):
    loaded = workloads.load_job(job, paths)
    return make_planner(LoadSettings.load({"job": job, "algorithm": "ssbj"}), loaded, "app", paths)


def plan(paths, job, partitions=2):
    return planner(paths, job).without_sample((STREAM,), partitions)


@pytest.mark.parametrize("declared", [False, True], ids=["in both jobs", "in a file"])
def test_two_jobs_that_join_a_dimension_on_different_columns(
    paths, warehouse_url, monkeypatch, declared
):
    """One snapshot flipped between their keys, and the other job's plan failed."""
    monkeypatch.setenv("WAREHOUSE_URL", warehouse_url)
    paths = Paths.from_environment()
    if declared:
        declare(paths)
        jobs = [write(paths, on, dimensions={"product": {"on": on}}) for on in ("sku", "ean")]
    else:
        master = {
            "name": "product",
            "path": str(paths.home / "product.csv"),
            "business_key": ["sku"],
        }
        jobs = [write(paths, on, master=master, on=on) for on in ("sku", "ean")]
    for _ in range(2):
        for job in jobs:
            assert main(["provision", job, "--no-progress"]) == 0
    roots = snapshot_roots(paths.snapshots, "product")
    assert roots == {(on,): paths.snapshots / "product" / on for on in ("sku", "ean")}
    assert {current_version(root) for root in roots.values()} == {"v000001"}
    plans = [plan(paths, job) for job in jobs]
    assert [p.joins[0].snapshot for p in plans] == [
        str(paths.snapshots / "product" / on / "v000001") for on in ("sku", "ean")
    ]

    with open(paths.home / "product.csv", "a") as file:
        file.write("d,e4,dates\n")
    assert main(["provision", jobs[0], "--no-progress"]) == 0
    assert {current_version(root) for root in roots.values()} == {"v000002"}


def test_a_dimension_is_provisioned_by_itself(paths, capsys):
    file = declare(paths)
    for target in ("product", str(file)):
        assert main(["provision", target, "--no-progress"]) == 0
        assert "dim_product: read 3" in (out := capsys.readouterr().out) and "No job" in out
    assert provision_steps.dimensions("product", paths) == ["product"]
    assert snapshot_roots(paths.snapshots, "product") == {}
    job = write(paths, "j", dimensions={"product": {"on": "ean"}})
    provision_steps.provision(job, "product", paths)
    assert provision_steps.publish(job, "product", "16MB", paths)
    assert provision_steps.published(job, "product", paths) == {
        "job": job,
        "dimension": "product",
        "versions": {"ean": "v000001"},
        "tuples": 3,
    }
    with open(paths.home / "product.csv", "a") as file:
        file.write("d,e4,dates\n")
    provision_steps.provision("product", "product", paths)
    assert provision_steps.publish("product", "product", "16MB", paths)
    assert provision_steps.published("product", "product", paths) == {
        "dimension": "product",
        "versions": {"ean": "v000002"},
        "tuples": 4,
    }
    with pytest.raises(ConfigError, match="must be one of the job"):
        provision_steps.provision(job, "customer", paths)


@pytest.mark.parametrize(
    "first, second",
    [
        ("jobs/dimensions/product.yaml", "/dimensions/product.yaml"),
        ("/dimensions/product.yaml", "jobs/j.yaml"),
    ],
)
def test_two_declarations_of_a_name_that_differ_are_refused(paths, first, second):
    declare(paths)
    if "jobs/dim" in first:
        declare(
            paths,
            {"path": str(paths.home / "other.csv"), "business_key": ["sku"]},
            "jobs/dimensions",
        )
        job = write(paths, "j", dimensions={"product": {"on": "sku"}})
    else:
        job = write(paths, "j", master={"name": "product", "path": "other.csv"}, on="sku")
    with pytest.raises(ConfigError, match="must be declared the same way") as refused:
        workloads.load_job(job, paths)
    assert first in str(refused.value) and second in str(refused.value)
    assert "other.csv" in str(refused.value)


def test_jobs_that_declare_a_dimension_in_different_ways(paths):
    """The second one is refused while the first one's file declares it so."""
    master = {"name": "product", "path": str(paths.home / "product.csv"), "business_key": ["sku"]}
    one, two = (
        write(paths, name, master=master | {"max_rejected": share}, on="sku")
        for name, share in (("one", 0.1), ("two", 0.2))
    )
    provision_steps.provision(one, "product", paths)
    with pytest.raises(ConfigError, match="must be declared the same way") as refused:
        provision_steps.provision(two, "product", paths)
    assert one in str(refused.value) and two in str(refused.value)
    write(paths, "one", master=master | {"max_rejected": 0.2}, on="sku")
    provision_steps.provision(two, "product", paths)
    Path(two).unlink()
    write(paths, "one", master=master, on="sku")
    provision_steps.provision(one, "product", paths)


def test_a_path_with_dots_names_the_same_file(paths):
    """Not where the dots come after a link, which lead elsewhere without it."""
    master = {"name": "product", "business_key": ["sku"]}
    one = write(paths, "one", master=master | {"path": str(paths.home / "product.csv")}, on="sku")
    provision_steps.provision(one, "product", paths)
    away = paths.home / "away"
    away.mkdir()
    two = away / "two.yaml"
    for path in ("../product.csv", f"{away}/../away/../x"):
        given = yaml.safe_load(Path(one).read_text()) | {"master": master | {"path": path}}
        given |= {"stream": given["stream"] | {"format": "csv", "path": path, "id": []}}
        two.write_text(yaml.safe_dump(given | {"name": "two"}))
        job = workloads.load_job(two, paths)
        wanted = str(paths.home / Path(path).name)
        assert (job.roles[0].dimension.path, job.stream.path) == (wanted, wanted)
        if path.endswith("product.csv"):
            provision_steps.provision(two, "product", paths)
    (paths.home / "inside/deep").mkdir(parents=True)
    (away / "link").symlink_to(paths.home / "inside/deep")
    given["master"]["path"] = "link/../product.csv"
    two.write_text(yaml.safe_dump(given | {"name": "two"}))
    job = workloads.load_job(two, paths)
    assert job.roles[0].dimension.path == f"{away}/link/../product.csv"
    (paths.home / "link").symlink_to(paths.home / "inside")
    given["master"]["path"] = f"{paths.home}/inside/../link/product.csv"
    two.write_text(yaml.safe_dump(given | {"name": "two"}))
    job = workloads.load_job(two, paths)
    assert job.roles[0].dimension.path == f"{paths.home}/link/product.csv", "the link stays"


def test_roles_of_one_job_share_one_declaration(paths):
    here = {"path": "product.csv", "name": "product"}
    with pytest.raises(ConfigError, match=r"the role one .*the role two|the role two .*one"):
        Job.load(
            {
                "name": "j",
                "stream": {},
                "fact_table": "f",
                "dimensions": {
                    "one": {"dimension": here, "on": "sku"},
                    "two": {"dimension": here | {"path": "other.csv"}, "on": "sku"},
                },
            }
        )
    with pytest.raises(ConfigError, match="declared, in this job or in a file"):
        workloads.load_job(write(paths, "j", dimensions={"product": {"on": "sku"}}), paths)
    with pytest.raises(ConfigError, match="must not be given with dimensions"):
        Job.load(
            {
                "name": "j",
                "stream": {},
                "fact_table": "f",
                "on": "sku",
                "dimensions": {"product": {"path": "p.csv", "on": "sku"}},
            }
        )


def test_a_second_role_names_the_dimension_that_the_first_declares(paths):
    here = {"name": "product", "path": str(paths.home / "product.csv"), "business_key": ["sku"]}
    job = write(
        paths,
        "j",
        dimensions={
            "sold": {"dimension": here, "on": "sku"},
            "returned": {"dimension": "product", "on": {"name": "ean"}},
        },
    )
    sold, returned = workloads.load_job(job, paths).roles
    assert sold.dimension == returned.dimension and returned.key == ("ean",)
    (joined,) = workloads.load_dimensions(job, paths)
    assert joined.keys == (("sku",), ("ean",))
    declare(paths, here | {"path": "other.csv"})
    with pytest.raises(ConfigError, match="must be declared the same way"):
        workloads.load_job(job, paths)


def test_a_job_of_several_roles_provisions_all(paths):
    declare(paths)
    job = write(
        paths,
        "j",
        dimensions={
            "sold": {"dimension": "product", "on": {"sku": "sku"}},
            "returned": {
                "dimension": "product",
                "on": {"ean": "ean"},
                "columns": {"label": "back"},
            },
            "shop": {"path": str(paths.home / "product.csv"), "on": "sku"},
        },
    )
    assert provision_steps.dimensions(job, paths) == ["product", "shop"]
    assert main(["provision", job, "--no-progress"]) == 0
    assert sorted(map(str, paths.snapshots.glob("*/*/CURRENT"))) == [
        str(paths.snapshots / at / "CURRENT") for at in ("product/ean", "product/sku", "shop/sku")
    ]
    planner(paths, job).check((STREAM,))


def test_the_plan_of_several_roles_has_a_join_for_each(paths):
    """The first one is split, and each other one meets all of its dimension in every partition.
    They divide M."""
    declare(paths)
    job = write(
        paths,
        "j",
        dimensions={
            "sold": {"dimension": "product", "on": "sku"},
            "returned": {"dimension": "product", "on": "ean", "join_type": "left"},
        },
    )
    assert main(["provision", job, "--no-progress"]) == 0
    one, two = plan(paths, job, partitions=2).joins
    assert [j.memory for j in (one, two)] == [int(LoadSettings.load({"job": job}).memory) // 4] * 2
    assert [(j.role, j.join_type, j.split) for j in (one, two)] == [
        ("sold", "inner", 2),
        ("returned", "left", 1),
    ]
    parts = [[join.relation(p).tuple_count for p in range(2)] for join in (one, two)]
    assert sum(parts[0]) == len(PRODUCTS) and parts[1] == [len(PRODUCTS)] * 2
    joined = two.open(one.open(STREAM, 0).output_schema, 0).output_schema
    assert joined.names[len(STREAM) :] == [
        "sold_sk", "sold_ean", "sold_label", "returned_sk", "returned_sku", "returned_label",
    ]  # fmt: skip
    sample = pa.RecordBatch.from_pylist([{"id": 1, "sku": "a", "ean": "e2"}], STREAM)
    assert one.joined(sample).schema.names == one.open(STREAM, 0).output_schema.names
    chosen = choose_joins(Plan((one, two)), sample, TYPICAL)
    assert chosen.joins[0].owners and not chosen.joins[1].owners
    assert has_open_questions(chosen) and chosen.initial() == plan(paths, job).initial()


def test_one_of_several_roles_is_tuned(paths, capsys):
    """By itself; what is best for it says nothing of a load in which the roles share M. How they
    would share it is told beside."""
    declare(paths)
    job = write(
        paths,
        "j",
        dimensions={
            "sold": {"dimension": "product", "on": "sku"},
            "returned": {"dimension": "product", "on": "ean"},
        },
    )
    assert main(["provision", job, "--no-progress"]) == 0
    tuples = pa.Table.from_pylist([{"id": i, "sku": "a", "ean": f"e{i}"} for i in range(9)], STREAM)
    pq.write_table(tuples, paths.home / "stream" / "part.parquet")
    for role, on in (("", "sku"), ("sold", "sku"), ("returned", "ean")):
        settings = TuneSettings.load({"job": job, "role": role, "partitions": 1, "grid": 1})
        with open_tuning_input(settings, paths) as sizing:
            assert sizing.on == [(on, on)] and sizing.plan(1000).role == (role or "sold")
        assert Sweep(f"s{on}", paths).begin(settings)
        directory = paths.home / "tuning" / f"s{on}"
        (tuned,) = Job.from_yaml(directory / "job.yaml").roles
        assert tuned.on == {on: on}
        assert json.loads((directory / "sweep.json").read_text())["job"] == ""
    with pytest.raises(ConfigError, match="must be a role of the job j"):
        Sweep("s", paths).begin(TuneSettings.load({"job": job, "role": "shop"}))
    capsys.readouterr()
    assert main(["tune", job, "--memory", "1MB", "--json", "--no-progress"]) == 0
    told = json.loads(capsys.readouterr().out)
    (split,), (shares,) = told["roles"].values(), told["shares"].values()
    assert shares == {"sold": 2, "returned": 1} and "each of 2 operators has 1/2 of sold" in split
    assert "held whole" in split and "sold" in split and "returned" in split
    assert main(["tune", job, "--memory", "1MB", "--no-progress"]) == 0
    assert f"roles: a load of all roles splits M so: {split}" in capsys.readouterr().out
    one = write(paths, "one", dimensions={"product": {"dimension": "product", "on": "sku"}})
    assert main(["tune", one, "--memory", "2KB,1MB", "--json", "--no-progress"]) == 0
    assert json.loads(capsys.readouterr().out)["roles"].keys() == {"1000000"}
    assert main(["tune", one, "--memory", "1MB", "--no-progress"]) == 0
    assert "a load holds R whole in memory: all of R takes about" in capsys.readouterr().out


def test_the_short_form_is_one_role(paths):
    short = {
        "name": "j",
        "stream": {},
        "fact_table": "f",
        "on": {"item": "sku"},
        "master": {"name": "product", "path": "p.csv"},
        "columns": ["label"],
    }
    long = {
        "name": "j",
        "stream": {},
        "fact_table": "f",
        "dimensions": {
            "product": {
                "dimension": {"name": "product", "path": "p.csv"},
                "on": {"item": "sku"},
                "columns": {"label": "label"},
            }
        },
    }
    in_place = {
        "name": "j",
        "stream": {},
        "fact_table": "f",
        "dimensions": {"product": {"path": "p.csv", "on": ["item=sku"], "columns": ["label"]}},
    }
    job = Job.load(short)
    assert job == Job.load(long) == Job.load(in_place)
    assert job.roles[0].dimension.business_key == ("sku",)
    assert Job.load(yaml.safe_load(job.to_ledger())) == job


def test_a_role_names_the_surrogate_key_and_prefixes_columns(paths, spark):
    """From provisioning to the proof."""
    declare(paths)
    (paths.home / "stream").mkdir()
    pq.write_table(
        pa.Table.from_pylist(
            [{"id": i, "sku": "x", "ean": f"e{i % 4}", "name": f"n{i}"} for i in range(20)], STREAM
        ),
        paths.home / "stream" / "part.parquet",
    )
    job = write(
        paths,
        "j",
        dimensions={
            "sold": {
                "dimension": "product",
                "on": "ean",
                "columns": {"sku": "sku", "label": "what"},
                "join_type": "left",
            }
        },
    )
    assert main(["provision", job, "--no-progress"]) == 0
    from semistream.streaming.status import StatusFile, checkpoint_lock

    settings = LoadSettings.load(
        {"job": job, "app": "j", "algorithm": "ssbj", "memory": "1MB", "partitions": 2}
    )
    directory = settings.directory(paths)
    with checkpoint_lock(directory), StatusFile(directory, "j") as status:
        load = App(settings, workloads.load_job(job, paths), paths, status)
        load.check()
        load.run(spark.sparkContext)
    from sqlalchemy import text

    with transaction(paths.warehouse_url) as connection:
        found = Counter(
            connection.execute(
                text("SELECT id, sku, ean, name, sold_sk, sold_sku, what FROM fact_j")
            )
        )
    label = {ean: (n + 1, sku, label) for n, (sku, ean, label) in enumerate(PRODUCTS)}
    assert found == Counter(
        (i, "x", f"e{i % 4}", f"n{i}", *label.get(f"e{i % 4}", (None,) * 3)) for i in range(20)
    )
    assert steps.verify("j", paths, since_last=False, sample=10)["checks"]


def test_the_name_of_a_key():
    assert key_name(["sku"]) == "sku" and key_name(["b", "a"]) == key_name(["a", "b"]) == "a+b"
    odd = [["v1"], ["pins"], ["CURRENT"], ["a+b"], ["ä/b"], ["x" * 200], [""]]
    names = [key_name(key) for key in odd]
    assert len({*names, key_name(["a", "b"])}) == 8
    assert all(name.startswith("key-") and Path(name).name == name for name in names)


PRODUCT = {"name": "my.product", "path": "product.csv"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"master": PRODUCT | {"pth": 1}},
            "'master.pth' is not a setting. Did you mean path.*: name,",
        ),
        (
            {"master": PRODUCT | {"max_rejected": 3}},
            "'master.max_rejected' is wrong: .* less than or equal to 1.* It means: Share of the",
        ),
        ({"master": PRODUCT, "on": [1]}, "'on' is wrong: must have names, .* 1 is neither"),
        ({"master": PRODUCT, "on": {"sku": 1}}, r"'on.sku' is wrong.* It means: Join columns"),
        ({"master": PRODUCT, "columns": 7}, "'columns' is wrong: must be names, or a mapping"),
        ({"master": {"path": "x.csv"}}, "'master' must be the name of a dimension"),
        ({"master": [PRODUCT]}, "'master' must be the name of a dimension"),
        ({}, "'master' must be the name of a dimension"),
        (
            {"on": None, "dimensions": {"a": PRODUCT | {"on": "sku", "colums": 1}}},
            "'dimensions.a.colums' is not a setting. Did you mean columns",
        ),
    ],
)
def test_an_error_names_the_setting_as_it_is_given(paths, given, message):
    values = {"on": "sku"} | given
    job = write(paths, "j", **{k: v for k, v in values.items() if v is not None})
    with pytest.raises(ConfigError, match=message):
        workloads.load_job(job, paths)


def test_settings_of_a_dimension_stand_beside_its_path(paths):
    declared = {
        "path": "product.csv",
        "business_key": ["id"],
        "allow_empty": True,
        "formats": {"sku": {"trim": True}},
    }
    job = write(paths, "j", dimensions={"product": {**declared, "on": "sku"}})
    (role,) = workloads.load_job(job, paths).roles
    assert role.dimension.business_key == ("id",)
    assert role.dimension.allow_empty
    assert set(role.dimension.formats) == {"sku"}
    assert role.on == {"sku": "sku"}
