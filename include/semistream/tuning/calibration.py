"""A calibration: it measures the papers' cost symbols on this machine, with this data's tuples.

The real operators run, with a stopwatch on each of their parts. A MESHJOIN at several sizes of disk
buffer and H_S gives c_IO, c_H, c_O, c_E, c_S, c_A and the cost of an iteration itself. The
stream-probing phase gives the look-up and output costs of H_R. The model cost = fixed + tuples *
c(table size) is then fitted to each part by non-negative least squares of the relative errors. For
reading, both the processor time in the operator and the whole time of a read are measured. The
difference is waiting for the disk, which an operator that reads ahead avoids, except for the waits
that are observed in it.
"""

from __future__ import annotations

import datetime
import gc
import itertools
import math
import os
import platform
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.cost_models.costs import PHASES, TYPICAL, Costs, PhaseCosts
from semistream.cost_models.ssj import FILLING
from semistream.errors import ConfigError
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.key_table import KeyTable, count_by
from semistream.joins.master_cache import MasterCache
from semistream.joins.registry import REGISTRY
from semistream.joins.spec import Columns
from semistream.joins.stored_types import variable_bytes
from semistream.joins.stream_probing import probe
from semistream.master.relation import MasterRelation
from semistream.sizing import open_join
from semistream.workloads.zipf import ZipfKeys

Clock = Literal["wall", "cpu"]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
# tuples of R that are used: more than the processor's caches hold; more would cost the same
MOST_TUPLES = 1_000_000
TABLES = (5_000, 50_000, 400_000, 1_600_000)  # tuples in H_S and H_R
DISK_BUFFERS = (1_024, 4_096, 16_384)
# (tuples in H_S, which part of R, disk tuples): the ratio of w to d must vary, or their costs could
# not be separated
RUNS = (
    *(
        (table, *run)
        for table in TABLES[:3]
        for run in ((0, 1_024), (0, 4_096), (0, 16_384), (2, 1_024), (2, 4_096))
    ),
    (TABLES[3], 0, 4_096),
    (TABLES[3], 0, 16_384),
    (TABLES[3], 1, 4_096),
)
LEAST_BYTES = 20  # the least size of a tuple in a hash table
CHUNK = 65_536  # stream tuples processed at a time
CHUNKS = 12  # how many different chunks
MOST_ROWS = 10_000_000  # output rows in one pass over R
DETECTION_TUPLES, DETECTIONS = 600_000, 20
LEAST_PIECE = 512  # stream tuples
PIECE = 16_384  # output rows of the stream tuples processed at a time
HITS = 0.7  # a usual share of tuples found in H_R, because dividing a batch also costs time
CANDIDATES = 2_000  # candidate values in the table that c_B measures


class Stopwatch:
    """Seconds and tuples by part of the operator."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tuples: dict[str, float] = {}

    def add(self, part: str, started: float, tuples: int = 0) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + self.clock() - started
        self.tuples[part] = self.tuples.get(part, 0.0) + tuples

    def watch(
        self, owner: Any, method: str, part: str, tuples: Callable[..., int] = lambda *_: 0
    ) -> None:
        """Time a method of one object from now on. For a generator, time what happens inside it."""
        plain = getattr(owner, method)

        def timed(*arguments: Any, **names: Any) -> Any:
            count, started = tuples(*arguments), self.clock()
            out = plain(*arguments, **names)
            self.add(part, started, count)
            return self._steps(out, part) if isinstance(out, Iterator) else out

        setattr(owner, method, timed)

    def _steps(self, steps: Iterator[Any], part: str) -> Generator[Any, None, Any]:
        while True:
            started = self.clock()
            try:
                item = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self.add(part, started)
            yield item


class Pace:
    """How much slower this machine is now than at first, measured by a fixed piece of work like
    that of the joins.

    On a shared machine, a time divided by the pace while it was taken is what an undisturbed run
    would take.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time, first: float | None = None):
        random = np.random.default_rng(0)
        self.clock = clock
        self.table = KeyTable(random.permutation(1 << 20))
        self.codes = random.integers(0, 1 << 20, 40_000)
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(112), 1 << 16, [None, pa.py_buffer(bytes(112 << 16))]
        )
        self.batch = pa.RecordBatch.from_arrays([payload], ["payload"])
        self.rows = pa.array(random.integers(0, 1 << 16, 20_000))
        self._work()
        self.first = first or float(np.median([self._work() for _ in range(9)]))

    def __call__(self) -> float:
        # fills the processor's caches, whatever the join before has evicted
        self._work()
        return self._work() / self.first

    def _work(self) -> float:
        started = self.clock()
        self.table.find(self.codes)
        self.batch.take(self.rows)
        for first in range(0, 20_000, 200):
            self.batch.slice(first, 200).take(pa.array(np.arange(50))).column(0)
        return self.clock() - started


class Head:
    """The first partitions of R, so that measuring does not take longer for a larger R."""

    def __init__(self, master: MasterRelation, tuples: int):
        self.whole, self._tuples = master, tuples
        self.tuple_count = min(master.tuple_count, tuples)
        share = min(tuples / max(master.tuple_count, 1), 1.0)
        self.partition_count = max(round(master.partition_count * share), 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def with_partition(self, tuples: int) -> Head:
        return Head(self.whole.with_partition(tuples), self._tuples)


def calibrate(
    sample: pa.RecordBatch,
    master: MasterRelation,
    on: Sequence[tuple[str, str]],
    columns: Columns = None,
    *,
    clock: Clock = "wall",
    memory: float = math.inf,
    seconds: float = 0.2,
    pace: Callable[[], float] = lambda: 1.0,
) -> Costs:
    """Measure the costs for stream tuples like the sample's and for this master relation.

    clock: wall, or cpu on a shared machine (reading from a cold disk then costs nothing); memory:
    the largest M of interest, hash tables that exceed it are left out; seconds: time for each of
    about forty settings; pace: divides the times (``Pace``). Raises ConfigError for a sample or a
    master without tuples.
    """
    if not sample.num_rows or not master.tuple_count:
        raise ConfigError(
            "calibrate",
            "must be given tuples",
            (sample.num_rows, master.tuple_count),
            "Give a sample of the stream, and R.",
        )
    now, most = CLOCKS[clock], min(MOST_TUPLES, master.tuple_count)
    settings = []
    for head in (Head(master, most), Head(master, most // 2), Head(master, most // 4)):
        keys, random = master_keys(head, on), np.random.default_rng(0)
        chunks = [
            with_keys(sample, keys, random.integers(0, keys.num_rows, CHUNK), on)
            for _ in range(CHUNKS)
        ]
        settings.append(
            Setting(chunks, keys, head, on, columns, now, seconds, pace, _matches(head))
        )
    runs = [
        r
        for r in RUNS
        if r[0] <= max(min(memory / LEAST_BYTES, MOST_ROWS / settings[0].matches), TABLES[0])
    ]
    algorithms = {"scan": "meshjoin", "index": "hybridjoin", "elevator": "elevatorjoin"}
    phases = {p: _measure_phase(settings, name, runs) for p, name in algorithms.items()}
    setting, head = settings[0], settings[0].master
    tables = tuple(t for t in TABLES if t <= head.tuple_count) or (float(head.tuple_count),)
    look_up, output = _measure_cache(setting, tables)
    scan, index, elevator = (phases[p][0] for p in PHASES)
    return Costs(
        platform.node(),
        scan,
        index,
        elevator,
        tables,
        look_up,
        output,
        *_measure_detection(setting),
        _measure_switch(setting),
        {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "clock": clock,
            "pace": getattr(pace, "first", None),
            "cores": os.cpu_count(),
            "processor": processor(),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "master": master.name,
            "master_tuple_bytes": round(float(master.tuple_bytes), 2),
            "stream_tuple_bytes": round(sample.nbytes / sample.num_rows, 2),
            "fit": {name: fit for name, (_, fit) in phases.items()},
        },
    )


class Setting(NamedTuple):
    """The data and options of a measurement."""

    chunks: list[pa.RecordBatch]
    keys: pa.Table  # R's join columns
    master: Head
    on: Sequence[tuple[str, str]]
    columns: Columns
    clock: Callable[[], float]
    seconds: float
    pace: Callable[[], float]
    matches: float  # output rows per stream tuple of the chunks

    def open(self, algorithm: str, disk_tuples: int, memory: int, **more: int) -> Any:
        # a join with an index may read every partition of R
        master = self.master.whole if REGISTRY[algorithm].needs_index else self.master
        return open_join(
            algorithm,
            memory=memory,
            stream=self.chunks[0].schema,
            master=master,
            on=self.on,
            columns=self.columns,
            parameters={"disk_tuples": disk_tuples, **more},
        )


Fits = dict[str, dict[str, float]]  # by part: fixed seconds per iteration, median relative error


def _measure_phase(
    settings: Sequence[Setting], algorithm: str, wanted: Sequence[tuple[int, ...]]
) -> tuple[PhaseCosts, Fits]:
    """Return the costs of a disk phase, and for each part (fixed seconds per iteration, median
    relative error of the fit)."""
    runs = [
        _measure(settings[size], algorithm, table, disk_tuples) | {"part_of_r": size}
        for table, size, disk_tuples in wanted
    ]
    runs = [r for r in runs if r["w"]]
    if not runs:
        raise ConfigError(
            "calibrate",
            f"must have a master of at least {4 * RUNS[0][2]:,} tuples",
            settings[0].master.tuple_count,
            "Use the costs of a larger one.",
        )
    tables = sorted({r["table"] for r in runs})
    whole = [r for r in runs if r["part_of_r"] == 0]  # a smaller R stays in the processor's caches
    fits = {
        part: _fit(some, part, flat, steep, tables)
        for some, part, flat, steep in (
            (whole, "codes", ["disk_tuples"], []),
            (whole, "payload", ["disk_tuples"], []),
            (runs, "find", [], ["disk_tuples", "matches"]),
            (runs, "output", ["disk_tuples"], ["matches"]),
            (runs, "remove", [], ["w"]),
            (runs, "append", [], ["w"]),
            (runs, "stream", ["w"], []),
            (whole, "left", ["disk_tuples"], []),
        )
    }
    left = fits.pop("left")
    fixed = {part: f.fixed for part, f in fits.items()}
    each, every = fits["find"].steep  # a disk tuple's look-up; a match's step along its key's chain
    code, payload = fits["codes"], fits["payload"]
    busy = (code.fixed + payload.fixed, code.flat[0] + payload.flat[0])
    waits = _measure_waits(settings[0], algorithm != "hybridjoin", *busy)
    costs = PhaseCosts(
        tuple(tables),
        look_up=tuple(c + fits["output"].flat[0] for c in each),
        output=tuple(map(sum, zip(fits["output"].steep[0], every, strict=True))),
        remove=fits["remove"].steep[0],
        append=fits["append"].steep[0],
        read_stream=fits["stream"].flat[0],
        read_partition=fixed["codes"] + fixed["payload"],
        read_code=fits["codes"].flat[0],
        payload=fixed["payload"],
        read_payload=fits["payload"].flat[0],
        iteration=sum(fixed.values()) - fixed["codes"] - fixed["payload"],
        probe=fixed["find"] + fixed["remove"],
        wait_partition=waits.fixed,
        wait_tuple=waits.flat[0],
        left_partition=left.fixed,
        left_tuple=left.flat[0],
    )
    return costs, {part: {"fixed": f.fixed, "error": f.error} for part, f in fits.items()}


def master_keys(master: Head, on: Sequence[tuple[str, str]]) -> pa.Table:
    """Return R's join columns."""
    whole = master.with_partition(65_536)
    return pa.Table.from_batches(
        [whole.read(i, [m for _, m in on]) for i in range(whole.partition_count)]
    ).combine_chunks()


def with_keys(
    sample: pa.RecordBatch, keys: pa.Table, which: np.ndarray, on: Sequence[tuple[str, str]]
) -> pa.RecordBatch:
    """Return the sample's tuples, repeated, with these of R's keys, so that each finds a match."""
    drawn = keys.take(pa.array(which))
    rows = sample.take(pa.array(np.arange(len(which)) % sample.num_rows))
    for stream, column in on:
        i = rows.schema.get_field_index(stream)
        rows = rows.set_column(
            i,
            rows.schema.field(i),
            pc.cast(drawn[column].combine_chunks(), rows.schema.field(i).type),
        )
    return rows


def _matches(head: Head) -> float:
    """Return the output rows per stream tuple whose key is that of a random tuple of R."""
    codes = np.concatenate([head.read_codes(i) for i in range(head.partition_count)])
    _, counts = np.unique(codes, return_counts=True)
    return float(np.square(counts, dtype=np.float64).sum() / len(codes))


def _measure(setting: Setting, algorithm: str, table: int, disk_tuples: int) -> dict[str, float]:
    """Return the mean seconds per iteration of each part in the steady state; w is 0 if R has too
    few tuples for the setting."""
    clock = setting.clock
    join = _filled_to(setting, algorithm, table, disk_tuples)
    if join.master.partition_count < 3 or join.master.partition_tuples < disk_tuples / 2:
        return {"w": 0.0}
    watch, reading, before = Stopwatch(clock), Stopwatch(time.thread_time), (0, 0, 0, 0.0)
    pieces = _pieces(setting.chunks, max(int(PIECE / setting.matches), LEAST_PIECE))
    paces = [setting.pace()]
    paced = clock()
    warm, least = False, getattr(join.h_s, "chunks", 5)
    while (
        not warm
        or clock() - before[3] < setting.seconds
        or join.stats.iteration_count < before[0] + 5
    ):
        started = clock()
        for _ in join.process(next(pieces)):
            pass
        watch.add("process", started)
        if clock() - paced > 0.05:
            paces.append(setting.pace())
            paced = clock()
        if (
            not warm
            and join.stats.iteration_count > least
            and join.stats.rows_read - join.stats.waiting > table // 3
        ):
            warm = True
            _watch_parts(watch, reading, join)
            gc.collect()
            watch.reset()
            reading.reset()
            paces = [setting.pace()]
            before = (
                join.stats.iteration_count,
                join.stats.rows_read,
                join.stats.output_rows,
                clock(),
            )
    now = join.stats
    total, rows = now.iteration_count - before[0], now.rows_read - before[1]
    matches = now.output_rows - before[2]
    slow = float(np.median(paces))
    s = {part: t / total / slow for part, t in watch.seconds.items()}
    return {
        "table": float(table),
        "disk_tuples": watch.tuples["find"] / total,
        "w": rows / total,
        "matches": matches / total,
        **{part: t / total / slow for part, t in reading.seconds.items()},
        **{part: s[part] for part in ("find", "remove", "append")},
        "output": s["iterate"] - s["codes"] - s["payload"] - s["find"] - s["remove"],
        "left": max(s["codes"] + s["payload"] - sum(reading.seconds.values()) / total / slow, 0.0),
        "stream": s["process"] - s["iterate"] - s["append"],
    }


def _filled_to(setting: Setting, algorithm: str, table: int, disk_tuples: int) -> Any:
    """Return an operator whose H_S is sized for ``table`` tuples."""
    batch, buffer = setting.chunks[0], setting.master.with_partition(disk_tuples).partition_bytes
    memory = 3 * buffer + int(table * (batch.nbytes / batch.num_rows + 1_000))
    if algorithm == "elevatorjoin":
        return setting.open(algorithm, disk_tuples, memory, cache_tuples=1, waiting_tuples=table)
    join = setting.open(algorithm, disk_tuples, memory)
    strings = join.layout.strings(batch)
    size = int(table * join.h_s.bytes_per_tuple(join.layout.held, strings))
    join.h_s.open(strings, size)
    join.h_s.resize(size)
    return join


def _watch_parts(watch: Stopwatch, reading: Stopwatch, join: Any) -> None:
    watch.watch(join, "iterate", "iterate")
    watch.watch(join.h_s, "remove", "remove")
    watch.watch(join.output, "finish", "remove")
    watch.watch(join.h_s, "find", "find", lambda codes, *_: len(codes))
    watch.watch(join.h_s, "append", "append")
    for method, part in (("read_codes", "codes"), ("pages", "payload")):
        reading.watch(join.master, method, part)
        watch.watch(join.master, method, part)


def _measure_waits(setting: Setting, sequential: bool, fixed: float, each: float) -> Fit:
    """Fit the seconds by which reading a partition of R takes longer than its processor time in the
    operator, fixed + d each."""
    runs, random = [], np.random.default_rng(2)
    for disk_tuples in DISK_BUFFERS:
        join = setting.open("meshjoin", disk_tuples, 1 << 40)
        numbers = np.arange(join.master.partition_count)
        d, seconds = setting.master.tuple_count / join.master.partition_count, []
        paces = [setting.pace()]
        for number in itertools.cycle(numbers if sequential else random.permutation(numbers)):
            started = setting.clock()
            DiskPartition(join.spec, int(number)).read()
            seconds.append(setting.clock() - started)
            if len(seconds) % 20 == 0:
                paces.append(setting.pace())
            if len(seconds) >= 5 and sum(seconds) > setting.seconds / 2:
                break
        join.master.close()
        took = float(np.mean(seconds)) / float(np.median(paces))
        runs.append({"wait": took - fixed - d * each, "table": 0.0, "disk_tuples": d})
    return _fit(runs, "wait", ["disk_tuples"], [], [0.0])


def _pieces(chunks: list[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    while True:
        for chunk in chunks:
            for first in range(0, chunk.num_rows, rows):
                yield chunk.slice(first, rows)


class Fit(NamedTuple):
    fixed: float  # s per iteration
    flat: tuple[float, ...]  # s per tuple
    steep: tuple[tuple[float, ...], ...]  # s per tuple at each table size
    error: float  # median relative


def _fit(
    runs: Sequence[dict[str, float]],
    part: str,
    flat: Sequence[str],
    steep: Sequence[str],
    tables: Sequence[float],
) -> Fit:
    """Fit seconds ~ fixed + sum of flat * c + sum of steep * c(table), where c(table) does not
    decrease."""
    from scipy.optimize import nnls

    y, place = (np.array([r[x] for r in runs]) for x in (part, "table"))
    y = np.maximum(y, 1e-9)
    columns = [np.ones(len(y)), *(np.array([r[x] for r in runs]) for x in flat)]
    # c(table) is a sum of non-negative growths
    columns += [np.where(place >= t, [r[x] for r in runs], 0.0) for x in steep for t in tables]
    a = np.stack(columns, axis=1) / y[:, None]
    x, _ = nnls(a, np.ones(len(y)))
    split, many = 1 + len(flat), len(tables)
    grown = []
    for i in range(split, len(x), many):
        c = np.cumsum(x[i : i + many])
        # cost hidden by the fixed cost of few tuples: take that of the next larger table
        c[c == 0] = c[np.argmax(c > 0)]
        grown.append(tuple(map(float, c)))
    return Fit(
        float(x[0]),
        tuple(map(float, x[1:split])),
        tuple(grown),
        float(np.median(np.abs(a @ x - 1))),
    )


def _measure_cache(
    setting: Setting, tables: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return, for each table size, the seconds to look up a stream tuple in an H_R of so many
    tuples, and to output a row found there."""
    look_up, output, clock = [], [], setting.clock
    probed = max(int(PIECE / setting.matches), LEAST_PIECE)
    join = setting.open("meshjoin", 65_536, 1 << 40)
    for table in map(int, tables):
        cache, random = _filled(join, table), np.random.default_rng(1)
        seconds: dict[str, list[float]] = {"both": [], "misses": []}
        rows = 0
        for chunk in setting.chunks * 2:
            batch = with_keys(chunk, setting.keys, random.integers(0, table, probed), setting.on)
            cached = join.spec.keys.stream_codes(batch)[0]
            absent = cached ^ np.int64(1 << 61)
            some = np.where(random.random(probed) < HITS, cached, absent)
            for kind, keys in (("both", some), ("misses", absent)):
                before, started = join.stats.output_rows, clock()
                for _ in probe(cache, batch, keys, join.output):
                    pass
                seconds[kind].append((clock() - started) / probed / setting.pace())
                rows += join.stats.output_rows - before
        miss, both = (float(np.median(seconds[kind][1:])) for kind in ("misses", "both"))
        look_up.append(miss)
        output.append(max(both - miss, 0.0) * probed * len(seconds["both"]) / max(rows, 1))
    return tuple(look_up), tuple(output)


def _filled(join: SemiStreamJoin, tuples: int) -> MasterCache:
    """Return an H_R with R's first so many tuples."""
    spec, master = join.spec, join.master
    parts = [DiskPartition(spec, i) for i in range(master.partition_count)]
    strings = sum(int(variable_bytes(p.payload).sum()) for p in parts)
    cache = MasterCache(
        spec.fetched_schema, master.tuple_count + 1, master.tuple_count + 1, strings + 1
    )
    keys, owners = np.unique(np.concatenate([p.codes for p in parts])[:tuples], return_inverse=True)
    cache.stage(keys, np.zeros(len(keys)))
    for part, first in zip(parts, np.cumsum([0, *(len(p.codes) for p in parts)])[:-1], strict=True):
        mine = owners[first : first + len(part.codes)]
        cache.stage_tuples(part.payload, np.arange(len(mine)), mine, 1 << 60)
    cache.switch()
    return cache


def _measure_detection(setting: Setting) -> tuple[float, float, float]:
    """Return the costs of the frequency detection for keys by Zipf's law: (c_F per disk tuple, c_M
    per join value with a match, c_D per iteration)."""
    zipf, runs = ZipfKeys(setting.keys.num_rows, 1.0), []
    for disk_tuples, room in itertools.product(DISK_BUFFERS, (2_000_000, 12_000_000)):
        if (
            4 * disk_tuples > setting.master.tuple_count
            or room > setting.master.tuple_count * setting.master.tuple_bytes
        ):
            continue  # otherwise all of R would be cached
        memory = setting.master.with_partition(disk_tuples).partition_bytes * 3 + room
        join = setting.open("cmeshjoin", disk_tuples, memory)
        watch, at, first, read, paces = Stopwatch(setting.clock), 0, -1, 0, []
        enough = min(DETECTION_TUPLES, 8 * setting.master.tuple_count) / setting.matches
        rows = max(int(CHUNK / setting.matches), LEAST_PIECE)
        while at < enough or first < 0 or join.stats.iteration_count < first + DETECTIONS:
            if first < 0 and join.stats.iteration_count > FILLING * join.scan.chunks:
                watch.watch(
                    join.h_r,
                    "detect",
                    "detect",
                    lambda partition, f: len(np.unique(partition.codes[f > 0])),
                )
                first, read = join.stats.iteration_count, join.stats.disk_tuples_read
            for _ in join.process(
                with_keys(setting.chunks[0], setting.keys, zipf.draw(at, rows) - 1, setting.on)
            ):
                pass
            at += rows
            paces.append(setting.pace())
        n = join.stats.iteration_count - first
        runs.append(
            {
                "seconds": watch.seconds["detect"] / n / float(np.median(paces)),
                "disk_tuples": (join.stats.disk_tuples_read - read) / n,
                "matched": watch.tuples["detect"] / n,
                "table": 0.0,
            }
        )
    if not runs:
        return TYPICAL.compare, TYPICAL.compare_match, TYPICAL.detection
    fit = _fit(runs, "seconds", ["disk_tuples", "matched"], [], [0.0])
    return fit.flat[0], fit.flat[1], fit.fixed


def _measure_switch(setting: Setting) -> float:
    """Return c_B, in seconds per disk tuple."""
    codes = setting.master.with_partition(8_192).read_codes(0)
    candidates = KeyTable(np.unique(codes)[:: max(len(codes) // CANDIDATES, 1)].copy())
    counted, times = np.zeros(len(candidates.keys), np.int32), []
    for _ in range(20):
        started = setting.clock()
        for _ in range(20):
            count_by(candidates.find(codes), counted)
        times.append(setting.clock() - started)
    return float(np.median(times)) / 20 / len(codes) / setting.pace()


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            return next(
                (line.split(":", 1)[1].strip() for line in f if line.startswith("model name")),
                platform.processor(),
            )
    except OSError:
        return platform.processor()
