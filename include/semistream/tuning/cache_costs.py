"""The costs of H_R: look-ups, frequency detection and switching."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from semistream.cost_models.costs import TYPICAL
from semistream.cost_models.ssj import FILLING
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.disk_partition import DiskPartition
from semistream.joins.key_table import KeyTable, count_by
from semistream.joins.master_cache import MasterCache
from semistream.joins.stored_types import variable_bytes
from semistream.joins.stream_probing import probe
from semistream.tuning.calibration_data import CHUNK, DISK_BUFFERS, LEAST_PIECE, Setting, with_keys
from semistream.tuning.cost_fit import fit
from semistream.tuning.stopwatch import Stopwatch
from semistream.workloads.zipf import ZipfKeys

DETECTION_TUPLES, DETECTIONS = 600_000, 20
HITS = 0.7  # a usual share of tuples found in H_R, because dividing a batch also costs time
CANDIDATES = 2_000  # candidate values in the table that c_B measures


def measure_cache(
    setting: Setting, tables: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return, for each table size, the seconds to look up a stream tuple in an H_R with this many
    tuples, and the seconds to output a found row."""
    look_up, output, clock = [], [], setting.clock
    probed = setting.piece
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
    """Return an H_R with the first `tuples` tuples of R."""
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


def measure_detection(setting: Setting) -> tuple[float, float, float]:
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
    costs = fit(runs, "seconds", ["disk_tuples", "matched"], [], [0.0])
    return costs.flat[0], costs.flat[1], costs.fixed


def measure_switch(setting: Setting) -> float:
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
