"""What one task of a machine decodes for the others: each piece once, each tuple in the partition
that it is in without that."""

import gc
import multiprocessing
import os
import resource
import signal
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.master import publish_snapshot
from semistream.partitioning import DEALT
from semistream.sizing.plan import Plan
from semistream.streaming.workers import parquet, sockets
from semistream.streaming.workers.exchange import Exchange

STREAM = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("note", pa.string())])
MASTER = pa.table({"k": pa.array(range(1000), pa.int64()), "v": [f"v{k}" for k in range(1000)]})
ROWS, GROUP = 20_000, 2_500


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    root = tmp_path_factory.mktemp("snapshots") / "m"
    publish_snapshot(MASTER.to_batches(), MASTER.schema, root, "m", ["k"], bucket_count=8)
    return str(next(root.glob("v*")))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two files, of eight row groups and of four, each of which is decoded in three steps. Some
    keys are null."""
    monkeypatch.setattr(parquet, "ROWS", 1000)
    random, names = np.random.default_rng(1), []
    for first, rows in ((0, ROWS), (ROWS, ROWS // 2)):
        keys = [None if k % 50 == 0 else int(k) for k in random.integers(0, 1000, rows)]
        ids = range(first, first + rows)
        names.append(str(tmp_path / f"{first}"))
        pq.write_table(pa.table({"id": ids, "k": keys, "note": [f"n{i}" for i in ids]}, STREAM),
                       names[-1], row_group_size=GROUP)
    return tuple(names)


def plan_of(master, count):
    """Bucket 0 is dealt out."""
    owners = (DEALT, *(bucket % count for bucket in range(1, 8)))
    return Plan("ssbj", 1_000_000, "inner", {}, (("k", "k"),), None, count, master, owners=owners)


def ids(batches):
    return [i for batch in batches for i in batch["id"].to_pylist()]


def without(files, plan):
    return [ids(parquet.read_partition(files, plan.placement(STREAM), p))
            for p in range(plan.partitions)]


@pytest.fixture
def decoded(monkeypatch):
    """How often each piece has been decoded."""
    counts, decode = Counter(), parquet._decode

    def counting(piece, stream):
        counts[piece] += 1
        return decode(piece, stream)

    monkeypatch.setattr(parquet, "_decode", counting)
    return counts


@pytest.fixture
def together(monkeypatch):
    """Tasks that look at the same time for what the others have decoded, each time."""
    def wait(count):
        barrier, look = threading.Barrier(count), Exchange.poll

        def looks(self):
            barrier.wait(30)
            look(self)
            barrier.wait(30)

        monkeypatch.setattr(Exchange, "poll", looks)

    return wait


def read_all(files, plan, batch, partitions=None):
    """The batches of all partitions, or of some, by as many threads."""
    found, partitions = {}, partitions or range(plan.partitions)

    def read(partition):
        placement = plan.placement(STREAM)
        found[partition] = list(parquet.read_partition(files, placement, partition, batch))

    threads = [threading.Thread(target=read, args=(p,)) for p in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[p] for p in partitions]


@pytest.mark.parametrize("count", [2, 3, 12])
def test_each_piece_is_decoded_once_and_nothing_is_another_partitions(
        master, files, decoded, together, count):
    plan = plan_of(master, count)
    expected = without(files, plan)
    for file in files:  # as if there were no row groups
        whole = pq.read_table(file).combine_chunks().to_batches()[0]
        for tuples, of in zip(plan.placement(STREAM).split(whole), expected, strict=True):
            assert set(tuples["id"].to_pylist()) <= set(of)
    decoded.clear()
    together(count)
    found = read_all(files, plan, ("each once", count))
    assert [sorted(ids(of)) for of in found] == [sorted(of) for of in expected]
    assert sorted(i for of in found for i in ids(of)) == list(range(ROWS + ROWS // 2))
    assert decoded == {(file, range(n, n + 1)): 1
                       for file, groups in zip(files, (8, 4), strict=True) for n in range(groups)}
    table = pa.Table.from_batches([b for of in found for b in of]).sort_by("id")
    assert table.equals(pa.concat_tables(map(pq.read_table, files)))


def test_many_files_are_exchanged_whole(master, files, decoded, together, monkeypatch):
    monkeypatch.setattr(parquet, "PIECES", 4)
    plan, many = plan_of(master, 2), (*files,) * 4
    together(2)
    found = read_all(many, plan, "whole")
    assert sorted(i for of in found for i in ids(of)) == sorted(4 * list(range(ROWS + ROWS // 2)))
    assert decoded == {(file, None): 4 for file in files}


def test_many_row_groups_are_exchanged_some_at_a_time(master, tmp_path, decoded, together,
                                                      monkeypatch):
    """Each piece opens its file, and reads the metadata of all row groups."""
    monkeypatch.setattr(parquet, "PIECES", 5)
    rows = pa.table({"id": range(3000), "k": range(3000), "note": ["n"] * 3000}, STREAM)
    pq.write_table(rows, tmp_path / "many", row_group_size=10)
    plan = plan_of(master, 2)
    expected = without([tmp_path / "many"], plan)
    decoded.clear()
    together(2)
    found = read_all([tmp_path / "many"], plan, "many groups")
    assert [sorted(ids(of)) for of in found] == [sorted(of) for of in expected]
    assert sum(map(len, expected)) == 3000
    assert len(decoded) == decoded.total() == 10 and {len(groups) for _, groups in decoded} == {30}


def test_fewer_pieces_than_tasks_and_one_task_exchange_nothing(master, files, decoded, monkeypatch):
    monkeypatch.setattr(parquet, "Exchange", None)
    for count in (1, 13):
        plan = plan_of(master, count)
        found = [ids(parquet.read_partition(files, plan.placement(STREAM), p, "few"))
                 for p in range(count)]
        assert sorted(i for of in found for i in of) == list(range(ROWS + ROWS // 2))


@pytest.mark.parametrize("here", [(0, 1), (1, 2), (0, 3), (2,)])
def test_a_machine_decodes_the_others_share_once_too(master, files, decoded, together, here):
    """Four tasks, of which the others are on another machine."""
    plan = plan_of(master, 4)
    expected = without(files, plan)
    decoded.clear()
    together(len(here))
    found = read_all(files, plan, ("machine", here), here)
    assert [sorted(ids(of)) for of in found] == [sorted(expected[p]) for p in here]
    assert len(decoded) == decoded.total() == 12


def test_who_comes_first_does_not_wait_and_who_comes_later_gets_it(master, files, decoded):
    plan = plan_of(master, 2)
    expected = [sorted(of) for of in without(files, plan)]
    for partition in (0, 1):
        decoded.clear()
        assert sorted(ids(parquet.read_partition(files, plan.placement(STREAM), partition,
                                                 "in turn"))) == expected[partition]
        assert decoded.total() == (0 if partition else 12)


def task(files, plan, partition, batch, told, may_end):
    """A worker process: it decodes its share, and stays."""
    look, looked = Exchange.poll, []

    def looks(self):
        if looked == [1]:
            told.put("decoded")
            may_end.wait(60)
        looked.append(1)
        return look(self)

    Exchange.poll, parquet.ROWS = looks, 1000
    told.put(ids(parquet.read_partition(files, plan.placement(STREAM), partition, batch)))
    threading.Event().wait()


@pytest.mark.parametrize("dies", [False, True])
def test_processes_exchange_and_do_without_who_dies(master, files, decoded, dies):
    spawn, plan = multiprocessing.get_context("spawn"), plan_of(master, 2)
    expected, told, may_end = without(files, plan), spawn.Queue(), spawn.Event()
    decoded.clear()
    worker = spawn.Process(target=task, args=(files, plan, 1, f"processes {dies}", told, may_end),
                           daemon=True)
    worker.start()
    assert told.get(timeout=60) == "decoded"
    mine = parquet.read_partition(files, plan.placement(STREAM), 0, f"processes {dies}")
    taken = [next(mine)]
    if dies:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    else:
        may_end.set()
        assert sorted(told.get(timeout=60)) == sorted(expected[1])
        worker.kill()
    assert sorted(ids([*taken, *mine])) == sorted(expected[0])
    assert decoded.total() == 6, "what was found stays, though who gave it has died"


def test_a_worker_that_died_before_gives_nothing(master, files, decoded):
    spawn, plan = multiprocessing.get_context("spawn"), plan_of(master, 2)
    expected, told, never = without(files, plan), spawn.Queue(), spawn.Event()
    worker = spawn.Process(target=task, args=(files, plan, 1, "dead", told, never), daemon=True)
    worker.start()
    assert told.get(timeout=60) == "decoded"
    worker.kill()
    worker.join()
    decoded.clear()
    assert sorted(ids(parquet.read_partition(files, plan.placement(STREAM), 0,
                                             "dead"))) == sorted(expected[0])
    assert decoded.total() == 12


def test_a_full_disk_is_no_failure(master, files, decoded):
    plan = plan_of(master, 2)
    expected, (soft, hard) = without(files, plan), resource.getrlimit(resource.RLIMIT_FSIZE)
    decoded.clear()
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        found = [sorted(ids(parquet.read_partition(files, plan.placement(STREAM), p, "full")))
                 for p in (0, 1)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)
    assert found == [sorted(of) for of in expected]
    assert decoded.total() == 24 and not Exchange._open


def test_another_attempt_at_a_task_gives_nothing_and_gets_its_share(master, files):
    plan = plan_of(master, 2)
    expected = without(files, plan)
    for _ in range(2):
        assert sorted(ids(parquet.read_partition(files, plan.placement(STREAM), 0,
                                                 "again"))) == sorted(expected[0])
    assert len([e for e in Exchange._open if e.key == "again"]) == 1
    assert sorted(ids(parquet.read_partition(files, plan.placement(STREAM), 1,
                                             "again"))) == sorted(expected[1])


def test_of_the_batch_before_nothing_stays(master, files, tmp_path, monkeypatch):
    """Neither files nor their pages: they are on disk without a name, and go with the next
    batch."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    plan = plan_of(master, 2)

    def in_use():
        """Files without a name that this process has open or mapped."""
        gc.collect()
        held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return ([f for f in held if f.startswith(str(tmp_path / "scratch"))],
                [line for line in Path("/proc/self/maps").read_text().splitlines()
                 if str(tmp_path / "scratch") in line])

    for _ in range(3):
        for p in (0, 1):
            ids(parquet.read_partition(files, plan.placement(STREAM), p, "one"))
    opened, mapped = in_use()
    assert len(opened) == 2 and not mapped and not list((tmp_path / "scratch").iterdir())
    Exchange("another", 0, 2, STREAM).close()
    assert in_use() == ([], []) and not Exchange._open


def test_what_is_known_is_not_told_again():
    giving, asking = (Exchange("known", partition, 2, STREAM) for partition in (0, 1))
    tuples = pa.record_batch([[1, 2, 3], [4, None, 6], ["a", None, ""]], schema=STREAM)
    for pieces, told in ((5, 7), {5, 7}), ((3,), {3}), ((), set()):
        for piece in pieces:
            giving.write([tuples, tuples.slice(1)])
            giving.publish(piece)
        asking.poll()
        assert set(asking.found) == told
        for piece in told:
            assert [batch.to_pylist() for batch in asking.take(piece)] == [tuples.to_pylist()[1:]]
    giving.close()
    asking.poll()
    assert not asking.found


def test_another_user_is_not_believed_and_not_answered(monkeypatch):
    monkeypatch.setattr(sockets, "_address", lambda key: f"\0semistream-test-{os.getpid()}-{key}")
    listening = [sockets.listen(key) for key in "ab"]
    friend = sockets.connect("a")
    monkeypatch.setattr(sockets.os, "getuid", lambda: 12345)
    assert sockets.connect("b") is None
    answered = []
    answering = threading.Thread(target=lambda: answered.extend(sockets.connections(listening[0])))
    answering.start()
    with friend:
        assert friend.recv(1) == b""
    for socket in listening:
        sockets.close(socket)
    answering.join(30)
    assert not answered
