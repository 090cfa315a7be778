"""A warehouse of the former form, whose rows name their load by four columns, is migrated, whatever
kills that half-way."""

import os
import signal
import sqlite3

import sqlalchemy as sa
from sqlalchemy import event, text

from semistream.pipeline import steps
from semistream.warehouse import connect, create_all, migrate
from semistream.warehouse.migration import FORMER_KEY
from semistream.warehouse.types import KeyString, big_integer
from test_source import verify

OWN = ("load_batches", "unmatched")


def make_former(url):
    """As the former version had it: four columns and an index on them in the place of the key, and
    no load_apps."""
    engine = connect(url)
    with engine.begin() as c:
        ledger = sa.Table("load_batches", sa.MetaData(), autoload_with=c)
        for name in ("fact_sales", "unmatched", "load_batches"):
            table = sa.Table(name, sa.MetaData(), autoload_with=c)
            kept = [x for x in table.columns if x.name not in ("load_id", "load_row", *FORMER_KEY)]
            own = name == "load_batches"
            key = [sa.Column("app", KeyString(), nullable=False, primary_key=own),
                   *(sa.Column(k, kind, nullable=False, primary_key=own, autoincrement=False)
                     for k, kind in (("batch", sa.BigInteger),
                                     ("drain", sa.Integer), ("partition", sa.Integer)))]
            number = [sa.Column("id", big_integer(),
                                primary_key=True)] if name == "unmatched" else []
            former = sa.Table(f"old_{name}", sa.MetaData(), *number,
                              *[sa.Column(x.name, x.type, nullable=x.nullable) for x in kept], *key)
            former.create(c)
            columns = [*(table.c[x.name] for x in kept), *(ledger.c[k] for k in FORMER_KEY)]
            rows = sa.select(*(table.c[x.name] for x in [*kept, *key])) if own else \
                sa.select(*columns).select_from(
                    table.join(ledger, table.c.load_id == ledger.c.load_id))
            c.execute(former.insert().from_select([x.name for x in [*kept, *key]], rows))
            table.drop(c)
            c.execute(text(f"ALTER TABLE old_{name} RENAME TO {name}"))
            if not own:
                four = ", ".join(map(engine.dialect.identifier_preparer.quote, FORMER_KEY))
                c.execute(text(f"CREATE INDEX ix_{name}_load ON {name} ({four})"))
        c.execute(text("CREATE INDEX ix_fact_sales_id ON fact_sales (id)"))
        c.execute(text("CREATE INDEX ix_mine ON fact_sales (amount)"))
        c.execute(text("DROP TABLE load_apps"))
    engine.dispose()


def killed_at(url, number):
    """Migrate in a process of its own that is killed before its n-th statement that changes
    anything; False if it ends before."""
    pid = os.fork()
    if not pid:
        try:
            engine, count = connect(url), [0]

            @event.listens_for(engine, "before_cursor_execute")
            def _kill(connection, cursor, statement, *_):
                changes = statement.split()[0] in ("CREATE", "INSERT", "RENAME", "DROP", "ALTER")
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


def form(url):
    """Columns, primary key and indexes of the tables."""
    found = sa.inspect(connect(url))
    return {name: ([c["name"] for c in found.get_columns(name)],
                   found.get_pk_constraint(name)["constrained_columns"],
                   sorted(i["name"] for i in found.get_indexes(name)))
            for name in found.get_table_names() if name in ("fact_sales", *OWN)
            or name.endswith(("_former", "_next"))}


def test_a_former_warehouse_is_migrated_by_the_next_load(spark, load):
    for rows in (900, 700):
        load.add_file(rows)
    load.run(spark)
    load.run(spark, app="another")
    wanted = form(load.places.warehouse_url)
    rows = {t: load.query(f"SELECT count(*) FROM {t}") for t in ("fact_sales", *OWN)}
    key = "SELECT app, batch, drain, b.partition, load_id FROM load_batches b ORDER BY load_id"
    loads = load.query(key)
    make_former(load.places.warehouse_url)
    assert form(load.places.warehouse_url) != wanted
    load.add_file(300)
    load.run(spark)
    facts, pk, _ = wanted["fact_sales"]
    assert (form(load.places.warehouse_url) == wanted
            | {"fact_sales": (facts, pk, ["ix_fact_sales_id", "ix_mine"])})
    assert verify(load).success and steps.rows_of("another", load.places)["fact_sales"] > 0
    assert {row[:4] for row in load.query(key)} > {row[:4] for row in loads}
    assert load.query("SELECT count(*) FROM fact_sales")[0][0] > rows["fact_sales"][0][0]
    assert load.query("SELECT count(*) FROM fact_sales f LEFT JOIN load_batches b USING (load_id) "
                      "WHERE b.app IS NULL") == [(0,)]
    most = ("SELECT count(*) FROM (SELECT load_id FROM {} GROUP BY load_id "
            "HAVING max(load_row) <> count(*) - 1) x")
    assert [load.query(most.format(t)) for t in ("fact_sales", "unmatched")] == [[(0,)], [(0,)]]


def test_a_migration_that_is_killed_anywhere_loses_and_doubles_nothing(spark, load):
    load.add_file(900)
    load.run(spark)
    url = load.places.warehouse_url
    make_former(url)
    number = 1
    while killed_at(url, number):
        number += 1
        assert number < 60
    assert number > 8
    load.check()
    assert verify(load).success
    assert not [name for name in form(url) if name.endswith(("_former", "_next"))]
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_load_that_is_committed_while_the_table_is_copied_is_kept(spark, load):
    """Into MySQL's tables, which are not locked meanwhile: by a load of the former version that was
    not stopped."""
    load.add_file(900)
    load.run(spark)
    url = load.places.warehouse_url
    make_former(url)
    engine, late = connect(url), []

    @event.listens_for(engine, "before_cursor_execute")
    def _another(connection, cursor, statement, *_):
        if statement.startswith("RENAME TABLE") and "fact_sales_next" in statement and not late:
            late.append(True)
            other = connect(url)
            with other.begin() as c:
                c.execute(text("INSERT INTO fact_sales (id, sku, amount, part_sk, name, price, "
                               "app, batch, drain, `partition`) VALUES (-1, 'c1', 0.5, 2, 'part "
                               "1', 1, 'late', 0, 0, 0)"))
            other.dispose()

    create_all(engine)
    migrate(engine)
    engine.dispose()
    assert load.query("SELECT count(*) FROM fact_sales WHERE id = -1") == [(len(late),)]
    assert len(late) == (not url.startswith("sqlite"))
