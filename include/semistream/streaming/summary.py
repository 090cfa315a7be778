"""The result of a run of the app: the totals of its commits, and the summary at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from semistream.counted import counted
from semistream.job import SIDES
from semistream.joins.waits import Waits, in_seconds
from semistream.positions import resolves
from semistream.sizing.plan import Plan
from semistream.warehouse.records import LoadRecord

SUMMED = (
    "rows_read",
    "resolved",
    "matched",
    "unmatched",
    "output_rows",
    "cache_hits",
    "bytes_read",
)


@dataclass(frozen=True)
class InputTotals:
    """The totals of a role or stream, as in ``InputCounts``. unmatched: without the tuples that
    were refused before the join."""

    unmatched: int = 0
    missed: int = 0
    lacking: int = 0
    inferred: int = 0


@dataclass(frozen=True)
class RunInput(InputTotals):
    """The totals of a role or stream in a run, and the tuples that wait in it at the end."""

    waiting: int = 0


@dataclass(frozen=True)
class RunSummary:
    """The result of a run, which ``summary.json`` has. What an earlier version has not written has
    its default.

    stopped: whether a run that was to read the whole source was stopped before; filled: the number
    of facts that were filled in; inputs: empty if there is one role; memory_peak, resident_peak,
    memory_budget: bytes; median_wait, longest_wait, seconds: s. See ``Totals`` and ``Plan`` for the
    others.
    """

    app: str = ""
    stopped: bool = False
    job: str = ""
    algorithm: str = ""
    reason: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 0
    master_version: str = ""
    batches: int = 0
    rows_read: int = 0
    resolved: int = 0
    matched: int = 0
    unmatched: int = 0
    output_rows: int = 0
    cache_hits: int = 0
    bytes_read: int = 0
    inferred: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    nulled: Mapping[str, int] = field(default_factory=dict)
    service_rate: float = 0.0
    cache_share: float = 0.0
    memory_peak: int = 0
    resident_peak: int = 0
    median_wait: float = 0.0
    longest_wait: float = 0.0
    filled: int = 0
    warnings: tuple[str, ...] = ()
    waiting: int = 0
    inputs: Mapping[str, RunInput] = field(default_factory=dict)
    memory_budget: int = 0
    seconds: float = 0.0

    @property
    def end_to_end(self) -> float:
        return end_to_end(self.rows_read, self.seconds)

    def to_json(self) -> dict[str, Any]:
        return SUMMARY.dump_python(self, mode="json")


SUMMARY = TypeAdapter(RunSummary)


def read_summary(checkpoint: Path) -> RunSummary:
    """Return the summary that the last run on a checkpoint wrote at its end."""
    return SUMMARY.validate_json((checkpoint / "summary.json").read_bytes())


@dataclass
class Totals:
    """The totals of this run's commits. ``seconds`` is the sum over the commits of each commit's
    slowest partition."""

    sums: Counter[str] = field(default_factory=Counter)  # by name, of SUMMED
    again: int = 0  # tuples that were finished by being joined again
    again_hits: int = 0  # cache hits when tuples were joined again
    batches: int = 0
    seconds: float = 0.0
    memory_peak: int = 0
    resident_peak: int = 0  # of one worker
    waits: Waits = field(default_factory=Waits)  # the median wait of each partition of each commit
    longest_wait: float = 0.0  # s
    latest_wait: float = 0.0  # s, the longest of the newest commit
    rejected: Counter[str] = field(default_factory=Counter)
    # by role or side: "matched", "unmatched" in this role, "missed", "lacking", "inferred", and the
    # unmatched by reason
    inputs: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    nulled: Counter[str] = field(default_factory=Counter)  # by column, see load_batches

    def add(self, loads: Sequence[LoadRecord]) -> None:
        """Add a commit. loads: its records, one for each partition."""
        for name in SUMMED:
            self.sums[name] += sum(getattr(load, name) for load in loads)
        if any(resolves(load.drain) for load in loads):
            self.again += sum(load.matched + load.unmatched for load in loads)
            self.again_hits += sum(load.cache_hits for load in loads)
        self.batches += 1
        self.seconds += max(load.seconds for load in loads)
        self.memory_peak = max(self.memory_peak, sum(load.memory_peak for load in loads))
        self.resident_peak = max(self.resident_peak, *(load.resident_peak or 0 for load in loads))
        self.latest_wait = max(load.wait_longest or 0.0 for load in loads)
        self.longest_wait = max(self.longest_wait, self.latest_wait)
        for load in loads:
            self.waits.note(load.wait_median or 0.0, load.matched + load.unmatched)
            self.rejected.update(load.rejected)
            for i in load.inputs:
                self.inputs[i.role].update(
                    matched=i.matched,
                    unmatched=i.missing,
                    missed=i.missed,
                    lacking=i.lacking,
                    inferred=i.inferred,
                )
                self.inputs[i.role].update(i.rejected)
            self.nulled.update(load.nulled)

    @property
    def finished(self) -> int:
        return self.sums["matched"] + self.sums["unmatched"]

    @property
    def cache_share(self) -> float:
        """The share of the stream's tuples that the cache answered. Tuples that are joined again do
        not count, as the ledger has only those of them whose result has changed."""
        first = self.finished - self.again
        return (self.sums["cache_hits"] - self.again_hits) / first if first else 0.0

    @property
    def service_rate(self) -> float:
        """Tuples per second, by the time spent inside the operators."""
        return self.finished / self.seconds if self.seconds else 0.0

    @property
    def median_wait(self) -> float:
        """The median waiting time in seconds, estimated from the median of each partition."""
        return self.waits.median(self.finished)

    def status(self) -> dict[str, Any]:
        """Return the totals that ``status.json`` shows while the app runs."""
        return {
            **{name: self.sums[name] for name in ("rows_read", "matched", "unmatched")},
            "service_rate": self.service_rate,
            "memory_peak": self.memory_peak,
            "resident_peak": self.resident_peak,
            "median_wait": self.median_wait,
            "longest_wait": self.longest_wait,
        }

    def summary(self, plan: Plan[Any], waiting: Mapping[str, int]) -> RunSummary:
        """Return the summary of the run as far as it follows from its totals. plan: the plan at the
        end of the run; waiting: the tuples that wait, by input, if there are several roles."""
        sums: dict[str, Any] = {name: self.sums[name] for name in SUMMED}
        return RunSummary(
            algorithm=plan.algorithm,
            reason=plan.reason,
            parameters=plan.parameters,
            partitions=plan.partitions,
            master_version=plan.version,
            batches=self.batches,
            **sums,
            inferred=sum(of["inferred"] for of in self.inputs.values()),
            rejected=dict(self.rejected),
            nulled=dict(self.nulled),
            service_rate=self.service_rate,
            cache_share=self.cache_share,
            memory_peak=self.memory_peak,
            resident_peak=self.resident_peak,
            median_wait=self.median_wait,
            longest_wait=self.longest_wait,
            inputs={name: self._of_input(name, n) for name, n in waiting.items()},
        )

    def _of_input(self, name: str, waiting: int) -> RunInput:
        of = self.inputs[name]
        return RunInput(of["unmatched"], of["missed"], of["lacking"], of["inferred"], waiting)


def end_to_end(rows_read: int, seconds: float) -> float:
    """Return the stream tuples per second of a run, including its start, reading, Spark and the
    sink. In contrast, the service rate covers only the operators. seconds: since the run began."""
    return rows_read / seconds if seconds else 0.0


def _by_input(
    inputs: Mapping[str, RunInput], count: str, head: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield a line for each input whose count is not 0. count: the count's name."""
    for name, of in inputs.items():
        if n := getattr(of, count):
            yield f"{head}{name}", f"{n:,}"


def _indented(lines: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    return ((f"  {name}", *cells) for name, *cells in lines)


def two_ways(
    reasons: Sequence[tuple[str, ...]], roles: Sequence[tuple[str, ...]], *blank: str
) -> list[tuple[str, ...]]:
    """Return the lines of the unmatched tuples: by reason and, if there are such lines, once more
    by role or stream, each with a heading. blank: the cells of a heading beside its name."""
    if not roles:
        return list(reasons)
    by = "by stream" if roles[0][0] in SIDES else "by role"
    return [
        line
        for heading, lines in (("by reason", reasons), (by, roles))
        for line in ((heading, *blank), *((f"  {name}", *cells) for name, *cells in lines))
    ]


def describe(s: RunSummary) -> str:
    """Return the summary as text for people."""
    reasons = [(reason, f"{count:,}") for reason, count in sorted(s.rejected.items())]
    lines = [
        ("rows read", f"{s.rows_read:,}"),
        ("matched", f"{s.matched:,}"),
        ("unmatched", f"{s.unmatched:,}"),
        *_indented(two_ways(reasons, [*_by_input(s.inputs, "unmatched")], "")),
        *((("resolved, late", f"{s.resolved:,}"),) if s.resolved else ()),
        *((("filled in, late", f"{s.filled:,}"),) if s.filled else ()),
        ("waiting", f"{s.waiting:,}"),
        *_indented(_by_input(s.inputs, "waiting")),
        ("output rows", f"{s.output_rows:,}"),
        *_indented(_by_input(s.inputs, "lacking", "without ")),
        *_indented(_by_input(s.inputs, "inferred", "inferred ")),
        *(
            (f"  NULL, not a number: {column}", f"{count:,}")
            for column, count in sorted(s.nulled.items())
        ),
        ("service rate", f"{s.service_rate:,.0f} tuples/s"),
        ("end to end", f"{s.end_to_end:,.0f} tuples/s"),
        *(
            (
                ("through the cache", f"{s.cache_share:.1%}"),
                ("waited, median", in_seconds(s.median_wait)),
                ("waited, longest", in_seconds(s.longest_wait)),
            )
            if s.master_version
            else ()
        ),
        ("peak memory", f"{s.memory_peak:,} of {s.memory_budget:,} bytes"),
        ("peak resident", f"{s.resident_peak:,} bytes a worker"),
        ("seconds", f"{s.seconds:.1f}"),
    ]
    title = (
        f"{s.app}: {s.algorithm} with {counted(s.partitions, 'partition')}, "
        f"{counted(s.batches, 'batch')}"
    )
    if s.master_version:
        title += f", master {s.master_version}"
    if s.reason:
        title += f"\n  {s.reason}"
    warnings = [f"  warning: {sentence}" for sentence in s.warnings]
    return "\n".join([title, *(f"  {name:<20}{value:>24}" for name, value in lines), *warnings])
