"""A ledger of the former form, whose loads have no ``load_inputs``, is migrated, whatever kills
that half-way. ``ledgers`` has one for each system, as that version filled it: with the loads of a
stream, and of two streams with totals."""

import json
import os
import signal
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from semistream.reasons import Reason
from semistream.warehouse import connect, create_all, migrate
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.records import unaccounted, waiting_by_role
from semistream.warehouse.schema import load_batches, load_inputs, load_rejections, unmatched

UNMATCHED = """CREATE TABLE unmatched (
    load_id BIGINT NOT NULL, load_row INTEGER NOT NULL, fact_table VARCHAR(190) NOT NULL,
    reason VARCHAR(40) NOT NULL, side VARCHAR(5), stream_id VARCHAR(190), tuple TEXT NOT NULL,
    PRIMARY KEY (load_id, load_row))"""
KEPT = "INSERT INTO unmatched VALUES (100000000000000, 0, 'f', 'no_match', NULL, '7', '{}')"
CHANGES = ("CREATE", "INSERT", "UPDATE", "DELETE", "DROP", "ALTER")


@pytest.fixture
def former(warehouse_url):
    """The URL of a former ledger, and its rows by load_id."""
    engine = connect(warehouse_url)
    system = "sqlite" if warehouse_url.startswith("sqlite") else "mariadb"
    script = Path(__file__).parent / "ledgers" / f"{system}.sql"
    with engine.begin() as connection:
        for statement in script.read_text().split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
        for statement in (UNMATCHED, KEPT):
            connection.exec_driver_sql(statement)
        found = connection.execute(sa.text("SELECT * FROM load_batches")).all()
    engine.dispose()
    return warehouse_url, {row.load_id: row for row in found}


def check(url, rows):
    engine = connect(url)
    try:
        columns = {c["name"] for c in sa.inspect(engine).get_columns("load_batches")}
        assert columns == set(load_batches.c.keys())
        indexes = {index["name"] for index in sa.inspect(engine).get_indexes("unmatched")}
        assert indexes == {index.name for index in unmatched.indexes}
        with engine.connect() as connection:
            u = unmatched.c
            kept = sa.select(u.key_code, u.resolved_by).distinct()
            assert connection.execute(kept).all() == [(None, None)]
            keys = connection.scalars(sa.select(load_batches.c.load_id)).all()
        assert sorted(keys) == sorted(rows)
        for row in rows.values():
            load = Ledger(engine, row.app).partition(row.batch, row.drain, row.partition)
            assert not any(map(unaccounted, (load, *load.inputs)))
            assert (load.waiting_before, load.waiting, load.unmatched) == (
                row.waiting_before,
                row.waiting,
                row.unmatched,
            )
            assert load.rejected == json.loads(row.rejected)
            assert load.resolved == 0 and not any(of.resolved for of in load.inputs)
            assert {of.state_file for of in load.inputs} == {row.state_file}
            assert (sum(of.rows_read for of in load.inputs), load.algorithm, load.output_rows) == (
                row.rows_read,
                row.algorithm,
                row.output_rows,
            )
        sales, orders = (Ledger(engine, app).partitions(1, 0) for app in ("sales", "orders"))
        assert {(of.role, of.dimension, of.version) for load in sales for of in load.inputs} == {
            ("part", "part", "v000001")
        }
        assert [load.closed for load in sales] == [None, None]
        assert [[of.role for of in load.inputs] for load in orders] == [["left", "right"]] * 2
        assert sum(waiting_by_role(orders).values()) == sum(load.waiting for load in orders) > 0
        assert sum(load.closed for load in Ledger(engine, "orders").partitions(1, 1)) > 0
        with engine.connect() as connection:
            r = load_rejections.c
            reasons = connection.execute(sa.select(r.role, r.reason).distinct()).all()
        assert set(reasons) == {
            ("part", Reason.NO_MATCH),
            ("part", Reason.NULL_KEY),
            ("left", Reason.NULL_KEY),
            ("right", Reason.NULL_KEY),
            ("left", Reason.NO_PARTNER),
            ("right", Reason.NO_PARTNER),
        }
    finally:
        engine.dispose()


def test_a_former_ledger_has_the_inputs_of_its_loads(former):
    url, rows = former
    engine = connect(url)
    for _ in range(2):  # the second time there is nothing to do
        create_all(engine)
        migrate(engine)
    with engine.connect() as connection:
        inputs = connection.scalar(sa.select(sa.func.count()).select_from(load_inputs))
    assert inputs == sum(2 if row.sides else 1 for row in rows.values())
    engine.dispose()
    check(url, rows)


def killed_at(url, number):
    """Migrate in a process of its own that is killed before its n-th statement that changes
    anything; False if it ends before."""
    pid = os.fork()
    if not pid:
        try:
            engine, count = connect(url), [0]

            @event.listens_for(engine, "before_cursor_execute")
            def _kill(connection, cursor, statement, *_):
                changes = statement.split()[0] in CHANGES
                count[0] += changes
                if changes and count[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)

            create_all(engine)
            migrate(engine)
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
def test_a_migration_that_is_killed_anywhere_loses_and_doubles_nothing(former):
    url, rows = former
    number = 1
    while killed_at(url, number):
        number += 1
        assert number < 60
    assert number > 8
    check(url, rows)


def test_columns_that_came_with_several_roles_are_added(warehouse_url):
    """What was loaded before has let each matched tuple pass, and none without a row."""
    engine = connect(warehouse_url)
    try:
        create_all(engine)
        counts = {c.name: 7 for c in load_inputs.c if isinstance(c.type, sa.BigInteger)}
        texts = {c.name: "x" for c in load_inputs.c if c.name not in {*counts, "number"}}
        with engine.begin() as connection:
            for name in ("missed", "passed"):
                connection.exec_driver_sql(f"ALTER TABLE load_inputs DROP COLUMN {name}")
            known = {n: v for n, v in counts.items() if n not in ("missed", "passed")}
            former = sa.table("load_inputs", *(sa.column(n) for n in (*known, *texts, "number")))
            connection.execute(former.insert().values(known | texts | {"number": 0}))
        for _ in range(2):
            create_all(engine)
            migrate(engine)
        with engine.connect() as connection:
            row = connection.execute(sa.select(load_inputs)).one()
        assert (row.missed, row.passed, row.matched) == (0, None, 7)
    finally:
        engine.dispose()
