"""The result of a run of the app: the totals of its commits, and the summary at its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
BY_INPUT = ("unmatched", "missed", "lacking", "inferred")  # that a summary has of each input


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

    def summary(self, plan: Plan[Any]) -> dict[str, Any]:
        """Return the totals for ``summary.json``. plan: the plan at the end of the run."""
        return {
            "algorithm": plan.algorithm,
            "reason": plan.reason,
            "parameters": plan.parameters,
            "partitions": plan.partitions,
            "master_version": plan.version,
            "batches": self.batches,
            **{name: self.sums[name] for name in SUMMED},
            "inferred": sum(of["inferred"] for of in self.inputs.values()),
            "rejected": dict(self.rejected),
            "nulled": dict(self.nulled),
            "service_rate": self.service_rate,
            "cache_share": self.cache_share,
            "memory_peak": self.memory_peak,
            "resident_peak": self.resident_peak,
            "median_wait": self.median_wait,
            "longest_wait": self.longest_wait,
        }


def end_to_end(rows_read: int, seconds: float) -> float:
    """Return the stream tuples per second of a run, including its start, reading, Spark and the
    sink. In contrast, the service rate covers only the operators. seconds: since the run began."""
    return rows_read / seconds if seconds else 0.0


def _by_input(
    inputs: Mapping[str, Mapping[str, int]], count: str, head: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield a line for each input whose count is not 0. count: the count's name."""
    for name, of in inputs.items():
        if of.get(count):
            yield f"{head}{name}", f"{of[count]:,}"


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


def describe(summary: dict[str, Any]) -> str:
    """Return the summary as text for people."""
    s = summary
    reasons = [(reason, f"{count:,}") for reason, count in sorted(s["rejected"].items())]
    lines = [
        ("rows read", f"{s['rows_read']:,}"),
        ("matched", f"{s['matched']:,}"),
        ("unmatched", f"{s['unmatched']:,}"),
        *_indented(two_ways(reasons, [*_by_input(s["inputs"], "unmatched")], "")),
        *((("resolved, late", f"{s['resolved']:,}"),) if s.get("resolved") else ()),
        *((("filled in, late", f"{s['filled']:,}"),) if s.get("filled") else ()),
        ("waiting", f"{s['waiting']:,}"),
        *_indented(_by_input(s["inputs"], "waiting")),
        ("output rows", f"{s['output_rows']:,}"),
        *_indented(_by_input(s["inputs"], "lacking", "without ")),
        *_indented(_by_input(s["inputs"], "inferred", "inferred ")),
        *(
            (f"  NULL, not a number: {column}", f"{count:,}")
            for column, count in sorted(s.get("nulled", {}).items())
        ),
        ("service rate", f"{s['service_rate']:,.0f} tuples/s"),
        ("end to end", f"{end_to_end(s['rows_read'], s['seconds']):,.0f} tuples/s"),
        *(
            (
                ("through the cache", f"{s['cache_share']:.1%}"),
                ("waited, median", in_seconds(s["median_wait"])),
                ("waited, longest", in_seconds(s["longest_wait"])),
            )
            if s["master_version"]
            else ()
        ),
        ("peak memory", f"{s['memory_peak']:,} of {s['memory_budget']:,} bytes"),
        ("peak resident", f"{s['resident_peak']:,} bytes a worker"),
        ("seconds", f"{s['seconds']:.1f}"),
    ]
    title = (
        f"{s['app']}: {s['algorithm']} with {counted(s['partitions'], 'partition')}, "
        f"{counted(s['batches'], 'batch')}"
    )
    if s["master_version"]:
        title += f", master {s['master_version']}"
    if s["reason"]:
        title += f"\n  {s['reason']}"
    warnings = [f"  warning: {sentence}" for sentence in s.get("warnings", ())]
    return "\n".join([title, *(f"  {name:<20}{value:>24}" for name, value in lines), *warnings])
