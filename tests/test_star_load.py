"""Loads of several roles in one pass: what the warehouse then has, restarts, new versions, the
proof."""

import csv
import sqlite3
from collections import Counter
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from sqlalchemy import BigInteger, text

import faults
from loads import same, transaction, until
from semistream import quality, workloads
from semistream.cli import main
from semistream.errors import ConfigError
from semistream.job import Job
from semistream.master.published import current_version, snapshot_root
from semistream.paths import Paths
from semistream.pipeline.unmatched import list_unmatched
from semistream.provisioning.dimensions import provision
from semistream.sizing import star_plan
from semistream.sizing.star_plan import choose_plan
from semistream.streaming import semi_stream_planning
from semistream.streaming.app import App, make_planner
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sources.file_reader import FileReader
from semistream.streaming.status import StatusFile, checkpoint_lock, read_status, request_stop
from semistream.warehouse import connect
from semistream.warehouse.schema import load_inputs
from star_loads import ROLES, STREAM, split_star, star_load, verify

THREE = ("part", "buyer", "seller")


@pytest.fixture
def star(tmp_path, warehouse_url):
    """A load of all roles, into each kind of warehouse."""
    return star_load(tmp_path, warehouse_url)


@pytest.fixture
def sqlite_star(tmp_path):
    return star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}", THREE)


def test_a_load_of_four_roles_is_the_oracles_and_is_proven(spark, star):
    """Left and inner, many-to-many, the same dimension twice, a key of two columns."""
    for rows in (1500, 0, 1800):
        star.add_file(rows)
    summary = star.run(spark)
    star.check()
    joined, unmatched = star.expected()
    assert summary.rows_read == 3300 and summary.waiting == 0
    assert summary.output_rows == joined.total() and summary.unmatched == unmatched.total()
    assert summary.memory_peak <= summary.memory_budget == 700_000
    by_role = Counter(role for *_, role in unmatched.elements())
    found = {role: of.unmatched for role, of in summary.inputs.items()}
    assert found == {role: by_role[role] for role in ROLES}
    waited = star.query("SELECT role, max(waiting) FROM load_inputs GROUP BY role")
    assert sum(most > 0 for _, most in waited) >= 2
    assert {0, None} < {row[star.columns.index("seller_sk")] for row in joined} | {None}
    star.add_file(700)
    assert star.run(spark).rows_read == 700
    star.check()
    check_listing(star)
    result = verify(star)
    assert result.success, str(result)
    names = {r.name for r in result.results}
    each = ("surrogate_keys", "enriched_columns", "sample_joined", "unmatched_share")
    assert {f"{role}_{check}" for role in ROLES for check in each} <= names


def check_listing(star):
    """`semistream unmatched` lists each role's tuples by their keys, as the oracle has them."""
    keys = {role: Counter() for role in ("part", "buyer")}  # the inner ones
    for *tuple_, reason, role in star.unmatched().elements():
        (column,) = ROLES[role][1]
        keys[role][reason, tuple_[STREAM.get_field_index(column)]] += 1
    listed = list_unmatched("sales", star.paths, limit=5000)
    found = {(of.role, of.reason, *key.key.values()): key.tuples for of in listed for key in of.top}
    assert found == {(role, *of): n for role in keys for of, n in keys[role].items()}
    assert {(of.role, of.reason) for of in listed} == {
        (role, reason) for role in keys for reason in ("no_match", "null_key")
    }
    (one,) = list_unmatched("sales", star.paths, reason="no_match", role="buyer", limit=1)
    (key,) = one.top
    assert one.keys == len([of for of in keys["buyer"] if of[0] == "no_match"])
    assert all(near["buyer"] % 10 == 0 for near in key.nearest) and key.nearest
    assert key.example.values["buyer"] == key.key["buyer"] and key.example.file is not None
    with pytest.raises(ConfigError, match="'role' must be one of sales.*It has: offer, part"):
        list_unmatched("sales", star.paths, role="shop")


@pytest.mark.parametrize("algorithm", ["ssbj", "hybridjoin", "auto"])
def test_every_algorithm_joins_several_roles(spark, sqlite_star, algorithm):
    """In SSBJ tuples with a match stay in H_S for a pass over R; they wait no more."""
    for rows in (900, 900):
        sqlite_star.add_file(rows)
    sqlite_star.run(spark, algorithm=algorithm, parameters={})
    sqlite_star.check()
    assert sqlite_star.query("SELECT count(*) FROM load_batches WHERE matched < 0") == [(0,)]


def test_roles_that_are_held_whole_let_no_tuple_wait(spark, sqlite_star):
    """A further role gets fewer tuples, so that the mean of the hits would be less than all."""
    sqlite_star.add_file(900)
    summary = sqlite_star.run(spark, algorithm="hash-join", parameters={}, memory="64MB")
    assert 0 < summary.matched < 900
    ((hits, got),) = sqlite_star.query("SELECT sum(cache_hits), sum(rows_read) FROM load_inputs")
    assert got < 3 * 900
    assert summary.cache_share == pytest.approx(hits / got, abs=0.002)
    assert summary.cache_share > 0.9
    assert summary.longest_wait == 0
    assert sqlite_star.query("SELECT max(wait_longest) FROM load_batches") == [(0,)]


def test_a_small_only_dimension_lets_no_tuple_wait(spark, sqlite_load):
    """It is held whole, as one of several is, until it takes more than a sixteenth of M."""
    auto = {"algorithm": "auto", "parameters": {}}
    for version, memory, algorithms in (
        ("first", "64MB", ["hash-join"]),
        ("second", "64MB", ["hash-join"]),
        ("third", "200KB", ["elevatorjoin", "hash-join"]),
    ):
        sqlite_load.publish(version)
        sqlite_load.add_file(900)
        summary = sqlite_load.run(spark, memory=memory, **auto)
        assert summary.rows_read == 900 and summary.algorithm == algorithms[0]
        found = sqlite_load.query("SELECT DISTINCT algorithm FROM load_batches ORDER BY 1")
        assert [algorithm for (algorithm,) in found] == algorithms
    read = "SELECT algorithm, max(waiting), sum(disk_tuples_read) > 0 FROM load_batches GROUP BY 1"
    assert ("hash-join", 0, 0) in sqlite_load.query(read)
    waited = "SELECT max(wait_longest) FROM load_batches WHERE algorithm = 'hash-join'"
    assert sqlite_load.query(waited) == [(0,)]
    same(sqlite_load.lasting(sqlite_load.facts()), sqlite_load.lasting(sqlite_load.expected()[0]))
    ((reason,),) = sqlite_load.query("SELECT reason FROM load_batches WHERE batch = 0 LIMIT 1")
    assert "all of R takes about" in reason and "part is held whole" in reason


@pytest.mark.parametrize(
    ("algorithm", "partitions", "plans"),
    [("elevatorjoin", 2, 1), ("auto", 1, 1), ("auto", 2, 2)],
    ids=["named", "one partition", "shared on one machine"],
)
def test_a_load_is_planned_once_before_its_first_batch(
    spark, sqlite_star, monkeypatch, algorithm, partitions, plans
):
    """Before Spark, nobody knows whether operators will share an R that is held whole."""
    sampled = list[int]()

    def counting(*arguments, **named):
        sampled.append(arguments[1].num_rows)
        return choose_plan(*arguments, **named)

    monkeypatch.setattr(semi_stream_planning, "choose_plan", counting)
    sqlite_star.add_file(900)
    sqlite_star.run(spark, algorithm=algorithm, partitions=partitions, parameters={})
    assert sampled == [0] * plans + [900]
    sqlite_star.check()


def test_eight_roles(spark, tmp_path, monkeypatch):
    """The dimension of persons in six of them."""
    for n in range(4):
        on, join_type = {("buyer", "seller")[n % 2]: "no"}, ("left", "inner")[n // 2]
        monkeypatch.setitem(ROLES, f"r{n}", ("person", on, {"name": f"n{n}"}, join_type, False))
    load = star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}", tuple(ROLES))
    load.add_file(500)
    load.run(spark, memory="1400KB")
    load.check()
    result = verify(load)
    assert result.success, str(result)
    assert len({r.name for r in result.results if r.name.endswith("surrogate_keys")}) == 8


def test_two_roles_multiply_a_tuple(spark, tmp_path, monkeypatch):
    """Its rows do not wait in the second one from one load to the next: the load that finished the
    tuple in the first one would count less than nothing."""
    part = ("part", {"sku": "code"}, {"name": "name", "price": "price"}, "left", True)
    monkeypatch.setitem(ROLES, "part", part)
    load = star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}", ("offer", "part"))
    for rows in (900, 700):
        load.add_file(rows)
    load.run(spark, algorithm="meshjoin", parameters={}, memory="300KB")
    load.check()
    assert load.order() == ["offer", "part"]
    assert load.query("SELECT count(*) FROM load_batches WHERE matched < 0") == [(0,)]
    waited = "SELECT sum(waiting) FROM load_inputs WHERE role = "
    assert load.query(f"{waited}'part'") == [(0,)]
    result = verify(load)
    assert result.success, str(result)


def test_why_keys_of_a_left_role_match_nothing(spark, tmp_path, sink):
    """Its tuples without a row are facts, not in unmatched."""
    star = star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}", ("offer", "part"))
    rows = [
        t | {"region": f" {t['region'].upper()}"} if n % 10 and t["region"] else t
        for n, t in enumerate(star.sales(1500).to_pylist())
    ]
    star.put_file(star.stream_directory, pa.Table.from_pylist(rows, STREAM))
    said = star.run(spark, sink=sink).warnings
    why = "would match after trimming and ignoring case in region"
    assert [why in each for each in said] == ([True] if sink == "sql" else [])
    result = verify(star)
    failed = {r.name for r in result.results if not r.success}
    assert failed == {"offer_unmatched_share"} and why in result.describe()


def test_tuples_carried_over_a_crash_and_a_new_version_of_one_dimension(
    spark, star, tmp_path, monkeypatch, sink
):
    """What waited is joined with the persons of its version, and what comes later with the new
    ones. The parts stay."""
    star.sink = sink
    star.add_file(1200)
    star.add_file(800)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, "semistream.streaming.app.App._finish", "after", 2)
        with pytest.raises(OSError, match="crash"):
            star.run(spark, algorithm="ssbj")
    waiting = star.query(
        "SELECT i.role, sum(i.waiting) FROM load_inputs i JOIN load_batches b USING (load_id) "
        "WHERE b.batch = 1 GROUP BY i.role"
    )
    assert sum(n > 0 for _, n in waiting) >= 2
    old, first = star.expected()[0], len(star.stream)
    star.publish("new", ("person",))
    star.add_file(900)
    star.run(spark, algorithm="ssbj")
    new = star.expected()[0]
    wanted = Counter({row: n for row, n in old.items() if row[0] < first})
    wanted += Counter({row: n for row, n in new.items() if row[0] >= first})
    same(star.facts(), wanted)
    same(star.unmatched(), star.expected()[1])
    star.check_ledger()
    versions = star.query("SELECT DISTINCT role, version FROM load_inputs")
    assert Counter(role for role, _ in versions) == Counter(
        {"part": 1, "offer": 1, "buyer": 2, "seller": 2}
    )
    result = verify(star)
    assert result.success, str(result)


def test_an_interval_with_a_bound_takes_up_new_versions_and_stops_by_request(spark, sqlite_star):
    load = sqlite_star
    load.add_file(1000)
    checkpoint = load.paths.checkpoints / "sales"
    app = load.start(spark, trigger="100 milliseconds", max_wait=2)
    until(
        lambda: (s := read_status(checkpoint)) and s.rows_read == 1000 and s.waiting == 0,
        what="idle drain",
        watch=app.check,
    )
    assert read_status(checkpoint).inputs == dict.fromkeys(load.order(), 0)
    load.check()
    load.publish("new", ("person",))
    load.add_file(1000)
    until(lambda: read_status(checkpoint).rows_read == 2000, what="batch 2", watch=app.check)
    request_stop(checkpoint)
    summary = app.join()
    assert summary.waiting == 0 and "v000002" in summary.master_version
    names = load.query("SELECT id, buyer_name FROM fact_sales")
    assert {name.split()[0] for i, name in names if i < 1000} == {"part"}
    assert {name.split()[0] for i, name in names if i >= 1000} == {"new"}
    load.check_ledger()


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_load_that_is_split_by_the_keys_of_two_roles(spark, tmp_path, monkeypatch, exchanged):
    """Read by every task and sent on by some; tuples wait in both roles, over a crash."""
    monkeypatch.setattr(FileReader, "replicated", lambda *_: not exchanged)
    load = split_star(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    for rows in (3000, 2500):
        load.add_file(rows)
    with monkeypatch.context() as patch:
        faults.crash_at(patch, "semistream.streaming.app.App._finish", "after", 2)
        with pytest.raises(OSError, match="crash"):
            load.run(spark)
    waiting = load.query("SELECT role, sum(waiting) FROM load_inputs GROUP BY role")
    assert all(n > 0 for _, n in waiting) and len(waiting) == 2
    load.add_file(2000)
    summary = load.run(spark)
    load.check()
    assert summary.memory_peak <= summary.memory_budget
    read = load.query("SELECT sum(rows_read) FROM load_batches GROUP BY partition")
    assert len(read) == 4 and min(read)[0] > 0.8 * 7500 / 4
    status = read_status(load.checkpoint)
    assert status.shares == {"part": 2, "buyer": 2} and {*status.sizes} == {"part", "buyer"}
    assert 0.99 < sum(status.sizes.values()) / summary.memory_budget <= 1
    reasons = load.query("SELECT DISTINCT reason FROM load_batches")
    assert all("1/2 of part" in why and "1/2 of buyer" in why for (why,) in reasons)
    result = verify(load)
    assert result.success, str(result)


def test_a_load_goes_on_with_other_shares_when_nothing_waits(spark, tmp_path, monkeypatch):
    """It stopped with tuples that wait, under a plan that splits the largest R alone."""
    load = split_star(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.add_file(3000)
    load.add_file(2500)
    with monkeypatch.context() as patch:
        patch.setattr(star_plan, "choices", lambda initial: [initial])
        faults.crash_at(patch, "semistream.streaming.app.App._finish", "after", 2)
        with pytest.raises(OSError, match="crash"):
            load.run(spark)
    assert sorted(load.shares().values()) == [1, 4]
    assert load.query("SELECT sum(waiting) FROM load_batches WHERE batch = 1")[0][0] > 0
    load.add_file(500)
    load.run(spark)
    # what waited was finished with the plan under which it began to wait
    assert sorted(load.shares().values()) == [1, 4]
    load.add_file(2500)
    load.run(spark)
    load.check()
    result = verify(load)
    assert result.success, str(result)


DAMAGES = {
    "another row of the second role": (
        "UPDATE fact_sales SET buyer_sk = buyer_sk + 1 WHERE id = {id}",
        {"buyer_surrogate_keys", "buyer_enriched_columns", "same_rows"},
    ),
    "a row in the place of the unknown member": (
        "UPDATE fact_sales SET seller_sk = 7 WHERE id = {unknown}",
        {"seller_enriched_columns", "seller_lacking_rows", "same_rows"},
    ),
    "the unknown member in the place of a row": (
        "UPDATE fact_sales SET seller_sk = 0, seller_name = NULL WHERE id = {id}",
        {"seller_surrogate_keys", "seller_lacking_rows", "same_rows"},
    ),
    "null in the place of the unknown member": (
        "UPDATE fact_sales SET seller_sk = NULL WHERE id = {unknown}",
        {"seller_surrogate_keys", "seller_lacking_rows", "same_rows"},
    ),
    "one of many facts": (
        "DELETE FROM fact_sales WHERE id = {many} AND offer_sk = (SELECT * FROM "
        "(SELECT max(offer_sk) FROM fact_sales WHERE id = {many}) AS newest)",
        {"fact_rows", "same_rows"},
    ),
    "a miss in the ledger": (
        "UPDATE load_inputs SET passed = passed + 1 WHERE role = 'part' AND passed > 0",
        {"input_arithmetic"},
    ),
}


def test_damage_to_one_role_is_found(spark, tmp_path):
    load = star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    load.add_file(1500)
    load.run(spark)
    at = {
        "id": "SELECT min(id) FROM fact_sales WHERE seller_sk > 0",
        "unknown": "SELECT min(id) FROM fact_sales WHERE seller_sk = 0",
        "many": "SELECT min(id) FROM fact_sales WHERE offer_sk IN "
        "(SELECT max(offer_sk) FROM dim_offer GROUP BY region, day HAVING count(*) > 1)",
    }
    ids = {name: load.query(query)[0][0] for name, query in at.items()}
    assert verify(load).success
    sound = sqlite3.connect(tmp_path / "warehouse.db")
    for number, (damage, (statement, checks)) in enumerate(DAMAGES.items()):
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as damaged:
            sound.backup(damaged)
            with damaged:
                assert damaged.execute(statement.format(**ids)).rowcount > 0
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        load.paths = Paths(home=load.paths.home, warehouse_url=url)
        result = verify(load, sample=0)
        assert {r.name for r in result.failed} == checks, f"{damage}: {result}"
    sound.close()


def test_the_rows_of_several_roles_are_estimated_before_a_batch(spark, sqlite_star):
    """Roles without many do not count."""
    sqlite_star.add_file(300)
    sqlite_star.run(spark, max_output_rows=1)


def test_roles_that_cannot_be_joined_in_one_pass_are_named(tmp_path):
    load = star_load(tmp_path, f"sqlite:///{tmp_path / 'warehouse.db'}")
    job = load.job.model_dump()

    def refused(message, **changes):
        roles = job["dimensions"] | {r: job["dimensions"][r] | of for r, of in changes.items()}
        settings = load.settings()
        planner = make_planner(settings, Job.load(job | {"dimensions": roles}), "sales", load.paths)
        with pytest.raises(ConfigError, match=message):
            planner.check((STREAM,))

    refused(r"'dimensions.offer.many' must be true .*same region, day", offer={"many": False})
    both = {"many": True, "join_type": "inner"}
    refused(r"'dimensions.(part|offer).many' must not be true of two roles", offer=both, part=both)
    load.execute("DELETE FROM dim_person WHERE person_sk = 0")
    refused(r"'dimension person' must have a row with surrogate key 0")


def test_an_unknown_member_from_provisioning_to_the_proof(
    spark, tmp_path, warehouse_url, monkeypatch
):
    """In the short form of one role, whose misses are in ``unmatched``, too."""
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    monkeypatch.setenv("WAREHOUSE_URL", warehouse_url)
    paths, file = Paths.from_environment(), tmp_path / "sales.yaml"
    stores = [(i, f"store {i}") for i in range(10)]

    def write(rows):
        with open(tmp_path / "store.csv", "w") as to:
            csv.writer(to).writerows([("number", "name"), *rows])

    write(stores)
    (tmp_path / "stream").mkdir()
    sales = pa.table({"id": range(60), "store": [i % 12 if i % 7 else None for i in range(60)]})
    pq.write_table(sales, tmp_path / "stream" / "part.parquet")
    file.write_text(
        yaml.safe_dump(
            {
                "name": "sales",
                "stream": {"path": str(tmp_path / "stream"), "id": ["id"]},
                "dimensions": {
                    "store": {
                        "path": str(tmp_path / "store.csv"),
                        "on": {"store": "number"},
                        "join_type": "left",
                        "unknown_member": True,
                    }
                },
                "fact_table": "fact_sales",
            }
        )
    )
    root = snapshot_root(paths.snapshots, "store", ["number"])
    for version in ("v000001", "v000001", "v000002"):
        if version == "v000002":
            write([*stores, (10, "store 10")])
        assert main(["provision", str(file), "--no-progress"]) == 0
        assert current_version(root) == version
    with transaction(warehouse_url) as connection:
        unknown = "SELECT number, name FROM dim_store WHERE store_sk = 0"
        assert connection.execute(text(unknown)).all() == [(None, None)]
    settings = LoadSettings.load(
        {"job": str(file), "app": "sales", "memory": "1MB", "partitions": 1, "algorithm": "ssbj"}
    )
    directory = settings.directory(paths)
    with checkpoint_lock(directory), StatusFile(directory, "sales") as status:
        load = App(settings, workloads.load_job(str(file), paths), paths, status)
        load.check()
        load.run(spark.sparkContext)
    with transaction(warehouse_url) as connection:
        found = Counter(connection.execute(text("SELECT id, store_sk, name FROM fact_sales")).all())
        keys = connection.execute(text("SELECT number, store_sk FROM dim_store")).all()
    wanted = [
        (row["id"], dict(keys)[row["store"]], f"store {row['store']}")
        if row["store"] is not None and row["store"] < 11
        else (row["id"], 0, None)
        for row in sales.to_pylist()
    ]
    same(found, Counter(wanted))
    result = quality.verify(warehouse_url, "sales")
    assert result.success, str(result)


def test_an_unknown_member_needs_a_table_that_can_have_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    monkeypatch.setenv("WAREHOUSE_URL", f"sqlite:///{tmp_path / 'warehouse.db'}")
    (tmp_path / "store.csv").write_text("number,name\n1,one\n")
    (tmp_path / "dimensions").mkdir()
    dimension = {"name": "store", "path": str(tmp_path / "store.csv"), "business_key": "number"}
    file = tmp_path / "dimensions" / "store.yaml"
    file.write_text(yaml.safe_dump(dimension))
    assert main(["provision", "store", "--no-progress"]) == 0
    file.write_text(yaml.safe_dump(dimension | {"unknown_member": True}))
    (joined,) = workloads.load_dimensions("store")
    with pytest.raises(ConfigError, match="'unknown_member' needs a table dim_store .*number NOT"):
        provision(joined, connect(Paths.from_environment().warehouse_url))


# without a check: where tuples waited, and how the master data were read, leave no trace to count
NOT_COUNTED = {"on_disk", "cache_hits", "bytes_read"}


def test_each_count_of_a_role_is_proven(spark, tmp_path, monkeypatch):
    """What a left join misses is exact where no other role rejects or multiplies tuples."""
    monkeypatch.setitem(ROLES, "r0", ("person", {"buyer": "no"}, {"name": "n0"}, "left", False))
    url = f"sqlite:///{tmp_path / 'warehouse.db'}"
    star = star_load(tmp_path, url, ("seller", "r0"))
    for rows in (900, 400):
        star.add_file(rows)
        star.run(spark)
    assert verify(star).success
    names = {"load_id", "number", *NOT_COUNTED}
    counts = [c.name for c in load_inputs.c if isinstance(c.type, BigInteger)]
    counts = [name for name in counts if name not in names]
    assert {"missed", "passed", "lacking", "inferred", "resolved"} <= {*counts}
    ((last,),) = star.query("SELECT DISTINCT role FROM load_inputs WHERE number = 1")
    unseen = set()
    for role in ("seller", "r0"):
        of = f"WHERE role = '{role}' AND load_id = (SELECT max(load_id) FROM load_batches)"
        for name in counts:
            star.alter(f"UPDATE load_inputs SET {name} = {name} + 3 {of}")
            failed = verify(star, sample=0).failed
            star.alter(f"UPDATE load_inputs SET {name} = {name} - 3 {of}")
            assert not any(r.error for r in failed), (role, name)
            if not any(r.of == role or r.name.endswith("_arithmetic") for r in failed):
                unseen.add((role, name))
    assert unseen == {(last, "passed")}, "no role reads what the last one passes on"
    assert verify(star).success
