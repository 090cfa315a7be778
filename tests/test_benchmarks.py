"""The benchmark harness runs, and would not let a wrong answer pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import data, harness  # noqa: E402
from benchmarks.__main__ import main  # noqa: E402


def test_smallest_form_of_what_runs_in_process(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "memory", "grid", "duckdb", "sinks", "--scale",
               "smallest", "--runs", "1", "--set", "databases=delta", "--data", tmp_path / "data",
               "--output", tmp_path / "results"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, baseline in (("memory", "hash join, all of R"), ("grid", "elevatorjoin"),
                           ("duckdb", "duckdb, sorted"), ("sinks", "write_deltalake")):
        rows = [json.loads(line) for line in (tmp_path / "results"
                                              / f"{name}-smallest.jsonl").read_text().splitlines()]
        assert len(rows) > 1
        for row in rows:
            assert row.get("right") and row["rows"] and row["rate"] > 0 and row["rss_peak"] > 0, row
            assert row["baseline"] == baseline and row["commit"] and row["command"]
            assert row["versions"]["pyarrow"]
            assert row["ratio"] == 1 or row["peer"] != baseline
            assert row["memory_peak"] <= row["memory_budget"]
        table = (tmp_path / "results" / f"{name}-smallest.txt").read_text()
        assert all(row["peer"] in table and row["checksum"] in table for row in rows)
    curve = (tmp_path / "results" / "memory-smallest.svg").read_text()
    assert curve.startswith("<svg") and ">SSBJ<" in curve and ">SSCJ<" in curve
    grid = (tmp_path / "results" / "grid-smallest.svg").read_text()
    assert "no drift" in grid and "other keys after 50,000 tuples" in grid
    assert grid.count("SSBJ<") + grid.count("SSCJ<") == 4


def test_checksum_is_that_of_the_join_in_any_order_and_form():
    stream = data.Stream(1000)
    tuples = stream.batch(0, 300)
    expected = stream.expected(300)
    for schema in (data.OPAQUE, data.COLUMNS):
        master = pa.Table.from_batches(data.master_batches(1000, schema)).combine_chunks()
        joined = pa.Table.from_batches([tuples]).join(master, "key", join_type="inner")
        assert answer(joined.slice(100), joined.slice(0, 100)) == expected
        assert answer(joined.slice(1)) != expected
        # as many rows, one twice and one missing
        assert answer(joined.slice(1), joined.slice(1, 1)) != expected
        other = joined.set_column(3, joined.column_names[3],
                                  joined.column(3).take(list(range(1, 300)) + [0]))
        assert answer(other) != expected


def answer(*parts: pa.Table) -> data.Answer:
    out = data.Answer()
    for part in parts:
        out.add(part)
    return out


class Loser:
    """A peer that loses a row."""

    def __init__(self, rows: int = 2):
        self.rows = rows

    def __call__(self):
        return self

    def measure(self):
        return harness.Sample(3, 0.5)

    def finish(self):
        return harness.Result(data.Answer(self.rows, 7), data.Answer(3, 7))


def test_a_wrong_answer_fails_the_run_and_is_in_the_results(tmp_path):
    bench = harness.Bench("smallest", 2, data.Files(tmp_path), tmp_path)
    with pytest.raises(harness.WrongAnswer, match="rows=2"):
        bench.compare("x", "case", {"good": Loser(3), "bad": Loser()}, "good")
    assert [(r["peer"], r["right"], r["ratio"])
            for r in bench.rows] == [("good", True, 1), ("bad", False, 1)]
    assert "WRONG" in (tmp_path / "x-smallest.txt").read_text()


class Starved(Loser):
    """A peer whose memory does not do."""

    def measure(self):
        raise harness.Unavailable("no memory")


def test_a_peer_that_cannot_go_on_is_a_row_and_the_others_go_on(tmp_path):
    bench = harness.Bench("smallest", 2, data.Files(tmp_path), tmp_path)
    bench.compare("x", "case", {"starved": Starved(3), "good": Loser(3)}, "good")
    assert [(r["peer"], r.get("ratio"), r.get("note")) for r in bench.rows] == [
        ("starved", None, "cannot run: no memory"), ("good", 1, "")]


def test_list_tells_every_benchmark_and_unknown_names_are_errors(capsys):
    assert main(["--list"]) == 0
    listed = "\n" + capsys.readouterr().out
    assert all(f"\n{name}: " in listed
               for name in ("memory", "duckdb", "spark", "scale-out", "sinks", "start"))
    for wrong in (["memroy"], ["memory", "--set", "sahres=1"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert wrong[-1].split("=")[0] in capsys.readouterr().err
