"""A calibration. It measures the papers' cost symbols on this machine, with tuples of the user's
data.

The real operators run, with a stopwatch on each of their parts. A MESHJOIN at several sizes of disk
buffer and H_S gives c_IO, c_H, c_O, c_E, c_S, c_A and the cost of an iteration itself. The
stream-probing phase gives the look-up and output costs of H_R. The model cost = fixed + tuples *
c(table size) is then fitted to each part by non-negative least squares of the relative errors. For
reading, both the processor time in the operator and the whole time of a read are measured. The
difference is waiting for the disk. An operator that reads ahead avoids this waiting, except for the
waits that are observed in it.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Callable, Sequence

import pyarrow as pa

from semistream.cost_models.costs import PHASES, Costs
from semistream.errors import ConfigError
from semistream.joins.spec import Columns
from semistream.master.relation import MasterRelation
from semistream.tuning.cache_costs import measure_cache, measure_detection, measure_switch
from semistream.tuning.calibration_data import Head, Setting
from semistream.tuning.phase_costs import measure_phase
from semistream.tuning.stopwatch import CLOCKS, Clock

# tuples of R that are used: more than the processor's caches hold; more would cost the same
MOST_TUPLES = 1_000_000
TABLES = (5_000, 50_000, 400_000, 1_600_000)  # tuples in H_S and H_R
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
MOST_ROWS = 10_000_000  # output rows in one pass over R


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
    the largest M of interest; larger hash tables are not measured; seconds: time for each of about
    forty settings; pace: a function that returns a number by which the times are divided
    (``Pace``). Raises ConfigError for a sample or a master without tuples.
    """
    if not sample.num_rows or not master.tuple_count:
        raise ConfigError(
            "calibrate",
            "must be given tuples",
            (sample.num_rows, master.tuple_count),
            "Give a sample of the stream, and R.",
        )
    most = min(MOST_TUPLES, master.tuple_count)
    options = {"columns": columns, "clock": CLOCKS[clock], "seconds": seconds, "pace": pace}
    settings = [Setting.of(Head(master, most // n), sample, on, **options) for n in (1, 2, 4)]
    runs = [
        r
        for r in RUNS
        if r[0] <= max(min(memory / LEAST_BYTES, MOST_ROWS / settings[0].matches), TABLES[0])
    ]
    algorithms = {"scan": "meshjoin", "index": "hybridjoin", "elevator": "elevatorjoin"}
    phases = {p: measure_phase(settings, name, runs) for p, name in algorithms.items()}
    setting, head = settings[0], settings[0].master
    tables = tuple(t for t in TABLES if t <= head.tuple_count) or (float(head.tuple_count),)
    look_up, output = measure_cache(setting, tables)
    scan, index, elevator = (phases[p][0] for p in PHASES)
    return Costs(
        platform.node(),
        scan,
        index,
        elevator,
        tables,
        look_up,
        output,
        *measure_detection(setting),
        measure_switch(setting),
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


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            return next(
                (line.split(":", 1)[1].strip() for line in f if line.startswith("model name")),
                platform.processor(),
            )
    except OSError:
        return platform.processor()
