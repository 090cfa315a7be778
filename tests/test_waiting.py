"""The bound on waiting: what it is, what is refused, what is told."""

import logging
import math
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.cli import main
from semistream.cost_models import MODELS, TYPICAL, Frequencies
from semistream.cost_models.bound import Demand, describe_price, due, highest_rate, price
from semistream.errors import ConfigError
from semistream.joins.spec import join_spec
from semistream.joins.waits import Waits
from semistream.master.memory import MemoryRelation
from semistream.paths import Paths
from semistream.sizing import open_join
from semistream.sizing.choice import choose
from semistream.sizing.search import predict, tune
from semistream.sizing.workload import describe
from semistream.streaming import waiting
from semistream.streaming.settings import LoadSettings
from semistream.streaming.waiting import WaitingBound
from semistream.tuning.measure import grid, recommend
from semistream.tuning.settings import TuneSettings
from semistream.tuning.tuning_input import open_tuning_input
from semistream.workloads import ZipfKeys


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [
        ("availableNow", None),
        ("5 seconds", 5),
        ("1 second", 1),
        ("250 milliseconds", 0.25),
        ("250ms", 0.25),
        ("2 minutes", 120),
        ("1 hour", 3600),
        ("1.5 s", 1.5),
        ("3m", 180),
    ],
)
def test_the_interval_of_a_trigger(trigger, seconds):
    assert LoadSettings.load({"job": "x", "trigger": trigger}).interval == seconds


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1 parsec"])
@pytest.mark.parametrize(
    ("kind", "setting"),
    [(LoadSettings, "max_wait"), (TuneSettings, "max_wait"), (TuneSettings, "rate")],
)
def test_a_bound_or_a_rate_is_a_number_of_the_finite_ones(kind, setting, value):
    with pytest.raises(ConfigError, match=f"'{setting}' is wrong"):
        kind.load({"job": "x", setting: value})


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


def test_a_bound_that_cannot_be_kept_is_refused_with_one_that_can(caplog):
    with pytest.raises(ConfigError, match="'max_wait' must be at least 2 triggers, 10 s"):
        WaitingBound(9, 5.0)
    bound = WaitingBound(9, 1.0)
    bound.choose(3.9)
    with pytest.raises(ConfigError, match=r"must be at least 9\.4 s: a pass over R.*4\.2 s") as e:
        bound.choose(4.2)
    assert "more partitions" in str(e.value)
    WaitingBound(9.4, 1.0).choose(4.2)
    bound.pace()
    bound.choose(4.2)  # the master data have grown meanwhile
    assert "must be at least 9.4 s" in caplog.text


def test_the_pace_leaves_time_for_the_next_micro_batch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    bound = WaitingBound(6, 1.0)
    assert bound.pace() == (1.0, 5.0)
    now[0] += 1.5
    assert bound.pace() == (1.5, 4.5)  # late
    now[0] += 30
    assert bound.pace() == (30.0, 3.0)


def test_a_micro_batch_that_begins_early_leaves_no_end_of_a_pass_to_the_next_one(monkeypatch):
    """With the least bound each micro-batch is a whole pass, whatever the triggers' jitter."""
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    bound = WaitingBound(2, 1.0)
    for seconds in (1.0, 0.97, 1.04, 0.99):
        now[0] += seconds
        asked = bound.pace()
        assert asked.seconds >= asked.bound == 1.0


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
    bound.check(4.2, {"join": 3.0})
    assert not caplog.messages
    bound.check(9.0, {"read": 3.5, "join": 2.0})
    bound.check(9.0, {})
    (told,) = caplog.messages
    assert "up to 9 s, longer than max_wait, 4 s. Of the last" in told
    assert "the phase join took the most time, 5 s" in told
    assert "more memory" in told and "a max_wait of 14 s" in told
    now[0] += 61
    bound.check(9.0, {"schedule": 0.1})
    assert len(caplog.messages) == 2


def test_more_memory_is_not_advised_where_reads_of_r_did_not_take_the_time(caplog):
    bound = WaitingBound(2, 1.0)
    for _ in range(2):
        bound.pace()
    bound.check(0.9, {"schedule": 4.6, "join": 0.5})
    bound.check(2.44, {"schedule": 0.1, "join": 0.5})
    (told,) = caplog.messages
    assert "the phase schedule took the most time, 4.7 s" in told
    assert "tuples/s" not in told and "memory" not in told and "a max_wait of 3.7 s" in told


def test_of_what_waited_while_no_load_ran_no_rate_is_said_to_be_too_high(caplog):
    bound = WaitingBound(4, 1.0)
    bound.check(70.0, {})  # finished before there was input
    bound.pace()
    bound.check(60.0, {"join": 50.0})
    assert ["before this start" in message for message in caplog.messages] == [True, True]
    assert "up to 60 s, longer than max_wait, 4 s" in caplog.text and "more" not in caplog.text
    bound.pace()
    bound.check(60.0, {"join": 50.0})
    assert "more memory" in caplog.messages[-1]


def test_of_a_first_micro_batch_that_takes_longer_than_the_bound_itself_it_is_told(
    monkeypatch, caplog
):
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    bound = WaitingBound(4, 2.0)
    bound.pace()
    now[0] += 73
    bound.check(78.0, {"join": 70.0})  # 72 s, as it is known to 9%
    assert "up to 78 s, longer than max_wait, 4 s. Of the last" in caplog.text
    assert "before this start" not in caplog.text


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


# ---- what a bound costs

MASTER = pa.table({"k": np.arange(20_000), "v": np.arange(20_000) * 1.5})
ON, SECONDS, RATE, MAX_WAIT = [("k", "k")], 30, 60, 5.0


def tuples(first, number, seed=1):
    keys = np.random.default_rng((seed, first)).integers(0, 22_000, number)
    return pa.record_batch({"n": np.arange(first, first + number), "k": keys})


def relation(partition_tuples=64):
    return MemoryRelation("r", MASTER, ["k"], partition_tuples)


@pytest.mark.parametrize("algorithm", ["meshjoin", "elevatorjoin", "hybridjoin"])
def test_the_reads_that_a_bound_asks_for_are_those_that_are_made(algorithm, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    join = open_join(
        algorithm,
        memory=250_000,
        stream=tuples(0, 1).schema,
        master=relation(),
        on=ON,
        parameters={"disk_tuples": 64, "filter_bits": -1}
        if algorithm == "elevatorjoin"
        else {"disk_tuples": 64},
    )
    before = 0
    for second in range(SECONDS + 10):
        now[0] += 1
        list(join.process(tuples(second * RATE, RATE)))
        list(join.keep_up(1.0, MAX_WAIT))
        before = before or (join.stats.iteration_count if second == 9 else 0)
    made = (join.stats.iteration_count - before) / SECONDS
    misses = RATE * 20 / 22 * (1 - join.stats.cache_hits / join.stats.rows_read)
    expected = due(MODELS[algorithm].phase, join.master.partition_count, misses, MAX_WAIT)
    assert made == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("d_n", [500, 4000])
def test_what_is_resident_where_h_s_never_fills_is_as_the_model_says(d_n, monkeypatch):
    now, rows, rate, sizes = [1000.0], 40_000, 400, {"disk_tuples": 64, "resident_tuples": d_n}
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    keys = ZipfKeys(20_000, 1.0, seed=2, scattered=True).draw(0, rows) - 1
    stream = pa.record_batch({"n": np.arange(rows), "k": keys})
    demand = Demand(MAX_WAIT, rate)
    work = demand.of(
        describe(
            join_spec("", 10**6, stream.schema, relation(), ON, None),
            stream,
            frequencies=Frequencies.zipf(20_000, 1.0),
        )
    )
    found = predict("tuned-x-hybridjoin", work, 10**6, TYPICAL, **sizes)
    assert found.h_s > 2 * rate * MAX_WAIT
    join = open_join(
        "tuned-x-hybridjoin",
        memory=10**6,
        stream=stream.schema,
        master=relation(),
        on=ON,
        parameters=sizes,
    )
    hits = []
    for first in range(0, rows, rate):
        now[0] += 1
        list(join.process(stream.slice(first, rate)))
        list(join.keep_up(1.0, MAX_WAIT))
        hits.append(join.stats.cache_hits)
    share = (hits[-1] - hits[len(hits) // 2]) / (rows / 2 - rate)
    assert share == pytest.approx(found.w_n / found.w, rel=0.05)
    assert join.cached == pytest.approx(found.h_r, rel=0.05)


def some_frequent(rows, seed=3):
    """Half of the tuples have one of five keys."""
    rng = np.random.default_rng(seed)
    rare = rng.integers(10, 20_000, rows)
    keys = np.where(rng.random(rows) < 0.5, rng.integers(0, 5, rows), rare)
    return pa.record_batch({"n": np.arange(rows), "k": keys})


@pytest.mark.parametrize("algorithm", ["elevatorjoin", "sscj", "ssij", "tuned-x-hybridjoin"])
def test_what_a_bound_reads_is_told_by_a_sample_of_any_size(algorithm, monkeypatch):
    now, rate, memory = [1000.0], 100, 150_000
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    more = {"sscj": {"cache_tuples": 500}, "ssij": {"cache_share": 0.1}}
    more["tuned-x-hybridjoin"] = {"resident_tuples": 2000}
    sizes = {"disk_tuples": 640} | more.get(algorithm, {})
    stream, told = some_frequent(40 * rate), []
    for rows in (100, 400, 4000):
        demand, sample = Demand(2.0, rate, idle=2.0), some_frequent(rows, rows)
        spec = join_spec("", memory, sample.schema, relation(), ON, None)
        work = demand.of(describe(spec, sample))
        found = predict(algorithm, work, memory, TYPICAL, **sizes)
        told.append(price(found, work, TYPICAL, MODELS[algorithm].phase, demand).idle)
    join = open_join(
        algorithm, memory=memory, stream=stream.schema, master=relation(), on=ON, parameters=sizes
    )
    read = []
    for first in range(0, stream.num_rows, 2 * rate):
        now[0] += 2
        list(join.process(stream.slice(first, 2 * rate)))
        list(join.drain())
        read.append(join.stats.disk_tuples_read)
    made = (read[-1] - read[9]) / (len(read) - 10) / 2 * work.disk_tuple_bytes
    assert told == [pytest.approx(made, rel=0.15)] * 3


@pytest.mark.parametrize("algorithm", sorted(MODELS))
def test_a_bound_is_free_where_h_s_fills_sooner_and_costs_more_the_shorter_it_is(algorithm):
    work = describe(
        join_spec("", 200_000, tuples(0, 1).schema, relation(), ON, None), tuples(0, 5000)
    )
    found, phase = tune(algorithm, work, 200_000, TYPICAL), MODELS[algorithm].phase

    def asked(rate, max_wait):
        return price(found, work, TYPICAL, phase, Demand(max_wait, rate))

    assert asked(found.mu, 3600).busy == pytest.approx(1, rel=0.05)
    free = highest_rate(found, work, TYPICAL, phase, Demand(3600))
    assert free == pytest.approx(found.mu, rel=0.01)
    short, long = asked(10, 1.0), asked(10, 100.0)
    assert short.bytes_read >= long.bytes_read > 0 and short.busy >= long.busy
    tight = highest_rate(found, work, TYPICAL, phase, Demand(0.01))
    assert tight <= found.mu and (tight == 0 or asked(tight, 0.01).busy <= 1 + 1e-6)


def test_a_bound_takes_no_reads_where_all_of_r_is_in_memory():
    work = describe(
        join_spec("", 50_000_000, tuples(0, 1).schema, relation(), ON, None), tuples(0, 5000)
    )
    found = tune("ssbj", work, 50_000_000, TYPICAL)
    assert found.w_s == 0
    assert price(found, work, TYPICAL, "scan", Demand(2.0, 1000)) == (0.0, 1000 / found.mu, 0.0)
    choice = choose(
        tuples(0, 500), relation(), 50_000_000, ON, costs=TYPICAL, demand=Demand(2.0, 250.0)
    )
    assert "takes 0.0 MB/s of master data" in choice.reason


def test_a_slow_stream_is_served_by_look_ups_and_the_price_is_told():
    choice = choose(tuples(0, 200), relation(), 200_000, ON, costs=TYPICAL, demand=Demand(2.0, 3.0))
    assert MODELS[choice.algorithm].phase != "scan"
    assert "max_wait 2 s at 3 tuples/s takes" in choice.reason and "MB/s" in choice.reason
    tight = choose(tuples(0, 200), relation(), 200_000, ON, costs=TYPICAL, demand=Demand(1e-5, 3e6))
    assert "more than there is: give more memory" in tight.reason


@pytest.mark.parametrize("memory", [60_000, 200_000])
@pytest.mark.parametrize("rate", [2.0, 20.0, 500.0])
def test_what_is_chosen_for_a_slow_stream_serves_a_fast_one_too(memory, rate):
    demand, sample = Demand(4.0, rate, 2.0), tuples(0, 200)
    choice = choose(sample, relation(), memory, ON, costs=TYPICAL, demand=demand)
    work = demand.of(describe(join_spec("", memory, sample.schema, relation(), ON, None), sample))
    busy, highest = {}, {}
    for p in choice.ranking:
        asked = p, work, TYPICAL, MODELS[p.algorithm].phase, demand
        busy[p.algorithm], highest[p.algorithm] = price(*asked).busy, highest_rate(*asked)
    chosen = choice.algorithm
    assert busy[chosen] <= 2 * min(busy.values())
    assert highest[chosen] >= 0.95 * max(highest[a] for a in busy if busy[a] <= busy[chosen])
    assert highest[chosen] >= 0.9 * max(highest.values())


def test_the_rate_is_known_where_all_of_the_first_micro_batch_was_looked_at():
    bound = WaitingBound(0, 2.0)
    bound.choose(0.1)
    # of 4 s, 2 pass until the next micro-batch
    assert bound.demand(500) == Demand(4.0, 250.0, 2.0, idle=1.0)
    assert bound.demand(500).bound == bound.pace().bound
    assert bound.demand(waiting.SAMPLED) == Demand(4.0, math.inf, 2.0, idle=1.0)
    assert WaitingBound(0, None).demand(500) is None


def test_an_idle_disk_reads_before_a_longer_bound_and_this_is_told():
    work = describe(
        join_spec("", 200_000, tuples(0, 1).schema, relation(), ON, None), tuples(0, 500)
    )
    found = predict("elevatorjoin", work, 200_000, TYPICAL, disk_tuples=640)
    short, long = (
        price(found, work, TYPICAL, "elevator", Demand(bound, 50.0)) for bound in (1.0, 5.0)
    )
    assert short.idle == short.bytes_read == long.idle > 2 * long.bytes_read
    assert "pauses" not in describe_price(short, Demand(1.0, 50.0))
    told = describe_price(long, Demand(5.0, 50.0))
    assert f"; up to {long.idle / 1e6:.1f} MB/s where the stream pauses between" in told
    scan = predict("meshjoin", work, 200_000, TYPICAL, disk_tuples=640)
    whole = MASTER.num_rows * work.disk_tuple_bytes
    assert price(scan, work, TYPICAL, "scan", Demand(5.0, 50.0)).idle == pytest.approx(whole)


def test_a_load_and_tune_tell_the_same_of_all_operators(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path / "var"))
    pq.write_table(pa.Table.from_batches([some_frequent(2000)]), tmp_path / "s.parquet")
    pq.write_table(MASTER, tmp_path / "r.parquet")
    files = {"stream": tmp_path / "s.parquet", "master": tmp_path / "r.parquet", "on": "k"}
    memory, demand, scans = 300_000, Demand(2.0, 100.0), []
    for partitions in (1, 2):
        settings = TuneSettings.load(files | {"memory": (memory,), "partitions": partitions})
        with open_tuning_input(settings, Paths.from_environment()) as sizing:
            points = grid(sizing, [memory], MODELS, 1, TYPICAL, demand)
            plan = sizing.plan(memory).choose(sizing.sample, TYPICAL, demand=demand)
            best = recommend(points)[memory]
            assert best.algorithm == plan.algorithm
            assert describe_price(best.price, demand) in plan.reason
            (scan,) = (p.price.bytes_read for p in points if p.algorithm == "meshjoin")
            scans.append(scan / (len(MASTER) * sizing.workload.disk_tuple_bytes))
    assert scans == pytest.approx([1 / 2.0] * 2, rel=0.01)  # all of R in 2 s


def test_tune_tells_what_a_bound_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path / "var"))
    pq.write_table(pa.Table.from_batches([tuples(0, 2000)]), tmp_path / "s.parquet")
    pq.write_table(MASTER, tmp_path / "r.parquet")
    asked = [
        "tune",
        "--stream",
        str(tmp_path / "s.parquet"),
        "--master",
        str(tmp_path / "r.parquet"),
        "--on",
        "k",
        "--memory",
        "300KB",
        "--partitions",
        "1",
        "--algorithms",
        "meshjoin,hybridjoin,sscj",
    ]
    assert main([*asked, "--max-wait", "0.2", "--rate", "3"]) == 0
    told = capsys.readouterr().out
    assert "costs of a typical machine (rates only compare;" in " ".join(told.split())
    # the one with the least work comes first; a scan has the most, as it reads all of R
    rows = re.findall(r"^(\w+) .* ([\d.]+) +(\d+)%  ", told, re.MULTILINE)
    (best, _, _), _, (last, most, _) = rows
    busy = [int(share) for _, _, share in rows]
    assert last == "meshjoin" and float(most) == max(float(read) for _, read, _ in rows)
    assert busy == sorted(busy) and busy[-1] > 0
    assert "MB/s" in told and "busy" in told
    assert f"Best: {best}," in told and "max_wait 0.2 s at 3 tuples/s takes" in told
    assert main(asked) == 0
    assert "busy" not in capsys.readouterr().out
    for given, missing in (("max_wait", "rate"), ("rate", "max_wait")):
        (tmp_path / "s.parquet").unlink(missing_ok=True)  # it is told before files are read
        assert main([*asked, "--" + given.replace("_", "-"), "2"]) == 2
        assert f"'{missing}' must be given with {given}. A bound" in capsys.readouterr().err
