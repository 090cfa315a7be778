"""XJoin's state on disk: its cost model beside what the operator does."""

from __future__ import annotations

import json
from dataclasses import astuple
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.papers import EXPERIMENTS, state_on_disk, xjoin_model
from benchmarks.papers.__main__ import main
from benchmarks.papers.state_on_disk import (
    CALIBRATED,
    IN_MEMORY,
    RATIOS,
    RESULTS,
    ROUNDS,
    StatePoint,
    StateRunner,
    Streams,
)
from benchmarks.papers.xjoin_model import StateCosts, StreamWorkload
from benchmarks.verdicts import half_width
from semistream.paths import Paths
from semistream.stream_joins import state
from semistream.stream_joins.base import StreamStreamJoin

COSTS = StateCosts(c_m=3e-7, c_o=1e-7, c_w=2e-7, c_d=1e-7, c_p=5e-8, c_r=1e-4)


def test_equations():
    assert xjoin_model.c_join(n=1e6, o=2e6, c_m=3e-7, c_o=1e-7) == pytest.approx(0.5)
    assert xjoin_model.c_disk(
        d=9e5, read=1e6, found=2e6, accesses=1000, c_w=2e-7, c_d=1e-7, c_p=5e-8, c_r=1e-4
    ) == pytest.approx(0.48)
    # of 2 million pairs of places among 2,000 tuples, 500,000 are in memory before it is full, and
    # 1,000 x 875 after it
    assert xjoin_model.found_on_disk(n=2000, o=4000, fitting=1000) == 4000 * (1 - 1.375 / 2)
    assert xjoin_model.found_on_disk(n=2000, o=4000, fitting=2000) == 0
    # 128 hash buckets of 1,000 tuples
    assert xjoin_model.runs(d=1.6e6, fitting=128_000) == pytest.approx(1000)
    # 41 bytes a row of a sixteenth of M: 15,243 tuples, so 975,552 of all 64 buckets
    assert state.held_rows(10_000_000) == 15_243
    assert [xjoin_model.outgrown(n_a=n, m=1e7) for n in (1, 975_552, 975_553)] == [
        False,
        False,
        True,
    ]
    # of all of M 243,902 tuples
    assert [xjoin_model.passes(n_a=64 * n, m=1e7) for n in (1, 243_902, 243_903, 5e5)] == [
        1,
        1,
        2,
        3,
    ]
    # 9,375,037 bytes beside them; a tuple and 32 bytes of directory, all values being apart
    fitting = xjoin_model.fitting(m=1e7, tuple_bytes=68, values=1e12)
    assert fitting == pytest.approx(93_750.37, rel=1e-6)
    # and with 10,000 values that come again and again
    fitting = xjoin_model.fitting(m=1e7, tuple_bytes=68, values=10_000)
    assert fitting == pytest.approx((9_375_037 - 320_000) / 68, rel=1e-4)
    # a relocation frees 25,000 tuples
    assert xjoin_model.relocated(n=1e6, m=1e7, tuple_bytes=100, values=1e12) == pytest.approx(
        25_000 * np.ceil((1e6 - 9_375_037 / 132) / 25_000)
    )
    assert xjoin_model.relocated(n=1e6, m=2e8, tuple_bytes=100, values=1e6) == 0


def test_enough_memory_costs_nothing_and_less_is_not_faster():
    work = StreamWorkload(1e6, 1e6, 80, 1e6, 1e6)
    seconds = [
        xjoin_model.predict(work, work.state_bytes / k, COSTS) for k in (0.9, 2, 5, 20, 100, 1000)
    ]
    assert seconds[0].slowdown == 1 and seconds[0].relocated == 0
    assert all(a.slowdown < b.slowdown for a, b in pairwise(seconds))
    assert all(p.relocated <= work.tuples for p in seconds)


def test_a_machine_twice_as_slow_takes_twice_as_long():
    work = StreamWorkload(2e6, 1e6, 80, 1e6, 3e6)
    slow = StateCosts(*(2 * c for c in astuple(COSTS)))
    once, twice = (xjoin_model.predict(work, 1e7, c) for c in (COSTS, slow))
    assert twice.seconds == pytest.approx(2 * once.seconds) and twice.slowdown == once.slowdown


@pytest.mark.parametrize("results", [1.0, 4.0])
@pytest.mark.parametrize("ratio", [0.8, 1.5, 3.0, 10.0, 30.0])
def test_tuples_to_disk_and_passes_are_those_of_the_operator(ratio, results):
    streams = Streams(100_000, results, 1)
    memory = streams.work.state_bytes / ratio
    _, found = state_on_disk.join(streams, memory)
    model = xjoin_model.predict(streams.work, memory, COSTS)
    assert found.output_rows == streams.work.results
    step = memory / state.FREED_SHARE / streams.work.tuple_bytes
    assert model.relocated == pytest.approx(found.relocated, rel=0.1, abs=1.1 * step)
    if xjoin_model.outgrown(n_a=100_000, m=memory):
        assert model.relocated == found.relocated == 200_000
    assert ratio < 30 or xjoin_model.outgrown(n_a=100_000, m=memory)
    if found.relocated:
        # what is read of what was written: the right stream's as often as there are passes, and
        # once more what has tuples without a partner, as it leaves: with one result row a tuple
        # almost each run
        times, share = xjoin_model.passes(n_a=100_000, m=memory), found.bytes_written / 2
        most = share * (1 + times + 2)
        assert share * (1 + times) * 0.85 < found.bytes_read < most
        assert results > 1 or found.bytes_read > most * 0.85


@pytest.mark.parametrize("results", [1.0, 4.0])
@pytest.mark.parametrize("ratio", [1.5, 3.0, 10.0])
def test_rows_that_the_disk_join_finds_are_those_of_the_operator(ratio, results, monkeypatch):
    streams, before, drain = Streams(100_000, results, 1), [], StreamStreamJoin.drain

    def noting(self):
        before.append(self.stats.output_rows)
        return drain(self)

    monkeypatch.setattr(StreamStreamJoin, "drain", noting)
    memory = streams.work.state_bytes / ratio
    _, found = state_on_disk.join(streams, memory)
    assert found.disk_joins and found.output_rows == streams.work.results
    assert xjoin_model.predict(streams.work, memory, COSTS).found == pytest.approx(
        found.output_rows - before[0], abs=0.07 * found.output_rows
    )


@pytest.mark.parametrize("ratio", [2.0, 5.0, 8.0])
def test_a_full_directory_does_not_take_tuples_one_by_one(ratio, monkeypatch):
    """Each of so few different values comes again and again, so that its last positions stay
    free."""
    streams, pieces, take = Streams(100_000, 4.0, 0), [], StreamStreamJoin._join_piece

    def counting(self, side, batch, *rest):
        pieces.append(batch.num_rows)
        return take(self, side, batch, *rest)

    monkeypatch.setattr(StreamStreamJoin, "_join_piece", counting)
    _, found = state_on_disk.join(streams, streams.work.state_bytes / ratio)
    assert found.output_rows == streams.work.results and found.relocated
    assert sum(pieces) == 200_000 and len(pieces) < 400


@pytest.mark.parametrize(("slower", "near"), [(0.0, 1e-6), (1.0, 0.05)])
def test_the_costs_fitted_to_known_times_are_those(slower, near, monkeypatch, tmp_path):
    """Where the machine is a slower one in each round, those of a machine in between: what is
    compared is measured in the same round."""

    def known(streams, memory):
        calls.append(memory)
        settings = len(CALIBRATED) + len(RESULTS) * len(IN_MEMORY + RATIOS)
        round_ = (len(calls) - 1) // (2 * settings)
        model = xjoin_model.predict(streams.work, memory, COSTS)
        return model.seconds * (1 + slower * round_), SimpleNamespace(
            relocated=model.relocated, output_rows=0, bytes_read=0
        )

    calls = []
    runner = StateRunner(0.01, Paths(home=tmp_path), print)
    monkeypatch.setattr(state_on_disk, "join", known)
    slow = 1 + slower * np.arange(ROUNDS)
    least_squares = np.sum(1 / slow) / np.sum(1 / slow**2)  # of the errors relative to each
    assert np.array(astuple(runner.costs)) == pytest.approx(
        least_squares * np.array(astuple(COSTS)), rel=near
    )
    for ratio in RATIOS:
        row = runner.run(StatePoint(ratio, 4.0))
        assert len(row["slowdown_runs"]) == ROUNDS
        assert row["slowdown_model"] == pytest.approx(row["slowdown"], rel=near)


def test_the_models_error_has_an_interval_over_the_rounds():
    rows = [
        {"state": "measured", "slowdown": 2.0, "slowdown_runs": runs, "slowdown_model": 2.2}
        for runs in ([1.5, 2.5], [1.6, 2.4])
    ]
    (claim,) = (c for c in EXPERIMENTS["xjoin-on-disk"].claims if c.text.endswith("the slowdown"))
    found = claim.find([*rows, {"state": "failed"}])
    each = [np.mean([2.2 / 1.5, 2.2 / 1.6]) - 1, 1 - np.mean([2.2 / 2.5, 2.2 / 2.4])]
    assert found.value == pytest.approx(0.1)
    assert found.interval == pytest.approx(half_width(each))
    assert claim.find([{"state": "failed"}]) is None


def test_a_setting_that_fails_is_shown(monkeypatch, tmp_path):
    def full(streams, memory):
        if memory < streams.work.state_bytes / 35:
            raise OSError("no space left")
        model = xjoin_model.predict(streams.work, memory, COSTS)
        return model.seconds, SimpleNamespace(
            relocated=model.relocated, output_rows=0, bytes_read=0
        )

    runner = StateRunner(0.01, Paths(home=tmp_path), print)
    monkeypatch.setattr(state_on_disk, "join", full)
    rows = [runner.run(StatePoint(ratio, 1.0)) for ratio in (20.0, 40.0)]
    assert [(r["state"], r["error"]) for r in rows] == [
        ("measured", ""),
        ("failed", "no space left"),
    ]


@pytest.mark.slow
def test_the_experiment(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path / "home"))
    for name, fewer in (
        ("ROUNDS", 2),
        ("RATIOS", (10.0, 40.0)),
        ("CALIBRATED", ((0.8, 1.0), (0.8, 4.0), (3.0, 1.0), (12.0, 4.0))),
    ):
        monkeypatch.setattr(state_on_disk, name, fewer)
    assert main(["xjoin-on-disk", "--scale", "0.002", "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "xjoin-on-disk" / "results.json").read_text())
    assert results["wrong_answers"] == [] and len(results["rows"]) == 4
    assert all(r["state"] == "measured" and r["slowdown"] > 0 for r in results["rows"])
    page = (tmp_path / "xjoin-on-disk" / "report.html").read_text()
    assert page.count("<svg") == 1 and "tuples to disk" in page


def test_a_point_has_a_name():
    assert StatePoint(10.0, 1.0).title == "XJoin, 1 result row a tuple"
