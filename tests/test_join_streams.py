"""`semistream join-streams` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from console import flags, same_as_sql

N = 9000


@pytest.fixture
def join(run):
    """Run the command in a directory with the orders' and the lines' files: (exit code, standard
    output, standard error)."""
    rng = np.random.default_rng(11)
    ids = np.arange(N) * 4
    ordered = np.arange(N) * 1_000_000
    orders = pa.table(
        {
            "id": ids,
            "ordered": pa.array(ordered, pa.timestamp("us")),
            "customer": [f"c{i % 40}" for i in range(N)],
        }
    )
    some = rng.random(N) > 0.1
    keys, shipped = np.repeat(ids[some], 2), np.repeat(ordered[some], 2)
    shipped = shipped + rng.integers(0, 300_000_000, len(keys))
    keys, shipped = np.append(keys, [1, 2, 3]), np.append(shipped, [0, 0, 10**9])
    order = np.argsort(shipped, kind="stable")
    lines = pa.table(
        {
            "order_id": keys[order],
            "part": rng.integers(0, 9, len(keys)),
            "shipped": pa.array(shipped[order], pa.timestamp("us")),
        }
    )
    for name, table in (("orders", orders), ("lines", lines)):
        pq.write_table(table, f"{name}.parquet")
        arrow_csv.write_csv(table, f"{name}.csv")

    def join(**options):
        given = {
            "left": "orders.parquet",
            "right": "lines.parquet",
            "on": "id=order_id",
            "out": "out.parquet",
            "stats": "stats.json",
        } | options
        return run("join-streams", *flags(given))

    return join


def summary(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(Path("stats.json").read_text()), out


def is_join(kind, condition="a.id = b.order_id"):
    """Whether out.parquet is what a database's join of the two files gives."""
    return same_as_sql(
        "out.parquet",
        f"SELECT * FROM 'orders.parquet' a {kind} JOIN 'lines.parquet' b ON {condition}",
    )


@pytest.mark.parametrize(
    ("join_type", "memory", "algorithm"),
    [
        ("inner", "64MB", "xjoin"),
        ("left", "500KB", "pjoin"),
        ("right", "64MB", "pjoin"),
        ("full", "500KB", "xjoin"),
    ],
)
def test_equals_the_join_of_a_database(join, join_type, memory, algorithm):
    stats, out = summary(join(join_type=join_type, memory=memory, algorithm=algorithm))
    assert is_join(join_type) and "output rows" in out
    assert stats["memory_peak"] <= stats["memory_budget"]
    assert (stats["relocated"] > 0) == (memory == "500KB")
    for side in ("left", "right"):
        s = stats[side]
        assert s["rows_read"] == s["matched"] + sum(s["unmatched"].values())
    assert stats["right"]["unmatched"] == {"no_partner": 3}
    assert stats["over_time"][-1]["rows"] > N


def test_a_unique_side_closes_its_keys(join):
    stats, out = summary(join(unique="left", memory="64MB"))
    assert is_join("") and stats["left"]["punctuations"] == N
    right = stats["right"]
    assert right["purged"] + right["dropped"] == right["matched"] and right["held_peak"] < 6000
    assert "dropped on the fly" in out


def test_event_times_bound_the_state(join):
    stats, _ = summary(
        join(
            left_time="ordered",
            right_time="shipped",
            within="5min",
            delay="0s",
            join_type="full",
            left_unmatched="lone.parquet",
        )
    )
    assert is_join(
        "FULL", "a.id = b.order_id AND abs(epoch_us(a.ordered) - epoch_us(b.shipped)) <= 300000000"
    )
    assert max(stats["left"]["held_peak"], stats["right"]["held_peak"]) < N * 3 // 4
    lone = pq.read_table("lone.parquet")
    assert lone.num_rows == stats["left"]["unmatched"]["no_partner"]
    assert set(lone["reason"].to_pylist()) == {"no_partner"}


def test_a_tuple_that_is_too_late_is_quarantined(join):
    pq.write_table(
        pa.concat_tables(
            [pq.read_table("lines.parquet"), pq.read_table("lines.parquet").slice(10, 3)]
        ),
        "again.parquet",
    )
    stats, _ = summary(
        join(
            right="again.parquet",
            left_time="ordered",
            right_time="shipped",
            within="5min",
            delay="10s",
            right_unmatched="late.parquet",
        )
    )
    assert stats["right"]["unmatched"]["against_punctuation"] == 3
    late = pq.read_table("late.parquet").filter(pa.compute.field("reason") == "against_punctuation")
    assert late.num_rows == 3


def test_a_file_of_punctuations_and_what_propagates(join):
    Path("p.jsonl").write_text(
        "\n".join(
            json.dumps({"side": side, "after": after, "match": {column: {"range": [None, N * 4]}}})
            for side, column, after in (("left", "id", N), ("right", "order_id", 100_000_000))
        )
    )
    stats, _ = summary(join(punctuations="p.jsonl", propagated="closed.jsonl"))
    assert is_join("") and stats["left"]["punctuations"] == 1
    assert stats["right"]["punctuations"] == 0
    assert [json.loads(x) for x in Path("closed.jsonl").read_text().splitlines()] == [
        {"side": "left", "match": json.dumps({"id": {"range": [None, N * 4]}})}
    ]


def test_punctuations_of_the_file_come_between_its_rows(join):
    Path("a.csv").write_text("id,x\n1,a\n2,b\n1,c\n")
    Path("b.csv").write_text("order_id,y\n1,p\n2,q\n")
    Path("p.jsonl").write_text('{"side": "left", "after": 2, "match": {"id": 1}}\n')
    stats, _ = summary(
        join(left="a.csv", right="b.csv", punctuations="p.jsonl", left_unmatched="lone.csv")
    )
    assert stats["left"]["unmatched"] == {"against_punctuation": 1} and stats["output_rows"] == 2
    assert Path("lone.csv").read_text().splitlines()[1].startswith('1,"c","against_punctuation"')


def test_rows_that_are_punctuations_are_no_tuples(join):
    Path("a.csv").write_text("id,x,final\n1,a,\n1,b,true\n2,c,false\n")
    Path("b.csv").write_text("order_id,y\n1,p\n2,q\n")
    stats, _ = summary(join(left="a.csv", right="b.csv", left_punctuations="final", out="out.csv"))
    assert stats["left"]["rows_read"] == 2 and stats["left"]["punctuations"] == 1
    assert sorted(Path("out.csv").read_text().splitlines()[1:]) == ['1,"a",1,"p"', '2,"c",2,"q"']


def test_formats_mix_and_malformed_rows_are_set_apart(join):
    with open("lines.csv", "a") as file:
        file.write("nonsense,,\n")
    stats, out = summary(
        join(
            right="lines.csv",
            right_unmatched="lone.jsonl",
            out="out.jsonl",
            right_types="order_id=int64",
        )
    )
    assert stats["right"]["unmatched"]["unparsable"] == 1 and "unparsable" in out
    rows = [json.loads(x) for x in Path("lone.jsonl").read_text().splitlines()]
    assert [r["text"] for r in rows if r["reason"] == "unparsable"] == ["nonsense,,"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"left": "none.csv"}, "exists"),
        ({"on": "id=part_id"}, "column of the right"),
        ({"on": "customer=order_id"}, "--left-types"),
        ({"delay": "10s"}, "--within"),
        ({"within": "10s"}, "--left-time"),
        ({"within": "soon"}, "10s"),
        ({"out": "out"}, ".parquet"),
        ({"unique": "left", "algorithm": "xjoin"}, "pjoin"),
        ({"memory": "1KB"}, "memory"),
        ({"out": "orders.parquet"}, "file of its own"),
        ({"punctuations": "lines.csv"}, "line 1"),
        ({"left_time": "when", "right_time": "shipped", "within": "5s"}, "column"),
        ({"left_punctuations": "final"}, "column"),
        ({"clustered": "neither"}, "invalid choice"),
        ({"propagate": "pull", "propagate_count": 3}, "propagate_count"),
        ({"index": "no"}, "choice"),
        ({"index": "eager", "algorithm": "xjoin"}, "pjoin"),
    ],
)
def test_what_cannot_work_is_said(join, options, words):
    code, _, err = join(**options)
    assert code == 2 and words in err, err
    assert "Traceback" not in err and not Path("out.parquet").exists()


def test_punctuations_may_contain_earlier_ones(join):
    said = [
        (2, {"id": 4}),
        (3, {"id": {"range": [None, 8]}}),
        (5, {"id": {"range": [None, 16]}}),
        (5, {"id": {"in": [8, 12]}}),
        (N, {"id": {"any": True}}),
    ]
    Path("p.jsonl").write_text(
        "\n".join(json.dumps({"side": "left", "after": n, "match": match}) for n, match in said)
    )
    stats, _ = summary(join(punctuations="p.jsonl", propagated="closed.jsonl"))
    assert is_join("") and stats["left"]["punctuations"] == 4  # one says nothing new
    told = [
        json.loads(json.loads(x)["match"]) for x in Path("closed.jsonl").read_text().splitlines()
    ]
    assert told == [said[0][1], said[1][1], said[2][1], {}]


def test_propagation_is_pushed_or_pulled(join):
    """Pulled, it takes the disk join of what is on disk, again and again; pushed by a count that is
    not reached, or by time, it takes none before the end."""
    options = {"unique": "left", "memory": "500KB", "propagated": "closed.jsonl"}
    joins = {}
    for name, more in {
        "pull": {"propagate": "pull"},
        "push": {"index": "eager"},
        "seldom": {"propagate_count": 10 * N, "propagate_seconds": 1e6},
    }.items():
        stats, _ = summary(join(**options, **more))
        assert is_join("") and stats["left"]["propagated"] + stats["left"]["forgotten"] == N
        assert len(Path("closed.jsonl").read_text().splitlines()) == stats["left"]["propagated"]
        joins[name] = stats["disk_joins"]
    assert joins["pull"] > joins["push"] == joins["seldom"] > 0, joins
