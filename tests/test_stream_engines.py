"""What is joined beside Flink, Pathway and Spark, how it is checked, and how peers are installed;
nothing is downloaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import flink_cluster, flink_join, nexmark, peer_environments  # noqa: E402
from benchmarks.data import COLUMNS, Answer, Files, master_batches  # noqa: E402
from benchmarks.flink_database import Server, database  # noqa: E402
from benchmarks.flink_join import Absent, Arrivals, Flink  # noqa: E402
from benchmarks.harness import Unavailable  # noqa: E402
from benchmarks.nexmark_data import BID, Bids, Enriched, SideFiles, side_batches  # noqa: E402
from benchmarks.pathway_join import Texts  # noqa: E402
from benchmarks.processes import answer_of  # noqa: E402

BIDS = 200_000


@pytest.fixture(scope="module")
def bids() -> list[dict]:
    return Bids(10_000).batch(0, BIDS).to_pylist()


# ---- Nexmark


def last_auction(event: int) -> int:
    """As Nexmark's generator has it, event by event: of 50 one person, three auctions, 46 bids."""
    epoch, offset = divmod(event, 50)
    if offset < 1:
        epoch, offset = epoch - 1, 2
    elif offset >= 1 + 3:
        offset = 2
    else:
        offset -= 1
    return 3 * epoch + offset


def event_of(bid: int) -> int:
    bids = [e for e in range(50) if e >= 4]
    return 50 * (bid // len(bids)) + bids[bid % len(bids)]


def test_bids_are_for_the_hot_auction_or_for_one_in_flight(bids):
    hot = 0
    for bid in bids:
        last, auction = last_auction(event_of(bid["id"])), bid["auction"] - 1000
        is_hot = auction == last // 100 * 100
        hot += is_hot
        assert is_hot or max(last - 100, 0) <= auction <= last + 10, bid
    # the hot one is drawn among the others too, once in some 111 times
    assert 0.5 < hot / BIDS < 0.515
    others = Counter(
        last_auction(event_of(b["id"])) - b["auction"] + 1000
        for b in bids
        if (b["auction"] - 1000) % 100
    )
    assert set(others) == set(range(-10, 101))
    assert max(others.values()) < 1.3 * min(others.values())


def test_bidders_prices_and_times_are_those_of_the_generator(bids):
    hot = 0
    for bid in bids:
        newest, bidder = bid["id"] // 46, bid["bidder"] - 1000
        is_hot = bidder == newest // 100 * 100 + 1
        hot += is_hot
        assert is_hot or max(newest - 999, 0) <= bidder <= newest + 10, bid
        assert bid["date_time"] - bids[0]["date_time"] == event_of(bid["id"]) // 10
    assert 0.745 < hot / BIDS < 0.755
    powers = np.log10([b["price"] / 100 for b in bids])
    assert 0 <= powers.min() < 0.001 and 5.999 < powers.max() <= 6
    assert np.allclose(np.quantile(powers, [0.25, 0.5, 0.75]), [1.5, 3, 4.5], atol=0.03)


def test_a_bid_is_the_same_in_any_batch():
    stream = Bids(1000)
    parts = [stream.batch(0, 300), stream.batch(300, 1), stream.batch(301, 699)]
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches(
        [stream.batch(0, 1000)]
    )
    assert pc.all(pc.equal(parts[2]["key"], pa.array(parts[2]["auction"].to_numpy() % 1000)))


def test_the_checksum_of_query_13_sees_every_column_and_row():
    stream = Bids(5000)
    side = pa.Table.from_batches(side_batches(5000))
    assert side["key"].to_pylist() == list(range(5000))
    joined = pa.Table.from_batches([stream.batch(0, 400)]).join(side, "key", join_type="inner")

    def answer(*parts: pa.Table) -> Answer:
        out = stream.expected(0)
        for part in parts:
            out.add(part)
        return out

    expected = stream.expected(400)
    assert answer(joined.slice(100), joined.slice(0, 100)) == expected
    assert isinstance(expected, Enriched) and expected.rows == 400 and expected != Answer(400)
    assert answer(joined.slice(1), joined.slice(1, 1)) != expected
    for name in (*BID.names[1:], "value"):
        values = joined[name].to_pylist()
        other = type(values[0])(int(values[0]) + 1)
        column = pa.chunked_array([[other, *values[1:]]], joined.schema.field(name).type)
        assert (
            answer(joined.set_column(joined.schema.get_field_index(name), name, column)) != expected
        ), name


def test_the_side_input_takes_the_place_of_r(tmp_path):
    files, stream = SideFiles(tmp_path), Bids(3000)
    case = Arrivals(files, stream, 500, 2, 0, "", "")
    case.make()
    side = pq.read_table(files.master_parquet(3000, COLUMNS))
    assert side == pa.Table.from_batches(side_batches(3000))
    joined = pq.read_table(case.tuples).join(side, "key", join_type="inner")
    pq.write_table(joined, tmp_path / "joined.parquet")
    assert answer_of([tmp_path / "joined.parquet"], stream.expected(0)) == case.expected()
    assert files.relation(3000, COLUMNS).tuple_count == 3000


# ---- R and S


def test_one_tuple_in_twenty_has_a_key_that_r_lacks(tmp_path):
    stream, master = Absent(3000), pa.Table.from_batches(master_batches(3000, COLUMNS))
    tuples = stream.batch(0, 2000)
    absent = pc.greater(tuples["key"], 3000).to_numpy(zero_copy_only=False)
    assert absent.sum() == 100 and absent[::20].all()
    answer = Answer()
    answer.add(pa.Table.from_batches([tuples]).join(master, "key", join_type="inner"))
    assert answer == stream.expected(2000) and answer.rows == 1900


def test_files_of_text_have_the_same_tuples(tmp_path):
    from pyarrow import csv

    case = Texts(Files(tmp_path), Absent(500), 1200, 1, 0, "", "")
    case.make()
    told = csv.read_csv(case.tuples)
    assert told.column_names == ["key", "number", "quantity"]
    assert told["key"].to_pylist() == Absent(500).batch(0, 1200)["key"].to_pylist()
    assert (
        csv.read_csv(case.master_text)["c12"].to_pylist()
        == pa.Table.from_batches(master_batches(500, COLUMNS))["c12"].to_pylist()
    )


@pytest.mark.slow
def test_the_database_has_r(tmp_path):
    import pymysql

    if not __import__("conftest").MARIADBD:
        pytest.skip("no mariadbd")
    with database(Files(tmp_path), side_batches(700), nexmark.TABLES) as server:
        with (
            pymysql.connect(
                host="127.0.0.1", port=server.port, user="root", database="r"
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT `key`, value FROM r ORDER BY `key`")
            rows = cursor.fetchall()
            cursor.execute("EXPLAIN SELECT value FROM r WHERE `key` = 7")
            assert "PRIMARY" in cursor.fetchall()[0]
        memory = server.memory()
        assert memory["database MB"] > memory["database anonymous MB"] > 10
    assert rows == tuple(
        zip(*pa.Table.from_batches(side_batches(700)).to_pydict().values(), strict=True)
    )
    with pytest.raises(pymysql.err.OperationalError):
        pymysql.connect(host="127.0.0.1", port=server.port, user="root")


def test_the_tests_options_for_jvms_do_not_reach_the_measured_ones():
    """The tests' server is in a module that makes every JVM start soon, and run slowly."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from benchmarks.flink_database import tests_server as t;"
            "print(t().__name__, os.environ.get('JDK_JAVA_OPTIONS'))",
        ],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "JDK_JAVA_OPTIONS"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "MariaDB None\n"


# ---- latency


def test_a_file_is_visible_when_its_last_row_is(tmp_path):
    for name, ids in (("a", [0, 1, 9]), ("b", [2, 10]), ("c", [19])):
        pq.write_table(pa.table({"id": ids}), tmp_path / name)
    found = {tmp_path / "a": 1.0, tmp_path / "b": 3.0, tmp_path / "c": 2.0}
    assert flink_join.last_visible(found, 10, 2).tolist() == [3.0, 3.0]
    assert flink_join.last_visible(found | {tmp_path / "b": 0.5}, 10, 2).tolist() == [1.0, 2.0]


def test_latency_is_from_arrival_to_visibility_without_the_warm_up(tmp_path):
    """The first file alone begins, and what arrives counts behind the warm-up."""
    case = Arrivals(Files(tmp_path / "data"), Absent(100), 40, 5, 2, "", "")
    directory, waited = tmp_path / "stream", []
    directory.mkdir()

    def visible() -> dict[Path, float]:
        """Rows are visible in the file itself; those of the warm-up late, and the last one later
        than the others."""
        late = {0: 100.0, 1: 100.0, 4: 9.0}
        return {
            p: p.stat().st_ctime + late.get(int(p.stem[-5:]), 1.0) for p in directory.glob("part-*")
        }

    def wait(condition) -> None:
        waited.append(len(list(directory.glob("*"))))
        # this sink has the tuples that match no row of R too
        assert condition()

    sample = flink_join.latency(case, directory, visible, wait)
    assert waited == [1, 5] and sample.tuples == 3 * 40
    assert sample.extra["p50 s"] == pytest.approx(1.0, abs=0.2)
    assert sample.extra["largest s"] == pytest.approx(9.0, abs=0.2)
    assert 8 < sample.extra["p99 s"] < sample.extra["largest s"]


# ---- Flink's jobs, and installations


def test_flink_is_told_what_an_expert_would_tell_it(tmp_path):
    case = Arrivals(Files(tmp_path), Absent(100), 50, 2, 0, "1g", "")
    settings = flink_join.EXPERT
    assert settings["pipeline.object-reuse"] and settings["state.backend.type"] == "rocksdb"
    assert settings["table.exec.mini-batch.enabled"]
    assert settings["execution.checkpointing.incremental"]
    for join in flink_join.SELECTS:
        of = Flink(case, join, 1000)
        r, s, joined, insert = of.statements(tmp_path / "s", tmp_path / "out", True)
        assert "PRIMARY KEY (`key`) NOT ENFORCED" in r and "'monitor-interval'" not in r
        assert "'source.monitor-interval' = '100 ms'" in s and "monitor" not in joined
        assert re.findall(r"[sr]\.`(\w+)`", insert.split("FROM")[0]) == [
            "key",
            "id",
            "quantity",
            *COLUMNS.names[1:],
        ]
    lookup = replace(of, join=flink_join.LOOKUP, server=Server(33, 1), cached=10)
    r, _, _, insert = lookup.statements(tmp_path / "s", tmp_path / "out", False)
    assert "127.0.0.1:33/r?useServerPrepStmts=true" in r and "'lookup.cache' = 'PARTIAL'" in r
    assert "'lookup.partial-cache.max-rows' = '10'" in r and "FOR SYSTEM_TIME AS OF" in insert


@pytest.mark.parametrize("name", ["flink", "pathway"])
def test_what_a_peer_installs_is_pinned_by_hashes_and_names_no_index(name):
    lock = (ROOT / "benchmarks" / name / "requirements.lock").read_text()
    packages = [p for p in lock.split("\n") if p and not p.startswith((" ", "#"))]
    assert len(packages) > 40
    assert all(re.fullmatch(r"[\w.\-]+==[\w.+\-]+( ; .+)? \\", p) for p in packages)
    assert lock.count("--hash=sha256:") >= len(packages) and "://" not in lock
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in flink_cluster.JARS.values())


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path, monkeypatch):
    path = next(iter(flink_cluster.JARS))
    _, artifact, version = path.rsplit("/", 2)
    (tmp_path / "maven" / path).mkdir(parents=True)
    (tmp_path / "maven" / path / f"{artifact}-{version}.jar").write_bytes(b"something else")
    monkeypatch.setenv("MAVEN_URL", (tmp_path / "maven").as_uri() + "/")
    with pytest.raises(OSError, match="is not the file that is pinned"):
        flink_cluster._add_jars(tmp_path)
    assert not list(tmp_path.rglob("lib/*.jar"))


def test_a_peer_that_cannot_be_installed_is_told_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_environments, "ROOT", tmp_path)
    monkeypatch.setattr(peer_environments, "PEERS", tmp_path / "peers")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "benchmarks" / "x").mkdir(parents=True)
    lock = tmp_path / "benchmarks" / "x" / "requirements.lock"
    lock.write_text(
        f"nothing @ {(tmp_path / 'nothing-1-py3-none-any.whl').as_uri()} --hash=sha256:{'0' * 64}\n"
    )
    with pytest.raises(Unavailable, match="(?s)x cannot be installed: .*nothing"):
        peer_environments.peer_environment("x")
    assert not (tmp_path / "peers" / "x" / ".ready").exists()
    lock.write_text("")
    finished = []
    home = peer_environments.peer_environment("x", finished.append)
    assert peer_environments.peer_environment("x", finished.append) == home
    assert finished == [home] and (home / "bin" / "python").exists()
