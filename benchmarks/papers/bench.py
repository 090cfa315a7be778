"""The bench for points: it opens the data, asks the cost models, measures, and checks the
answer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.papers.data import ELSEWHERE, Data, open_data
from benchmarks.papers.measure import (
    BATCHES,
    Arrivals,
    Drive,
    Measured,
    check,
    measure,
    measure_arrivals,
)
from benchmarks.papers.model import FAILED, Figures, Point, Runner
from benchmarks.warm_up import warm_up
from semistream.cost_models import MODELS, Costs, Frequencies, Prediction, Workload
from semistream.errors import ConfigError
from semistream.joins import REGISTRY
from semistream.paths import Paths
from semistream.sizing import open_join, tune
from semistream.tuning.calibration import MOST_TUPLES, calibrate
from semistream.tuning.stopwatch import CLOCKS, Clock, Pace
from semistream.workloads import ArrivalTimes

# the search for the memory that a rate needs: most steps; rates this near are equal
STEPS, NEAR = 5, 0.03
HALVINGS = 30
LEAST_FED, CHUNKS = 512, 32  # fewest stream tuples at a time, absolute and in multiples of w_S
ROOM = 4  # the M, in multiples of the expected memory, of a join that takes only what it needs


def kept_costs(path: Path) -> list[Path]:
    """Return the files of costs in a directory, or the given file."""
    return sorted(path.glob("costs-*.yaml")) if path.is_dir() else [path]


class Bench(Runner):
    """The bench. scale: the factor of |R|, where 1 is the papers' own size; costs: a file with this
    machine's costs, or a directory with a file for each kind of data; missing costs are measured.
    """

    def __init__(
        self,
        paths: Paths,
        data: Path,
        scale: float,
        seconds: float = 1.0,
        clock: Clock = "wall",
        pace: bool = False,
        *,
        costs: Path,
        tuples: tuple[int, ...] = (500_000, 1_000_000),
        percent: tuple[float, ...] = (1.0, 3.0, 10.0),
        skews: tuple[float, ...] = (0.0, 0.5, 1.0),
        tell: Callable[[str], None] = print,
        batch: int = 0,
        burstiness: float = 0.5,
    ):
        self.batch = batch  # stream tuples processed at a time; 0: the data's own number
        self.tuples, self.percent, self.skews = tuples, percent, skews
        self.paths, self.directory, self.scale, self.seconds = paths, data, scale, seconds
        self.tell, self.burstiness = tell, burstiness
        self.clock_name, self.clock, self.paced, self.kept = clock, CLOCKS[clock], pace, costs
        self._data: dict[tuple[str, int, float], Data] = {}
        self._costs: dict[str, Costs] = {}

    @cached_property
    def pace(self) -> Callable[[], float]:
        """A function that returns this machine's pace, relative to the pace when the costs were
        measured, if that pace is known."""
        if not self.paced:
            return lambda: 1.0
        known = [Costs.load(p).measured.get("pace") for p in kept_costs(self.kept)]
        return Pace(self.clock, next(iter(known), None))

    @property
    def costs_used(self) -> dict[str, Any]:
        """The time and place of the measurement of the costs, by kind of data."""
        return {k: {"machine": c.machine, **c.measured} for k, c in self._costs.items()}

    def data(self, point: Point) -> Data:
        key = (point.data, point.tuples, point.skew)
        if key not in self._data:
            data = open_data(*key, self.paths, self.directory)
            self._data[key] = replace(data, batch=self.batch) if self.batch else data
        return self._data[key]

    def costs(self, data: str, tuples: int = 0, skew: float = 1.0) -> Costs:
        """Return this machine's costs for such tuples, measured once."""
        kind = data.split("-", maxsplit=1)[0]
        if kind not in self._costs:
            measured = self.kept.is_dir()
            path = self.kept / f"costs-{kind}.yaml" if measured else self.kept
            if measured and not path.exists():
                self.tell(f"measuring this machine's costs with {data} tuples (kept in {path})")
                d = open_data(
                    data,
                    MOST_TUPLES if kind == "zipf" else tuples,
                    skew,
                    self.paths,
                    self.directory,
                )
                found = calibrate(d.sample, d.relation, d.on, pace=self.pace, clock=self.clock_name)
                found.save(path)
            self._costs[kind] = Costs.load(path)
        return self._costs[kind]

    def memory(self, point: Point) -> int:
        """Return M in bytes."""
        whole = self.data(
            replace(point, tuples=point.memory_of) if point.memory_of else point
        ).bytes
        return int(point.memory * whole)

    def work(self, point: Point) -> Workload:
        return self.data(point).work

    def predict(
        self,
        point: Point,
        work: Workload | None = None,
        memory: float | None = None,
        costs: Costs | None = None,
    ) -> Prediction:
        """Return the prediction at the point's sizes; the model chooses the best other sizes.
        Raises ConfigError if M is too small."""
        work, memory = work or self.work(point), memory or self.memory(point)
        costs = costs or self.costs(point.data, point.tuples, point.skew)
        model = MODELS[point.algorithm]
        given = {k: v for k, v in point.parameters if k in model.sizes}
        best = tune(point.algorithm, work, memory, costs, **given)
        known = inspect.signature(model.predict).parameters
        further = {k: v for k, v in point.parameters if k in known and k not in given}
        return model.predict(work, memory, costs, **best.sizes, **further) if further else best

    def needed(
        self, point: Point, work: Workload | None = None, costs: Costs | None = None
    ) -> float:
        work = work or self.work(point).smooth()
        size = self.data(point).bytes * work.master_tuples / self.work(point).master_tuples
        low, high = (math.log(size * x) for x in (1e-3, 1.5))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            try:
                enough = self.predict(point, work, math.exp(middle), costs).mu >= point.rate
            except ConfigError:
                enough = False
            low, high = (low, middle) if enough else (middle, high)
        return math.exp(high)

    def at_scale(self, point: Point, factor: float) -> tuple[Workload, float]:
        """Return the point's workload and M with |R| multiplied by `factor`."""
        work = self.work(point).smooth()
        n = int(work.master_tuples * factor)
        if point.data.startswith("tpch") and "zipf" not in point.data:
            frequencies = replace(
                work.frequencies, p=work.frequencies.p / factor, keys=work.frequencies.keys * factor
            )
        elif point.data == "zipf-many":
            plain = Frequencies.zipf(n, point.skew)
            gone = math.exp(-1)
            frequencies = replace(
                plain, keys=plain.keys * (1 - gone), lost=replace(plain, keys=plain.keys * gone)
            )
        else:
            frequencies = Frequencies.zipf(n, point.skew)
        return replace(work, master_tuples=n, frequencies=frequencies), self.memory(point) * factor

    def measured(self, point: Point, further: Figures | None) -> dict[str, Any]:
        row = self._needed(point) if point.needed else self._measure(point, self.memory(point))
        return row | dict(further(self, point, self.predict(point)) if further else {})

    def describe(self, point: Point) -> dict[str, Any]:
        values = {
            "series": point.title,
            "algorithm": point.algorithm,
            "data": point.data,
            "master_tuples": point.tuples,
            "memory_percent": round(100 * point.memory, 3),
            "skew": point.skew,
            "rate": point.rate,
            "relation_percent": round(100 * point.tuples / point.memory_of)
            if point.memory_of
            else 100,
            **dict(point.place),
        }
        if point.algorithm not in REGISTRY or point.algorithm not in MODELS:
            return values | {
                "state": FAILED,
                "error": f"{point.algorithm} is not known, or has no cost model",
            }
        return values

    def _measure(
        self, point: Point, memory: int, prediction: Prediction | None = None
    ) -> dict[str, Any]:
        prediction = prediction or self.predict(point, memory=memory)
        parameters = prediction.parameters | dict(point.parameters)
        measured, answer = self._drive(point, memory, parameters, prediction)
        share = prediction.w_n / prediction.w if prediction.w else None
        return {
            "master_tuples": self.data(point).relation.tuple_count,
            "memory": memory,
            **parameters,
            "parameters": parameters,
            **asdict(measured),
            "w": measured.w_n + measured.w_s,
            "mu_disk": measured.w_s / measured.c_loop,
            **{
                f"{k}_model": getattr(prediction, k)
                for k in ("mu", "c_loop", "w", "w_n", "w_s", "h_r")
            },
            "through_cache_model": share,
            "mu_disk_model": prediction.w_s / prediction.c_loop,
            "c_loop_printed": prediction.c_loop_printed,
            "mu_printed": prediction.mu_printed,
            "components_model": prediction.memory,
            **answer,
        }

    def _drive(
        self, point: Point, memory: int, parameters: Mapping[str, Any], prediction: Prediction
    ) -> tuple[Measured, dict[str, Any]]:
        data = self.data(point)
        join = open_join(
            point.algorithm,
            memory=memory,
            stream=data.sample.schema,
            master=data.relation,
            on=data.on,
            parameters=dict(parameters),
        )
        try:
            drive = Drive(join, data.stream(0), self._fed(data, prediction), self.clock, self.pace)
            # a period as long as a measurement, so that each measurement has all bursts
            arrivals = (
                Arrivals(drive, ArrivalTimes(point.rate, self.burstiness, self.seconds))
                if point.rate
                else None
            )
            adapts = parameters.get("form") == "rate"
            settled = warm_up(
                join, arrivals.feed if arrivals and adapts else drive.feed, self.seconds
            )
            if arrivals and (adapts or not point.needed):
                arrivals.settle(prediction)
                measured = measure_arrivals(drive, arrivals, self.seconds)
            else:
                measured = measure(drive, self.seconds)
            answer = check(drive, data.stream(ELSEWHERE), data.batch)
        finally:
            join.master.close()
        return measured, {
            "settled": settled,
            "answer_rows": answer.joined,
            "answer_unmatched": answer.unmatched,
            "answer": answer.checksum,
        }

    def _fed(self, data: Data, prediction: Prediction) -> int:
        """Return how many stream tuples to process at a time: few for a slow join, so that ten
        batches take hardly longer than the wanted seconds, but enough for CHUNKS iterations."""
        wanted = max(prediction.mu * self.seconds / BATCHES, CHUNKS * prediction.w_s, LEAST_FED)
        return min(data.batch, 1 << math.ceil(math.log2(wanted)))

    def _needed(self, point: Point) -> dict[str, Any]:
        """Find the M with which the join keeps up with the rate. Begin with the model's M, correct
        it by the ratio of the rates, and measure again."""
        predicted = self.needed(point)
        # form "rate" takes the memory that it needs for these arrivals
        if dict(point.parameters).get("form") == "rate":
            row = self._measure(point, int(ROOM * predicted), self.predict(point, memory=predicted))
            return row | {"needed": row["memory_peak"], "needed_model": predicted}
        memory = predicted
        for _ in range(STEPS):
            row = self._measure(point, int(memory))
            if abs(row["mu"] / point.rate - 1) < NEAR:
                break
            memory = memory * min(max(point.rate / row["mu"], 0.5), 2.0)
        return row | {"needed": row["memory"] * point.rate / row["mu"], "needed_model": predicted}
