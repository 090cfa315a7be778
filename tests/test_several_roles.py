"""The ledger, the proof and the summary of a load of several roles, whose rows are written here
with plain loops: sales of products in stores. A sale without a product is unmatched; one without a
store is loaded with nulls, or unmatched in a job that joins stores inner."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import yaml
from rich.console import Console

from semistream import quality, workloads
from semistream.cli import main
from semistream.paths import Paths
from semistream.pipeline.summary import final_summary, summary_table
from semistream.reasons import Reason
from semistream.streaming.app import make_planner
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.spool import Spool
from semistream.streaming.status import checkpoint_lock
from semistream.streaming.summary import Totals, describe
from semistream.streaming.unmatched_keys import _sample
from semistream.warehouse import connect, create_all
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.records import InputCounts, LoadRecord
from semistream.warehouse.totals import read_totals
from sink_loads import commit_of

PRODUCTS = [(f"p{i}", f"product {i}") for i in range(20)]
STORES = [(i, f"store {i}") for i in range(10)]
STREAM = pa.schema([("id", pa.int64()), ("sku", pa.string()), ("store", pa.int64())])
ADDED = pa.schema(
    [
        ("product_sk", pa.int64()),
        ("product_name", pa.string()),
        ("store_sk", pa.int64()),
        ("store_name", pa.string()),
    ]
)
JOINED = pa.schema([*STREAM, *ADDED])
NONE = (None, None)
KEYS = {"product": "sku", "store": "store"}
SALES = [
    {
        "id": i,
        "sku": None if i % 31 == 0 else f"p{i % 23}",
        "store": None if i % 29 == 0 else i % 11,
    }
    for i in range(300)
]


def rows_of(joined: list[tuple]) -> list[dict]:
    return [dict(zip(JOINED.names, row, strict=True)) for row in joined]


class Load:
    """One batch in one partition, and its job."""

    def __init__(self, url: str, store_join: str, product_join: str = "inner"):
        self.paths, self.url = Paths.from_environment(), url
        home = self.paths.home
        for name, head, rows in (("product", "sku", PRODUCTS), ("store", "number", STORES)):
            with open(home / f"{name}.csv", "w") as file:
                csv.writer(file).writerows([(head, "name"), *rows])
        path = home / "sales.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "name": "sales",
                    "stream": {"path": str(home / "stream"), "id": ["id"]},
                    "dimensions": {
                        "product": {
                            "path": str(home / "product.csv"),
                            "on": "sku",
                            "join_type": product_join,
                        },
                        "store": {
                            "path": str(home / "store.csv"),
                            "on": {"store": "number"},
                            "join_type": store_join,
                        },
                    },
                    "fact_table": "fact_sales",
                },
                sort_keys=False,
            )
        )
        assert main(["provision", str(path), "--no-progress"]) == 0
        self.job = workloads.load_job(str(path), self.paths)
        self.engine = connect(url)
        create_all(self.engine)
        self.sink = SqlSink(Warehouse.of(url, self.job)).prepare(STREAM, ADDED, ("id",))
        (home / "stream").mkdir()
        self.file = home / "stream" / "part.parquet"
        pq.write_table(pa.Table.from_pylist(SALES, STREAM), self.file)
        self._write()

    def _dimension(self, name: str, key: str) -> dict:
        query = f"SELECT {key}, {name}_sk, name FROM dim_{name}"
        with self.engine.connect() as connection:
            return {k: tuple(row) for k, *row in connection.execute(sa.text(query))}

    def _write(self) -> None:
        known = {"product": self._dimension("product", "sku")}
        known["store"] = self._dimension("store", "number")
        counts, facts = {role: Counter() for role in KEYS}, []
        rejected: dict[str, list[dict]] = {role: [] for role in KEYS}
        for sale in SALES:
            lacks = []
            for role, column in KEYS.items():
                counts[role]["read"] += 1
                if sale[column] in known[role]:
                    continue
                if self.job.role(role).join_type == "inner":
                    reason = Reason.NULL_KEY if sale[column] is None else Reason.NO_MATCH
                    rejected[role].append(sale | {"reason": reason})
                    break
                lacks.append(role)
                counts[role]["missed"] += 1
            else:
                facts.append(sale)
                for role in lacks:
                    counts[role]["lacking"] += 1
        inputs = [
            InputCounts(
                role,
                0,
                n["read"],
                n["read"] - len(rejected[role]),
                Counter(sale["reason"] for sale in rejected[role]),
                0,
                "",
                role,
                "v000001",
                missed=n["missed"],
                lacking=n["lacking"],
            )
            for role, n in counts.items()
        ]
        record = LoadRecord(
            "sales", 0, 0, 0, "ssbj", tuple(inputs), len(SALES), len(facts), len(facts)
        )
        joined = [
            tuple(s.values()) + sum((known[r].get(s[c], NONE) for r, c in KEYS.items()), ())
            for s in facts
        ]
        with Spool(JOINED, (STREAM,), (("id",),), None, len(STREAM)) as spool:
            spool.write(pa.RecordBatch.from_pylist(rows_of(joined), JOINED), None)
            for role, rows in rejected.items():
                reasons = pa.array([sale["reason"] for sale in rows], pa.string())
                spool.keep(pa.RecordBatch.from_pylist(rows, STREAM), reasons, role=role)
            self.loads = [self.sink.write(record, spool)]
        self.sink.commit(commit_of(self.job, 0, 0, 1, len(SALES), [self.file]), self.loads)

    def change(self, statement: str) -> None:
        with self.engine.begin() as connection:
            assert connection.execute(sa.text(statement)).rowcount

    def verify(self, **options) -> quality.VerificationResult:
        return quality.verify(self.url, "sales", seed=1, **options)


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))

    def load(
        url: str = f"sqlite:///{tmp_path / 'warehouse.db'}",
        store_join: str = "inner",
        product_join: str = "inner",
    ) -> Load:
        monkeypatch.setenv("WAREHOUSE_URL", url)
        return Load(url, store_join, product_join)

    return load


@pytest.mark.parametrize("store_join", ["inner", "left"])
def test_a_sound_load(make, warehouse_url, store_join):
    load = make(warehouse_url, store_join)
    result = load.verify()
    assert result.success, str(result)
    names = {r.name for r in result.results}
    each = ("surrogate_keys", "enriched_columns", "sample_joined", "sample_unmatched")
    assert {f"{role}_{check}" for role in ("product", "store") for check in each} <= names
    assert "expected_rows" not in names and len(names) == len(result.results)
    with load.engine.connect() as connection:
        assert read_totals(connection)["sales"].master_version == "v000001, v000001"


def test_the_summary_has_a_line_a_role(make):
    """Which counts what had no row of it, and not what was refused before it was joined."""
    load = make()
    totals = Totals()
    (record,) = load.loads
    first, second = record.inputs
    refused = replace(first, rejected={**first.rejected, Reason.UNPARSABLE: 4})
    totals.add([replace(record, inputs=(refused, second))])
    load.change(
        "INSERT INTO unmatched (load_id, load_row, fact_table, reason, tuple) SELECT load_id, "
        "9000 + load_row, fact_table, 'unparsable', '{}' FROM unmatched LIMIT 4"
    )
    of_run = {role: counts["unmatched"] for role, counts in totals.inputs.items()}
    sizes = {"disk_tuples": 5}
    settings = LoadSettings.load({"job": "sales", "algorithm": "ssbj", "parameters": sizes})
    plan = make_planner(settings, load.job, "sales", load.paths).wanted(1)
    run = replace(totals.summary(plan, dict.fromkeys(of_run, 0)), app="sales", seconds=1.0)
    assert run.parameters == {"product.disk_tuples": 5, "store.disk_tuples": 5}
    checkpoint = load.paths.checkpoints / "sales"
    checkpoint.mkdir(parents=True)
    (checkpoint / "summary.json").write_text(json.dumps(run.to_json()))
    console = Console(width=120, file=io.StringIO())
    console.print(summary_table(final_summary("sales", load.paths)))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    found = {line[1]: line[3::2] for line in lines if line[1:2] in (["product"], ["store"])}
    with load.engine.connect() as connection:
        query = "SELECT role, count(*) FROM unmatched WHERE role IS NOT NULL GROUP BY role"
        kept = connection.execute(sa.text(query)).all()
    assert found == {role: [str(count), str(count)] for role, count in kept} and len(found) == 2
    told = describe(run)
    roles = f"    product +{of_run['product']}\n +store +{of_run['store']}\n"
    assert re.search(rf"unmatched +\d+\n +by reason *\n(      .*\n)+    by role *\n  {roles}", told)
    heads = [line[1:3] for line in lines if line[1:2] == ["by"] or line[1:2] == ["unparsable"]]
    assert heads == [["by", "reason"], ["unparsable", "│"], ["by", "role"]]


DAMAGES = {
    "a column of the second role": (
        "UPDATE fact_sales SET store_name = 'x' WHERE id = 1",
        {"store_enriched_columns", "store_sample_joined", "same_rows"},
        ("fact_sales", "changed", "1", "store_name", "store 1", "x"),
    ),
    "a key of the second role": (
        "UPDATE fact_sales SET store_sk = (SELECT store_sk FROM dim_store WHERE number = 5) "
        "WHERE id = 1",
        {"store_surrogate_keys", "store_enriched_columns", "store_sample_joined", "same_rows"},
        ("fact_sales", "changed", "1", "store_sk", None, None),
    ),
    "a column of the first role": (
        "UPDATE fact_sales SET product_name = 'x' WHERE id = 1",
        {"product_enriched_columns", "product_sample_joined", "same_rows"},
        ("fact_sales", "changed", "1", "product_name", "product 1", "x"),
    ),
    "the role of an unmatched tuple": (
        "UPDATE unmatched SET role = 'product' WHERE stream_id = '10'",
        {"unmatched_rows", "product_sample_unmatched", "same_rows"},
        ("unmatched", "changed", "10", "role", "store", "product"),
    ),
    "an unmatched tuple is gone": (
        "DELETE FROM unmatched WHERE stream_id = '10'",
        {"unmatched_rows", "none_missing", "same_rows"},
        ("unmatched", "missing", "10", None, None, None),
    ),
    "a fact is gone": (
        "DELETE FROM fact_sales WHERE id = 1",
        {"fact_rows", "none_missing", "same_rows"},
        ("fact_sales", "missing", "1", None, None, None),
    ),
    "a role has read less than was passed": (
        "UPDATE load_inputs SET rows_read = rows_read - 1, matched = matched - 1 "
        "WHERE role = 'store'",
        {"input_arithmetic"},
        None,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_in_its_role(make, damage):
    load = make()
    statement, checks, row = DAMAGES[damage]
    load.change(statement)
    result = load.verify()
    assert {r.name for r in result.failed} == checks, str(result)
    if row is not None:
        names = ("table", "finding", "stream_id", "column", "old", "new")
        wanted = {name: value for name, value in zip(names, row, strict=True) if value is not None}
        wrong = next(r.rows for r in result.results if r.name == "same_rows")
        assert any(wanted.items() <= each.items() for each in wrong), wrong


def test_what_a_left_join_has_passed_on_is_counted_although_another_role_rejects(
    make, warehouse_url
):
    """Some sales without a product lack a store, too: they are no facts."""
    load = make(warehouse_url, product_join="left")
    both = [s for s in SALES if s["sku"] not in dict(PRODUCTS) and s["store"] not in dict(STORES)]
    assert both and any(s["sku"] is None for s in both)
    result = load.verify()
    assert result.success, str(result)
    for change in ("+ 1", "- 1"):
        load.change(f"UPDATE load_inputs SET missed = missed {change} WHERE role = 'product'")
        assert [r.name for r in load.verify().failed] == ["product_lacking_rows"], change
        other = "- 1" if change == "+ 1" else "+ 1"
        load.change(f"UPDATE load_inputs SET missed = missed {other} WHERE role = 'product'")


def test_without_the_version_what_was_passed_on_lies_between_bounds(make):
    """The sales that another role has rejected may have had a product, or none."""
    load = make(product_join="left")
    (version,) = (load.paths.snapshots / "product").glob("*/v000001")
    version.rename(version.with_name("gone"))
    rejected = load.loads[0].inputs[1].unmatched
    facts = "(SELECT count(*) FROM fact_sales WHERE product_sk IS NULL)"
    for missed, found in (
        (f"{facts} - 1", True),
        (facts, False),
        (f"{facts} + {rejected}", False),
        (f"{facts} + {rejected} + 1", True),
    ):
        load.change(f"UPDATE load_inputs SET missed = {missed} WHERE role = 'product'")
        failed = {r.name for r in load.verify(sample=0).failed}
        assert ("product_lacking_rows" in failed) == found, missed


def test_the_share_of_unmatched_tuples_is_checked_in_each_role(make):
    load = make()
    store = load.job.role("store").model_copy(update={"max_unmatched": 0.05})
    roles = load.job.dimensions | {"store": store}
    result = load.verify(limits=load.job.model_copy(update={"dimensions": roles}))
    assert [r.name for r in result.failed] == ["store_unmatched_share"]
    (row,) = result.failed[0].rows
    assert row == {"rows_read": load.loads[0].inputs[0].matched} | {
        "unmatched": load.loads[0].inputs[1].unmatched
    }


def test_near_misses_are_looked_for_among_the_tuples_of_the_role(make):
    load = make()
    there = {"product": {sku for sku, _ in PRODUCTS}, "store": {number for number, _ in STORES}}
    with load.engine.connect() as connection:
        loads = app_loads(app_number(connection, "sales"))
        for role, column in KEYS.items():
            sample = _sample(connection, loads, role, "v000001")
            assert sample and not {each[column] for each in sample} & there[role]


def test_a_role_of_the_report_reads_what_was_not_refused_before(make):
    load = make()
    load.change(
        "INSERT INTO load_rejections SELECT load_id, role, 'unparsable', 4 FROM load_inputs "
        "WHERE number = 0"
    )
    for statement in (
        "load_inputs SET rows_read = rows_read + 4, unmatched = unmatched + 4 WHERE number = 0",
        "load_batches SET rows_read = rows_read + 4, unmatched = unmatched + 4",
    ):
        load.change(f"UPDATE {statement}")
    page = load.verify().report.read_text()
    said = re.findall(r'aria-label="([\w ]*: \d+ read;.*?)"', page)
    assert [text.partition(";")[0] for text in said] == [
        "in all: 304 read",
        "product: 300 read",
        f"store: {load.loads[0].inputs[1].rows_read} read",
    ]
    assert ["unparsable" in text for text in said] == [True, False, False]


def test_status_has_the_totals_and_the_proof_of_the_ledger(run, make, capsys):
    """Although the latest run, here one that has read nothing, says less."""
    load = make()
    checkpoint = load.paths.checkpoints / "sales"
    checkpoint.mkdir(parents=True)
    at = "2026-01-01T00:00:00+00:00"
    status = {"state": "stopped", "pid": 1, "host": "h", "heartbeat": at}  # found nothing new
    (checkpoint / "status.json").write_text(json.dumps(status))
    (record,) = load.loads
    capsys.readouterr()  # what provisioning said
    totals = {
        "rows_read": 300,
        "matched": record.matched,
        "waiting": 0,
        "unmatched": 300 - record.matched,
        "output_rows": record.matched,
        "batch": 0,
    }

    def shown():
        (entry,) = json.loads(run("status", "--json")[1])
        assert (entry["rows_read"], entry["in_all"]) == (0, totals)
        heads, line = run("status")[1].splitlines()
        assert line.split()[2:8] == f"0 300 {record.matched} {300 - record.matched} 0 –".split()
        assert heads.index("proof") == line.index(entry["proof"])
        assert f"in all 300 rows read, {record.matched} matched" in run("status", "sales")[1]
        said, _, why = entry["complete"].partition(": ")
        assert f"\n  {entry['proof']}: {why}\n" in run("status", "sales")[1]
        return entry["proof"], said

    with checkpoint_lock(load.paths.checkpoints / "sales"):
        assert shown() == ("not proven yet", "NO")  # it runs
    assert shown() == ("not proven", "NO")
    load.verify()
    assert shown() == ("complete", "yes")
    load.change("DELETE FROM fact_sales WHERE id = 1")
    load.verify()
    assert shown() == ("not complete", "NO")
    load.change("DROP TABLE load_apps")  # as far as this version can tell
    code, out, error = run("status")
    assert code == 0 and "stopped" in out and "does not answer" in error
