"""`semistream unmatched`: what is listed and written is what plain loops over the stream say, with
file and line, on both kinds of warehouse."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sink_loads
from csv_loads import PRODUCTS, CsvLoad, sale
from provisioned import provision, publish
from semistream import cli
from semistream.durable import write_checked
from semistream.errors import ConfigError
from semistream.files import nearest_keys as module
from semistream.files.nearest_keys import distances, nearest_keys
from semistream.files.source import Rejected
from semistream.master.manifest import encode_schema
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.paths import Paths
from semistream.pipeline import unmatched_file
from semistream.pipeline.unmatched import Key, list_unmatched
from semistream.pipeline.unmatched_file import export_unmatched
from semistream.warehouse import open_warehouse, schema
from semistream.warehouse import unmatched_groups as groups
from semistream.warehouse.load_ids import load_id
from sink_loads import BATCHES, ON_SQLITE, PER_BATCH, STREAM, orders

EVERY = [row for batch in range(BATCHES) for row in orders(batch)]
KNOWN = {product["sku"] for product in sink_loads.products()}


def reason_of(row: dict) -> str | None:
    return "null_key" if row["sku"] is None else None if row["sku"] in KNOWN else "no_match"


@pytest.fixture
def paths(loader, tmp_path) -> Paths:
    """A load whose batches are CSV files of their own, the first without a drain behind it."""
    paths = Paths(home=tmp_path / "home", warehouse_url=loader.url)
    loader.load(range(2))
    loader.load(range(2, BATCHES))
    for batch in range(BATCHES):
        file = loader.directory / f"orders-{batch}.csv"
        arrow_csv.write_csv(pa.Table.from_pylist(orders(batch), STREAM), file)
        loader.read_from(batch, file, "csv")
    sink_loads.publish(loader, paths.snapshots)
    checkpoint = paths.checkpoints / "sales"
    checkpoint.mkdir(parents=True)
    write_checked(checkpoint / "progress.json", {"batch": BATCHES - 1, "drain": 1})
    write_checked(checkpoint / "streams.json", {"streams": [encode_schema(STREAM)]})
    return paths


def test_by_reason_role_and_key(loader, paths):
    listed = {(of.reason, of.role): of for of in list_unmatched("sales", paths, limit=5)}
    assert set(listed) == {("no_match", "sales"), ("null_key", "sales")}
    for (reason, _), of in listed.items():
        wanted = Counter(row["sku"] for row in EVERY if reason_of(row) == reason)
        assert (of.tuples, of.keys) == (wanted.total(), len(wanted))
        ordered = sorted(wanted, key=lambda sku: (-wanted[sku], json.dumps(sku)))[:5]
        assert [(key.key, key.tuples) for key in of.top] == [
            ({"sku": sku}, wanted[sku]) for sku in ordered
        ]
        for key in of.top:
            e = key.example
            row = EVERY[int(e.id)]
            assert e.values == {**row, "day": str(row["day"])} and e.values["sku"] == key.key["sku"]
            batch, place = divmod(row["order_id"], PER_BATCH)
            assert (Path(e.file).name, e.line) == (f"orders-{batch}.csv", place + 2)


@ON_SQLITE
def test_the_nearest_keys_and_one_that_has_come_since(loader, paths, run, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", paths.warehouse_url)
    with loader.engine.begin() as connection:
        connection.execute(
            loader.dimension.insert(), [{"sku": sku, "name": "new"} for sku in ("x9", "X019 ")]
        )
    sink_loads.publish(loader, paths.snapshots)
    code, out, _ = run("unmatched", "sales", "--reason", "no_match", "--limit", "20")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  x")}
    assert code == 0 and "no_match in sales: 12 tuples of 12 keys" in out
    assert lines["x9"].endswith("is there now")
    assert lines["x19"].endswith("p19, 'X019 ', x9") and "X019" not in lines["x139"]
    code, out, _ = run("unmatched", "sales", "--json", "--limit", "100")
    (of, _) = json.loads(out)
    near = {key["key"]["sku"]: key["nearest"] for key in of["top"]}
    assert near["x9"][0] == {"sku": "x9"} and near["x19"][1] == {"sku": "X019 "}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_all_of_them_as_a_file(loader, paths, ending, tmp_path, monkeypatch):
    monkeypatch.setattr(unmatched_file, "SEARCHED", 7)  # some at a time
    monkeypatch.setattr(unmatched_file, "WRITTEN", 3)
    out = tmp_path / f"unmatched.{ending}"
    wanted = [row for row in EVERY if reason_of(row)]
    assert export_unmatched("sales", paths, out) == len(wanted)
    table = pq.read_table(out) if ending == "parquet" else arrow_csv.read_csv(out)
    assert table.column_names == [*unmatched_file.OUTPUT_COLUMNS, *STREAM.names, "text"]
    if ending == "parquet":
        assert table.select(STREAM.names).schema == STREAM
    found = table.to_pylist()
    assert [(r["load_id"], r["load_row"]) for r in found] == sorted(
        loader_rows(loader), key=lambda row: row
    )
    for row in found:
        order = EVERY[row["order_id"]]
        batch, place = divmod(row["order_id"], PER_BATCH)
        assert row["reason"] == reason_of(order) and row["role"] == "sales" and not row["text"]
        assert (Path(row["file"]).name, row["line"]) == (f"orders-{batch}.csv", place + 2)
        assert {n: row[n] or None for n in STREAM.names if n != "quantity"} == {
            n: order[n] for n in STREAM.names if n != "quantity"
        }
        assert row["quantity"] == order["quantity"]


def loader_rows(loader) -> list[tuple[int, int]]:
    with loader.engine.connect() as connection:
        return [
            tuple(row)
            for row in connection.exec_driver_sql("SELECT load_id, load_row FROM unmatched")
        ]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_unparsable_tuples_by_what_is_wrong(loader, paths, tmp_path, ending):
    file, kinds = str(tmp_path / "late.csv"), ("much", "ma'ny", "a lot")
    rejected = [
        Rejected(f"{i},p1,{word}", f"quantity: {word!r} is not INT", file, i + 2, f"{i}")
        for i, word in enumerate(kinds * 2)
    ]
    loader.commit(BATCHES, 0, [], [], [*rejected, Rejected("x", "fields: 1 in place of 4")])
    (of,) = list_unmatched("sales", paths, reason="unparsable")
    assert (of.role, of.tuples, of.keys) == ("", 7, 2)
    assert [(key.key["why"], key.tuples) for key in of.top] == [
        ("quantity: … is not INT", 6),
        ("fields: 1 in place of 4", 1),
    ]
    assert of.top[0].example.file == file and of.top[0].example.line in range(2, 8)
    out = tmp_path / f"unparsable.{ending}"
    assert export_unmatched("sales", paths, out, reason="unparsable") == 7
    rows = (
        csv.DictReader(out.read_text().splitlines())
        if ending == "csv"
        else pq.read_table(out).to_pylist()
    )
    shown = ("file", "line", "text", "why", "stream_id", "role", "sku")
    assert {tuple(str(r[name] or "") for name in shown) for r in rows} == {
        *((file, str(r.line), r.text, r.detail, r.id, "", "") for r in rejected),
        ("", "", "x", "fields: 1 in place of 4", "", "", ""),
    }


@ON_SQLITE
def test_a_place_that_is_not_known_is_left_out(loader, paths, tmp_path):
    """A file that was written since has other lines; where one of two is gone, either may have been
    the tuple's."""
    changed = loader.directory / "orders-2.csv"
    with loader.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE load_files SET size = 1, modified = 1 WHERE batch = 2")
        connection.exec_driver_sql("DELETE FROM load_files WHERE batch = 1")
    out = tmp_path / "unmatched.parquet"
    export_unmatched("sales", paths, out)
    for row in pq.read_table(out).to_pylist():
        assert (row["file"], row["line"]) == (
            (str(changed), None) if row["order_id"] >= 2 * PER_BATCH else (None, None)
        )


def test_characters_that_cannot_be_seen_are_told():
    key = Key({"sku": "x y"}, 1, None, ({"sku": "x\xa0y"}, {"sku": "x\u200by"}, {"sku": "x ÿ"}))
    assert str(key) == "x y" and key.near == r"'x\xa0y', 'x\u200by', x ÿ"


def test_a_tuple_s_column_keeps_its_name():
    names = unmatched_file._file_schema(pa.schema([("reason", pa.int64()), ("text", pa.string())]))
    assert names.names == [
        *("load_id", "load_row", "_reason", "why", "role", "stream_id", "file", "line"),
        *("reason", "text", "_text"),
    ]


@ON_SQLITE
def test_what_was_resolved_is_not_listed(loader, paths, tmp_path):
    with loader.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE unmatched SET resolved_by = 1 WHERE reason = 'no_match'")
    assert [of.reason for of in list_unmatched("sales", paths)] == ["null_key"]
    out = tmp_path / "open.csv"
    assert not export_unmatched("sales", paths, out, reason="no_match") and not out.exists()
    assert export_unmatched("sales", paths, out) == 12


@ON_SQLITE
def test_names_that_there_are_not(loader, paths, run, monkeypatch, tmp_path):
    monkeypatch.setenv("SEMISTREAM_HOME", str(paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", paths.warehouse_url)
    (existing := tmp_path / "mended.csv").write_text("by hand\n")
    for arguments, words in (
        (["sale"], "Did you mean sales?"),
        (["sales", "--reason", "nomatch"], "They are: no_match"),
        (["sales", "--role", "product"], "It has: sales"),
        (["sales", "--limit", "0"], "must be at least 1"),
        (["sales", "--out", "unmatched.xlsx"], "must end in"),
        (["sales", "--out", str(existing)], "--force to replace it"),
    ):
        code, _, error = run("unmatched", *arguments)
        assert code == 2 and words in error, error
    code, out, _ = run("unmatched", "sales", "--reason", "long_id", "--out", tmp_path / "none.csv")
    assert code == 0 and "no such unmatched tuple" in out and not (tmp_path / "none.csv").exists()
    assert existing.read_text() == "by hand\n"
    assert run("unmatched", "sales", "--out", existing, "--force")[0] == 0
    assert existing.read_text() != "by hand\n"
    (paths.checkpoints / "sales" / "streams.json").unlink()
    with pytest.raises(ConfigError, match="must be here"):
        export_unmatched("sales", paths, tmp_path / "all.csv")
    assert cli.main(["unmatched", "sales"]) == 0  # without files and lines


NAMES = ("größe", 'in "quotes"', "a.b", "plain")
VALUES = [
    ("Straße", True, 1, None),
    ("Straße", True, 1, None),
    ("strasse", False, -(2**40), "x"),
    ("", True, 2.5, "null"),
    ("'\\n\"", None, 1, "true"),
]


@pytest.mark.parametrize("columns", [NAMES, NAMES[1:2], NAMES[3:], ()], ids=len)
def test_keys_of_any_names_and_types(warehouse, columns):
    """The database groups them as JSON says; a column that a former schema lacked is null."""
    rows = [dict(zip(NAMES, values, strict=True)) for values in VALUES] + [{"größe": "a"}]
    with warehouse.begin() as connection:
        connection.execute(schema.load_apps.insert().values(number=1, app="sales"))
        commit = {c.name: 0 for c in schema.load_commits.c if not c.nullable}
        connection.execute(
            schema.load_commits.insert().values(
                commit | {"app": "sales", "committed_at": sink_loads.now()}
            )
        )
        connection.execute(
            schema.unmatched.insert(),
            [
                {"load_id": load_id(1, 0, 0, 0), "load_row": n, "fact_table": "f"}
                | {"reason": "no_match", "tuple": json.dumps(row)}
                for n, row in enumerate(rows)
            ],
        )
    wanted = Counter(tuple(row.get(name) for name in columns) for row in rows)
    with warehouse.connect() as connection:
        kind = groups.Kind("no_match", "product")
        found = list(groups.groups_of(connection, "sales", kind, columns, None))
        assert groups.count_of(connection, "sales", kind, columns) == (len(rows), len(wanted))
        examples = groups.examples_of(connection, "sales", kind, columns, found)
    assert Counter({of.key: of.tuples for of in found}) == wanted
    assert [of.tuples for of in found] == sorted(wanted.values(), reverse=True)
    assert set(examples) == set(wanted)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_bytes_come_back_as_they_were(spark, tmp_path, ending):
    """Of tuples that nobody mended, and of one that could not be parsed, for its time."""
    columns = "id BIGINT, sku STRING, raw BINARY, at TIMESTAMP_NTZ"
    load = CsvLoad(tmp_path, format="parquet", columns=columns, options={})
    raw = [b"", b"\x00\xff", None, b"00ff", "\u00e4".encode()]
    late = 250_000_000_000_000_000  # in the year 9892; twice that is after 9999
    rows = pa.table(
        {
            "id": pa.array(range(len(raw)), pa.int64()),
            "sku": ["new", "new", "new", None, "new"],
            "raw": pa.array(raw, pa.binary()),
            "at": pa.array([late, 2 * late, late, late, late], pa.timestamp("us")),
        }
    )
    pq.write_table(rows, load.stream_directory / "a.parquet")
    load.run(spark)
    kept = load.rows("unmatched", "load_id", "load_row", "reason", "tuple")
    out = tmp_path / f"unmatched.{ending}"
    assert export_unmatched("sales", load.paths, out) == len(raw)
    said = load.replay(out)
    assert "another reason" not in said
    assert "4 have no match still" in said and "1 cannot be parsed still" in said
    assert load.rows("unmatched", "load_id", "load_row", "reason", "tuple") == kept
    (tmp_path / "products.csv").write_text(PRODUCTS + "new,a\n")
    with open_warehouse(load.paths.warehouse_url) as engine:
        provision(load.job, engine)
        publish(load.job, engine, load.paths.snapshots)
    if ending == "jsonl":
        text = out.read_text().replace("17814-", "9814-").replace('"sku": null', '"sku": "new"')
        line = 1 + next(n for n, row in enumerate(text.splitlines()) if "c3a4" in row)
        for wrong in ("0f0", "g0"):
            out.write_text(text.replace('"c3a4"', f'"{wrong}"'))
            with pytest.raises(ConfigError, match=f"two for each.*line {line}: raw: '{wrong}'"):
                load.replay(out)
        out.write_text(text)
    else:  # some of the rows, and the columns that these need
        some = pq.read_table(out, filters=[("reason", "=", "no_match")])
        pq.write_table(some.drop_columns(["text", "file", "line", "why"]), out)
    load.replay(out)
    facts = dict(load.query("SELECT id, raw FROM fact_sales"))
    wanted = dict(enumerate(raw)) if ending == "jsonl" else {0: raw[0], 2: raw[2], 4: raw[4]}
    assert facts == wanted
    assert "checks hold" in load.verify()


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_what_is_mended_in_the_file_becomes_facts(spark, tmp_path, ending):
    """Wrong keys, and texts that could not be parsed; every type comes back as it was."""
    load = CsvLoad(tmp_path)
    right = [sale(i) for i in range(60) if i % 31 != 30 and i % 29 != 28]
    wrong = [line.replace(",p", ",q") if n % 3 else line for n, line in enumerate(right)]
    wrong[0] = right[0].replace(",0.00,", ",nought,")
    load.add("a.csv", *wrong)
    load.run(spark)
    out = tmp_path / f"unmatched.{ending}"
    count = export_unmatched("sales", load.paths, out)
    assert count == sum(one != other for one, other in zip(right, wrong, strict=True))
    if ending == "parquet":
        table = pq.read_table(out)
        names = ("sku", "text")
        mended = [mend(table[name].to_pylist()) for name in names]
        for name, values in zip(names, mended, strict=True):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pa.array(values, pa.string()))
        pq.write_table(table, out)
    else:
        (text,) = mend([out.read_text()])
        out.write_text(text)
    assert load.replay(out).startswith(f"sales: {count} unmatched tuples")
    assert not list_unmatched("sales", load.paths) and "checks hold" in load.verify()
    facts = load.loaded()[0]
    (tmp_path / "right").mkdir()
    other = CsvLoad(tmp_path / "right")
    other.add("a.csv", *right)
    other.run(spark)
    assert facts == other.loaded()[0] and len(facts) == len(right)


def mend(texts: list[str | None]) -> list[str | None]:
    return [t and re.sub(r"\bq([0-9]+)", r"p\1", t).replace("nought", "0.00") for t in texts]


# ---- the nearest keys


def edits(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one):
        new = [i + 1]
        for j, b in enumerate(other):
            new.append(min(row[j] + (a != b), row[j + 1] + 1, new[j] + 1))
        row = new
    return row[-1]


TEXTS = st.text("ab1é-", max_size=8)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=8))
def test_edit_distances_are_those_of_plain_loops(text, others):
    lengths = np.array([len(other) for other in others])
    points = module._points([text])[0][: len(text)]
    found = distances(points, module._points(others), lengths)
    assert found.tolist() == [edits(text, other) for other in others]


def test_the_nearest_keys_are_those_of_plain_loops(tmp_path):
    random = np.random.default_rng(7)
    letters = np.array([*"abcé012"])
    master = sorted({"".join(random.choice(letters, random.integers(3, 9))) for _ in range(500)})
    keys = ["".join(random.choice(letters, random.integers(1, 9))) for _ in range(25)]
    rows = pa.table({"code": master})
    publish_snapshot(rows.to_batches(), rows.schema, tmp_path, "m", ["code"])

    with closing(open_snapshot(tmp_path)) as relation:
        found = nearest_keys(pa.record_batch({"k": keys}), relation)
    assert (found.rows, found.of) == (len(master), len(master))
    for key, near in zip(keys, found.found, strict=True):
        most = min(2, len(module.plain(pa.array([key]))[0].as_py()) // 3)
        forms = {m: module.plain(pa.array([m]))[0].as_py() for m in master}
        form = module.plain(pa.array([key]))[0].as_py()
        wanted = sorted((edits(form, of), abs(len(of) - len(form)), of) for m, of in forms.items())
        wanted = [each for each in wanted if each[0] <= most][:3]
        assert [
            (edits(form, forms[m]), abs(len(forms[m]) - len(form)), forms[m]) for (m,) in near
        ] == wanted


def test_composite_keys_and_numbers(tmp_path):
    rows = pa.table({"year": [2024, 2025, 2026], "code": ["A-100", "A-100", "B-200"]})
    publish_snapshot(rows.to_batches(), rows.schema, tmp_path, "m", ["year", "code"])
    with closing(open_snapshot(tmp_path)) as relation:
        names = relation.keys.master
        keys = pa.table({"year": [2036, 2026], "code": ["B-200", "a-1OO "]}).select(names)
        near = nearest_keys(keys.combine_chunks().to_batches()[0], relation).found
    found = [[dict(zip(names, key, strict=True)) for key in each] for each in near]
    assert found[0] == [{"year": 2026, "code": "B-200"}]
    assert found[1] == []  # three signs differ
