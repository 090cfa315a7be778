"""The costs of a machine's operations, as `tuning.calibrate` measured them, and the workload to
which they are applied."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from semistream.cost_models.course import Course
from semistream.cost_models.frequencies import Frequencies
from semistream.errors import ConfigError
from semistream.settings import read_yaml


class Symbols(NamedTuple):
    """The papers' cost symbols at one size of the hash tables, in seconds. The symbols c_p, c_w,
    c_x, c_r, c_n, c_i, c_m, c_d and c_2 do not occur in the papers."""

    c_io: float  # c_IO(b): read one disk buffer, all of it
    c_p: float  # the part of c_IO that is read only if some tuple matched: all but the key codes
    c_w: float  # the part of c_IO in which the processor waits for the disk
    c_x: float  # the part of c_W that remains if the next partition is read ahead
    c_h: float  # look one disk tuple up in H_S
    c_r: float  # look one stream tuple up in H_R (the papers' c_H too)
    c_o: float  # output the matches of one stream tuple through H_S
    c_n: float  # output the matches of one through H_R (the papers' c_O too)
    c_e: float  # remove one tuple from H_S and Q
    c_s: float  # read one stream tuple
    c_a: float  # append one tuple to H_S and Q
    c_f: float  # compare one disk tuple's frequency with the threshold
    c_b: float  # look one disk tuple up among the values that may be switched into the cache
    c_i: float  # fixed cost of an iteration
    c_m: float  # detect frequent tuples, per join value of a partition that has a match
    c_d: float  # detect frequent tuples, fixed cost per iteration
    c_2: float  # probe a second time, fixed cost per iteration


@dataclass(frozen=True)
class PhaseCosts:
    """The costs of a disk phase, seconds. The costs of H_S grow with its size, because larger
    tables exceed the processor's caches; they have a value for each of ``tables``."""

    tables: tuple[float, ...]  # tuples in H_S
    look_up: tuple[float, ...]  # c_H, per disk tuple
    output: tuple[float, ...]  # c_O, per output row
    remove: tuple[float, ...]  # c_E
    append: tuple[float, ...]  # c_A
    read_stream: float  # c_S
    # c_IO(b) = read_partition + b (read_code + read_payload) + wait_partition + b wait_tuple
    read_partition: float
    read_code: float
    payload: float  # the part of read_partition that the payload takes
    read_payload: float
    iteration: float  # c_I
    # the part of c_I for finding and removing; output accounts for the rest if pages come from disk
    probe: float
    wait_partition: float = 0.0
    wait_tuple: float = 0.0
    left_partition: float = 0.0  # c_X(b) = left_partition + b left_tuple
    left_tuple: float = 0.0


PHASES = ("scan", "index", "elevator")


@dataclass(frozen=True)
class Costs:
    """A machine's costs, seconds. Between two table sizes they are interpolated over the logarithm
    of the size."""

    machine: str
    scan: PhaseCosts  # for the joins that scan R
    index: PhaseCosts  # for the joins that read R through its index
    elevator: PhaseCosts  # for ELEVATORJOIN
    tables: tuple[float, ...]  # tuples in H_R
    look_up_cache: tuple[float, ...]  # c_H in H_R
    output_cache: tuple[float, ...]  # c_O from H_R, per output row
    compare: float  # c_F
    compare_match: float  # c_M
    detection: float  # c_D
    switch: float  # c_B
    # time, sizes and fit of the measurement
    measured: dict[str, Any] = field(default_factory=dict)

    def at(
        self,
        tuples: float,
        disk_tuples: float,
        cached: float = 1.0,
        phase: str = "scan",
        matches: float = 1.0,
    ) -> Symbols:
        """Return the papers' symbols for an H_S of `tuples`, a disk buffer of `disk_tuples` and an
        H_R of `cached` tuples. matches: output rows per stream tuple."""
        p: PhaseCosts = getattr(self, phase)
        c_h, c_o, c_e, c_a = _interpolate(tuples, p.tables, p.look_up, p.output, p.remove, p.append)
        c_r, c_n = _interpolate(cached, self.tables, self.look_up_cache, self.output_cache)
        c_p = p.payload + disk_tuples * p.read_payload
        c_w = p.wait_partition + disk_tuples * p.wait_tuple
        c_io = p.read_partition - p.payload + disk_tuples * p.read_code + c_p + c_w
        c_x = min(p.left_partition + disk_tuples * p.left_tuple, c_w)
        return Symbols(
            c_io,
            c_p,
            c_w,
            c_x,
            c_h,
            c_r,
            c_o * matches,
            c_n * matches,
            c_e,
            p.read_stream,
            c_a,
            self.compare,
            self.switch,
            p.iteration,
            self.compare_match,
            self.detection,
            p.probe,
        )

    def save(self, path: str | Path) -> None:
        """Write the costs as YAML, or as JSON if the file's name ends in ``.json``."""
        import yaml  # takes a while, and typical costs need none

        values = json.loads(json.dumps(asdict(self)))
        as_json = str(path).endswith(".json")
        text = json.dumps(values, indent=1) if as_json else yaml.safe_dump(values, sort_keys=False)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Read the costs from a file. Raises ConfigError when the file is missing or has a
        different content."""
        try:
            # YAML takes JSON's 1e-9 for a word
            as_json = str(path).endswith(".json")
            values = _tuples(json.loads(Path(path).read_text()) if as_json else read_yaml(path))
            return cls(**values | {p: PhaseCosts(**values[p]) for p in PHASES})
        except (OSError, TypeError, ValueError, KeyError, AttributeError, ConfigError) as e:
            raise ConfigError(
                "costs", "must be a file that `calibrate` wrote", str(path), f"Calibrate anew: {e}"
            ) from None


def _tuples(values: Any) -> Any:
    if isinstance(values, dict):
        return {k: _tuples(v) for k, v in values.items()}
    return tuple(values) if isinstance(values, list) else values


def _interpolate(
    tuples: float, tables: tuple[float, ...], *costs: tuple[float, ...]
) -> Sequence[float]:
    """Return each cost at a table size. costs: the cost at each size of ``tables``; below the first
    and above the last one it is constant."""
    last = len(tables) - 1
    i = bisect.bisect_right(tables, tuples)
    if i == 0 or i > last:
        return [values[min(i, last)] for values in costs]
    share = math.log(max(tuples, 1.0) / tables[i - 1]) / math.log(tables[i] / tables[i - 1])
    return [values[i - 1] + share * (values[i] - values[i - 1]) for values in costs]


class Cut(NamedTuple):
    """R, cut into partitions."""

    number: int  # N
    tuples: float  # d, tuples of an average partition
    most_bytes: int  # bytes of the largest partition, which the disk buffer must hold
    most_tuples: int

    @property
    def tuple_bytes(self) -> float:
        """The bytes of a tuple in the disk buffer, v_R. They are computed for the largest
        partition."""
        return self.most_bytes / max(self.most_tuples, 1)

    def fits(self, memory: float) -> bool:
        """Return whether the disk buffer takes at most half of M, as ``JoinSpec.with_disk_buffer``
        requires."""
        return 2 * self.most_bytes <= memory


@dataclass(frozen=True)
class Workload:
    """The relations to be joined: sizes in bytes as the operator really holds them, and the
    frequency of each join value."""

    master_tuples: int  # R_t
    disk_tuple_bytes: float  # v_R in the disk buffer
    stream_tuple_bytes: float  # v_S in H_S and Q of a join that scans R
    indexed_tuple_bytes: float  # the same, of a join that reads R through its index
    elevator_tuple_bytes: float  # the same, of ELEVATORJOIN
    cached_tuple_bytes: float  # v_R in H_R
    resident_tuple_bytes: float  # v_R in the non-swappable part
    cached_key_bytes: float  # bytes of a join value in H_R, without its tuples
    frequencies: Frequencies
    page_tuples: float = 1.0  # tuples of a page; partitions are whole pages
    fan_out: float = 1.0  # master tuples per join value
    matches: float = 1.0  # output rows per stream tuple
    batch_tuples: float = math.inf  # stream tuples that arrive together
    tuples: float = math.inf  # tuples of the stream in this run
    unread: float = math.inf  # stream tuples that arrive before a bound on waiting forces a read
    gaps: float = 0.0  # share of the absent tuples that R's index does not recognise as absent
    # s by which a tuple that H_R serves takes longer to be written than one that leaves together
    # with the others of its disk partition
    scattered: float = 0.0
    reads_ahead: bool = False  # whether the next partition is read while one is probed
    cut: Callable[[int], Cut] | None = None  # how an existing R is really cut

    @property
    def values(self) -> float:
        """Number of distinct join values in R."""
        return self.master_tuples / self.fan_out

    def partitions(self, disk_tuples: float) -> Cut:
        """Return R, cut into partitions for a disk buffer of `disk_tuples` tuples."""
        if self.cut is not None:
            return self.cut(max(int(disk_tuples), 1))
        d = min(max(disk_tuples, self.page_tuples, 1.0), max(self.master_tuples, 1))
        return Cut(
            max(math.ceil(self.master_tuples / d), 1),
            d,
            math.ceil(d * self.disk_tuple_bytes),
            int(d),
        )

    def symbols(
        self,
        costs: Costs,
        tuples: float,
        disk_tuples: float,
        cached: float = 1.0,
        phase: str = "scan",
    ) -> Symbols:
        """Return ``Costs.at`` for this workload's matches per stream tuple."""
        return costs.at(tuples, disk_tuples, cached, phase, self.matches)

    def smooth(self) -> Workload:
        """Return a copy in which R can be cut anywhere. The costs are then smooth functions of the
        sizes, as an optimiser needs them."""
        return replace(self, cut=None)

    def overlap(self, c_loop: float, s: Symbols, reads: float = 1.0) -> float:
        """Return c_loop, corrected for *reading ahead* if R is read ahead. Disk and processor then
        work at the same time, and the longer of both times counts. If the wait for the disk is
        shorter, c_x of it remains: the reader also needs the processor, and the disk is not always
        in time."""
        return max(c_loop - reads * (s.c_w - s.c_x), reads * s.c_w) if self.reads_ahead else c_loop


def service_rate(*, w_n: float, w_s: float, c_loop: float) -> float:
    """Return mu = (w_N + w_S) / c_loop, tuples/s: Eq. 3 of all the papers."""
    return (w_n + w_s) / c_loop if c_loop > 0 else 0.0


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one algorithm and one setting: for its steady state and, in
    ``rate``, for the whole run."""

    algorithm: str
    sizes: dict[str, float]  # the setting, by the operator's parameters
    w_n: float  # stream tuples per iteration through H_R
    w_s: float  # stream tuples per iteration through H_S
    c_loop: float  # s, corrected
    c_loop_printed: float  # s, by the paper's own equation
    memory: dict[str, float]  # bytes by component
    h_s: float = 0.0  # tuples in H_S
    h_r: float = 0.0  # tuples in H_R
    # parameters that the model itself chose for these sizes
    chosen: dict[str, float] = field(default_factory=dict)
    course: Course | None = None  # the course of the run, if known
    scattered: float = 0.0  # see `Workload.scattered`
    # the share of the stream that has to wait if so many tuples come between two reads of the same
    # part of R; None if it is that of the steady state
    waits: Callable[[float], float] | None = None

    @property
    def w(self) -> float:
        """Stream tuples finished per iteration."""
        return self.w_n + self.w_s

    @property
    def mu(self) -> float:
        """Service rate, tuples/s."""
        return service_rate(w_n=self.w_n, w_s=self.w_s, c_loop=self.c_loop)

    @property
    def rate(self) -> float:
        """Stream tuples/s over the whole run; the service rate if the run's length is unknown."""
        return self._run[0]

    @property
    def worth(self) -> float:
        """The rate, with the time in which tuples that H_R serves are written."""
        return self.rate / (1 + self.rate * self.scattered * self.cache_share)

    @property
    def cache_share(self) -> float:
        """Share of the stream tuples that H_R serves, over the whole run; in the steady state if
        the run's length is unknown."""
        return self._run[1]

    @cached_property
    def _run(self) -> tuple[float, float]:
        """The pair (rate, cache_share)."""
        steady = self.w_n / max(self.w, 1e-12)
        if self.course is None or not math.isfinite(self.course.tuples) or self.mu <= 0:
            return self.mu, steady
        seconds, share = self.course.run(self.mu, self.h_s, steady)
        return self.course.tuples / seconds, share

    @property
    def mu_printed(self) -> float:
        """Service rate by the paper's own c_loop, tuples/s."""
        return service_rate(w_n=self.w_n, w_s=self.w_s, c_loop=self.c_loop_printed)

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters for ``open_join``."""
        return {
            name: round(size, 3) if name.endswith("share") else int(size)
            for name, size in (self.sizes | self.chosen).items()
        }


def infeasible(algorithm: str, sizes: dict[str, float]) -> Prediction:
    """Return the prediction for a setting that does not fit into M: a rate of 0."""
    return Prediction(algorithm, sizes, 0.0, 0.0, math.inf, math.inf, {})


# Measured by `calibrate` on two cores of an AMD EPYC, for the papers' tuples of 120 and 20 bytes.
TYPICAL = Costs(
    "a typical machine",
    PhaseCosts(
        tables=(5_000, 50_000, 400_000, 1_600_000),
        look_up=(50e-9, 73e-9, 120e-9, 120e-9),
        output=(100e-9, 100e-9, 150e-9, 180e-9),
        remove=(17e-9, 17e-9, 17e-9, 17e-9),
        append=(150e-9, 150e-9, 280e-9, 300e-9),
        read_stream=18e-9,
        read_partition=110e-6,
        read_code=3.9e-9,
        payload=73e-6,
        read_payload=36e-9,
        iteration=360e-6,
        probe=260e-6,
    ),
    PhaseCosts(
        tables=(5_000, 50_000, 400_000, 1_600_000),
        look_up=(52e-9, 72e-9, 110e-9, 110e-9),
        output=(140e-9, 140e-9, 140e-9, 160e-9),
        remove=(60e-9, 60e-9, 67e-9, 100e-9),
        append=(120e-9, 130e-9, 190e-9, 230e-9),
        read_stream=76e-9,
        read_partition=99e-6,
        read_code=5.4e-9,
        payload=57e-6,
        read_payload=49e-9,
        iteration=260e-6,
        probe=190e-6,
    ),
    PhaseCosts(
        tables=(5_000, 50_000, 400_000, 1_600_000),
        look_up=(42e-9, 42e-9, 42e-9, 42e-9),
        output=(90e-9, 90e-9, 110e-9, 110e-9),
        remove=(5e-9, 5e-9, 5e-9, 7e-9),
        append=(53e-9, 53e-9, 63e-9, 79e-9),
        read_stream=80e-9,
        read_partition=110e-6,
        read_code=4.1e-9,
        payload=67e-6,
        read_payload=40e-9,
        iteration=430e-6,
        probe=360e-6,
    ),
    tables=(5_000, 50_000, 400_000),
    look_up_cache=(28e-9, 30e-9, 97e-9),
    output_cache=(39e-9, 49e-9, 79e-9),
    compare=1e-9,
    compare_match=210e-9,
    detection=49e-6,
    switch=6.7e-9,
)
