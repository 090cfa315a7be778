"""Loads of files by Spark, altered in the warehouse or in the source: what their proof names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from csv_loads import CsvLoad, sale
from semistream.quality import VerificationFailed

UNPARSABLE = [f"{500 + i},p1,much,1,2026-01-01 10:00:00,x" for i in range(5)] + ["601,p1,1.00"]


def test_altered_facts_are_named_beside_as_many_unparsable_tuples(spark, tmp_path):
    load = CsvLoad(tmp_path)
    load.add("a.csv", *map(sale, range(200)), *UNPARSABLE)
    load.run(spark)
    assert "checks hold" in load.verify()
    load.alter(
        "DELETE FROM fact_sales WHERE id IN (11, 12, 16)",
        "UPDATE fact_sales SET amount = 0.5 WHERE id = 21",
        "UPDATE fact_sales SET sold_at = '2020-01-01 00:00:00.000000' WHERE id = 26",
        "UPDATE fact_sales SET category = 'c9' WHERE id = 41",
        "UPDATE unmatched SET reason = 'null_key' WHERE stream_id = '28'",
    )
    found = load.failures()
    assert [r["id"] for r in found["none_missing"]] == [11, 12, 16]
    named = {
        (r["finding"], r["stream_id"], r["column"], r["old"], r["new"])
        for r in found["same_rows"]
        if r["finding"] != "missing"
    }
    assert named == {
        ("changed", "21", "amount", "21.21", "0.50"),
        ("changed", "41", "category", "c1", "c9"),
        ("changed", "28", "reason", "no_match", "null_key"),
        ("changed", "26", "sold_at", "2026-01-27 10:00:26", "2020-01-01 00:00:00"),
    }
    lost = {
        r["stream_id"]: json.loads(r["old"])
        for r in found["same_rows"]
        if r["finding"] == "missing"
    }
    assert set(lost) == {"11", "12", "16"} and lost["11"]["category"] == "c2"
    assert "`semistream reset sales`" in load.said


def test_a_file_under_two_names(spark, tmp_path):
    """The daily verification does not close what the one after the load has found; who says that
    copies are right, has them told."""
    load = CsvLoad(tmp_path)
    first = load.add("a.csv", *map(sale, range(50)))
    load.run(spark)
    assert "checks hold" in load.verify(since_last=True)
    second = load.add("b.csv", *map(sale, range(10, 30)))
    load.run(spark)
    for since_last in (True, False):
        found = load.failures(since_last=since_last)
        assert set(found) == {"unique_ids"} and len(found["unique_ids"]) == 20
        assert {(r["first_file"], r["last_file"]) for r in found["unique_ids"]} == {
            (str(first), str(second))
        }
        assert "20 ids come more than once" in Path(steps_report(load)).read_text()
    load.write_job(unique_ids=False)
    assert "checks hold" in load.verify(job=load.file)
    with pytest.raises(VerificationFailed):
        load.verify()


def steps_report(load: CsvLoad) -> str:
    return load.said.split("Report: ")[1].strip()
