"""Every check on every registered algorithm: a new one is tested by being registered, as the one of
block_nested_loop.py is here."""

import itertools
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import block_nested_loop
import oracle
import strategies
from clock import Seconds
from semistream import keys as keys_module
from semistream.errors import ConfigError, StateError
from semistream.joins import REGISTRY, JoinState, selection
from semistream.joins.registry import HASH_JOIN, find_algorithm
from semistream.joins.stream_table import by_partition
from semistream.joins.stream_table.by_chunk import ByChunk
from semistream.joins.tuple_store import TupleStore
from semistream.joins.waits import LEAST, PER_OCTAVE, Waits
from semistream.master.memory import MemoryRelation
from semistream.sizing import open_join

MEMORY = 200_000
ENTRIES = REGISTRY | {block_nested_loop.NAME: block_nested_loop.ENTRY}
ALGORITHMS = sorted(ENTRIES)
EVERY = [*ALGORITHMS, HASH_JOIN.name]  # also the one that needs all of R in memory
FORMS = [
    pytest.param(a.name, p, id=f"{a.name}{''.join(f' {v}' for v in p.values())}")
    for a in ENTRIES.values()
    for p in (
        [{"form": "fixed"}, {"form": "rate"}]
        if "form" in a.parameters.model_fields
        else [{}, {"filter_bits": 8}]
        if "filter_bits" in a.parameters.model_fields
        else [{}]
    )
]

# layouts of H_S whose tuples leave together, all as old as the oldest of them
TOGETHER = (ByChunk, block_nested_loop.ArrowList)


def relation(master, on, partition_tuples=8):
    return MemoryRelation("r", master, [m for _, m in on], partition_tuples)


@pytest.fixture(autouse=True, scope="module")
def small_portions():
    """What is done a portion at a time, is done in several here."""
    with pytest.MonkeyPatch.context() as patch:
        block_nested_loop.register(patch)
        patch.setattr(by_partition, "VISITED", 2)
        patch.setattr(selection, "PORTION", 2)
        yield


def start(
    algorithm,
    stream,
    master,
    on,
    *,
    memory=MEMORY,
    join_type="inner",
    partition_tuples=8,
    columns=None,
    parameters=None,
    kept=20,
):
    """kept: master tuples that have a place in memory, where the algorithm keeps some."""
    fields = find_algorithm(algorithm).parameters.model_fields
    sizes = {"disk_tuples": partition_tuples, "cache_tuples": kept, "resident_tuples": kept}
    given = {name: size for name, size in sizes.items() if name in fields}
    return open_join(
        algorithm,
        memory=memory,
        stream=stream.schema,
        master=relation(master, on, partition_tuples),
        on=on,
        columns=columns,
        join_type=join_type,
        parameters=given | (parameters or {}),
    )


def chunks(stream, lengths):
    at = 0
    for n in lengths:
        yield from stream.slice(at, n).combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], stream.schema)
        ]
        at += n


def answer(stream, master, on, join_type="inner"):
    columns = [c for c in master.column_names if c not in [m for _, m in on]]
    return oracle.join(stream.to_pylist(), master.to_pylist(), on, columns, join_type)


def check(outputs, stats, stream, master, on, join_type="inner"):
    check_rows(outputs, stats, stream, *answer(stream, master, on, join_type))


def check_rows(outputs, stats, stream, joined, unmatched):
    assert oracle.rows(o.joined for o in outputs) == joined
    assert oracle.rows(o.unmatched for o in outputs) == unmatched
    assert (
        sum(s.matched + s.unmatched for s in stats)
        == sum(s.rows_read for s in stats)
        == stream.num_rows
    )
    assert sum(s.output_rows for s in stats) == sum(joined.values())
    assert stats[-1].waiting == 0


def integers(count, start=0, **more):
    return pa.table(
        {
            "k": pa.array(range(start, start + count), pa.int64()),
            "v": pa.array([f"v{i}" for i in range(count)], pa.string()),
            **more,
        }
    )


def sales(numbers):
    return pa.table({"id": range(len(numbers)), "k": pa.array(numbers, pa.int64())})


def run(join, stream, chunk=100):
    out = [o for b in stream.to_batches(max_chunksize=chunk) for o in join.process(b)]
    return out + list(join.drain())


@pytest.mark.parametrize(
    ("algorithm", "parameters"), [*FORMS, pytest.param(HASH_JOIN.name, {}, id=HASH_JOIN.name)]
)
@settings(max_examples=100)
@given(
    data=st.data(),
    join_type=st.sampled_from(["inner", "left"]),
    partition_tuples=st.sampled_from([1, 8, 100]),
    memory=st.sampled_from([60_000, 1_000_000]),
    kept=st.sampled_from([1, 5, 50]),
    restarts=st.booleans(),
)
def test_equals_the_oracle(
    algorithm, parameters, data, join_type, partition_tuples, memory, kept, restarts
):
    stream, master, on, lengths = data.draw(strategies.joins())
    make = lambda: start(
        algorithm,
        stream,
        master,
        on,
        join_type=join_type,
        partition_tuples=partition_tuples,
        memory=memory,
        parameters=parameters,
        kept=kept,
    )
    join, outputs, stats = make(), [], []
    with TemporaryDirectory() as directory:
        for i, chunk in enumerate(chunks(stream, lengths)):
            outputs += join.process(chunk)
            if restarts:
                path = Path(directory, f"{i}")
                join.snapshot(changes=i > 0).write(path, f"{i - 1}")
                stats.append(join.stats)
                join = make()
                join.restore(*JoinState.read(path))
        outputs += join.drain()
    check(outputs, [*stats, join.stats], stream, master, on, join_type)


@cache
def large(skew):
    """(stream, master, on, what the oracle gives)."""
    rng = np.random.default_rng(7)
    weights = 1 / np.arange(1, 901) ** skew
    numbers = rng.choice(900, 20_000, p=weights / weights.sum())
    master, on = integers(800), [("k", "k")]
    # keys 5, 13 … lie in gaps, 800..899 behind the end
    master = master.filter(pc.not_equal(pc.bit_wise_and(master["k"], 7), 5))
    stream = sales(numbers).append_column(
        "note", pa.array(["n" * (i % 9) for i in range(len(numbers))])
    )
    return stream, master, on, answer(stream, master, on)


@pytest.mark.parametrize(("algorithm", "parameters"), FORMS)
@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("memory", [30_000, 120_000, 2_000_000])
def test_large_streams_stay_within_memory(algorithm, parameters, skew, memory):
    stream, master, on, expected = large(skew)
    join = start(
        algorithm, stream, master, on, memory=memory, partition_tuples=50, parameters=parameters
    )
    outputs, peak = [], 0
    for batch in stream.to_batches(max_chunksize=3000):
        for out in join.process(batch):
            outputs.append(out)
            assert sum(join.stats.memory.values()) <= memory
        peak = max(peak, join.stats.memory_peak)
    outputs += join.drain()
    assert peak <= memory
    check_rows(outputs, [join.stats], stream, *expected)


@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [form for form in FORMS if form.values[0] != block_nested_loop.NAME],  # which has no heap
)
def test_more_memory_than_a_heap_of_strings_can_address_is_no_risk(
    algorithm, parameters, monkeypatch
):
    for name, module in sys.modules.items():
        if name.startswith("semistream.joins.") and hasattr(module, "MOST_HEAP"):
            monkeypatch.setattr(module, "MOST_HEAP", most := 1 << 14)
    ends, put = set(), TupleStore.put

    def watched(store, *of):
        end = put(store, *of)
        ends.add(int(np.max(end, initial=0)))
        return end

    monkeypatch.setattr(TupleStore, "put", watched)
    numbers = (900 * np.random.default_rng(3).random(20_000) ** 4).astype(np.int64)
    notes, texts = (
        pa.array([i % 9 * length * "w" for i in range(rows)])
        for rows, length in ((20_000, 1), (800, 99))
    )
    stream = sales(numbers).append_column("note", notes)
    master, on = integers(800).append_column("text", texts), [("k", "k")]
    join = start(
        algorithm,
        stream,
        master,
        on,
        memory=300_000,
        partition_tuples=50,
        kept=400,
        parameters=parameters,
    )
    outputs = run(join, stream, chunk=500)
    assert most // 2 < max(ends) <= most
    check(outputs, [join.stats], stream, master, on)


@pytest.mark.parametrize("algorithm", EVERY)
def test_hash_collisions_cost_time_and_no_row(algorithm, monkeypatch):
    real = keys_module.codes
    monkeypatch.setattr(
        keys_module,
        "codes",
        lambda columns, kinds: (real(columns, kinds)[0] % 5, real(columns, kinds)[1]),
    )
    master = pa.table({"k": [f"key{i}" for i in range(60)], "v": range(60)})
    stream = pa.table({"id": range(2000), "k": [f"key{i * i % 70}" for i in range(2000)]})
    join = start(algorithm, stream, master, [("k", "k")], memory=60_000)
    check(run(join, stream), [join.stats], stream, master, [("k", "k")])


# The field's habitual bugs, one test each


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_key_in_a_gap_of_r_ends_unmatched_and_does_not_loop(algorithm):
    master = pa.table({"k": pa.array([1, 2, 1000, 1001], pa.int64()), "v": list("abcd")})
    stream = sales([500] * 300)
    join = start(algorithm, stream, master, [("k", "k")], partition_tuples=2)
    out = run(join, stream)
    assert sum(o.unmatched.num_rows for o in out) == 300
    assert {r["reason"] for o in out for r in o.unmatched.to_pylist()} == {"no_match"}


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("key", [-(2**63), -1, 100, 2**63 - 1])
def test_a_key_outside_the_range_of_r_is_unmatched_and_not_dropped(algorithm, key):
    stream = sales([key, 5, key])
    join = start(algorithm, stream, integers(100), [("k", "k")])
    check(run(join, stream), [join.stats], stream, integers(100), [("k", "k")])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_full_hash_table_makes_the_source_wait_and_does_not_raise(algorithm):
    stream = sales(list(range(500)) * 40)
    join = start(algorithm, stream, integers(500), [("k", "k")], memory=20_000, partition_tuples=25)
    check(run(join, stream, chunk=20_000), [join.stats], stream, integers(500), [("k", "k")])


@pytest.mark.parametrize("algorithm", EVERY)
def test_tuples_that_wait_at_the_end_of_the_stream_are_finished(algorithm):
    stream = sales([7])
    join = start(algorithm, stream, integers(100), [("k", "k")])
    out = list(join.process(stream.to_batches()[0]))
    # a scan may have joined it, and still look for more matches
    assert join.stats.matched + join.stats.waiting == 1
    out += join.drain()
    assert oracle.rows(o.joined for o in out) == {(0, 7, "v7"): 1}
    assert list(join.drain()) == []


@pytest.mark.parametrize("algorithm", EVERY)
def test_stream_tuples_of_one_key_do_not_overwrite_one_another(algorithm):
    stream = sales([3] * 777)
    join = start(algorithm, stream, integers(10), [("k", "k")])
    assert sorted(r["id"] for o in run(join, stream) for r in o.joined.to_pylist()) == list(
        range(777)
    )


@pytest.mark.parametrize("algorithm", EVERY)
def test_null_keys_leave_at_once(algorithm):
    stream = sales([None, 1, None])
    join = start(algorithm, stream, integers(10), [("k", "k")])
    first = list(join.process(stream.to_batches()[0]))
    assert [r["id"] for r in first[0].unmatched.to_pylist()] == [0, 2]
    assert join.stats.rejected == {"null_key": 2}


@pytest.mark.parametrize("algorithm", EVERY)
def test_an_empty_master_leaves_all_unmatched(algorithm):
    stream = sales([1, 2, 3])
    join = start(algorithm, stream, integers(0), [("k", "k")])
    check(run(join, stream), [join.stats], stream, integers(0), [("k", "k")])


# Many-to-many, edges, settings


@pytest.mark.parametrize("algorithm", EVERY)
def test_many_to_many_is_exact(algorithm):
    master = pa.concat_tables([integers(50), integers(50), integers(20)])
    stream = sales([i * i % 60 for i in range(5000)])
    join = start(algorithm, stream, master, [("k", "k")], memory=40_000)
    check(run(join, stream), [join.stats], stream, master, [("k", "k")])


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_master_column_with_a_name_of_the_stream_gets_the_masters_name(algorithm):
    stream = sales([1]).append_column("v", pa.array([9]))
    join = start(algorithm, stream, integers(10), [("k", "k")])
    assert join.output_schema.names == ["id", "k", "v", "r_v"]


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_stream_of_nothing_but_the_key(algorithm):
    stream = pa.table({"k": pa.array([1, 1, 99, None], pa.int32())})
    join = start(algorithm, stream, integers(10), [("k", "k")])
    check(run(join, stream, chunk=2), [join.stats], stream, integers(10), [("k", "k")])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": 100}, "'memory' must"),
        ({"join_type": "outer"}, "'join_type' must be inner or left"),
        ({"columns": ["nope"]}, "'columns' must be columns of r"),
        ({"parameters": {"speed": 11}}, "'speed' is not a setting"),
        ({"parameters": {"disk_tuples": -1}}, "'disk_tuples' is wrong"),
    ],
)
def test_a_setting_that_cannot_work_is_named(algorithm, change, message):
    with pytest.raises(ConfigError, match=message):
        join = start(
            algorithm, sales([1]), integers(1000), [("k", "k")], partition_tuples=100, **change
        )
        run(join, sales([1]))


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ([("nope", "k")], "'on' must name a column of the stream"),
        ([("k", "nope")], "'on' must name a column of the master"),
        ([("k", "v")], "'on' must join columns of one type"),
        ([], "'on' must name at least one pair"),
    ],
)
def test_join_columns_that_cannot_work_are_named(on, message):
    with pytest.raises(ConfigError, match=message):
        open_join(
            "meshjoin",
            memory=MEMORY,
            stream=sales([1]).schema,
            master=relation(integers(5), [("k", "k")]),
            on=on,
        )


def test_an_unknown_algorithm_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match="Did you mean 'meshjoin'"):
        open_join(
            "meshjion",
            memory=MEMORY,
            stream=sales([1]).schema,
            master=relation(integers(5), [("k", "k")]),
            on=[("k", "k")],
        )


# State


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_waits_go_on_while_no_process_has_the_tuples(algorithm, seconds, monkeypatch, tmp_path):
    """Three tuples come, 10 s later 27 more; 60 s later another process takes up what was saved,
    after a boot of the machine."""
    wall = Seconds()
    monkeypatch.setattr(time, "time", wall)
    master = integers(400)
    stream = pa.table(
        {
            "n": np.arange(30),
            "k": np.random.default_rng(5).permutation(400)[:30],
            "text": ["x" * n for n in range(30)],
            "other": ["y"] * 30,
        }
    )
    join = start(algorithm, stream, master, [("k", "k")])
    list(join.process(stream[:3].to_batches()[0]))
    early = join.stats.waiting
    join.save(tmp_path / "0")
    seconds.now, wall.now = seconds.now + 10, wall.now + 10
    list(join.process(stream[3:].combine_chunks().to_batches()[0]))
    late = join.stats.waiting - early
    join.save(tmp_path / "1", "0")
    seconds.now, wall.now = 3.0, wall.now + 60
    again = start(algorithm, stream, master, [("k", "k")])
    again.restore(*JoinState.read(tmp_path / "1"))
    list(again.keep_up(1.0, BOUND))
    assert early > 0 and late > 10
    assert again.stats.waiting == 0 and again.stats.matched == early + late
    assert 70 <= again.stats.waits.longest <= 1.1 * 70
    coarse, waited = isinstance(again.h_s, TOGETHER), again.stats.processed_seconds
    assert 60 <= again.stats.waits.median(early + late) <= 1.1 * (70 if coarse else 61)
    assert 60 * late + 60 * early + 9.9 <= waited
    assert waited <= (70 if coarse else 60) * late + 70 * early + 0.1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_waits_are_told_from_the_micro_batch_that_brought_a_tuple(algorithm, seconds, tmp_path):
    """Its tuples come in two calls, 40 and 60 s after its beginning; the next one's 5 s after that
    of its own. Another process takes up what was saved and finishes it in a third micro-batch."""
    master, on = integers(400), [("k", "k")]
    stream = pa.table({"n": np.arange(40), "k": np.arange(40) * 10})
    first, second, next_one = (
        part.combine_chunks().to_batches()[0]
        for part in (stream.slice(0, 10), stream.slice(10, 10), stream.slice(20))
    )
    nulls = pa.record_batch({"n": np.arange(5), "k": pa.nulls(5, pa.int64())})
    join = start(algorithm, stream, master, on)
    join.begin(seconds.now)
    for after, batch in ((40, first), (20, second)):
        seconds.now += after
        list(join.process(batch))
    list(join.process(nulls))  # they leave at once
    brought = join.stats.waiting
    assert brought > 0 and join.stats.waits.total() == 25 - brought
    assert 60 <= join.stats.waits.longest <= 1.1 * 60
    join.begin(seconds.now + 10)
    seconds.now += 15
    list(join.process(next_one))
    join.save(tmp_path / "state")
    again = start(algorithm, stream, master, on)
    again.restore(*JoinState.read(tmp_path / "state"))
    for each in (join, again):
        waiting, before = each.stats.waiting, Waits(each.stats.waits)
        each.begin(seconds.now + 1)
        seconds.now += 2
        list(each.drain())
        waits = each.stats.waits.since(before)
        old = sum(n for number, n in waits.items() if 77 <= told(number) <= 1.1 * 79)
        young = sum(n for number, n in waits.items() if 7 <= told(number) <= 1.1 * 9)
        assert old + young == waiting > 10 and old > 0
        assert each is again or isinstance(join.h_s, TOGETHER) or old <= brought


def told(number):
    return LEAST * 2 ** (number / PER_OCTAVE)


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_state_of_another_join_is_refused(algorithm):
    stream, master, on = sales([1, 2, 3]), integers(100), [("k", "k")]
    join = start(algorithm, stream, master, on)
    list(join.process(stream.to_batches()[0]))
    with pytest.raises(StateError, match="join_type is 'inner' there and 'left' here"):
        start(algorithm, stream, master, on, join_type="left").restore(join.snapshot())


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_damaged_state_is_refused_wherever_the_damage_is(algorithm, tmp_path):
    join = start(algorithm, sales([1, 2, 3]), integers(100), [("k", "k")])
    list(join.process(sales([1, 2, 3]).to_batches()[0]))
    path = tmp_path / "state"
    join.snapshot().write(path)
    whole = path.read_bytes()
    for at in itertools.chain(range(60), range(60, len(whole), 17)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(StateError):
            JoinState.read(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(StateError):
        JoinState.read(path)
    with pytest.raises(StateError, match="cannot be read"):
        JoinState.read(tmp_path / "none")


def test_a_state_of_another_format_is_refused_with_both_formats_and_the_way_out(tmp_path):
    join, path = start("meshjoin", sales([1]), integers(100), [("k", "k")]), tmp_path / "state"
    join.snapshot().write(path)
    former = b"semistream join state 7\n"
    path.write_bytes(former + path.read_bytes()[len(former) :])
    with pytest.raises(StateError, match="of format 7, and this version reads format 8.*drained"):
        JoinState.read(path)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_statistics_tell_each_iteration(algorithm):
    rng = np.random.default_rng(3)
    stream = sales(rng.integers(0, 500, 20_000))
    join = start(algorithm, stream, integers(500), [("k", "k")], memory=60_000, partition_tuples=50)
    run(join, stream)
    s = join.stats
    assert len(s.iterations) == s.iteration_count > 10
    assert sum(i.disk_tuples for i in s.iterations) == s.disk_tuples_read
    assert sum(i.bytes_read for i in s.iterations) == s.bytes_read > 0
    assert sum(i.w_s for i in s.iterations) + s.cache_hits == 20_000
    assert 0 < sum(i.seconds for i in s.iterations) <= s.seconds
    assert s.processed_seconds > 0 and s.waited_seconds >= 0
    assert s.iterations[-1].r_cycles == s.r_cycles


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_the_caller_does_with_the_output_is_no_time_of_an_iteration(algorithm, monkeypatch):
    """Each output keeps the caller busy for an hour, by the clock; the join is as fast as ever."""
    late, real = [0.0], time.perf_counter
    monkeypatch.setattr("time.perf_counter", lambda: real() + late[0])
    stream = sales(np.random.default_rng(3).integers(0, 600, 20_000))
    join = start(algorithm, stream, integers(500), [("k", "k")], memory=60_000, partition_tuples=50)
    for batch in stream.to_batches(max_chunksize=1_000):
        for _ in join.process(batch):
            late[0] += 3_600
    assert late[0] > 10 * 3_600 and join.stats.iteration_count > 10
    assert 0 < sum(i.seconds for i in join.stats.iterations) <= join.stats.seconds < 3_600
    if algorithm == "elevatorjoin":
        assert join.sweeps > 1 and 0.01 < join.costs.phi <= 1


def second_an_iteration(join, clock):
    """Let each iteration take a second, which is over when it begins to read R."""
    begin = join._begin

    def begun():
        found = begin()
        clock.now += 1.0
        return found

    join._begin = begun
    return join


@pytest.mark.parametrize(("algorithm", "parameters"), FORMS)
def test_the_papers_times_are_those_of_each_tuple(algorithm, parameters, seconds):
    """Waiting and processing time together go from a call to a tuple's first match, or to where it
    leaves without one; those that the index knows to have none have neither."""
    indexed = REGISTRY[algorithm].needs_index
    master = pa.concat_tables([integers(300), integers(300).slice(0, 150)])  # some keys twice
    numbers = np.random.default_rng(3).integers(0, 300 if indexed else 320, 6_000)
    stream = pa.table({"n": np.arange(len(numbers)), "k": numbers})
    join = second_an_iteration(
        start(
            algorithm,
            stream,
            master,
            [("k", "k")],
            memory=40_000,
            partition_tuples=50,
            parameters=parameters,
        ),
        seconds,
    )
    came, left = {}, {}

    def note(outputs):
        for output in outputs:
            for number in (*output.joined["n"].to_pylist(), *output.unmatched["n"].to_pylist()):
                left.setdefault(number, join.stats.seconds)

    for i, batch in enumerate(stream.to_batches(max_chunksize=700)):
        came |= dict.fromkeys(range(700 * i, 700 * i + batch.num_rows), join.stats.seconds)
        note(join.process(batch))
        seconds.now += 3600.0  # the caller's
    note(join.drain())
    s = join.stats
    assert s.iteration_count > 10 and set(left) == set(range(len(numbers)))
    assert s.paper_waiting_seconds > 0 and s.paper_processing_seconds > 0
    assert s.paper_waiting_seconds + s.paper_processing_seconds == pytest.approx(
        sum(left[n] - came[n] for n in came), rel=1e-3
    )


def test_the_papers_waiting_ends_where_an_iteration_begins(seconds):
    """MESHJOIN's chunks of w tuples, three in a call: the second waits for one iteration, the third
    for two; a tuple that is alone in the open chunk waits for those that are to come with it."""
    stream = sales(list(range(200)) * 20)
    join = second_an_iteration(
        start("meshjoin", stream, integers(200), [("k", "k")], partition_tuples=50, memory=10_000),
        seconds,
    )
    list(join.process(stream.slice(0, 1).to_batches()[0]))
    w, paper = join.h_s.missing + 1, join.stats.paper_times
    assert w > 2 and paper.entered == 1
    list(join.process(stream.slice(1, w - 1).combine_chunks().to_batches()[0]))
    assert paper.entered == 0 and join.stats.paper_waiting_seconds == pytest.approx(0, abs=1e-3)
    list(join.process(stream.slice(w, 3 * w).combine_chunks().to_batches()[0]))
    assert join.stats.iteration_count == 4 and paper.entered == 0
    assert join.stats.paper_waiting_seconds == pytest.approx(w + 2 * w, abs=1e-2)
    assert join.stats.waited_seconds == pytest.approx(w + 2 * w, abs=1e-2)


@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin"])
def test_the_papers_times_go_on_after_a_restart(algorithm, seconds):
    """What has had its match is not processed any more, nor is anything after all have left."""
    stream = sales(list(range(200)) * 20)
    make = lambda: second_an_iteration(
        start(algorithm, stream, integers(200), [("k", "k")], partition_tuples=50, memory=20_000),
        seconds,
    )
    join = make()
    list(join.process(stream.slice(0, 1500).combine_chunks().to_batches()[0]))
    assert 0 < join.stats.waiting < 1500
    unmatched = sum(
        not m
        for m in join.snapshot()
        .tables["waiting"]
        .to_pydict()
        .get("matched", [False] * join.stats.waiting)
    )
    again = make()
    again.restore(join.snapshot())
    list(again.drain())
    spent = again.stats.paper_processing_seconds
    assert 0 < spent <= unmatched * again.stats.iteration_count + 1e-2
    again.stats.paper_times.match(0)
    assert again.stats.paper_times.processed == pytest.approx(spent, abs=1e-2)


@pytest.mark.parametrize("algorithm", ["ssj", "sscj", "meshjoin", "hybridjoin", "cmeshjoin"])
@pytest.mark.parametrize("keys", [[], [None, None]], ids=["no tuple", "no key"])
def test_on_an_empty_stream_buffer_ssj_and_sscj_read_on(algorithm, keys):
    """Section 4.1: the stream-probing phase ends, and the disk-probing phase becomes active. Where
    nothing waits, the disk rests."""
    stream = sales([1, 90, 150, *keys])
    join = start(algorithm, stream, integers(200), [("k", "k")], partition_tuples=50, memory=20_000)
    list(join.process(stream.slice(0, 3).to_batches()[0]))
    before, reads = join.stats.iteration_count, algorithm in ("ssj", "sscj")
    assert 0 < join.stats.waiting <= 3 and before == reads
    empty = stream.slice(3).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], stream.schema)
    ]
    for _ in range(10):
        list(join.process(empty[0]))
    assert (join.stats.waiting == 0) == reads
    assert 2 <= join.stats.iteration_count < 6 if reads else join.stats.iteration_count == 0


BOUND = 4.0  # s, with a batch a second


def trickle(join, clock, stream, each, *, restored=lambda join: join):
    """Feed a few tuples a second, keeping up; gives the second in which each tuple came and
    left, by its number."""
    came, left, second = {}, {}, 0
    for at in range(0, stream.num_rows + each * int(BOUND + 2), each):
        clock.now, second = clock.now + 1.0, second + 1
        batch = stream.slice(at, each).combine_chunks().to_batches()
        outputs = [o for b in batch for o in join.process(b)]
        came |= dict.fromkeys(range(at, min(at + each, stream.num_rows)), second)
        outputs += join.keep_up(1.0, BOUND)
        for output in outputs:
            for number in (*output.joined["n"].to_pylist(), *output.unmatched["n"].to_pylist()):
                left.setdefault(number, second)
        join = restored(join)
    return came, left, join


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_tuple_waits_longer_than_the_bound(algorithm, seconds):
    master = integers(400)
    keys = np.random.default_rng(3).permutation(500)[:120]
    stream = pa.table({"n": np.arange(len(keys)), "k": keys})
    join = start(algorithm, stream, master, [("k", "k")])
    came, left, join = trickle(join, seconds, stream, 3)
    assert set(left) == set(came)
    assert max(left[n] - came[n] for n in came) <= BOUND + 1
    assert join.stats.waiting == 0
    assert BOUND - 1 <= join.stats.waits.longest <= 1.1 * (BOUND + 1)
    assert join.stats.waits.median(len(came)) <= BOUND + 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bound_reads_no_more_of_r_than_it_takes(algorithm, seconds):
    """R in 50 partitions; a pass over it in BOUND seconds, or the partitions of what came."""
    master, time_ = integers(400), 40
    stream = pa.table({"n": np.arange(time_), "k": np.arange(time_) * 10})
    join = start(algorithm, stream, master, [("k", "k")], kept=1)
    _, left, join = trickle(join, seconds, stream, 1)
    whole = join.master.tuple_count
    rounding = join.master.partition_tuples * (time_ + BOUND + 2)
    assert join.stats.disk_tuples_read <= whole * (time_ + BOUND + 2) / BOUND + rounding
    if REGISTRY[algorithm].needs_index:
        assert join.stats.disk_tuples_read <= 2 * join.master.partition_tuples * len(left)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_restored_state_has_waiting_is_due_at_once(algorithm, seconds):
    master = integers(400)
    stream = pa.table({"n": np.arange(60), "k": np.random.default_rng(5).permutation(400)[:60]})

    def restored(join):
        again = start(algorithm, stream, master, [("k", "k")])
        again.restore(join.snapshot())
        return again

    came, left, _ = trickle(
        start(algorithm, stream, master, [("k", "k")]), seconds, stream, 3, restored=restored
    )
    assert set(left) == set(came)
    assert max(left[n] - came[n] for n in came) <= 1


@pytest.mark.parametrize("kept", [4, 80])
@pytest.mark.parametrize("algorithm", ["x-hybridjoin", "tuned-x-hybridjoin"])
def test_frequent_tuples_are_resident_though_h_s_never_fills(algorithm, kept, seconds):
    """In BOUND seconds come more tuples than there are places for residents, and a tenth of them;
    in the latter case the join is restored before as many have come."""
    each, master, on = 2, integers(400), [("k", "k")]
    keys = np.random.default_rng(7).zipf(1.5, 400) % 500
    stream = pa.table({"n": np.arange(len(keys)), "k": keys})
    stats = []

    def opened():
        join = start(algorithm, stream, master, on, partition_tuples=kept, kept=kept)
        stats.append(join.stats)
        return join

    def restored(join):
        if next(second) % 25:
            return join
        again = opened()
        again.restore(join.snapshot())
        assert again.cached == join.cached
        return again

    second = itertools.count(1)
    came, left, join = trickle(opened(), seconds, stream, each, restored=restored)
    assert set(left) == set(came) and 0 < join.cached <= kept
    assert max(left[n] - came[n] for n in came) <= BOUND + 1
    assert sum(s.matched for s in stats) == np.count_nonzero(keys < 400)
    assert all(s.memory_peak <= MEMORY for s in stats)
    most = np.sort(np.bincount(keys)[:400])[::-1][: join.cached].sum() / len(keys)
    hits = sum(s.cache_hits for s in stats) / len(keys)
    assert hits > 0.75 * most * (1 - max(kept, each * (BOUND + 1)) / len(keys))
