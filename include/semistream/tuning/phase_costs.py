"""The costs of a disk phase. An operator runs, with a stopwatch on each of its parts."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.cost_models.costs import PhaseCosts
from semistream.errors import ConfigError
from semistream.joins.disk_partition import DiskPartition
from semistream.tuning.calibration_data import DISK_BUFFERS, Setting
from semistream.tuning.cost_fit import Fit, fit
from semistream.tuning.stopwatch import Stopwatch

Fits = dict[str, dict[str, float]]  # by part: fixed seconds per iteration, median relative error


def measure_phase(
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
            f"must have a master of at least {4 * wanted[0][2]:,} tuples",
            settings[0].master.tuple_count,
            "Use the costs of a larger one.",
        )
    tables = sorted({r["table"] for r in runs})
    whole = [r for r in runs if r["part_of_r"] == 0]  # a smaller R stays in the processor's caches
    fits = {
        part: fit(some, part, flat, steep, tables)
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


def _measure(setting: Setting, algorithm: str, table: int, disk_tuples: int) -> dict[str, float]:
    """Measure the steady state of a setting. Return means per iteration: the seconds of each part,
    and numbers of tuples, such as w. If R has too few tuples for the setting, return only w = 0."""
    clock = setting.clock
    join = _filled_to(setting, algorithm, table, disk_tuples)
    if join.master.partition_count < 3 or join.master.partition_tuples < disk_tuples / 2:
        return {"w": 0.0}
    watch, reading, before = Stopwatch(clock), Stopwatch(time.thread_time), (0, 0, 0, 0.0)
    pieces = _pieces(setting.chunks, setting.piece)
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
    """Attach stopwatches to the parts of an operator. reading: the stopwatch of the processor time
    of reads."""
    watch.watch(join, "iterate", "iterate")
    watch.watch(join.h_s, "remove", "remove")
    watch.watch(join.output, "finish", "remove")
    watch.watch(join.h_s, "find", "find", lambda codes, *_: len(codes))
    watch.watch(join.h_s, "append", "append")
    for method, part in (("read_codes", "codes"), ("pages", "payload")):
        reading.watch(join.master, method, part)
        watch.watch(join.master, method, part)


def _measure_waits(setting: Setting, sequential: bool, fixed: float, each: float) -> Fit:
    """Fit the waiting time of reads: the seconds by which reading a partition of R takes longer
    than its processor time in the operator. fixed, each: that processor time is fixed + d * each.
    """
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
    return fit(runs, "wait", ["disk_tuples"], [], [0.0])


def _pieces(chunks: list[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    while True:
        for chunk in chunks:
            for first in range(0, chunk.num_rows, rows):
                yield chunk.slice(first, rows)
