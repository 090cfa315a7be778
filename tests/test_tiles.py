"""An app at a glance, from its commits and its checkpoint."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from semistream.durations import duration_text
from semistream.pipeline.load_page import _marks
from semistream.pipeline.tiles import BARS, HOURS, Recent, bars, match_share, rate_now, tile_of
from semistream.positions import Kind
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.warehouse.commit_history import CommitCounts
from semistream.warehouse.totals import Totals

NOW = datetime(2026, 1, 2, 12)


def commit(
    seconds_ago: float, rows: int = 600, matched: int | None = None, **values
) -> CommitCounts:
    matched = rows if matched is None else matched
    given = {
        "batch": 0,
        "drain": 0,
        "committed_at": NOW - timedelta(seconds=seconds_ago),
        "run_started": 1.0,
        "phases": {},
        "algorithm": "ssbj",
        "reason": "",
        "partitions": 2,
        "rows_read": rows,
        "resolved": 0,
        "matched": matched,
        "unmatched": rows - matched,
        "waiting": 0,
        "output_rows": matched,
        "cache_hits": 0,
        "bytes_read": 0,
        "memory_budget": 64_000_000,
        "memory_peak": 0,
        "service_rate": 1.0,
        "seconds": 1.0,
    }
    return CommitCounts(**given | values)


@pytest.mark.parametrize(
    ("ago", "begun_ago", "rate"),
    [
        ([50, 40, 30, 20, 10], 1000, 5 * 600 / 60),
        ([100, 90], 1000, 0),  # nothing lately
        ([1000, 700, 400, 100], 2000, 2 * 600 / 600),  # a batch takes five minutes
        ([15, 5], 20, 2 * 600 / 20),  # it has just begun
        ([], 5, 0),
    ],
)
def test_the_present_rate_is_of_a_time_that_suits_the_batches(ago, begun_ago, rate):
    begun = NOW.replace(tzinfo=UTC).timestamp() - begun_ago
    assert rate_now([commit(s) for s in ago], NOW, begun) == pytest.approx(rate)


def test_the_bars_are_rates_of_the_last_hours():
    width = HOURS * 3600 / BARS
    shown = bars([commit(s) for s in (HOURS * 3600 + 1, HOURS * 3600 - 1, 2, 1)], NOW)
    assert len(shown) == BARS and sum(shown) * width == pytest.approx(3 * 600)
    assert shown[0] == pytest.approx(600 / width) and shown[-1] == pytest.approx(1200 / width)


def test_the_match_rate_is_of_the_newest_tuples_and_its_band_of_those_before():
    former = [commit(0, 1000, 900 + n) for n in range(21)]
    share, band = match_share([*former, commit(0, 500, 100), commit(0, 500, 50)])
    distance = 3 * 1.4826 * 0.005  # three deviations, of the median 0.91
    assert share == 0.15 and band == pytest.approx((0.91 - distance, 0.91 + distance))
    assert match_share([*[commit(0, 10, 10)] * 5, commit(0, 1000, 1)]) == (0.001, (1.0, 1.0))
    assert match_share([commit(0, 10, 9)]) == (0.9, None)
    again = commit(0, 0, 4, drain=Kind.RESOLVE, resolved=9, unmatched=5)  # no new tuples
    assert match_share([commit(0, 10, 1), again]) == (0.1, None)
    assert match_share([commit(0, 0)]) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4, "4 s"),
        (119, "119 s"),
        (180, "3 min"),
        (9000, "2.5 h"),
        (2e5, "2.3 days"),
        (1e6, "12 days"),
    ],
)
def test_a_duration_has_a_unit_that_suits_it(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("status", "waiting", "running", "late", "trouble"),
    [
        ({"state": "stopped"}, 0, "ended", "nothing waits", None),
        ({"state": "stopped"}, 7, "ended", "stuck", "Tuples wait, and nothing runs"),
        ({"state": "running"}, 0, "killed", "nothing waits", "Killed while running"),
        ({"state": "draining"}, 7, "killed", "stuck", "Killed while draining"),
        ({"state": "failed", "error": "E: no"}, 0, "failed", "nothing waits", "Failed"),
        (None, 0, "unknown", "nothing waits", "Its state is unknown"),
        ("launched since", 0, "failed", "nothing waits", "It never began"),
    ],
)
def test_how_a_driver_ended_is_told(tmp_path, status, waiting, running, late, trouble):
    launched = status == "launched since"
    values = {"state": "stopped"} if launched else status or {}
    StatusFile(tmp_path, "x").update(**values)
    if status is None:
        (tmp_path / "status.json").write_bytes(b"")
    if launched:
        launch = {"pid": 1, "started": 1, "host": socket.gethostname(), "owner": "me"}
        (tmp_path / "driver.json").write_text(json.dumps(launch | {"at": time.time() + 60}))
    tile = tile_of("x", tmp_path, Totals("x", waiting=waiting), None, Recent(), None, NOW)
    assert (tile.running.word, tile.late.word) == (running, late)
    assert [of.what for of in tile.troubles] == ([trouble] if trouble else [])
    assert all(of.action == "restart" for of in tile.troubles)
    assert not tile.alive and tile.rank[0] == (0 if trouble else 2)
    with checkpoint_lock(tmp_path):
        alive = tile_of("x", tmp_path, None, None, Recent(), None, NOW)
    assert alive.alive and not alive.troubles


def test_a_wait_beyond_its_bound_is_late(tmp_path):
    StatusFile(tmp_path, "x").update(state="running", longest_wait=20.0, max_wait=10.0)
    with checkpoint_lock(tmp_path):
        tile = tile_of("x", tmp_path, None, None, Recent(), None, NOW)
    assert tile.late == ("warn", "late", "a tuple waited 20 s, the bound is 10 s")


def test_marks_tell_what_has_changed_and_nothing_else():
    first = commit(9, batch=0, versions={"m": "v1"})
    commits = [
        first,
        replace(first, batch=1),
        replace(first, batch=1, drain=1, rows_read=0, algorithm="other"),
        replace(first, batch=2, versions={"m": "v2"}),
        replace(first, batch=3, versions={"m": "v2"}, memory_budget=2_000_000),
        replace(first, batch=4, versions={"m": "v2"}, memory_budget=2_000_000, run_started=2.0),
    ]
    marks = list(_marks(commits, [((1, 1), "proof failed: ids")]))
    assert marks == [
        (2, "proof", "proof failed: ids"),
        (3, "version", "m: v1 → v2"),
        (4, "settings", "ssbj, M 2.0 MB, P 2"),
        (5, "run", "another run began"),
    ]
