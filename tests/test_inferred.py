"""Facts that come before their master data: they are facts at once, with an inferred member of the
dimension, which the master row fills in, in the dimension and in the facts, once."""

import json
import os
import signal
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

import faults
import oracle
from loads import STREAM, SmallLoad, check_resolved, same, verify
from semistream.errors import ConfigError
from semistream.expect import Expectations
from semistream.job import Dimension, Job, Role
from semistream.pipeline import steps
from semistream.provisioning.dimensions import provision
from semistream.provisioning.inferred import Members
from semistream.provisioning.publishing import open_dimension, publish, read_dimension
from semistream.reasons import Reason
from semistream.streaming.app import App
from semistream.streaming.sinks.delta import DeltaSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.warehouse import connect
from semistream.workloads.jobs import JoinedDimension
from star_loads import DIMENSIONS, ROLES, ProvidedStar

PARTS = pa.schema([("code", pa.string()), ("name", pa.string()), ("price", pa.int32())])


class InferLoad(SmallLoad):
    """Sales of parts, of which the first ones are known; each provisioning brings some more."""

    def __init__(self, home, warehouse_url, sink="sql", **role):
        super().__init__(home, warehouse_url)
        self.sink = sink
        self.file, self.known, self.keys = home / "parts.parquet", 0, {}
        self.job = Job.load(
            self.job.model_dump(exclude={"dimensions"})
            | {
                "master": {"name": "part", "path": str(self.file), "business_key": ["code"]},
                "on": {"sku": "code"},
                "columns": ["name", "price"],
                "late": "infer",
            }
            | role
        )

    def provide(self, parts, *, published=True):
        """Provision the first parts, twice, as two actions of a run may do, and publish them."""
        rows = [{"code": f"c{i}", "name": f"part {i}", "price": i % 97} for i in range(parts)]
        pq.write_table(pa.Table.from_pylist(rows, PARTS), self.file)
        self.known = parts
        engine, role = connect(self.paths.warehouse_url), self.job.roles[0]
        joined = JoinedDimension(role.dimension, self.job.roles, (role.key,))
        provision(joined, engine)
        again = provision(joined._replace(roles=()), engine)  # by itself, without a job
        assert (again.inserted, again.updated) == (0, 0)
        if published:
            publish("part", ["code"], engine, self.paths.snapshots)
        engine.dispose()

    def inferred(self):
        """The parts that are inferred members. No part ever has another surrogate key."""
        rows = self.query("SELECT code, part_sk, is_inferred FROM dim_part")
        keys = {code: sk for code, sk, _ in rows}
        assert len(keys) == len(rows) == len(set(keys.values()))
        assert self.keys.items() <= keys.items()
        self.keys = keys
        return {code for code, _, inferred in rows if inferred}

    def check(self):
        """Each tuple with a key is a fact, with the member of its part, and with the columns of a
        part that is known."""
        inferred = self.inferred()
        known = {f"c{i}": (f"part {i}", i % 97) for i in range(self.known)}
        sold = [t for t in self.stream if t["sku"] is not None]
        assert inferred == {t["sku"] for t in sold} - known.keys()
        same(
            self.facts(),
            Counter(
                (*t.values(), self.keys[t["sku"]], *known.get(t["sku"], (None, None))) for t in sold
            ),
        )
        lost = self.query("SELECT reason, tuple FROM unmatched")
        without = Counter((t["id"], "null_key") for t in self.stream if t["sku"] is None)
        same(Counter((json.loads(t)["id"], reason) for reason, t in lost), without)

    def counts(self):
        """How many facts are open, and how many are filled in."""
        open_, all_ = self.query("SELECT sum(version IS NULL), count(*) FROM inferred")[0]
        return int(open_ or 0), all_ - int(open_ or 0)

    def sell(self, *skus):
        """One more file of the stream, with tuples of these parts."""
        first = len(self.stream)
        tuples = [{"id": first + i, "sku": sku, "amount": 1.0} for i, sku in enumerate(skus)]
        self.stream += tuples
        self.put_file(self.stream_directory, pa.Table.from_pylist(tuples, STREAM))

    def data_files(self):
        """Of each of the Delta table's data files its name and its parts, by the load."""
        files = DeltaTable(self.sink).to_pyarrow_dataset().get_fragments()
        rows = {file.path: file.to_table().to_pydict() for file in files}
        return {of["load_id"][0]: (name, {*of["sku"]}) for name, of in rows.items()}

    def fill(self):
        """Fill in what is due, without Spark."""
        with self.app() as app:
            return app.replay(None).filled


@pytest.fixture
def both(tmp_path, warehouse_url, sink):
    """On each kind of database, into each kind of sink."""
    return InferLoad(tmp_path / "home", warehouse_url, sink)


@pytest.fixture
def load(tmp_path, sink):
    return InferLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", sink)


into_sql = pytest.mark.parametrize("sink", ["sql"])
into_delta = pytest.mark.parametrize("sink", ["delta"], indirect=True)


def test_a_tuple_is_a_fact_at_once_and_its_member_is_filled_in(spark, both):
    both.provide(400)
    for rows in (900, 700):
        both.add_file(rows)
    first = both.run(spark)
    both.check()
    assert both.counts() == (first.inferred, 0) and first.inferred > 0
    both.provide(2000)
    both.add_file(500)
    second = both.run(spark)
    both.check()
    assert 0 < second.filled < first.inferred
    assert any("were filled in" in note and "still" in note for note in both.prove().notes)
    both.provide(both.parts)
    last = both.run(spark)  # although no file is new
    both.check()
    assert last.filled > 0 and last.rows_read == 0
    assert sum(both.counts()) == first.inferred + second.inferred
    both.provide(both.parts)  # once more: nothing changes
    assert both.run(spark).filled == 0
    both.check()
    both.prove()


def test_facts_wait_while_the_dimension_is_ahead_of_its_published_version(spark, load):
    load.provide(400)
    load.add_file(900)
    inferred = load.run(spark).inferred
    load.provide(2000)
    load.provide(load.parts, published=False)  # no load has that version
    load.add_file(100)
    more = load.run(spark)
    assert more.filled == 0 and load.counts() == (inferred + more.inferred, 0)
    load.prove()
    load.provide(load.parts)
    filled = load.run(spark).filled
    assert filled > 0 and load.counts() == (inferred + more.inferred - filled, filled)
    load.check()
    load.prove()


# ---- members, without Spark

PLACES = pa.schema([("land", pa.string()), ("no", pa.int32()), ("opened", pa.date32())])
TUPLES = pa.schema([("number", pa.int64()), ("country", pa.string()), ("reason", pa.string())])
ROLE = Role(
    name="shop",
    dimension=Dimension(name="place", table="places", business_key=("land", "no")),
    on={"country": "land", "number": "no"},
    late="infer",
)


def provided(engine, rows):
    """Provision the dimension ``place`` from a table."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS places")
        connection.exec_driver_sql("CREATE TABLE places (land VARCHAR(9), no INT, opened DATE)")
        for row in rows:
            connection.exec_driver_sql("INSERT INTO places VALUES ('{}', {}, '{}')".format(*row))
    return provision(JoinedDimension(ROLE.dimension, (ROLE,), (ROLE.key,)), engine)


def found(engine, *keys, reason=Reason.NO_MATCH):
    """The surrogate keys of the members of tuples with these keys, by a task of its own."""
    url = engine.url.render_as_string(hide_password=False)
    warehouse = Warehouse(url, "fact", (), 60.0)
    members = deepcopy(Members(warehouse, "place", ROLE.on, "shop_sk"))  # as to another process
    rows = [{"country": land, "number": no, "reason": reason} for land, no in keys]
    return members.find(pa.RecordBatch.from_pylist(rows, TUPLES)).to_pylist()


def rows_of(engine):
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM dim_place ORDER BY place_sk").all()
    return [(sk, land, no, opened and f"{opened}", bool(new)) for sk, land, no, opened, new in rows]


def test_a_member_is_minted_once_and_keeps_its_key(warehouse):
    provided(warehouse, [("fr", 1, "2001-01-01"), ("fr", 2, "2002-01-01")])
    keys = ("de", 7), ("fr", 2), (None, 1), ("de", 7), ("x" * 300, 1), ("at", 1)
    first = found(warehouse, *keys)
    at, de = first[5], first[0]
    assert first == [de, 2, None, de, None, at] and 2 < at < de
    assert found(warehouse, *keys) == first  # a task that is tried again
    assert found(warehouse, ("nl", 1), reason=Reason.NULL_KEY) == [None]
    fr = [(1, "fr", 1, "2001-01-01", False), (2, "fr", 2, "2002-01-01", False)]
    assert rows_of(warehouse) == [*fr, (at, "at", 1, None, True), (de, "de", 7, None, True)]
    dimension = open_dimension(warehouse, "place")
    with warehouse.connect() as connection:  # what a snapshot would have
        published = [b["place_sk"].to_pylist() for b in read_dimension(connection, dimension)]
    assert published == [[1, 2]]
    result = provided(warehouse, [("fr", 1, "2001-01-01"), ("de", 7, "2007-01-01")])
    assert (result.inserted, result.updated, result.unchanged) == (0, 1, 1)
    assert rows_of(warehouse)[3] == (de, "de", 7, "2007-01-01", False)
    assert open_dimension(warehouse, "place").changes > dimension.changes
    assert provided(warehouse, [("de", 7, "2007-01-01")]).updated == 0
    assert found(warehouse, *keys) == first


def test_many_tasks_at_once_mint_each_member_once(warehouse):
    provided(warehouse, [("fr", 1, "2001-01-01")])
    keys = [("de", i) for i in range(1200)]

    def task(number):
        """Each begins at another key, so that they meet."""
        mine = keys[100 * number :] + keys[: 100 * number]
        if number == 3:  # the master rows come meanwhile
            provided(warehouse, [("de", i, "2007-01-01") for i in range(300)])
        return dict(zip(mine, found(warehouse, *mine), strict=True))

    with ThreadPoolExecutor(6) as pool:
        of_tasks = list(pool.map(task, range(6)))
    assert all(keys == of_tasks[0] for keys in of_tasks)
    rows = rows_of(warehouse)
    assert len(rows) == 1201 and {(land, no): sk for sk, land, no, *_ in rows[1:]} == of_tasks[0]
    assert [no for _, land, no, _, new in rows if land == "de" and not new] == sorted(range(300))


def test_a_member_that_is_inferred_while_its_row_is_provisioned_is_updated(warehouse):
    """Between the look at what is there and the insert, a task is first."""
    provided(warehouse, [("fr", 1, "2001-01-01")])
    minted = list[str]()

    def first(connection, _, statement, *others):
        if statement.startswith("INSERT INTO dim_place") and not minted:
            minted.append("INSERT INTO dim_place (land, no, is_inferred) VALUES ('de', 7, 1)")
            connection.exec_driver_sql(minted[0])
            raise IntegrityError(statement, None, Exception("Duplicate entry"))

    provided(warehouse, [("fr", 1, "2001-01-01")])
    found(warehouse, ("fr", 2))
    event.listen(warehouse, "before_cursor_execute", first)
    result = provided(warehouse, [("de", 7, "2007-01-01"), ("de", 8, "2008-01-01")])
    event.remove(warehouse, "before_cursor_execute", first)
    assert (result.inserted, result.updated) == (1, 1) and minted
    new = [row[1:] for row in rows_of(warehouse) if row[1] == "de"]
    assert new == [("de", 7, "2007-01-01", False), ("de", 8, "2008-01-01", False)]


# ---- crashes

STEPS = [
    ("semistream.streaming.progress.Progress.write", "after"),
    ("semistream.warehouse.ledger.Ledger.commit", "before"),
    ("semistream.warehouse.ledger.Ledger.commit", "after"),
]
OF_SQL = [
    ("semistream.warehouse.inferred.Filling._fill", "before"),
    ("semistream.warehouse.inferred.Filling._fill", "after"),  # rolled back
    ("semistream.warehouse.inferred.Filling.fill", "after"),
]
OF_DELTA = [
    ("semistream.streaming.sinks.delta.DeltaSink._fill", "before"),
    ("semistream.streaming.sinks.delta._replaced", "after"),  # in the midst of a file
    ("semistream.streaming.sinks.delta.DeltaSink._replace", "before"),
    ("semistream.streaming.sinks.delta.DeltaSink._replace", "after"),  # before the ledger's commit
    ("semistream.streaming.sinks.delta.DeltaSink.fill", "after"),
]


def test_a_driver_that_dies_at_any_step_infers_and_fills_once(spark, load, monkeypatch):
    load.provide(50)
    load.add_file(2000)
    load.run(spark)
    for number, (name, when) in enumerate(STEPS + (OF_SQL if load.sink == "sql" else OF_DELTA)):
        load.provide(150 + 100 * number)
        load.add_file(40)
        with monkeypatch.context() as patch:
            faults.crash_at(patch, name, when, 1)
            with pytest.raises(OSError, match="crash"):
                load.run(spark)
    load.provide(1200)
    load.run(spark)
    load.check()
    assert all(load.counts())
    load.prove()


def fill_until_killed(load, name, when):
    """In a process of its own."""

    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    faults.crash_at(pytest.MonkeyPatch(), name, when, 1, kill)
    load.fill()


@into_delta
def test_sigkill_while_facts_of_a_delta_table_are_filled_in(spark, load):
    load.provide(50)
    for rows in (900, 700):
        load.add_file(rows)
    load.run(spark)
    for number, (name, when) in enumerate(OF_DELTA):
        load.provide(150 + 100 * number)
        process = get_context("spawn").Process(target=fill_until_killed, args=(load, name, when))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        assert (load.fill() > 0) == ((name, when) != OF_DELTA[-1])
        load.check()
    assert all(load.counts())
    load.prove()


# ---- data files of a Delta table


@into_delta
def test_only_data_files_with_the_member_are_written_anew(spark, load):
    """Those of a load that had not inferred any, when rows had no number, are left alone, too."""
    infer = load.job
    load.job = load.job_of(load.job.stream.model_dump(), late="reject")
    load.provide(10)
    load.sell("c1", "c2", "c3", "c4")
    load.run(spark, partitions=1)
    assert "load_row" not in DeltaTable(load.sink).to_pyarrow_table().column_names
    load.job = infer
    load.provide(10)
    for skus in (("c1", "c100", "c200", "c100"), ("c200", "c3"), ("c100", None)):
        load.sell(*skus)
        load.run(spark, partitions=1)
    first = load.data_files()
    load.check()
    load.prove()
    load.provide(150)  # brings c100, and not c200
    assert load.run(spark, partitions=1).filled == 3
    second = load.data_files()
    having = {of for of, (_, parts) in first.items() if "c100" in parts}
    assert {of for of in first if first[of] != second[of]} == having and len(having) > 1
    load.check()
    load.prove()
    numbers = defaultdict(list)
    for row in DeltaTable(load.sink).to_pyarrow_table().to_pylist():
        numbers[row["load_id"]].append(row["load_row"])
    before, *after = (numbers[of] for of in sorted(numbers))
    assert before == [None] * 4
    assert all(sorted(of) == [*range(len(of))] for of in after)
    DeltaTable(load.sink).optimize.compact()
    load.provide(300)
    assert load.fill() == 2
    load.check()
    load.prove()
    table = DeltaTable(load.sink)
    assert len(table.file_uris()) == 1
    write_deltalake(table, table.to_pyarrow_table().slice(2, 2), mode="append")
    assert {"fact_rows", "no_duplicates"} <= failed(load)


@into_delta
def test_others_commit_to_the_table_while_facts_are_filled_in(spark, load, monkeypatch):
    load.provide(50)
    for rows in (400, 300):
        load.add_file(rows)
    load.run(spark)
    foreign = Path(load.sink) / "foreign.parquet"  # which lacks most columns
    pq.write_table(pa.table({"id": [-1]}), foreign)
    more, table = (
        AddAction(foreign.name, foreign.stat().st_size, {}, 0, True, "{}"),
        DeltaTable(load.sink),
    )
    table.create_write_transaction([more], "append", table.schema())
    load.provide(2000)
    replace, others = (
        DeltaSink._replace,
        [
            lambda table: table.optimize.compact(),  # all has to be written anew once more
            lambda table: table.alter.set_table_properties(
                {"delta.logRetentionDuration": "interval 9 days"}
            ),
        ],
    )

    def meanwhile(*args):
        if others:
            others.pop(0)(DeltaTable(load.sink))
        return replace(*args)

    monkeypatch.setattr(DeltaSink, "_replace", meanwhile)
    assert load.fill() > 0 and not others
    DeltaTable(load.sink).delete("id = -1")
    load.check()
    load.prove()


@into_delta
def test_facts_whose_commit_is_under_way_are_filled_in_too(spark, load, monkeypatch):
    """A version comes after the first batch, and its commit takes longer than the next plan."""
    load.provide(10)
    for skus in (("c100", "c200"), ("c1", "c2", "c3")):
        load.sell(*skus)
    commit, committed = DeltaSink.commit, App._committed

    def slow(*args):
        time.sleep(0.5)
        commit(*args)

    def provide(*args):
        committed(*args)
        if load.known == 10:
            load.provide(150)

    monkeypatch.setattr(DeltaSink, "commit", slow)
    monkeypatch.setattr(App, "_committed", provide)
    assert load.run(spark).filled == 1
    load.check()
    load.prove()


def test_a_run_that_only_fills_facts_in_is_proven(spark, load):
    """It has changed facts of former loads, although it has committed nothing."""
    load.provide(10)
    for part in ("c1", "c2", "c100", "c3"):
        load.sell(part, "c4", "c5")
        load.run(spark)
    load.prove()
    load.provide(150)
    summary = load.run(spark)
    assert (summary.filled, summary.rows_read) == (1, 0)
    result = load.prove(since_last=True)
    # the load of the fact that was filled in, and those after it
    assert result.report is not None and result.figures["rows read"] == 6
    assert result.proof.startswith("yes: batches 0 to 3, ")
    assert load.prove(since_last=True).report is None
    load.provide(160)
    assert load.run(spark).filled == 0
    assert load.prove(since_last=True).report is None


# ---- the proof


def failed(load, **options):
    return {check.name for check in verify(load, **options).failed}


@into_delta
def test_what_is_not_as_it_was_in_a_delta_table_is_named(spark, load):
    load.provide(400)
    load.add_file(1500)
    load.run(spark)
    load.provide(1000)
    load.run(spark)
    load.prove()
    open_, filled = (
        load.query(f"SELECT load_id, load_row FROM inferred WHERE version IS {what}")
        for what in ("NULL", "NOT NULL")
    )
    table, row = DeltaTable(load.sink), "load_id = {} AND load_row = {}"
    table.update(updates={"name": "'other'"}, predicate=row.format(*filled[0]))
    table.update(updates={"price": "1"}, predicate=row.format(*open_[0]))
    assert {"enriched_columns", "inferred_open", "same_rows"} <= failed(load)
    table.delete(row.format(*open_[1]))
    assert {"inferred_facts", "fact_rows"} <= failed(load)


@into_sql
def test_what_is_not_as_it_was_inferred_and_filled_in_is_named(spark, load):
    load.job = load.job_of(load.job.stream.model_dump(), max_open_hours=24)
    load.provide(400)
    load.add_file(1500)
    load.run(spark)
    load.provide(1000)
    load.add_file(10)
    load.run(spark)
    open_, filled = (
        load.query(f"SELECT load_id, load_row, member FROM inferred WHERE version IS {what}")
        for what in ("NULL", "NOT NULL")
    )
    load.prove()
    assert failed(load, since_last=True) == set()
    old = "UPDATE load_batches SET committed_at = datetime(committed_at, '{} hours')"
    load.execute(old.format(-25))
    assert failed(load, since_last=True) == {"open_age"}  # although nothing is new
    load.execute(old.format(+25))
    load.prove()
    load.job = load.job_of(load.job.stream.model_dump(), max_unmatched=0.01, grace="2 hours")
    load.prove()
    assert failed(load, since_last=True) == set()
    load.execute(old.format(-3))
    load.execute("UPDATE quality_runs SET started_at = datetime(started_at, '-2 hours')")
    assert failed(load, since_last=True) == {"unmatched_share"}  # the grace has run out
    load.execute(old.format(+3))
    load.job = load.job_of(load.job.stream.model_dump(), max_unmatched=0.5)
    load.prove()
    fact, row = "UPDATE fact_sales SET {}", "WHERE load_id = {} AND load_row = {}"
    breaks = [
        (fact.format("name = 'other' ") + row, filled[0], {"enriched_columns", "same_rows"}),
        (fact.format("price = 1 ") + row, open_[0], {"inferred_open", "same_rows"}),
        ("UPDATE inferred SET version = NULL " + row, filled[1], {"inferred_open"}),
        ("DELETE FROM inferred " + row, open_[1], {"inferred_facts", "enriched_columns"}),
        ("DELETE FROM fact_sales " + row, open_[2], {"inferred_facts", "fact_rows", "same_rows"}),
        (
            "DELETE FROM dim_part WHERE part_sk = {2}",
            open_[3],
            {"inferred_facts", "surrogate_keys"},
        ),
    ]
    expected = set()
    for statement, of, names in breaks:
        load.execute(statement.format(*of))
        expected |= names
    assert expected <= failed(load)
    of_fact = "SELECT id FROM fact_sales WHERE load_id = {} AND load_row = {}"
    (((changed,),), ((unnoted,),)) = (load.query(of_fact.format(*of)) for of in open_[:2])
    rows = {check.name: check.rows for check in verify(load).failed}
    assert changed in {row["id"] for row in rows["inferred_open"]}
    assert unnoted in {row["id"] for row in rows["inferred_facts"] if row["found"] is None}
    assert not [row for each in rows.values() for row in each if any("anon" in n for n in row)]
    assert steps.rows_of("sales", load.paths)["inferred"] == len(open_) + len(filled) - 1
    steps.reset("sales", load.paths)
    assert load.query("SELECT * FROM inferred") == []


# ---- several roles


class InferStar(ProvidedStar):
    """Sales with parts and sellers that are inferred, and buyers, who are resolved."""

    def __init__(self, home, warehouse_url, sink="sql"):
        super().__init__(home, warehouse_url)
        self.sink = sink
        job = self.job.model_dump()
        for role, late in {"part": "infer", "seller": "infer", "buyer": "resolve"}.items():
            job["dimensions"][role]["late"] = late
        self.job = Job.load(job)

    def expected_facts(self):
        """Each role's rows are those that the dimension table has, the inferred ones with nulls."""
        tuples = self.stream
        for role in self.roles:
            dimension, on, columns, kind, _ = ROLES[role]
            names = [f.name for f in DIMENSIONS[dimension]]
            where = "WHERE is_inferred = 0" if role == "buyer" else ""
            rows = self.query(f"SELECT {', '.join(names)} FROM dim_{dimension} {where}")
            master = [dict(zip(names, row, strict=True)) for row in rows]
            for row in master if dimension == "offer" else ():
                row["day"] = date.fromisoformat(f"{row['day']}")
            joined, _ = oracle.join(
                tuples, master, list(on.items()), (f"{dimension}_sk", *columns), kind
            )
            known = [*(tuples[0] if tuples else ()), f"{role}_sk", *columns.values()]
            tuples = [dict(zip(known, row, strict=True)) for row in joined.elements()]
        without = {"seller_sk": 0}  # the unknown member
        return Counter(
            tuple(without.get(c) if t[c] is None and c in without else t[c] for c in self.columns)
            for t in tuples
        )


def test_inferred_and_resolved_roles_of_one_star(spark, tmp_path, sink):
    star = InferStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", sink)
    star.provide(offer=None, part=300, person=200)
    for rows in (1000, 700):
        star.add_file(rows)
    assert star.run(spark).inferred > 0
    same(star.facts(), star.expected_facts())
    star.provide(person=600)
    star.add_file(300)
    summary = star.run(spark)
    assert summary.resolved > 0 and summary.filled > 0
    same(star.facts(), star.expected_facts())
    star.provide(part=2000, person=900)
    assert star.run(spark).filled > 0
    same(star.facts(), star.expected_facts())
    roles = star.query("SELECT role, sum(version IS NULL), count(*) FROM inferred GROUP BY role")
    assert {role for role, open_, all_ in roles if 0 < open_ < all_} == {"part", "seller"}
    broken = (
        "SELECT * FROM load_inputs WHERE waiting_before + rows_read + resolved <> "
        "matched + unmatched + waiting OR missed > matched OR missed < 0"
    )
    assert star.query(broken) == []
    star.prove(seed=1)


@pytest.mark.slow
def test_sigkill_of_driver_and_workers_while_master_data_come(tmp_path, sink, make_app):
    """Each part and seller is inferred once, and filled in once; each buyer is resolved once."""
    star = InferStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", sink)
    star.provide(offer=None, part=100, person=100)
    for rows in range(100, 220, 20):
        star.add_file(rows)
    app = make_app(star, algorithm="ssbj")
    faults.run_through(app, 6, {"driver": 1, "worker": 2})
    for known, kills in ((600, {"driver": 1}), (2000, {"worker": 1})):
        star.provide(part=known, person=known // 3)
        for _ in range(2):
            star.add_file(100)
        faults.run_through(app, known, kills)
    same(star.facts(), star.expected_facts())
    check_resolved(star)
    for dimension, key in (("part", "code"), ("person", "no")):
        members = f"SELECT count({key}), count(DISTINCT {key}) FROM dim_{dimension}"
        ((count, different),) = star.query(members)
        assert count == different
    (counts,) = star.query("SELECT sum(version IS NULL), sum(version IS NOT NULL) FROM inferred")
    assert min(counts) > 0 and star.query("SELECT sum(resolved) FROM load_batches")[0][0] > 0
    star.prove(seed=1)


def test_a_tuple_with_an_inferred_member_has_no_match(spark, tmp_path):
    """It may be several facts, as there are many offers. It had none when it was loaded, also if
    its member has been filled in since."""
    star = InferStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    star.provide(offer=None, part=300, person=200)
    star.add_file(800)
    star.run(spark)

    def rate(role):
        rates = {"match_rate": {"at_least": 1.0, "roles": [role]}}
        job = star.job.model_copy(update={"expect": Expectations.load(rates)})
        failed = next(
            c for c in verify(star, limits=job, seed=1).failed if c.name == f"{role}_match_rate"
        )
        return float(failed.rows[0]["found"].rstrip("%")) / 100

    ids = "SELECT count(DISTINCT id) FROM fact_sales JOIN inferred USING (load_id, load_row)"
    read, lost = star.query(
        "SELECT sum(rows_read), sum(unmatched) FROM load_inputs WHERE role = 'part'"
    )[0]
    (inferred,) = star.query(f"{ids} WHERE inferred.role = 'part'")[0]
    wanted = 1 - (inferred + lost) / read
    # an estimate, as the ledger counts facts
    assert inferred > 0 and rate("part") == pytest.approx(wanted, abs=0.02)
    star.provide(part=2000)
    star.run(spark)
    assert rate("part") == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("join_type", ["inner", "left"])
def test_inferred_members_are_no_master_rows_of_other_roles_and_apps(spark, tmp_path, join_type):
    """What the seller infers are persons that the buyer rightly has no row of, nor another app."""
    star = InferStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    job = star.job.model_dump()
    job["dimensions"]["buyer"] |= {"late": "reject", "join_type": join_type, "max_unmatched": 1.0}
    job["dimensions"]["seller"] |= {"max_unmatched": 1.0}
    star.job = Job.load(job)
    job["dimensions"]["seller"]["late"] = job["dimensions"]["part"]["late"] = "reject"
    job["dimensions"]["part"]["max_unmatched"] = 1.0
    other = Job.load(job | {"name": "other", "fact_table": "fact_other"})
    sink = {"sink": str(tmp_path / "delta")} if join_type == "left" else {}
    star.provide(offer=None, part=300, person=200)
    star.add_file(500)
    star.run(spark)
    star.run(spark, other, app="other", **sink)

    def failing(app):
        return {check.name for check in verify(star, app=app, seed=1).failed}

    assert failing("sales") == failing("other") == set()
    star.provide(person=300)  # fills in some members
    star.run(spark)
    assert failing("sales") == failing("other") == set()
    star.add_file(50)
    star.run(spark)
    star.run(spark, other, app="other", **sink)
    assert failing("sales") == failing("other") == set()
    for app, table in (("sales", "fact_sales"), ("other", "fact_other"))[: 1 if sink else 2]:
        if join_type == "left":
            # a fact that has lost its buyer, of whom there is a row
            newest = f"SELECT max(load_id) FROM {table} WHERE buyer_sk > 0"
            star.alter(
                f"UPDATE {table} SET buyer_sk = 0 WHERE load_id = ({newest}) AND buyer_sk > 0"
            )
            assert {"buyer_surrogate_keys", "same_rows"} <= failing(app)
        else:
            # put aside, although there is a row of person 10
            star.alter(
                "UPDATE unmatched SET tuple = json_set(tuple, '$.buyer', 10) "
                f"WHERE role = 'buyer' AND reason = 'no_match' AND fact_table = '{table}'"
            )
            assert {"buyer_sample_unmatched", "same_rows"} <= failing(app)


def test_only_rightly_named_rows_are_wrong_where_members_are_inferred(spark, tmp_path):
    """A load that is joined again is not joined with members that others have inferred."""
    star = InferStar(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")
    star.provide(offer=None, part=300, person=200)
    star.add_file(500)
    star.run(spark)
    [(load, row, stream_id)] = star.query(
        "SELECT load_id, load_row, stream_id FROM unmatched WHERE role = 'buyer' AND "
        "reason = 'no_match' LIMIT 1"
    )
    star.alter(
        "UPDATE unmatched SET tuple = json_set(tuple, '$.sku', 'other') "
        f"WHERE load_id = {load} AND load_row = {row}"
    )
    [wrong] = [check for check in verify(star, seed=1).failed if check.name == "same_rows"]
    assert [(r["stream_id"], r["column"]) for r in wrong.rows] == [(stream_id, "sku")]


# ---- what cannot be


@into_sql
def test_what_cannot_be_inferred_is_refused(load):
    role, infer = load.job.role("part"), "late' can be infer only where "
    load.job = load.job.model_copy(
        update={"dimensions": {"part": role.model_copy(update={"late": "resolve"})}}
    )
    load.provide(10)
    by_name = role.model_copy(update={"on": {"sku": "name"}})
    for late, said in (
        (role, "dim_part has a column is_inferred.*semistream provision"),
        (by_name, "the role is joined on the dimension's business key, code"),
    ):
        load.job = load.job.model_copy(update={"dimensions": {"part": late}})
        with pytest.raises(ConfigError, match=infer + said):
            load.run(None)
    load.job = load.job.model_copy(update={"dimensions": {"part": role}})
    load.provide(10)  # adds the column
    app = "SELECT part_sk, is_inferred FROM dim_part ORDER BY part_sk"
    assert load.query(app) == [(sk, 0) for sk in range(1, 11)]
    table = pa.Table.from_pylist([{"code": "c1", "is_inferred": "no"}])
    pq.write_table(table, load.file)
    other = role.dimension.model_copy(update={"name": "other"})
    role = role.model_copy(update={"columns": {}})
    with pytest.raises(ConfigError, match=r"must not repeat a column of the table.*is_inferred"):
        provision(JoinedDimension(other, (role,), (role.key,)), connect(load.paths.warehouse_url))
