"""H_R compared with cache policies of the same capacity: the share of the stream that hits.

Each operator joins a stream. The policies then see the same keys. Their capacity is the number of
master tuples that the operator held in H_R; all tuples have one size. Two of the policies know the
future: Belady's optimum, which need not admit a tuple, and the most frequent tuples of the measured
part. The others admit a tuple when it misses, whereas an operator must wait for its disk phase.
Only LRU is shown in both ways: it admits a tuple at once, or after as many tuples as come while a
tuple waits in H_S. Streams: Zipf's law; Zipf's law with a change of the frequent keys; the aircraft
of a year's flights in their order; and traces of caches from cache2k (Jens Wilke, headissue GmbH,
CC BY 4.0; Caffeine's repository has them in simulator/src/main/resources/…/parser/cache2k), such as
orm-busy.trace.xz, the objects that a web shop looks up in its database.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import MASTER_BYTES, OPAQUE, STREAM, Stream
from benchmarks.harness import Bench, Sample, Unavailable, WrongAnswer, run_once
from benchmarks.operators import Operator, OperatorPeer
from benchmarks.verdicts import half_width
from semistream import workloads
from semistream.compiled import Kernel, filled, njit
from semistream.errors import SemistreamError
from semistream.paths import Paths

NONE = -1  # no key
LATER = "LRU behind a wait"
BEFORE = 10  # how many times the measured tuples the policies see before


@dataclass(frozen=True)
class Settings:
    master: int = 200_000  # R_t of the Zipf streams
    share: float = 5.0  # M, percent of R
    skews: tuple[float, ...] = (0.75, 1.0)
    drifts: tuple[int, ...] = (0, 500_000)  # tuples after which other keys are frequent; 0: never
    flights: bool = True
    traces: tuple[str, ...] = ()  # files of cache2k
    real: float = 30.0  # M, percent of R, for flights and traces
    algorithms: tuple[str, ...] = ("elevatorjoin", "ssbj", "sscj")
    batch: int = 16_384
    seconds: float = 0.5
    warm_up: float = 30.0


SCALES = {
    "smallest": Settings(
        master=20_000,
        share=20.0,
        skews=(1.0,),
        drifts=(0,),
        flights=False,
        algorithms=("ssbj",),
        batch=4096,
        seconds=0.02,
        warm_up=1.0,
    ),
    "small": Settings(),
    "full": Settings(
        master=20_000_000,
        share=1.0,
        drifts=(0, 20_000_000),
        batch=65_536,
        seconds=3.0,
        warm_up=600.0,
    ),
}


def run(bench: Bench, s: Settings) -> None:
    streams: dict[str, Stream] = {
        f"zipf {z:g} {f'drift {d:,}' if d else 'no drift'}": Stream(s.master, z, d)
        for z in s.skews
        for d in s.drifts
    }
    if s.flights:
        try:
            streams["flights"] = flights(bench.files.root)
        except (SemistreamError, OSError) as e:
            bench.add("caches", "flights", "-", {"note": f"cannot run: {e}"})
    streams |= {Path(f).name.removesuffix(".trace.xz"): cache2k(Path(f)) for f in s.traces}
    for name, stream in streams.items():
        bench.files.snapshot(stream.master, OPAQUE)
        share = s.real if isinstance(stream, Trace) else s.share
        for algorithm in s.algorithms:
            _compare(bench, s, f"{name} M={share:g}% {algorithm}", share, algorithm, stream)


def _compare(
    bench: Bench, s: Settings, case: str, share: float, algorithm: str, stream: Stream
) -> None:
    memory = int(share / 100 * stream.master * MASTER_BYTES)
    make = Cached(
        Operator(bench.files, OPAQUE, algorithm, memory, stream, s.batch, s.seconds, s.warm_up)
    )
    shares: dict[str, list[float]] = {}
    for _ in range(bench.runs):
        try:
            sample, result = run_once(make)
        except Unavailable as e:
            bench.add("caches", case, algorithm, {"note": f"cannot run: {e}"})
            return
        if result.answer != result.expected:
            raise WrongAnswer(
                f"caches, {case}: {algorithm} {result.answer}, expected {result.expected}"
            )
        begun, capacity = int(sample.extra["begun"]), int(sample.extra["H_R"])
        shares.setdefault(algorithm, []).append(sample.extra["share"])
        first = max(begun - max(BEFORE * sample.tuples, 10 * capacity), 0)
        keys = keys_of(stream, first, begun + sample.tuples - first)
        wait = int(sample.extra["wait"])
        for policy, hits in (POLICIES | {LATER: lambda *of, wait=wait: lru(*of, wait)}).items():
            measured = hits(keys, stream.master, capacity)[begun - first :]
            shares.setdefault(policy, []).append(float(np.mean(measured)))
    for who, found in shares.items():
        wide = half_width(found)
        spread = f" ± {100 * wide:.2f}" if math.isfinite(wide) else ""
        bench.add(
            "caches",
            case,
            who,
            {
                "share": float(np.mean(found)),
                "share_interval": wide if spread else None,
                "capacity": capacity,
                "runs": len(found),
                "settled": result.settled,
                "note": f"{100 * np.mean(found):.2f}{spread}% hit, of {capacity:,} tuples",
            },
        )


def keys_of(stream: Stream, first: int, rows: int) -> np.ndarray:
    """Return the keys of the stream, int64[rows], counted from 0."""
    step = 1_000_000
    return np.concatenate(
        [
            stream.batch(at, min(step, first + rows - at)).column(0).to_numpy() - 1
            for at in range(first, first + rows, step)
        ]
    )


@dataclass(frozen=True)
class Cached:
    of: Operator

    def __call__(self) -> CachedPeer:
        return CachedPeer(self.of)


class CachedPeer(OperatorPeer):
    """A peer that counts tuples when they enter, not when they are finished. A tuple that hits is
    finished when it enters."""

    def measure(self) -> Sample:
        stats, before = self.join.stats, self.fed
        hits = stats.cache_hits
        sample = super().measure()
        fed = self.fed - before
        share = (stats.cache_hits - hits) / fed
        # Little's law: the number of tuples that come while one waits
        wait = stats.waiting / max(1 - share, 1 / fed)
        return Sample(
            fed,
            sample.seconds,
            extra={"begun": before, "H_R": self.join.cached, "share": share, "wait": wait},
        )


@dataclass(frozen=True)
class Trace(Stream):
    """A stream of the keys 1..master in a given order, repeated."""

    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)

    def batch(self, first: int, rows: int) -> pa.RecordBatch:
        ids = np.arange(first, first + rows, dtype=np.int64)
        columns = [self.keys[ids % len(self.keys)], ids, (ids % 97).astype(np.int32)]
        return pa.record_batch([pa.array(c) for c in columns], schema=STREAM)


def flights(root: Path) -> Trace:
    """Return the aircraft of the flights of 2013 from New York, in the order of the file."""
    paths = Paths(home=root / "flights")
    workloads.prepare(workloads.load_job("nycflights13", paths), paths)
    tail = pq.read_table(paths.data / "nycflights13" / "stream", columns=["tailnum"])["tailnum"]
    return trace(tail.drop_null().to_numpy(zero_copy_only=False).astype(str))


def cache2k(file: Path) -> Trace:
    """Read a trace of cache2k: the objects that are looked up in turn, each an int32,
    compressed."""
    with lzma.open(file) as f:
        return trace(np.frombuffer(f.read(), "<i4"))


def trace(values: np.ndarray) -> Trace:
    """Return a stream of these values in turn; R has each distinct value once."""
    different, keys = np.unique(values, return_inverse=True)
    shuffled = np.random.default_rng(1).permutation(len(different)) + 1  # scatters the keys
    return Trace(len(different), 1.0, 0, shuffled[keys].astype(np.int64))


# ---- policies: from keys int64[n] of 0..count-1 and a capacity to bool[n], whether each key hits


def most_frequent(keys: np.ndarray, count: int, capacity: int) -> np.ndarray:
    """Simulate a static oracle that caches the most frequent keys of the second half of the
    keys."""
    often = np.bincount(keys[len(keys) // 2 :], minlength=count)
    kept = np.zeros(count, np.bool_)
    kept[np.argsort(-often, kind="stable")[:capacity]] = True
    return kept[keys]


def belady(keys: np.ndarray, count: int, capacity: int) -> np.ndarray:
    """Simulate L. A. Belady: A study of replacement algorithms for a virtual-storage computer
    (1966): evict the key whose next use is last, which here may be the new key itself."""
    following = filled(_next_uses, len(keys), np.int64, keys, count)
    return filled(_belady, len(keys), np.bool_, keys, following, count, capacity)


@njit(cache=True)
def _next_uses(keys, count, found):
    """Write the position of each key's next use, int64[n]; n if there is none."""
    n = len(keys)
    coming = np.full(count, n, np.int64)
    for i in range(n - 1, -1, -1):
        found[i] = coming[keys[i]]
        coming[keys[i]] = i


@njit(cache=True)
def _belady(keys, following, count, capacity, hits):
    hits[:] = False
    due = np.full(count, NONE, np.int64)  # position of the next use of cached keys
    heap = [(np.int64(0), np.int64(0))]
    heap.pop()
    cached = 0
    for i in range(len(keys)):
        key, then = keys[i], following[i]
        if due[key] != NONE:
            hits[i] = True
        else:
            if cached == capacity:
                # outdated entries of cached keys lie in the past, and are never on top
                if capacity == 0 or then >= -heap[0][0]:
                    continue
                due[heappop(heap)[1]] = NONE
                cached -= 1
            cached += 1
        due[key] = then
        heappush(heap, (-then, key))


def lru(keys: np.ndarray, count: int, capacity: int, wait: int = 0) -> np.ndarray:
    """Simulate LRU: evict the least recently used key. A key that misses is admitted after `wait`
    further keys."""
    return filled(_lru, len(keys), np.bool_, keys, count, capacity, wait)


@njit(cache=True)
def _lru(keys, count, capacity, wait, hits):
    hits[:] = False
    links, size = _links(count, 1), 0
    missed, coming = np.full(len(keys), NONE, np.int64), np.zeros(count, np.bool_)
    for i in range(len(keys)):
        key = keys[i]
        if links[0, key] != NONE:
            hits[i] = True
            _unlink(links, key)
            _push(links, key, count)
        elif not coming[key]:
            missed[i], coming[key] = key, True
        comes = missed[i - wait] if i >= wait else NONE
        if comes == NONE or capacity == 0:
            continue
        coming[comes] = False
        if size == capacity:
            _unlink(links, links[0, count])
        else:
            size += 1
        _push(links, comes, count)


@njit(cache=True)
def _sieve(keys, count, capacity, hits):
    """Simulate Y. Zhang et al.: SIEVE is Simpler than LRU (2024), Algorithm 1."""
    hits[:] = False
    links, visited = _links(count, 1), np.zeros(count + 1, np.bool_)
    hand, size = count, 0
    for i in range(len(keys)):
        key = keys[i]
        if links[0, key] != NONE:
            hits[i] = visited[key] = True
            continue
        if size == capacity:
            if capacity == 0:
                continue
            at = hand if hand != count else links[0, count]
            while visited[at]:
                visited[at] = False
                at = links[0, at] if links[0, at] != count else links[0, count]
            hand = links[0, at]  # the next younger; `count`, the end: begin with the oldest
            _unlink(links, at)
        else:
            size += 1
        _push(links, key, count)


@njit(cache=True)
def _s3_fifo(keys, count, capacity, hits):
    """Simulate J. Yang et al.: FIFO Queues are All You Need for Cache Eviction (2023), Algorithm 1:
    a tenth for new keys, and a ghost queue as long as the main one."""
    hits[:], small = False, max(capacity // 10, 1)
    links, where = _links(count, 2), np.zeros(count + 2, np.int8)  # 1: small, 2: main
    often, left = np.zeros(count, np.int8), np.full(count, NONE, np.int64)
    in_small, in_main, ghosts = 0, 0, 0  # ghosts: how many were ever evicted from the small queue
    for i in range(len(keys)):
        key = keys[i]
        if where[key]:
            hits[i] = True
            often[key] = min(often[key] + 1, 3)
            continue
        if capacity == 0:
            continue
        while in_small + in_main >= capacity:
            if in_small >= small or not in_main:
                at = links[0, count]
                _unlink(links, at)
                in_small -= 1
                if often[at] > 1:
                    _push(links, at, count + 1)
                    where[at], often[at] = 2, 0
                    in_main += 1
                else:
                    where[at], left[at] = 0, ghosts
                    ghosts += 1
            else:
                at = links[0, count + 1]
                _unlink(links, at)
                if often[at] > 0:
                    often[at] -= 1
                    _push(links, at, count + 1)
                else:
                    where[at] = 0
                    in_main -= 1
        often[key] = 0
        if left[key] != NONE and ghosts - left[key] <= capacity - small:
            _push(links, key, count + 1)
            where[key], left[key] = 2, NONE
            in_main += 1
        else:
            _push(links, key, count)
            where[key] = 1
            in_small += 1


@njit(cache=True)
def _w_tiny_lfu(keys, count, capacity, hits):  # noqa: PLR0915 - one compiled loop
    """Simulate G. Einziger, R. Friedman, B. Manes: TinyLFU: A Highly Efficient Cache Admission
    Policy (2017): a window of 1%, then a segmented LRU, 80% of it protected. Frequencies are exact
    counts up to 15, without a sketch's errors, and are halved after ten times as many tuples as the
    cache holds."""
    hits[:] = False
    window = max(capacity // 100, 1)
    protected = 8 * (capacity - window) // 10
    links, where = _links(count, 3), np.zeros(count + 3, np.int8)  # 1 + list
    sizes, often, seen = np.zeros(3, np.int64), np.zeros(count, np.int8), 0
    for i in range(len(keys)):
        key = keys[i]
        often[key] = min(often[key] + 1, 15)
        seen += 1
        if seen == 10 * capacity:
            often //= 2
            seen //= 2
        if capacity == 0:
            continue
        if where[key]:
            hits[i] = True
            at = where[key] - 1
            _unlink(links, key)
            to = 2 if at == 1 and protected else at
            sizes[at] -= 1
            sizes[to] += 1
            where[key] = 1 + to
            _push(links, key, count + to)
            if sizes[2] > protected:  # its oldest key returns to probation
                old = links[0, count + 2]
                _unlink(links, old)
                _push(links, old, count + 1)
                where[old] = 2
                sizes[2] -= 1
                sizes[1] += 1
            continue
        _push(links, key, count)
        where[key] = 1
        sizes[0] += 1
        if sizes[0] > window:
            candidate = links[0, count]
            _unlink(links, candidate)
            sizes[0] -= 1
            where[candidate] = 0
            if sizes[1] + sizes[2] >= capacity - window:
                if capacity == window:
                    continue
                victim = links[0, count + 1] if sizes[1] else links[0, count + 2]
                if often[candidate] <= often[victim]:
                    continue
                _unlink(links, victim)
                sizes[where[victim] - 1] -= 1
                where[victim] = 0
            _push(links, candidate, count + 1)
            where[candidate] = 2
            sizes[1] += 1


@njit(cache=True)
def _links(count, lists):
    """Return linked lists without keys, int64[2, count + lists]: the next younger and the next
    older key of each key; NONE for a key in no list. The end of list j is at count + j, and its
    younger neighbour is the list's oldest key."""
    links = np.full((2, count + lists), NONE, np.int64)
    for j in range(count, count + lists):
        links[0, j] = links[1, j] = j
    return links


@njit(cache=True)
def _push(links, key, end):
    """Add a key to a list as the youngest."""
    before = links[1, end]
    links[0, before] = links[1, end] = key
    links[0, key], links[1, key] = end, before


@njit(cache=True)
def _unlink(links, key):
    younger, older = links[0, key], links[1, key]
    links[0, older], links[1, younger] = younger, older
    links[0, key] = links[1, key] = NONE


Policy = Callable[[np.ndarray, int, int], np.ndarray]


def _simulating(kernel: Kernel) -> Policy:
    return lambda keys, *of: filled(kernel, len(keys), np.bool_, keys, *of)


POLICIES: dict[str, Policy] = {
    "Belady's optimum": belady,
    "most frequent": most_frequent,
    "W-TinyLFU": _simulating(_w_tiny_lfu),
    "S3-FIFO": _simulating(_s3_fifo),
    "SIEVE": _simulating(_sieve),
    "LRU": lru,
}
