"""The proof of tuples that were joined again: each is a fact, open in ``unmatched``, or waiting,
and what says otherwise is named."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
import sqlalchemy as sa

from semistream.keys import codes
from semistream.quality.resolved import is_overdue
from semistream.reasons import Reason
from semistream.streaming.spool import Spool
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.load_ids import load_id
from semistream.warehouse.records import InputCounts, LoadRecord
from semistream.warehouse.resolution import ORIGINS
from semistream.warehouse.schema import load_batches, unmatched
from sink_loads import (
    BATCHES,
    JOINED,
    KEPT,
    MASTER,
    ON_SQLITE,
    PARTITIONS,
    STREAM,
    Loader,
    alter,
    check,
    commit_of,
    failed,
    rows_of,
)

pytestmark = ON_SQLITE
RESOLVED = load_id(1, 2, 2, 0), load_id(1, 2, 2, 1)  # what follows the last batch and its drain


class Resolver(Loader):
    """A loader whose late products come after the last batch."""

    def resolve(self, at, skus, moved=()):
        """Resolve the open tuples with these skus, of which some are unmatched for another reason
        then."""
        late = [
            {"sku": sku, "name": f"Late {sku}", "price": None, "colour": "late", "day": None}
            for sku in skus
        ]
        with self.engine.begin() as connection:
            bulk_insert(connection, self.dimension, pa.Table.from_pylist(late, MASTER))
            products = {
                row["sku"]: row for row in connection.execute(sa.select(self.dimension)).mappings()
            }
            u = unmatched.c
            rows = connection.execute(
                sa.select(u.load_id, u.load_row, u.tuple.label("kept")).where(
                    u.resolved_by.is_(None), u.reason == Reason.NO_MATCH
                )
            ).all()
        tuples = [(row, json.loads(row.kept)) for row in rows]
        self.version = "v000002"
        loads = [
            self._resolve(
                *at,
                p,
                [(r, t) for r, t in tuples if t["order_id"] % PARTITIONS == p],
                products,
                skus,
                moved,
            )
            for p in range(PARTITIONS)
        ]
        self.sink.commit(commit_of(self.job, *at, PARTITIONS, 0), loads)

    def _resolve(self, batch, kind, partition, tuples, products, skus, moved):
        from datetime import date

        def stream(kept):
            return {n: kept[n] for n in STREAM.names} | {"day": date.fromisoformat(kept["day"])}

        taken = [(r, stream(t)) for r, t in tuples if t["sku"] in skus]
        other = [(r, stream(t)) for r, t in tuples if t["sku"] in moved]
        facts = [
            {
                **t,
                "sales_sk": products[t["sku"]]["sales_sk"],
                "name": products[t["sku"]]["name"],
                "price": None,
                "colour": "late",
                "sales_day": None,
            }
            for _, t in taken
        ]
        kept = [{**t, "sku": None, "reason": Reason.NULL_KEY} for _, t in other]
        counts = InputCounts(
            "sales",
            0,
            0,
            len(taken),
            {Reason.NULL_KEY: len(other)},
            0,
            "",
            "sales",
            self.version,
            resolved=len(taken) + len(other),
        )
        record = LoadRecord(
            "sales",
            batch,
            kind,
            partition,
            "ssbj",
            (counts,),
            0,
            len(taken),
            len(facts),
            resolved=counts.resolved,
        )
        with Spool(JOINED, (STREAM,), (("order_id",),), None, len(STREAM)) as spool:
            spool.write(
                pa.RecordBatch.from_pylist(facts, JOINED), pa.RecordBatch.from_pylist(kept, KEPT)
            )
            origins = [{"load_id": r.load_id, "load_row": r.load_row} for r, _ in taken + other]
            spool.resolve(pa.RecordBatch.from_pylist(origins, ORIGINS))
            return self.sink.write(record, spool)


@pytest.fixture
def loader(warehouse_url, tmp_path):
    loader = Resolver(warehouse_url, tmp_path)
    loader.load(range(BATCHES))
    # x9, x19 … are of even and odd partitions alike
    loader.resolve((BATCHES - 1, 2), ["x9", "x19", "x49", "x69"], moved=["x39"])
    return loader


def test_sound(loader):
    result = check(loader)
    assert failed(result) == set(), result.describe()
    assert {"resolved_rows", "resolved_once"} <= {r.name for r in result.results}
    with loader.engine.connect() as connection:
        marked = connection.scalar(
            sa.select(sa.func.count()).where(unmatched.c.resolved_by.in_(RESOLVED))
        )
        b = load_batches.c
        sums = [sa.func.sum(c) for c in (b.rows_read, b.resolved, b.matched, b.unmatched)]
        read, resolved, matched, rejected = connection.execute(sa.select(*sums)).one()
    assert marked == resolved == 5
    assert read == 180 and read + resolved == matched + rejected
    # only what is new is verified: the source of the resolved tuples is not read again
    loader.resolve((BATCHES - 1, 3), ["x79"])
    result = check(loader, since_last=True)
    assert failed(result) == set(), result.describe()
    assert result.figures["rows read"] == 0 and result.figures["matched"] == 1


def of(statement):
    return lambda loader: alter(loader, statement)


BREAKS = {
    "a mark is lost": (
        of("UPDATE unmatched SET resolved_by = NULL WHERE stream_id = '9'"),
        {
            "resolved_rows": {"batch": 2, "drain": 2, "rows_marked": 4, "resolved_in_ledger": 5},
            "resolved_once": {"stream_id": "9", "finding": "there, and not marked"},
            "unmatched_once": {"stream_id": "9", "in_fact_sales": 1},
        },
    ),
    "a tuple is marked that no load has": (
        of(
            f"UPDATE unmatched SET resolved_by = {RESOLVED[1]} WHERE stream_id = '99' "
            "AND reason = 'no_match'"
        ),
        {
            "resolved_rows": {"rows_marked": 6},
            "resolved_once": {"stream_id": "99", "finding": "marked, and not there"},
            "none_missing": {"order_id": 99},
        },
    ),
    "a tuple is marked with what is no load": (
        of("UPDATE unmatched SET resolved_by = 7 WHERE stream_id = '99'"),
        {
            "resolved_rows": {"batch": 0, "partition": 7, "rows_marked": 1},
            "resolved_once": {"stream_id": "99", "finding": "marked, and not there"},
            "none_missing": {"order_id": 99},
        },
    ),
    "the fact of a resolved tuple is gone": (
        of("DELETE FROM fact_sales WHERE order_id = 19"),
        {
            "fact_rows": {"batch": 2, "drain": 2},
            "same_rows": {"batch": 2, "drain": 2, "table": "fact_sales"},
            "resolved_once": {"stream_id": "19", "finding": "marked, and not there"},
            "none_missing": {"order_id": 19},
        },
    ),
    "a resolving load has another tuple": (
        of("UPDATE fact_sales SET order_id = 99 WHERE order_id = 49"),
        {
            "resolved_once": {"stream_id": "49", "finding": "marked, and not there"},
            "none_missing": {"order_id": 49},
            "same_rows": {"batch": 2, "drain": 2},
            "unmatched_once": {"stream_id": "99", "in_fact_sales": 1},
        },
    ),
    "what was moved within unmatched is gone": (
        of(f"DELETE FROM unmatched WHERE stream_id = '39' AND load_id = {RESOLVED[1]}"),
        {
            "unmatched_rows": {"batch": 2, "drain": 2, "reason": "null_key"},
            "same_rows": {"batch": 2, "drain": 2, "table": "unmatched"},
            "resolved_once": {"stream_id": "39", "finding": "marked, and not there"},
            "none_missing": {"order_id": 39},
        },
    ),
    "the ledger counts fewer": (
        of(f"UPDATE load_batches SET resolved = 4 WHERE load_id = {RESOLVED[1]}"),
        {
            "batch_arithmetic": {"batch": 2, "drain": 2, "difference": -1},
            "input_arithmetic": {"batch": 2, "drain": 2},
            "resolved_rows": {"resolved_in_ledger": 4, "rows_marked": 5},
            "total_arithmetic": {"difference": -1},
        },
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken(name, loader):
    break_it, expected = BREAKS[name]
    break_it(loader)
    result = check(loader)
    assert failed(result) == set(expected), result.describe()
    for check_name, row in expected.items():
        found = rows_of(result, check_name)
        assert any(row.items() <= r.items() for r in found), (check_name, found)


def test_a_limit_on_age_fails_and_passes(loader):
    role = loader.job.dimensions["sales"]

    def limited(hours, **limits):
        limited = role.model_copy(update={"max_open_hours": hours, **limits})
        loader.job = loader.job.model_copy(update={"dimensions": {"sales": limited}})
        return check(loader)

    assert failed(limited(1.0)) == set()
    with loader.engine.begin() as connection:
        b = load_batches.c
        at = connection.scalar(sa.select(b.committed_at).limit(1))
        old = load_batches.update().where(b.batch == 1, b.drain == 0)
        connection.execute(old.values(committed_at=at - timedelta(hours=5)))
    result = limited(4.0)
    assert failed(result) == {"open_age"}
    # 69 is no longer open; 89 and 119 have no key
    assert {r["stream_id"] for r in rows_of(result, "open_age")} == {"79", "99", "109"}
    assert failed(limited(6.0)) == set()
    # within their grace, tuples count neither for the age nor as unmatched
    result = limited(4.0, max_unmatched=0.0, grace="1 version")
    assert failed(result) == {"open_age", "unmatched_share"}
    (share,) = rows_of(result, "unmatched_share")
    most = (int(share["unmatched"]) - 1) / int(share["rows_read"])
    for grace in ("6 hours", "2 versions"):
        assert failed(limited(4.0, max_unmatched=most, grace=grace)) == set()


def test_what_is_overdue_is_looked_at_though_nothing_was_loaded(loader):
    role, now = loader.job.dimensions["sales"], datetime.now(UTC).replace(tzinfo=None)
    with loader.engine.begin() as connection:
        b = load_batches.c
        old = load_batches.update().where(b.batch == 1, b.drain == 0)
        connection.execute(old.values(committed_at=now - timedelta(hours=5)))

    def overdue(verified, **limits):
        """verified: hours since the last verification."""
        limited = role.model_copy(update=limits)
        job = loader.job.model_copy(update={"dimensions": {"sales": limited}})
        with loader.engine.connect() as connection:
            return is_overdue(connection, loader.job.name, job, now - timedelta(hours=verified))

    assert not overdue(1)
    assert not overdue(1, max_open_hours=6.0)
    assert overdue(1, max_open_hours=4.0)
    assert not overdue(1, max_open_hours=4.0, grace="6 hours")
    # a grace that has ended since the verification lets max_unmatched count the tuples
    assert overdue(1, grace="270 minutes")
    assert not overdue(0.25, grace="270 minutes")
    # versions do not pass with time
    assert not overdue(0.5, max_open_hours=4.0, grace="2 versions")
    assert overdue(1.5, max_open_hours=4.0, grace="2 versions")


def test_key_codes_are_those_of_the_keys(loader):
    with loader.engine.connect() as connection:
        rows = connection.execute(
            sa.text("SELECT tuple, key_code FROM unmatched WHERE key_code IS NOT NULL")
        ).all()
    skus = pa.array([json.loads(t)["sku"] for t, _ in rows], pa.string())
    assert [code for _, code in rows] == codes([skus], (pa.string(),))[0].tolist()
