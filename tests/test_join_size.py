"""`semistream estimate-join-size`, from end to end."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.files.sink import OutputFile
from semistream.warehouse import open_warehouse
from semistream.workloads import ZipfKeys
from strategies import KEY_KINDS, keys


@pytest.fixture
def estimate(run):
    def estimate(*arguments):
        code, out, err = run("estimate-join-size", *arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return estimate


def write(path: str, table: pa.Table) -> None:
    with OutputFile("out", Path(path), table.schema) as file:
        for batch in table.to_batches():
            file.write(batch)
        file.finish()
        file.publish()


def join_size(left: list, right: list) -> int:
    counts = Counter(right)
    return sum(counts[k] for k in left if k is not None)


LEFT = [None if i % 17 == 0 else f"k{i % 23}" for i in range(2000)]
RIGHT = [f"k{i % 31}" for i in range(400)]


@pytest.mark.parametrize("left", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("right", ["csv", "parquet"])
def test_few_keys_are_counted_exactly_in_every_format(left, right, estimate):
    write(f"a.{left}", pa.table({"n": range(2000), "k": LEFT}))
    write(f"b.{right}", pa.table({"key": RIGHT, "x": [0.5] * 400}))
    found = estimate(f"a.{left}", f"b.{right}", "--on", "k=key", "--memory", "8KB")
    assert (found["estimate"], found["bound"], found["method"]) == (
        join_size(LEFT, RIGHT),
        0,
        "skimmed",
    )
    assert found["left"] == {"name": f"a.{left}", "rows": 2000, "null_keys": 118, "unparsable": 0}
    assert found["memory_bytes"] <= 8000


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_keys_of_every_type(kind, estimate):
    left, right = [i % 7 for i in range(50)], [i % 2 for i in range(9)]
    pq.write_table(pa.table({"k": keys(kind, left), "j": pa.array(left, pa.int32())}), "a.parquet")
    pq.write_table(
        pa.table({"k": keys(kind, right), "j": pa.array(right, pa.int32())}), "b.parquet"
    )
    expected = join_size(*([KEY_KINDS[kind][1](i) for i in side] for side in (left, right)))
    assert estimate("a.parquet", "b.parquet", "--on", "k")["estimate"] == expected
    assert estimate("a.parquet", "b.parquet", "--on", "k", "--on", "j")["estimate"] == join_size(
        left, right
    )


@pytest.mark.parametrize("method", ["skimmed", "agms"])
def test_many_keys_are_estimated_within_the_bound(method, estimate):
    """Bounds hold with 95%; the seed is fixed."""
    sides = [ZipfKeys(20_000, 1.0, seed).draw(0, 100_000) for seed in (1, 2)]
    for name, codes in zip("ab", sides, strict=True):
        pq.write_table(pa.table({"k": codes, "wide": ["x" * 50] * len(codes)}), f"{name}.parquet")
    counts = [np.bincount(x, minlength=20_001) for x in sides]
    exact = int(counts[0] @ counts[1])
    found = estimate("a.parquet", "b.parquet", "--on", "k", "--method", method, "--memory", "64KB")
    assert abs(found["estimate"] - exact) <= found["bound"] < exact
    assert found["memory_bytes"] <= 64_000
    again = estimate(
        "a.parquet", "b.parquet", "--on", "k", "--method", method, "--memory", "64KB", "--seed", 1
    )
    assert abs(again["estimate"] - exact) <= again["bound"]
    assert again["estimate"] != found["estimate"]


def test_the_default_memory_tells_of_a_fact_table_with_its_dimension(estimate):
    """Some keys are frequent in the one, and some come several times in the other."""
    random = np.random.default_rng(1)
    sides = (3000 * random.random(100_000) ** 3).astype(np.int64), random.integers(0, 2500, 3000)
    for name, codes in zip("ab", sides, strict=True):
        pq.write_table(pa.table({"k": codes}), f"{name}.parquet")
    exact = int(np.bincount(sides[0], minlength=3000) @ np.bincount(sides[1], minlength=3000))
    found = estimate("a.parquet", "b.parquet", "--on", "k")
    assert found["enough_bytes"] == 0 and abs(found["estimate"] - exact) <= found["bound"]
    assert estimate("a.parquet", "b.parquet", "--on", "k", "--memory", "64KB")["enough_bytes"]


def test_a_sketch_that_cannot_tell_says_so_and_how_much_memory_would(run, estimate):
    sides = [np.random.default_rng(seed).permutation(2_000_000)[:50_000] for seed in (1, 2)]
    for name, codes in zip("ab", sides, strict=True):
        pq.write_table(pa.table({"k": codes}), f"{name}.parquet")
    exact = len(np.intersect1d(*sides))
    join = ("a.parquet", "b.parquet", "--on", "k", "--memory")
    found = estimate(*join, "16KB")
    assert found["bound"] > found["estimate"] and found["enough_bytes"] > 4 * 16_000
    told = run("estimate-join-size", *join, "16KB")[1]
    assert re.search(r"estimated join size +cannot tell", told)
    assert re.search(
        r"Cannot tell with 16 KB: at most [\d,]+ rows .* \d+ [KM]B would tell a join "
        r"of [\d,]+ rows or more; a smaller one takes more",
        told,
    )
    better = estimate(*join, found["enough_bytes"])
    assert abs(better["estimate"] - exact) <= better["bound"] <= 1.2 * found["enough_for"]
    told = estimate(*join, "64MB")
    assert told["enough_bytes"] == 0 and abs(told["estimate"] - exact) <= told["bound"] < exact


AMOUNTS = [None if i % 7 == 0 else i % 40 for i in range(2000)]


def summed(left: list, amounts: list, right: list):
    counts = Counter(right)
    return sum(
        counts[k] * a for k, a in zip(left, amounts, strict=True) if k is not None and a is not None
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.int16(),
        pa.uint64(),
        pa.decimal128(12, 2),
        pa.float64(),
        pa.decimal128(38, 10),
        pa.decimal256(50, 3),
        pa.float32(),
    ],
    ids=str,
)
def test_a_sum_of_few_keys_is_exact(kind, estimate):
    """Nulls count nothing; the others to the last decimal."""
    step = Decimal(1) if pa.types.is_integer(kind) else Decimal("0.25")
    values = [a if a is None else a * step for a in AMOUNTS]
    typed = pa.array([v if v is None else float(v) for v in values], pa.float64()).cast(kind)
    pq.write_table(pa.table({"k": LEFT, "amount": typed}), "a.parquet")
    write("b.csv", pa.table({"key": RIGHT}))
    found = estimate("a.parquet", "b.csv", "--on", "k=key", "--sum", "amount", "--memory", "8KB")
    assert found["estimate"] == float(summed(LEFT, values, RIGHT)) > 0 and found["bound"] == 0
    assert found["sum"] == "amount" and found["memory_bytes"] <= 8000


@pytest.mark.parametrize("method", ["skimmed", "agms"])
@pytest.mark.parametrize("least", [0, -30], ids=["positive", "refunds too"])
def test_a_sum_over_many_keys_is_within_the_bound(method, least, estimate):
    rng = np.random.default_rng(5)
    left, right = (ZipfKeys(20_000, 1.0, seed=i).draw(0, 60_000).tolist() for i in (1, 2))
    cents = rng.integers(100 * least, 10_000, 60_000)
    pq.write_table(pa.table({"k": left, "amount": pa.array(cents / 100)}), "a.parquet")
    pq.write_table(pa.table({"k": right}), "b.parquet")
    exact = summed(left, cents.tolist(), right) / 100
    for seed in range(5):
        found = estimate(
            "a.parquet",
            "b.parquet",
            "--on",
            "k",
            "--sum",
            "amount",
            "--method",
            method,
            "--seed",
            seed,
            "--memory",
            "256KB",
        )
        assert abs(found["estimate"] - exact) <= found["bound"] < exact


def test_a_sum_may_be_negative(estimate):
    pq.write_table(pa.table({"k": [1, 1, 2], "n": [-5, -6, 3]}), "a.parquet")
    pq.write_table(pa.table({"k": [1, 1, 2]}), "b.parquet")
    found = estimate("a.parquet", "b.parquet", "--on", "k", "--sum", "n", "--memory", "256KB")
    assert found["estimate"] == -19


def test_what_a_person_is_told_of_a_sum(run):
    Path("a.csv").write_text("k,n\n1,2.5\n1,\n2,1000.25\n,8\n")
    Path("b.csv").write_text("k,m\n1,1\n2,1\n2,1\n")
    code, out, _ = run("estimate-join-size", "a.csv", "b.csv", "--on", "k", "--sum", "n")
    assert code == 0
    assert re.search(r"estimated sum +2,003 +of n, over the rows of the join", out), out
    for arguments, message in (
        (["--sum", "m"], "Give the inputs in the other order"),
        (["--sum", "z"], "must name a column of A; there are k, n"),
        (["--sum", "n", "--left-types", "n=string"], "a numeric column"),
        (["--sum", "n", "--max-output-rows", "3"], "'max_output_rows' must"),
        (["--sum", "big"], "are together less than 4.61e+12"),
    ):
        if "big" in arguments:
            Path("a.csv").write_text("k,big\n1,9e12\n")
        code, _, err = run("estimate-join-size", "a.csv", "b.csv", "--on", "k", *arguments)
        assert code == 2 and message in err.replace("\n", " "), err


def test_a_snapshot_and_a_directory_of_files(run, estimate):
    Path("orders").mkdir()
    for i in range(2):
        pq.write_table(pa.table({"k": LEFT[i::2]}), f"orders/{i}.parquet")
    write("b.csv", pa.table({"k": [*RIGHT, None], "x": range(401)}))
    assert run("snapshot", "--master", "b.csv", "--on", "k", "--out", "snapshots/b")[0] == 0
    found = estimate("orders", "snapshots/b", "--on", "k")
    assert found["estimate"] == join_size(LEFT, RIGHT) and found["right"]["rows"] == 400
    assert estimate("snapshots/b", "snapshots/b", "--on", "x", "--memory", "1MB")["estimate"] == 400


def test_tables_of_the_warehouse(run, estimate, tmp_path):
    with (
        open_warehouse(f"sqlite:///{tmp_path / 'var' / 'warehouse.db'}") as engine,
        engine.begin() as connection,
    ):
        connection.exec_driver_sql("CREATE TABLE sales (k VARCHAR(9), price INTEGER)")
        connection.exec_driver_sql("INSERT INTO sales VALUES (?, 1)", [(k,) for k in LEFT])
    write("b.csv", pa.table({"k": RIGHT}))
    found = estimate("sales", "b.csv", "--on", "k")
    assert found["estimate"] == join_size(LEFT, RIGHT) and found["left"]["null_keys"] == 118
    code, _, err = run("estimate-join-size", "sale", "b.csv", "--on", "k")
    assert code == 2 and "'left' must be" in err and "sales" in err


def test_what_a_person_is_told(run):
    Path("a.csv").write_text("k,n\n1,2\n1,\n,5\n2,x\n" + "1,1\n" * 5)
    Path("b.csv").write_text("k\n1\n3\n")
    code, out, _ = run(
        "estimate-join-size", "a.csv", "b.csv", "--on", "k", "--left-types", "k=int64"
    )
    assert code == 0
    lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert lines["estimated join size"][3] == "7" and lines["rows of A"][3] == "9"
    assert "1 without a key" in out
    Path("a.csv").write_text("k\n1\nx\n1\n")
    code, out, _ = run(
        "estimate-join-size", "a.csv", "b.csv", "--on", "k", "--left-types", "k=int64"
    )
    assert code == 0 and "1 unparsable" in out


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_side_joins_nothing(text, estimate):
    Path("a.jsonl").write_text(text)
    Path("b.csv").write_text("k\n1\n3\n")
    Path("c.csv").write_text("k\n")
    for pair in (("a.jsonl", "b.csv"), ("b.csv", "a.jsonl"), ("c.csv", "c.csv")):
        found = estimate(*pair, "--on", "k")
        assert (found["estimate"], found["bound"]) == (0, 0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no.csv", "b.csv", "--on", "k"], "'left' must be"),
        (["a.csv", "no", "--on", "k"], "'right' must be"),
        (["a.csv", "b.csv", "--on", "z"], "must name a column of A"),
        (["a.csv", "b.csv", "--on", "k=z"], "must name a column of B"),
        (["a.csv", "b.csv", "--on", "k"], "--left-types k=string --right-types k=string"),
        (["a.csv", "b.csv"], "'on' must be given"),
        (["a.csv", "--on", "k"], "'right' must be given"),
        (["a.csv", "a.csv", "--on", "k", "--memory", "500"], "'memory' must be at least 600 bytes"),
        (["a.csv", "a.csv", "--on", "k", "--method", "wavelet"], "invalid choice"),
        (["a.csv", "a.csv", "--on", "k", "--max-output-rows", "-1"], "'max_output_rows' is wrong"),
        (["a.csv", "a.csv", "--on", "k", "--memry", "500"], "Did you mean --memory"),
    ],
)
def test_what_cannot_work_is_said(arguments, message, run):
    Path("a.csv").write_text("k,n\n1,2\n")
    Path("b.csv").write_text("k\nx\n")
    code, _, err = run("estimate-join-size", *arguments)
    assert code == 2 and message in err.replace("\n", " ")


def test_more_rows_than_the_limit_are_refused(run):
    Path("a.csv").write_text("k\n" + "1\n" * 6)
    Path("b.csv").write_text("k\n" + "1\n" * 5)
    join = ("estimate-join-size", "a.csv", "b.csv", "--on", "k", "--max-output-rows")
    assert run(*join, 30)[0] == 0
    code, _, err = run(*join, 29)
    assert code == 1
    assert (
        "Failed: It is estimated that the join has 30 rows, off by at most 0 with a "
        "probability of 95%, and max_output_rows is 29."
    ) in err.replace("\n", " ")


def test_settings_from_a_file(run):
    Path("a.csv").write_text("k,n\n1,2\n")
    Path("c.yaml").write_text("left: a.csv\nright: a.csv\non: k\nmethod: agms\n")
    code, out, _ = run("estimate-join-size", "--config", "c.yaml", "--json")
    assert code == 0 and json.loads(out)["method"] == "agms" and json.loads(out)["estimate"] == 1
