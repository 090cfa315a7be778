"""Judge the cost models by measurement: predicted beside measured c_loop and mu over a grid of M, |R| and skew.

    python benchmarks/cost_models.py --algorithms meshjoin,ssbj --master 500000,1000000 --memory 1,3,10 --skew 0,0.5,1

The papers' tuples (120 bytes in R, 20 in S), the real operators in one process, R in snapshots on disk. Each point is set as
`tune` chooses it, warmed up until the cache no longer grows, and measured over whole R-cycles; intervals are 95%, of the mean of
batches.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.cost_models import MODELS, Costs, Frequencies, Prediction, Workload
from semistream.errors import ConfigError
from semistream.joins import REGISTRY, SemiStreamJoin, open_join
from semistream.master import SnapshotRelation, open_snapshot, publish_snapshot
from semistream.tuning import calibrate, describe, tune
from semistream.tuning.calibration import CLOCKS, Pace
from semistream.workloads.zipf import ZipfKeys

ON = [("key", "key")]
MASTER_BYTES, STREAM_BYTES = 120, 20  # of the papers' tuples, key included
BATCH = 16_384  # stream tuples given at a time
BATCHES = 10  # means that the interval is taken over
T_95 = 2.262  # of Student's distribution with 9 degrees of freedom


@dataclass
class Measured:
    c_loop: float  # s
    c_loop_interval: float  # half of the 95% interval, s
    mu: float  # tuples/s
    mu_interval: float
    w_n: float
    w_s: float
    h_r: int  # tuples
    memory: dict[str, int] = field(default_factory=dict)


def master_relation(tuples: int, directory: Path) -> SnapshotRelation:
    """R with keys 1..tuples and 120 bytes a tuple; made once."""
    root = directory / f"master-{tuples}"
    schema = pa.schema([("key", pa.int64()), ("payload", pa.binary(MASTER_BYTES - 16))])  # the stored key code has 8 bytes

    def batches() -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(0)
        for first in range(0, tuples, 100_000):
            n = min(100_000, tuples - first)
            payload = pa.FixedSizeBinaryArray.from_buffers(schema[1].type, n,
                                                           [None, pa.py_buffer(random.bytes(n * (MASTER_BYTES - 16)))])
            yield pa.RecordBatch.from_arrays([pa.array(np.arange(first + 1, first + n + 1)), payload], schema=schema)

    if not (root / "CURRENT").exists():
        publish_snapshot(batches(), schema, root, "master", ["key"])
    return open_snapshot(root)


def stream_batch(keys: np.ndarray) -> pa.RecordBatch:
    note = pa.FixedSizeBinaryArray.from_buffers(pa.binary(STREAM_BYTES - 8), len(keys),
                                                [None, pa.py_buffer(bytes(len(keys) * (STREAM_BYTES - 8)))])
    return pa.RecordBatch.from_arrays([pa.array(keys), note], ["key", "note"])


class Stream:
    def __init__(self, keys: int, skew: float):
        self.zipf, self.at = ZipfKeys(keys, skew, seed=1, scattered=True), 0

    def next(self, rows: int = BATCH) -> pa.RecordBatch:
        self.at += rows
        return stream_batch(self.zipf.draw(self.at - rows, rows))


def measure(join: SemiStreamJoin, stream: Stream, clock: str, seconds: float, prediction: Prediction,
            pace: Callable[[], float]) -> Measured:
    now, stats, paces = CLOCKS[clock], join.stats, []

    def feed() -> float:
        batch = stream.next()
        started = now()
        for _ in join.process(batch):
            pass
        spent = now() - started
        paces.append(pace())
        return spent / float(np.median(paces[-5:]))

    _warm_up(join, feed, prediction)
    cycles = 3 if REGISTRY[join.spec.algorithm].needs_index is False else 0
    start = stats.r_cycles
    spent, taken, loops, hits = [0.0], [stats.rows_read - stats.waiting], [stats.iteration_count], stats.cache_hits
    while len(spent) <= 2 * BATCHES or spent[-1] < seconds or stats.r_cycles < start + cycles:
        spent.append(spent[-1] + feed())
        taken.append(stats.rows_read - stats.waiting)
        loops.append(stats.iteration_count)
    edges = np.linspace(0, len(spent) - 1, BATCHES + 1).astype(int)
    t, n, i = (np.diff(np.array(x)[edges]) for x in (spent, taken, loops))
    iterations = max(loops[-1] - loops[0], 1)
    hits = (stats.cache_hits - hits) / iterations
    interval = lambda x: float(T_95 * np.std(x, ddof=1) / math.sqrt(BATCHES))  # noqa: E731
    w = (taken[-1] - taken[0]) / iterations
    return Measured(spent[-1] / iterations, interval(t / np.maximum(i, 1)), (taken[-1] - taken[0]) / spent[-1], interval(n / t),
                    hits, w - hits,
                    getattr(join, "cached", 0), dict(join.arena.components))


def _warm_up(join: SemiStreamJoin, feed, prediction: Prediction) -> None:
    """Until H_S is full, and H_R has grown by less than 2% in as many tuples as three R-cycles bring; at most 20 times that."""
    stats = join.stats
    step = 4 * max(prediction.h_s, 1) * max(prediction.w, 1) / max(prediction.w_s, 1)
    cached, goal = -1, step
    for _ in range(20):
        while stats.rows_read < goal:
            feed()
        now = getattr(join, "cached", 0)
        if now <= 1.02 * cached or now == 0:
            return
        cached, goal = now, goal + step


def point(algorithm: str, master: SnapshotRelation, skew: float, share: float, costs: Costs, clock: str,
          seconds: float, pace: Callable[[], float]) -> tuple[Workload, Prediction, Measured]:
    stream = Stream(master.tuple_count, skew)
    memory = int(share * master.tuple_count * MASTER_BYTES)
    work = describe(stream.next(1024), master, ON, frequencies=Frequencies.zipf(master.tuple_count, skew), batch_tuples=BATCH)
    prediction = tune(algorithm, work, memory, costs)
    join = open_join(algorithm, memory=memory, stream=stream_batch(np.zeros(0, np.int64)).schema, master=master, on=ON,
                     parameters=prediction.parameters)
    return work, prediction, measure(join, stream, clock, seconds, prediction, pace)


def line(algorithm: str, tuples: int, share: float, skew: float, p: Prediction, m: Measured) -> str:
    return (f"{algorithm:<19}{tuples:>10}{share:>5g}{skew:>5g} | {m.c_loop * 1e3:>10.3f}{m.c_loop_interval * 1e3:>7.3f}"
            f"{p.c_loop_printed * 1e3:>9.3f}{p.c_loop * 1e3:>8.3f}{100 * (p.c_loop / m.c_loop - 1):>7.1f} | "
            f"{m.mu:>9.0f}{m.mu_interval:>8.0f}{p.mu:>9.0f}{100 * (p.mu / m.mu - 1):>7.1f} | "
            f"{m.w_n:>7.0f}{p.w_n:>7.0f}{m.w_s:>7.0f}{p.w_s:>7.0f}{m.h_r:>7}{p.h_r:>7.0f}  {p.parameters}")


def numbers(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--algorithms", default=",".join(a for a in REGISTRY if a in MODELS))
    parser.add_argument("--master", default="500000,1000000", help="|R|, tuples [%(default)s]")
    parser.add_argument("--memory", default="1,3,10", help="M, percent of R [%(default)s]")
    parser.add_argument("--skew", default="0,0.5,1", help="Zipf exponents [%(default)s]")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall",
                        help="cpu where others use the machine too [%(default)s]")
    parser.add_argument("--pace", action="store_true", help="divide times by how much slower a fixed piece of work is just then")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time measured at a point [%(default)s]")
    parser.add_argument("--costs", type=Path, help="costs measured before; default: calibrate now")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "semistream-benchmark")
    parser.add_argument("--output", type=Path, help="CSV file of all points")
    a = parser.parse_args(argv)
    masters = [master_relation(int(n), a.data) for n in numbers(a.master)]
    known = Costs.load(a.costs) if a.costs and a.costs.exists() else None
    pace = Pace(CLOCKS[a.clock], known and known.measured.get("pace")) if a.pace else lambda: 1.0
    costs = known or calibrate(
        stream_batch(np.arange(1, 1025)), max(masters, key=lambda m: m.tuple_count), ON, clock=a.clock, pace=pace)
    if a.costs:
        costs.save(a.costs)
    print(f"# {costs.machine}, {costs.measured.get('processor')}, commit {commit()}, "
          f"{time.strftime('%Y-%m-%d %H:%M')}, clock {a.clock}")
    print(f"# python {' '.join(sys.argv)}")
    print(f"{'algorithm':<19}{'|R|':>10}{'M %':>5}{'skew':>5} | {'c_loop ms':>10}{'±':>7}{'printed':>9}{'model':>8}{'err%':>7} | "
          f"{'mu':>9}{'±':>8}{'model':>9}{'err%':>7} | {'w_N':>7}{'model':>7}{'w_S':>7}{'model':>7}{'h_R':>7}{'model':>7}  sizes")
    rows = []
    for algorithm in a.algorithms.split(","):
        for master in masters:
            for share in numbers(a.memory):
                for skew in numbers(a.skew):
                    try:
                        _, p, m = point(algorithm, master, skew, share / 100, costs, a.clock, a.seconds, pace)
                    except ConfigError as e:
                        print(f"{algorithm:<19}{master.tuple_count:>10}{share:>5g}{skew:>5g} | {e}", flush=True)
                        continue
                    rows.append({"algorithm": algorithm, "master_tuples": master.tuple_count, "memory_percent": share,
                                 "skew": skew,
                                 **{f"{x}_model": getattr(p, x) for x in ("c_loop", "mu", "w_n", "w_s", "h_r")},
                                 "c_loop_printed": p.c_loop_printed, "mu_printed": p.mu_printed,
                                 "sizes": json.dumps(p.parameters),
                                 **asdict(m)})
                    print(line(algorithm, master.tuple_count, share, skew, p, m), flush=True)
    summarise(rows)
    if a.output:
        with open(a.output, "w", newline="") as f:
            out = csv.DictWriter(f, list(rows[0]))
            out.writeheader()
            out.writerows(rows)
    return 0


def summarise(rows: list[dict]) -> None:
    print("\nmedian error:       c_loop   printed        mu   printed   points")
    for algorithm in dict.fromkeys(r["algorithm"] for r in rows):
        mine = [r for r in rows if r["algorithm"] == algorithm]
        error = lambda model, real, mine=mine: 100 * float(np.median([abs(r[model] / r[real] - 1) for r in mine]))  # noqa: E731
        print(f"{algorithm:<19}{error('c_loop_model', 'c_loop'):>7.1f}%{error('c_loop_printed', 'c_loop'):>9.1f}%"
              f"{error('mu_model', 'mu'):>9.1f}%{error('mu_printed', 'mu'):>9.1f}%{len(mine):>9}")


if __name__ == "__main__":
    sys.exit(main())
