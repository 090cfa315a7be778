"""The cache policies that H_R is measured beside: against plain Python, and their papers' rules."""

from __future__ import annotations

import lzma
import sys
from collections import OrderedDict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import caches, data, harness
from semistream.workloads.zipf import ZipfKeys

COUNT = 40


@pytest.fixture(params=[0.0, 1.0, 1.5], ids=lambda s: f"zipf-{s:g}")
def keys(request) -> np.ndarray:
    return ZipfKeys(COUNT, request.param, seed=3, scattered=True).draw(0, 3000) - 1


def hits(policy: str, keys: list[int] | np.ndarray, capacity: int) -> list[bool]:
    return caches.POLICIES[policy](np.asarray(keys, np.int64), COUNT, capacity).tolist()


def naive_lru(keys, capacity):
    held, found = OrderedDict(), []
    for key in keys:
        found.append(key in held)
        held[key] = True
        held.move_to_end(key)
        if len(held) > capacity:
            held.popitem(last=False)
    return found


def naive_sieve(keys, capacity):
    """A list from the oldest to the youngest, and a hand that is a key."""
    held, visited, hand, found = [], set(), None, []
    for key in keys:
        found.append(key in held)
        if key in held:
            visited.add(key)
            continue
        if len(held) == capacity:
            at = held.index(hand) if hand is not None else 0
            while held[at] in visited:
                visited.discard(held[at])
                at = (at + 1) % len(held)
            hand = held[at + 1] if at + 1 < len(held) else None
            held.pop(at)
        held.append(key)
    return found


@pytest.mark.parametrize("policy, naive", [("LRU", naive_lru), ("SIEVE", naive_sieve)])
@pytest.mark.parametrize("capacity", [1, 2, 7, COUNT])
def test_as_in_plain_python(policy, naive, capacity, keys):
    assert hits(policy, keys, capacity) == naive(keys.tolist(), capacity)


def most_hits(keys: tuple[int, ...], capacity: int) -> int:
    """By trying every choice, to pass a tuple by among them."""

    @cache
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(keys):
            return 0
        if keys[at] in held:
            return 1 + best(at + 1, held)
        choices = [held]
        if len(held) < capacity:
            choices.append(held | {keys[at]})
        choices += [held - {old} | {keys[at]} for old in held]
        return max(best(at + 1, choice) for choice in choices)

    return best(0, frozenset())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_beladys_is_the_optimum(seed, capacity):
    keys = np.random.default_rng(seed).integers(0, 6, 14)
    assert sum(hits("Belady's optimum", keys, capacity)) == most_hits(tuple(keys), capacity)


@pytest.mark.parametrize("capacity", [0, 1, 2, 5, 12, COUNT])
def test_no_policy_is_better_than_the_optimum_and_none_hits_what_it_cannot_hold(capacity, keys):
    found = {p: np.array(hits(p, keys, capacity)) for p in caches.POLICIES}
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    optimum = found.pop("Belady's optimum")
    for policy, hit in found.items():
        if policy != "most frequent":  # which has them from the beginning
            assert hit.sum() <= optimum.sum() and not hit[first].any(), policy
            if capacity == COUNT:
                assert hit[~first].all(), policy
            if capacity == 0:
                assert not hit.any(), policy


def test_the_rules_of_the_papers():
    # SIEVE: the hand passes a visited key once, and what is visited in between stays where it is
    assert hits("SIEVE", [0, 1, 2, 0, 3, 0, 1], 3) == [0, 0, 0, 1, 0, 1, 0]
    # S3-FIFO: seen twice in the small queue, a key goes to the main one and survives a scan
    scan = [0, 0, 0, *range(1, 30), 0]
    assert hits("S3-FIFO", scan, 10)[-1] and not hits("LRU", scan, 10)[-1]
    # a key that was thrown out a short time ago comes back into the main queue, and survives too
    ghost = [0, *range(1, 12), 0, *range(20, 36), 0]
    assert hits("S3-FIFO", ghost, 10)[-1]
    # W-TinyLFU: one that came once does not replace what came often
    often = [0, 1] * 5 + list(range(2, 12)) + [0, 1]
    assert hits("W-TinyLFU", often, 3)[-1] and not any(hits("LRU", often, 3)[-2:])
    assert hits("most frequent", [3, 3, 1, 2, 2, 2], 1) == [0, 0, 0, 1, 1, 1]


def test_an_operator_is_set_beside_what_its_tuples_could_answer(tmp_path):
    bench = harness.Bench("smallest", 1, data.Files(tmp_path), tmp_path)
    caches.run(bench, caches.SCALES["smallest"])
    shares = {r["peer"]: r["share"] for r in bench.rows}
    assert list(shares) == ["ssbj", *caches.POLICIES, caches.LATER]
    optimum = shares.pop("Belady's optimum")
    assert all(0 <= share <= optimum for share in shares.values())
    assert shares[caches.LATER] <= shares["LRU"]
    assert len({r["capacity"] for r in bench.rows}) == 1


def test_a_trace_is_a_stream(tmp_path):
    trace = caches.Trace(5, 1.0, 0, np.array([3, 1, 5], np.int64))
    assert trace.batch(2, 4)["key"].to_pylist() == [5, 3, 1, 5]
    assert caches.keys_of(trace, 1, 3).tolist() == [0, 4, 2] and trace.expected(7).rows == 7


def test_what_missed_can_come_behind_a_wait():
    keys = np.array([0, 0, 0, 1, 0, 1, 1, 0], np.int64)
    assert caches.lru(keys, 2, 2, 2).tolist() == [0, 0, 0, 0, 1, 0, 1, 1]
    assert caches.lru(keys, 2, 1, 2).tolist() == [0, 0, 0, 0, 1, 0, 1, 0]


def test_a_trace_is_read_and_joined_again_and_again(tmp_path):
    looked_up = np.array([7 << 27 | 5, 3, 3, 7 << 27 | 5, 0, 3], "<u4")
    file = tmp_path / "orm.trace.xz"
    file.write_bytes(lzma.compress(looked_up.tobytes()))
    trace = caches.cache2k(file)
    keys = trace.batch(0, 2 * len(looked_up))["key"].to_numpy()
    assert trace.master == 3 and set(keys) == {1, 2, 3}
    same = looked_up[:, None] == looked_up
    assert np.array_equal(keys[:6, None] == keys[:6], same) and np.array_equal(keys[:6], keys[6:])
