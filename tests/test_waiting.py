"""The bound on waiting: what it is, what is refused, what is told."""

import logging

import pytest

from semistream.errors import ConfigError
from semistream.joins.waits import Waits
from semistream.streaming import waiting
from semistream.streaming.settings import LoadSettings
from semistream.streaming.waiting import WaitingBound


@pytest.mark.parametrize(("trigger", "seconds"), [
    ("availableNow", None), ("5 seconds", 5), ("1 second", 1), ("250 milliseconds", 0.25),
    ("250ms", 0.25), ("2 minutes", 120), ("1 hour", 3600), ("1.5 s", 1.5), ("3m", 180)])
def test_the_interval_of_a_trigger(trigger, seconds):
    assert LoadSettings.load({"job": "x", "trigger": trigger}).interval == seconds


@pytest.mark.parametrize(("reads", "bound"), [(0.01, 2.0), (0.25, 2.0), (0.5, 3.0), (10, 41.0)])
def test_the_bound_is_two_triggers_or_what_lets_reads_take_a_quarter_of_the_time(reads, bound):
    found = WaitingBound(0, 1.0)
    found.choose(reads)
    assert found.seconds == pytest.approx(bound)
    assert reads <= (found.seconds - 1.0) / 4 + 1e-9


def test_without_an_interval_nothing_is_bound_unless_it_is_asked_for():
    found = WaitingBound(0, None)
    found.choose(1.0)
    assert found.seconds is None and found.pace() is None and not found.idle(1e9)
    asked = WaitingBound(4, None)
    asked.choose(1.0)
    assert asked.pace().bound == 4


def test_a_bound_that_cannot_be_kept_is_refused_with_one_that_can():
    with pytest.raises(ConfigError, match="'max_wait' must be at least 2 triggers, 10 s"):
        WaitingBound(9, 5.0)
    bound = WaitingBound(9, 1.0)
    bound.choose(3.9)
    with pytest.raises(ConfigError, match=r"must be at least 9\.4 s: a pass over R.*4\.2 s") as e:
        bound.choose(4.2)
    assert "more partitions" in str(e.value)
    WaitingBound(9.4, 1.0).choose(4.2)


def test_the_pace_leaves_time_for_the_next_micro_batch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    bound = WaitingBound(6, 1.0)
    assert bound.pace() == (1.0, 5.0)
    now[0] += 1.5
    assert bound.pace() == (1.5, 4.5)  # late
    now[0] += 30
    assert bound.pace() == (30.0, 3.0)


def test_the_disk_is_idle_when_nothing_came_for_as_long_as_a_pass_takes():
    bound = WaitingBound(0, 60.0)
    bound.choose(0.1)
    assert not bound.idle(0.9) and bound.idle(1.1)
    bound.choose(12)
    assert not bound.idle(11) and bound.idle(13)
    bound.choose(1000)
    assert bound.idle(61)


def test_waits_beyond_the_bound_are_told_now_and_then(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    bound = WaitingBound(4, 1.0)
    bound.pace()
    now[0] += 2
    bound.pace()
    caplog.set_level(logging.WARNING)
    bound.check(4.2, 1000)
    assert not caplog.messages
    bound.check(9.0, 1000)
    bound.check(9.0, 1000)
    told, = caplog.messages
    assert "up to 9 s, longer than max_wait, 4 s at 500 tuples/s" in told
    assert "more memory" in told and "max_wait 14" in told
    now[0] += 61
    bound.check(9.0, 1000)
    assert len(caplog.messages) == 2


def test_waits_add_up():
    waits = Waits()
    for seconds, tuples in ((0.5, 10), (3.0, 10), (0.0, 5), (1e-4, 5)):
        waits.note(seconds, tuples)
    assert waits.longest == pytest.approx(3.0, rel=0.1) and waits.longest >= 3.0
    assert waits.median(30) == pytest.approx(0.5, rel=0.1)
    assert waits.median(60) == 0  # the other 30 did not wait
    assert waits.median(41) == 0 and waits.median(39) == pytest.approx(0.5, rel=0.1)
    before = Waits(waits)
    waits.note(7.0, 3)
    assert waits.since(before) == {max(waits): 3} and Waits().longest == Waits().median(0) == 0
