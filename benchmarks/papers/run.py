"""A run of experiments, each in a separate directory. The results, as JSON and CSV, and a report
are saved after every point."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Remote, shuffled
from benchmarks.papers import EXPERIMENTS, Experiment
from benchmarks.papers.bench import Bench, kept_costs
from benchmarks.papers.findings import Finding, claims, judge, key, undecided, wrong_answers
from benchmarks.papers.model import FAILED
from benchmarks.papers.repetitions import combined
from benchmarks.papers.settings import ExperimentSettings
from benchmarks.provenance import commit, machine, versions
from semistream.cost_models import MODELS
from semistream.durable import write_text
from semistream.errors import ConfigError
from semistream.joins import REGISTRY
from semistream.joins.registry import find_algorithm
from semistream.paths import Paths

RESULTS, TABLE, CLAIMS, REPORT = "results.json", "results.csv", "claims.txt", "report.html"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    about: dict[str, Any]
    report: Path
    findings: list[Finding]
    wrong: list[str]  # lines about answers that differ
    measured: int  # points that did not fail


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Return experiments by their names, by a paper's name (``ssj``: all whose names begin so), or
    all. Raises ConfigError for an unknown name."""
    found: dict[str, Experiment] = {}
    for name in names:
        some = {
            k: e
            for k, e in EXPERIMENTS.items()
            if name in ("all", k)
            or k.rsplit("-", 1)[0] == name
            or (k.startswith(f"{name}-") and name in PAPERS)
        }
        if not some:
            raise ConfigError(
                "experiment",
                f"must be one of {', '.join(EXPERIMENTS)}; or of "
                f"{', '.join(PAPERS)}, for all of a paper's; or all",
                name,
                "See make papers ARGS=--list.",
            )
        found |= some
    return list(found.values())


PACKAGES = ("semistream", "numpy", "numba", "pyarrow")
PAPERS = ("ssj", "ssbj", "sscj", "x-hybridjoin", "pjoin", "sketch")


def run(
    experiment: Experiment, settings: ExperimentSettings, paths: Paths, command: str, tell: Tell
) -> Outcome:
    """Measure what is not measured yet, write the results, and judge the claims. A point that fails
    is reported in the results; no error is raised."""
    output = _output(experiment, settings, paths)
    output.mkdir(parents=True, exist_ok=True)
    bench, names = _bench(experiment, settings, paths, tell), _algorithms(experiment, settings)
    tell(f"{experiment.name}: {experiment.about}; scale {bench.scale:g}")
    repetitions = 1 if experiment.study else settings.repetitions
    most = 1 if experiment.study else max(repetitions, settings.up_to)
    about = _about(experiment, settings, bench, command) | {"repetitions": repetitions}
    known = {} if settings.again else _known(output, about, most)
    if not known and not settings.costs:  # the machine may have changed since an earlier run
        for path in kept_costs(output):
            path.unlink()
    points = list(experiment.points(bench, names))
    if not experiment.study:
        for p in points:  # measures this machine's costs before anything else
            bench.costs(p.data, p.tuples, p.skew)
        about["costs"] = bench.costs_used
    if known:
        tell(
            f"{len(known)} of {len(points) * repetitions} points are known from an earlier run "
            f"(--again measures them anew)"
        )
    runs: list[dict[str, Any]] = []
    try:
        for repetition in range(most):
            # The verdicts are checked only once: intervals would not hold if the repetitions
            # ended as soon as a verdict is decided.
            if repetition == repetitions:
                if not (open_claims := undecided(experiment, runs)):
                    break
                tell(f"not decided after {repetition} repetitions: {'; '.join(open_claims)}")
                about["repetitions"] = most
            with _runner(experiment, bench, settings, paths) as measure:
                for point in (
                    points if experiment.study else shuffled(experiment.name, repetition, points)
                ):
                    row = known.get((key(point), repetition))
                    if row is None:
                        row = measure(point, experiment.figures) | {
                            "point": key(point),
                            "repetition": repetition,
                            "measured_at": _now(),
                        }
                        tell(
                            f"[{len(runs) + 1}/{len(points) * about['repetitions']}] "
                            f"{progress_line(row, experiment)}"
                        )
                    runs.append(row)
                    _write(output, about, runs)
    finally:
        findings = judge(experiment, bench, points, runs)
        if runs:
            from benchmarks.papers.report import claims_text, write_report

            values = _write(output, about, runs, findings)
            write_text(output / CLAIMS, claims_text(values))
            write_report(
                output / REPORT,
                experiment,
                about,
                values["rows"],
                findings,
                values["wrong_answers"],
            )
    return Outcome(
        about,
        output / REPORT,
        findings,
        wrong_answers(runs),
        sum(r["state"] != FAILED for r in combined(runs)),
    )


@contextmanager
def _runner(
    experiment: Experiment, bench: Any, settings: ExperimentSettings, paths: Paths
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Yield the function that runs a point of one repetition. It runs in a separate process, or,
    for a study, whose repetitions are within its points, in this process."""
    if experiment.study:
        yield bench.run
        return
    with closing(Remote(partial(_open, experiment.name, settings, paths))) as remote:
        yield partial(remote.call, "run")


def _output(experiment: Experiment, settings: ExperimentSettings, paths: Paths) -> Path:
    return (settings.output or paths.home / "experiments") / experiment.name


def _open(name: str, settings: ExperimentSettings, paths: Paths) -> Any:
    return _bench(EXPERIMENTS[name], settings, paths, partial(print, file=sys.stderr))


def progress_line(row: dict[str, Any], experiment: Experiment | None = None) -> str:
    """Return a line that describes a point's row."""
    where = f"{row['series']:<20} |R| {row['master_tuples']:>11,}  skew {row['skew']:g}"
    if row["state"] == FAILED:
        return f"{where}  failed: {row['error']}"
    if experiment and experiment.study:
        return experiment.study.progress_line(row)
    sizes = ", ".join(
        f"{k} {v:,}" if not isinstance(v, str) else f"{k} {v}" for k, v in row["parameters"].items()
    )
    return (
        f"{where}  M {row['memory'] / 1e6:>8.2f} MB  {row['mu']:>11,.0f} tuples/s "
        f"(model {row['mu_model']:,.0f})  "
        f"{row['through_cache']:.0%} through the cache  {sizes}  {row['seconds']:.1f} s"
        + ("" if row["settled"] else "  not settled")
    )


def _bench(experiment: Experiment, settings: ExperimentSettings, paths: Paths, tell: Tell) -> Any:
    """Return a `Bench`, or a study's `Runner`."""
    wanted = settings.scale or experiment.scale
    if experiment.study:
        return experiment.study.open(wanted, paths, tell)
    scale = max(wanted, experiment.least)
    if scale > wanted:
        tell(
            f"{experiment.name}: scale {scale:g} in the place of {wanted:g}, the least at which "
            f"every M holds its disk buffers"
        )
    return Bench(
        paths,
        settings.data or paths.home / "experiments" / "data",
        scale,
        settings.seconds,
        settings.clock,
        settings.pace,
        burstiness=settings.burstiness,
        costs=settings.costs or _output(experiment, settings, paths),
        tuples=tuple(_numbers("master", settings.master, int)),
        percent=tuple(_numbers("memory", settings.memory, float)),
        skews=tuple(_numbers("skew", settings.skew, float)),
        tell=tell,
    )


def _numbers(name: str, texts: Sequence[str], kind: type) -> list[Any]:
    try:
        found = [kind(t) for t in texts]
    except ValueError:
        found = []
    if not found or min(found) < 0 or (name != "skew" and min(found) == 0):
        raise ConfigError(
            name,
            "must be positive numbers, separated by commas",
            ",".join(texts),
            "For instance 1,10.",
        )
    return found


def _algorithms(experiment: Experiment, settings: ExperimentSettings) -> list[str]:
    if experiment.study:
        for name in settings.algorithms:
            if name not in experiment.algorithms:
                raise ConfigError(
                    "algorithms",
                    f"must be of {', '.join(experiment.algorithms)}",
                    name,
                    "Leave it out.",
                )
        return list(settings.algorithms or experiment.algorithms)
    if settings.algorithms:
        return [find_algorithm(a).name for a in settings.algorithms]
    beside = [
        a
        for a, entry in REGISTRY.items()
        if not entry.published and experiment.beside and a in MODELS
    ]
    return list(dict.fromkeys([*experiment.algorithms, *beside]))


def _about(
    experiment: Experiment, settings: ExperimentSettings, bench: Any, command: str
) -> dict[str, Any]:
    study = experiment.study
    return {
        "experiment": experiment.name,
        "paper": experiment.paper,
        "figure": experiment.figure,
        "about": experiment.about,
        "scale": bench.scale,
        "seconds": settings.seconds,
        "clock": settings.clock,
        "pace": settings.pace,
        "burstiness": settings.burstiness,
        "costs_given": str(settings.costs or ""),
        "command": command,
        **commit(),
        "machine": machine(),
        "versions": versions(PACKAGES),
        "date": _now(),
        "page_cache": study.note if study else "R is read with O_DIRECT, past the page cache",
        "answers": study.answers if study else "of all joins equal, by checksum",
    }


# fields that must be equal for earlier results to be reused
SAME = (
    "experiment",
    "scale",
    "seconds",
    "clock",
    "pace",
    "burstiness",
    "costs_given",
    "commit",
    "dirty",
    "machine",
    "versions",
)


def _known(
    output: Path, about: dict[str, Any], repetitions: int
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows that were measured with the same settings, machine and code, by point and
    repetition."""
    try:
        before = json.loads((output / RESULTS).read_text())
        same = all(before["about"][k] == about[k] for k in SAME)
    except (OSError, ValueError, KeyError):
        return {}
    return (
        {
            (r["point"], r["repetition"]): r
            for r in before["runs"]
            if r["state"] != FAILED and r["repetition"] < repetitions
        }
        if same
        else {}
    )


def _write(
    output: Path,
    about: dict[str, Any],
    runs: Sequence[dict[str, Any]],
    findings: Sequence[Finding] = (),
) -> dict[str, Any]:
    """Write the results and return the part that was written as JSON."""
    rows = combined(runs)
    values = {
        "about": about | {"finished": _now()},
        "claims": claims(findings),
        "wrong_answers": wrong_answers(runs),
        "rows": rows,
        "runs": list(runs),
    }
    write_text(output / RESULTS, json.dumps(values, indent=1, default=str))
    columns = list(dict.fromkeys(k for r in rows for k in r))
    with open(output / TABLE, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(
            {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in r.items()}
            for r in rows
        )
    return values


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
