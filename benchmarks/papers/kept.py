"""The kept results of experiments, and their verdicts by the present claims and models.

python -m benchmarks keep DIRECTORY copies the results that ``python -m benchmarks.papers`` wrote
there to results/experiments. Each experiment has three files: NAME.json (its conditions, and the
claims), NAME.csv (its points, only numbers and names), NAME.txt (the claims as text). python -m
benchmarks verdicts measures nothing: it judges the kept points again, for instance after a claim, a
model or a benchmark at the paper's size has changed, and writes NAME.json and NAME.txt.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers import EXPERIMENTS, Experiment
from benchmarks.papers.bench import Bench, kept_costs
from benchmarks.papers.explain import explain
from benchmarks.papers.findings import Finding, claims
from benchmarks.papers.model import MEASURED, Claim, Number, Point
from benchmarks.papers.report import claims_text
from benchmarks.verdicts import Verdict, ratio_of
from semistream.cost_models import TYPICAL
from semistream.paths import Paths

RESULTS = Path(__file__).parent.parent / "results"
KEPT = RESULTS / "experiments"
INTERNAL = ("point", "repetitions")  # columns that are not kept
TYPICALLY = (
    "verdicts by today's claims and models; the models' at the paper's size by a typical "
    "machine's costs, as those of then were not kept"
)
TODAY = "verdicts by today's claims and models"


def keep(directory: Path) -> list[str]:
    """Copy the results of the experiments that were run in the directory. Return the experiments'
    names."""
    names = []
    for path in sorted(directory.glob("*/results.json")):
        found = json.loads(path.read_text())
        name = found["about"]["experiment"]
        rows = [
            {k: v for k, v in r.items() if k not in INTERNAL and not isinstance(v, dict | list)}
            for r in found["rows"]
        ]
        with open(KEPT / f"{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(k for r in rows for k in r)))
            writer.writeheader()
            writer.writerows(rows)
        kept = {k: found[k] for k in ("about", "claims", "wrong_answers")}
        costs = {p.stem: p.read_text() for p in kept_costs(path.parent)}
        _write(name, kept | ({"costs": costs} if costs else {}))
        names.append(name)
    return names


def judge_again(names: Iterable[str], work: Path) -> None:
    """Judge kept results again. work: a directory for data that the models need, created if it is
    missing."""
    for name in names or sorted(p.stem for p in KEPT.glob("*.json")):
        kept = json.loads((KEPT / f"{name}.json").read_text())
        experiment = EXPERIMENTS[name]
        if experiment.study:
            judged = _told_anew(experiment, kept["claims"])
        else:
            with open(KEPT / f"{name}.csv", newline="") as file:
                rows = [_typed(r) for r in csv.DictReader(file)]
            bench = _bench(kept, work)
            judged = claims(
                [_finding(experiment, c, rows, kept["claims"], bench) for c in experiment.claims]
            )
            by_text = {c.text: c for c in experiment.claims}
            kept["about"]["judged"] = TODAY if "costs" in kept else TYPICALLY
            for c in judged:
                c |= {"full": at_full_size(by_text[c["claim"]], rows)}
        _write(name, kept | {"claims": judged})


def _write(name: str, kept: dict[str, Any]) -> None:
    for c in kept["claims"]:
        c.pop("why", None)  # the shares of an iteration, which only the report shows
    (KEPT / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    (KEPT / f"{name}.txt").write_text(claims_text(kept))


def _told_anew(experiment: Experiment, kept: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the claims of a study, whose intervals are within its points. Figures and verdicts are
    unchanged, with the present reasons. A new claim is not measured."""
    before, found = {c["claim"]: c for c in kept}, []
    for claim in experiment.claims:
        old = before.get(claim.text)
        number = (
            Number(old["measured"], old["interval"] or 0.0, old["predicted"])
            if old and old["measured"] is not None
            else None
        )
        verdict = Verdict(old["verdict"]) if old else Verdict.NOT_MEASURED
        found += claims([Finding(claim, number, verdict, [], experiment.paper)])
    return found


def _finding(
    experiment: Experiment,
    claim: Claim,
    rows: Sequence[dict[str, Any]],
    kept: Sequence[Mapping[str, Any]],
    bench: Bench,
) -> Finding:
    number = claim.find(rows)
    if number is not None:
        before = [c["interval"] for c in kept if c["claim"] == claim.text]
        interval = before[0] or 0.0 if before else _interval(claim, rows, number.value)
        number = replace(number, interval=interval)
    beside = claim.beside[1](rows) if claim.beside else None
    scale = bench.scale if claim.full_size else 1.0
    found = Finding.of(experiment, claim, number, scale, beside)
    if not (claim.explain and number and found.failed):
        return found
    return replace(found, why=explain(bench, [_point(r, rows) for r in number.rows]))


def _interval(claim: Claim, rows: Sequence[dict[str, Any]], value: float) -> float:
    """Return half of the 95% interval of a claim that is newer than the repetitions: the effect of
    each point's interval on the claim's number, for independent points."""
    parts = []
    for i, row in enumerate(rows):
        if row["state"] == MEASURED and row.get("mu_interval"):
            other = [
                *rows[:i],
                row | {"mu": row["mu"] + min(row["mu_interval"], row["mu"])},
                *rows[i + 1 :],
            ]
            number = claim.find(other)
            parts.append(number.value - value if number else 0.0)
    return math.hypot(*parts)


def at_full_size(claim: Claim, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the result of a benchmark for the claim at the paper's own |R| and M; None if there is
    none. Of several benchmarks, the one counts in which most algorithms had settled, and of equal
    ones the one that ran longest."""
    found = []
    for stated in claim.stated:
        at = stated.at
        case = f"R={at.tuples:,} M={at.memory_percent:g}% zipf {at.skew:g}"
        for path in sorted(RESULTS.glob("memory-*.jsonl")):
            of = {
                r["peer"]: r
                for r in map(json.loads, path.read_text().splitlines())
                if r["case"] == case and "rates" in r
            }
            if not {stated.faster, stated.slower} <= of.keys():
                continue
            one, other = of[stated.faster], of[stated.slower]
            settled = one["settled"] + other["settled"]
            found.append((settled, one["seconds"], _full(claim, path.stem, one, other)))
    if not found:
        return None
    best = max(found, key=lambda f: f[:2])[2]
    unique = any(r["data"] == "zipf-many" for r in rows)
    return best | {"told": best["told"] + (", with unique keys in R" if unique else "")}


def _full(
    claim: Claim, name: str, one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, Any]:
    needed = (one,) if claim.full_size else (one, other)  # a share needs one, a ratio two
    unsettled = [r["peer"] for r in needed if not r["settled"]]
    if claim.full_size:
        number = Number(one["extra"]["% through the cache"] / 100)
    else:
        ratio = ratio_of(one["rates"], other["rates"])
        number = Number(ratio.value, (ratio.high - ratio.low) / 2)
    verdict = Verdict.NOT_DECIDED if unsettled else claim.verdict(number)
    source = f"benchmark {name}" + (f", {' and '.join(unsettled)} not settled" if unsettled else "")
    return {
        "measured": number.value,
        "interval": number.interval,
        "verdict": verdict,
        "told": source,
    }


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    return {k: _value(v) for k, v in row.items() if v != "" or k == "error"}


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _point(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Point:
    """Return the point at which the row was measured. M is a share of the largest R if |R|
    varies."""
    largest = max(r["master_tuples"] for r in rows)
    varies = any(r["relation_percent"] != 100 for r in rows)
    flights = row["data"] == "flights"
    return Point(
        row["algorithm"],
        0 if flights else row["master_tuples"],
        row["memory_percent"] / 100,
        row["skew"],
        row["data"],
        memory_of=largest if varies else 0,
        rate=row["rate"],
        needed="needed" in row,
    )


def _bench(kept: Mapping[str, Any], work: Path) -> Bench:
    costs = work / "costs" / kept["about"]["experiment"]
    costs.mkdir(parents=True, exist_ok=True)
    for stem, text in kept.get("costs", {}).items():
        (costs / f"{stem}.yaml").write_text(text)
    if "costs" not in kept:
        costs = costs / "typical.yaml"
        TYPICAL.save(costs)
    return Bench(Paths.from_environment(), work / "data", kept["about"]["scale"], costs=costs)
