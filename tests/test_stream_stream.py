"""The app of two streams, in Spark."""

import io
import json
import re
import shutil
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from loads import same
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError
from semistream.job import StreamStreamJob
from semistream.pipeline.summary import final_summary, summary_table
from semistream.quality import verify
from semistream.workloads import ZipfKeys, load_stream_stream_job
from stream_pairs import ORDERS, TOTALS, Pair


@pytest.fixture
def pair(tmp_path, warehouse_url):
    return Pair(tmp_path / "home", warehouse_url)


def sqlite(tmp_path, join_type="inner"):
    return Pair(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}", join_type)


def waiting(summary):
    """The number of tuples held of each stream."""
    return {name: of.waiting for name, of in summary.inputs.items()}


def test_tuples_meet_across_batches_and_runs(spark, pair):
    for _ in range(3):
        pair.add(400, 300)
    summary = pair.run(spark)
    assert (
        summary.rows_read == 2100
        and summary.waiting
        and sum(waiting(summary).values()) == summary.waiting
    )
    pair.check(ended=False)
    pair.add(0, 500)  # only one side has more
    pair.add(300)
    pair.run(spark, end=True)
    pair.check()
    console = Console(width=120, file=io.StringIO())
    console.print(summary_table(final_summary(pair.job.name, pair.paths)))
    labels = re.findall(r"^│ (\w.*?) +│", console.file.getvalue(), re.MULTILINE)
    assert "end to end" in labels  # and nothing of master data
    assert [of for of in labels if "cache" in of or "wait for" in of] == []


@pytest.mark.parametrize("join_type", ["left", "right", "full"])
def test_outer_rows_come_when_the_streams_have_ended(spark, tmp_path, join_type):
    pair = sqlite(tmp_path, join_type)
    for _ in range(2):
        pair.add(300, 300)
    pair.run(spark)
    assert not [row for row in pair.unmatched() if row[1] == "no_partner"]
    pair.run(spark, end=True)
    pair.check()
    pair.add(1)
    with pytest.raises(ConfigError, match="'end' was given with batch"):
        pair.run(spark)


def test_what_does_not_fit_waits_on_disk(spark, tmp_path):
    pair = sqlite(tmp_path)
    for _ in range(4):
        pair.add(3000, 2000)
    pair.run(spark, memory="400KB", algorithm="xjoin", end=True)
    peak = pair.query("SELECT max(memory_peak), min(memory_budget) FROM load_batches")[0]
    assert peak[0] <= peak[1]
    pair.check()


def test_promises_let_tuples_go(spark, tmp_path):
    """Orders are unique, their lines clustered: what is complete is not held."""
    pair = sqlite(tmp_path, "full")
    pair.change(left={"unique": True}, right={"clustered": True})
    for first in (0, 300, 600):
        pair.put("left", pair.tuples("left", 300, np.arange(first, first + 300)))
        pair.put("right", pair.tuples("right", 600, np.repeat(np.arange(first, first + 300), 2)))
    summary = pair.run(spark)
    newest = [t for t in pair.rows["left"][600:] if t["order_no"] is not None]
    assert waiting(summary) == {"left": len(newest), "right": 0}
    pair.run(spark, end=True)
    pair.check()


def test_totals_of_keys_that_are_final(spark, pair, tmp_path):
    """Each key's once, in the load that closes it: while the streams go on, and when they end."""
    pair.change(left={"unique": True}, right={"clustered": True})
    pair.job = StreamStreamJob.load(pair.job.model_dump() | {"totals": TOTALS})
    for first in (0, 300, 600):
        pair.put("left", pair.tuples("left", 300, np.arange(first, first + 300)))
        keys = np.repeat(np.arange(first, first + 300, 2), 2)
        pair.put("right", pair.tuples("right", len(keys), keys))
    pair.run(spark)
    final = {f"o{k}" for k in range(600)}
    same(pair.closed(), pair.expected_closed(final))
    assert len(pair.closed()) > 250
    assert_proven(pair, tmp_path)
    whole = "SELECT order_no, n, pairs, paid, most, load_id, load_row FROM fact_orders_closed"
    last = max(pair.query(whole), key=lambda row: row[-2:])
    pair.execute(f"DELETE FROM fact_orders_closed WHERE order_no = '{last[0]}'")
    (check,) = prove(pair, tmp_path).failed
    assert check.name == "closed_rows"
    assert [r["rows_written"] - r["rows_in_warehouse"] for r in check.rows] == [1]
    values = ", ".join("NULL" if value is None else repr(str(value)) for value in last)
    pair.execute(
        "INSERT INTO fact_orders_closed (order_no, n, pairs, paid, most, load_id, "
        f"load_row) VALUES ({values})"
    )
    pair.run(spark, end=True)
    same(pair.closed(), pair.expected_closed())
    assert_proven(pair, tmp_path)
    pair.execute(
        "INSERT INTO fact_orders_closed (order_no, n, pairs, paid, most, load_id, "
        "load_row) SELECT 'x', n, pairs, paid, most, 7, 0 FROM fact_orders_closed "
        "WHERE order_no = 'o4'"
    )
    assert {"table": "fact_orders_closed", "load_id": 7, "rows": 1} in [
        row
        for check in prove(pair, tmp_path).failed
        if check.name == "known_loads"
        for row in check.rows
    ]
    pair.execute("DELETE FROM fact_orders_closed WHERE load_id = 7")
    for change, found in (
        ("UPDATE fact_orders_closed SET paid = paid + 1 WHERE order_no = 'o4'", "closed_totals"),
        ("UPDATE fact_orders_closed SET order_no = 'o6' WHERE order_no = 'o2'", "closed_once"),
        ("DELETE FROM fact_orders_closed WHERE order_no = 'o8'", "closed_all"),
        ("DROP TABLE fact_orders_closed", "closed_totals"),
    ):
        pair.execute(change)
        assert found in {check.name for check in prove(pair, tmp_path).failed}


def test_the_totals_of_the_shipped_auctions(spark, tmp_path):
    """Each auction that has ended has what its bids add up to, and no other auction has a row."""
    pair = sqlite(tmp_path)
    shipped = load_stream_stream_job("auctions", pair.paths).model_dump()
    sides = {
        side: shipped[side] | {"path": str(pair.paths.home / side)} for side in ("left", "right")
    }
    pair.job = StreamStreamJob.load(shipped | sides)
    begun, columns = datetime(2026, 3, 1, tzinfo=UTC), [s.columns for s in pair.job.streams]
    auctions = [
        {"auction": a, "seller": a % 7, "category": a % 3, "opened_at": begun} for a in range(60)
    ]
    bids = [
        {"bid_id": n, "auction": n % 59, "price": n * 37 % 101, "bid_at": begun + timedelta(0, n)}
        for n in range(500)
    ]
    ends = [{"auction": a, "closed": True} for a in range(40)]
    for side, schema, rows in zip(
        ("left", "right"), map(parse_ddl, columns), (auctions, bids + ends), strict=True
    ):
        pair.put(side, pa.Table.from_pylist(rows, schema))
    pair.run(spark)
    wanted = defaultdict(list)
    for bid in bids:
        wanted[bid["auction"]].append((bid["price"], f"{bid['bid_at']:%Y-%m-%d %H:%M:%S}"))
    found = pair.query("SELECT auction, bids, highest, first_bid, last_bid FROM fact_bids_closed")
    assert {(a, n, most, first[:19], last[:19]) for a, n, most, first, last in found} == {
        (a, len(of), max(of)[0], of[0][1], of[-1][1]) for a, of in wanted.items() if a < 40
    }
    assert len(found) == 40
    assert_proven(pair, tmp_path)
    pair.run(spark, end=True)
    assert pair.query("SELECT count(*), sum(bids) FROM fact_bids_closed") == [(59, 500)]


def test_totals_of_a_left_join_wait_for_its_own_tuples(spark, tmp_path):
    """What the right stream alone has closed may still come without a partner. Keys are also
    closed by patterns, each partition's in its own load."""
    pair = sqlite(tmp_path, "left")
    pair.change(left={"punctuation": "note"}, right={"punctuation": "note"})
    pair.job = StreamStreamJob.load(pair.job.model_dump() | {"totals": TOTALS})

    def put(side, keys, *patterns):
        table = pair.tuples(side, len(keys), np.array(keys))
        table = table.append_column("note", pa.nulls(table.num_rows, pa.string()))
        marks = [{"note": json.dumps(pattern)} for pattern in patterns]
        pair.put(side, pa.concat_tables([table, pa.Table.from_pylist(marks, table.schema)]))

    put("left", [1, 2, 3, 5, 7])
    put("right", [1, 1, 2, 9], {"order_no": {"range": [None, "o4"]}})
    pair.run(spark)
    assert not pair.closed()
    # one of the partitions holds 5, so that only the other one has closed all of these
    many = {"order_no": {"in": ["o5", *(f"o{k}" for k in range(20, 900))]}}
    put("left", [1, 2], *({"order_no": f"o{k}"} for k in (1, 2, 3)), many)
    put("right", [5])
    pair.run(spark)
    same(pair.closed(), pair.expected_closed({"o1", "o2", "o3"}))
    put("right", [5], {})
    put("left", [], {})
    pair.run(spark)
    same(pair.closed(), pair.expected_closed())
    assert_proven(pair, tmp_path)


def test_watermarks_let_go_what_is_too_old(spark, tmp_path):
    """Times are the tuples' numbers: what is more than 50 older than the other stream has met all
    its partners. A tuple that comes too late is set apart."""
    pair, distance = sqlite(tmp_path), 50
    pair.change(
        left={"watermark": {"column": "id", "delay": 0}, "unique_ids": False},
        right={"watermark": {"column": "line", "delay": 0}},
    )
    within = {"left": "id", "right": "line", "distance": distance}
    pair.job = StreamStreamJob.load(pair.job.model_dump() | {"within": within})
    for _ in range(4):
        pair.add(300, 300)
    held = waiting(pair.run(spark))
    # each partition goes by the newest tuple of its own
    assert all(0 < n <= distance + 20 for n in held.values()), held
    late = {"id": 5, "order_no": "o999", "customer": 0}
    pair.put("left", pa.Table.from_pylist([late], ORDERS))
    pair.rows["left"].append(late)
    pair.run(spark, end=True)
    assert pair.query(
        "SELECT side, stream_id FROM unmatched WHERE reason = 'against_punctuation'"
    ) == [("left", "5")]
    near = {row: n for row, n in pair.expected()[0].items() if abs(row[0] - row[3]) <= distance}
    assert len(near) > 20
    same(pair.facts(), Counter(near))
    pair.check_ledger()
    result = prove(pair, tmp_path)
    assert result.success, result


def test_rows_of_the_source_are_punctuations(spark, tmp_path):
    """Of a key, by a mark; of several keys, or all that come, by patterns, which may contain
    earlier ones. They are no tuples, and only of a single key is told that it is final. Propagation
    is asked for behind each micro-batch."""
    pull = {"parameters": {"propagate": "pull"}}
    pair = sqlite(tmp_path, "left")
    pair.change(left={"punctuation": "note"}, right={"punctuation": "complete"})

    def put(side, keys, column, kind, marks):
        """Tuples, and rows that are punctuations: (order_no, mark)."""
        table = pair.tuples(side, len(keys), np.array(keys))
        table = table.append_column(column, pa.nulls(table.num_rows, kind))
        rows = [{"order_no": key, column: mark} for key, mark in marks]
        pair.put(side, pa.concat_tables([table, pa.Table.from_pylist(rows, table.schema)]))

    closed = json.dumps({"order_no": {"in": [f"o{k}" for k in range(10, 50)]}})
    notes = [(None, json.dumps({"order_no": f"o{k}"})) for k in range(10)]
    put("left", list(range(60)), "note", pa.string(), [*notes, (None, closed)])
    put(
        "right",
        [*range(30), *range(30)],
        "complete",
        pa.bool_(),
        [(f"o{k}", True) for k in range(40)],
    )
    assert waiting(pair.run(spark, **pull)) == {"left": 20, "right": 0}
    told = pair.query("SELECT side, pattern FROM propagated")
    assert Counter(side for side, _ in told) == {"left": 10, "right": 40}
    assert ("left", '{"order_no": "o7"}') in told and len(set(told)) == 50
    result = prove(pair, tmp_path)
    assert result.success, result
    ends = [json.dumps({"order_no": {"range": [None, "o7"]}}), json.dumps({})]
    put("left", [50, 45], "note", pa.string(), [(None, text) for text in ends])
    put("right", [], "complete", pa.bool_(), [(f"o{k}", True) for k in range(40, 60)])
    assert waiting(pair.run(spark, **pull)) == {"left": 0, "right": 0}
    reasons = pair.query("SELECT reason, count(*) FROM unmatched GROUP BY reason")
    assert dict(reasons) == {"no_partner": 31, "against_punctuation": 1}
    result = prove(pair, tmp_path)
    assert result.success, result


def test_a_load_is_proven(spark, pair, tmp_path):
    """What is complete is proven, while tuples are held and behind the end; what was taken away or
    changed is found."""
    pair.change(left={"unique": True})
    for first in (0, 200):
        pair.put("left", pair.tuples("left", 200, np.arange(first, first + 200)))
        pair.add(right=300)
    pair.run(spark)
    assert_proven(pair, tmp_path)
    pair.run(spark, end=True)
    pair.check()
    assert_proven(pair, tmp_path)
    ids = pair.query("SELECT min(id), max(line) FROM fact_orders")[0]
    for change, found in (
        (f"DELETE FROM fact_orders WHERE id = {ids[0]}", "left_none_missing"),
        (f"UPDATE fact_orders SET right_order_no = 'o0' WHERE line = {ids[1]}", "equal_keys"),
        (
            "DELETE FROM unmatched WHERE side = 'right' AND reason = 'no_partner'",
            "right_none_missing",
        ),
    ):
        pair.execute(change)
        assert found in {check.name for check in prove(pair, tmp_path).failed}


def test_a_file_under_two_names_is_found_on_its_side(spark, tmp_path):
    pair = sqlite(tmp_path)
    pair.add(300, 200)
    [file] = (pair.paths.home / "right").iterdir()
    shutil.copy(file, again := file.with_name("part-00009.parquet"))
    pair.run(spark)
    [found] = prove(pair, tmp_path).failed
    assert (found.name, found.count) == ("right_unique_ids", 200)
    assert {(row["first_file"], row["last_file"]) for row in found.rows} == {
        (str(file), str(again))
    }
    pair.change(right={"unique_ids": False})
    allowed = verify(
        pair.paths.warehouse_url, "orders", limits=pair.job, reports_dir=tmp_path / "reports"
    )
    assert allowed.success and "200 ids come more than once" in allowed.notes[0], allowed


def prove(pair, tmp_path):
    return verify(pair.paths.warehouse_url, "orders", reports_dir=tmp_path / "reports")


def assert_proven(pair, tmp_path):
    result = prove(pair, tmp_path)
    assert result.success, result
    names = {check.name for check in result.results}
    assert {
        "input_arithmetic",
        "left_none_missing",
        "right_sample_pairs",
        "no_pair_twice",
        "right_source_rows",
        "left_source_files",
    } <= names


def test_sources_may_differ_and_unparsable_tuples_are_kept_with_their_side(spark, tmp_path):
    """Spark brings the tuples where the tasks cannot read them themselves."""
    pair = sqlite(tmp_path, "left")
    pair.change(
        right={"format": "csv", "columns": "line BIGINT, order_no STRING, amount DOUBLE"},
        left={"unique": True},
    )
    for first in (0, 200):
        pair.put("left", pair.tuples("left", 200, np.arange(first, first + 200)))
        pair.put_csv("right", pair.tuples("right", 300), "oops,o1,2.5\n")
    pair.run(spark, end=True)
    broken = pair.query("SELECT side, tuple FROM unmatched WHERE reason = 'unparsable'")
    assert len(broken) == 2 and all(
        side == "right" and "oops,o1,2.5" in text for side, text in broken
    )
    pair.execute("DELETE FROM unmatched WHERE reason = 'unparsable'")
    joined, unmatched = pair.expected()
    same(pair.facts(), joined)
    same(pair.unmatched(), unmatched)


def test_generated_streams_with_the_same_columns(spark, tmp_path):
    pair = sqlite(tmp_path)
    zipf = {"format": "zipf", "path": None, "id": ["id"]}
    sides = {
        side: zipf | {"options": {"rows": "600", "keys": "150", "seed": str(seed)}}
        for seed, side in enumerate(("left", "right"))
    }
    pair.job = StreamStreamJob.load(pair.job.model_dump() | sides | {"on": {"key": "key"}})
    pair.run(spark, max_rows=250)
    keys = [np.bincount(ZipfKeys(150, 1.0, seed).draw(0, 600), minlength=151) for seed in (0, 1)]
    wanted = int((keys[0] * keys[1]).sum())
    rows = pair.query(
        "SELECT count(*), count(DISTINCT id * 1000 + right_id), "
        'sum("key" - right_key) FROM fact_orders'
    )
    assert rows == [(wanted, wanted, 0)]
    result = prove(pair, tmp_path)
    assert result.success, result


@pytest.mark.parametrize(
    "job, settings, match",
    [
        ({"on": {"order_no": "nope"}}, {}, "nope"),
        ({"left": {"watermark": {"column": "customer"}}}, {}, "left.watermark"),
        ({"left": {"unique": True}}, {"algorithm": "xjoin"}, "pjoin"),
        ({}, {"algorithm": "meshjoin"}, "algorithm"),
        ({}, {"parameters": {"nope": 1}}, "'nope' is not a setting. "),
        ({"within": {"left": "id", "right": "nope", "distance": 1}}, {}, "within.right"),
        ({"totals": {"n": "max(nope)"}}, {}, "totals.n"),
        ({"totals": {"n": "sum(customer)", "N": "count"}}, {}, "another column"),
        ({"totals": {"n": "sum(order_no)"}}, {}, "add up numbers"),
        ({"totals": {"n": "count"}}, {"sink": "/nowhere/delta"}, "must be sql"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_session(tmp_path, job, settings, match):
    pair = sqlite(tmp_path)
    pair.add(10, 10)
    pair.change(**{side: job.pop(side) for side in ("left", "right") if side in job})
    pair.job = StreamStreamJob.load(pair.job.model_dump() | job)
    with pytest.raises(ConfigError, match=match):
        pair.run(None, **settings)


def test_a_load_goes_on_with_the_settings_that_it_began_with(spark, tmp_path):
    pair = sqlite(tmp_path)
    pair.add(100, 100)
    pair.run(spark)
    pair.add(100, 100)
    for changed in ({"partitions": 3}, {"algorithm": "xjoin"}):
        with pytest.raises(ConfigError, match="must stay what the load began with"):
            pair.run(spark, **changed)
    pair.run(spark, memory="800KB", end=True)
    pair.check()
