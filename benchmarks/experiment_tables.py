"""The tables of the papers' experiments and of their claims, in Markdown."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.changes import changes_since, measured_at, to_measure_again
from benchmarks.papers import EXPERIMENTS, Experiment
from benchmarks.papers.contradictions import contradictions
from benchmarks.papers.findings import ONE_SLICE
from benchmarks.papers.kept import KEPT, RESULTS
from benchmarks.papers.model import Claim
from benchmarks.papers.report import shown
from benchmarks.verdicts import Verdict

SETTING = ("data", "master_tuples", "memory_percent", "skew", "rate")  # of an experiment's points
EQUATIONS = ("-cost", "-phases", "-eq6")  # experiments on single equations
UNMEASURED = {"measured": None, "verdict": Verdict.NOT_MEASURED, "brief": ""}


def claims_of(name: str) -> str:
    """Return the claims of an experiment as they are in its text file."""
    machine, _, command, _, *lines = (RESULTS / f"{name}.txt").read_text().splitlines()
    found = _points(RESULTS / f"{name}.csv")
    at, changed = _commit(RESULTS / f"{name}.txt")
    flaws = changes_since(at, changed, {r["algorithm"] for r in found}, [])
    text = "\n".join(["```", *(line for line in lines if line), "```", ""])
    return f"{text}\n{measured_at(command.removeprefix('$ '), at, machine, flaws)}\n"


def of_paper(prefix: str) -> str:
    """Return the table of the first claim of each of a paper's experiments, and the number of all
    its claims by verdict."""
    found = _kept_claims(prefix)
    every = [k for _, claims in found for _, k in claims]
    counts = Counter(k["verdict"] for k in every)
    told = f"All {len(every)}: {', '.join(f'{n} {v}' for v, n in counts.most_common())}."
    first = [(e, e.headline or claims[0][0].text, _in_short(claims[0][1])) for e, claims in found]
    return "\n".join([*_rows(first), "", told, *_again(found), ""])


def all_of_paper(prefix: str) -> str:
    """Return the table of all claims of a paper, on the page that is only about it."""
    found = _kept_claims(prefix)
    rows = [(e, _with_figure(claim), _claim(kept)) for e, claims in found for claim, kept in claims]
    return "\n".join([*_rows(rows), *_again(found), ""])


def _with_figure(claim: Claim) -> str:
    """Return a claim's text with the claimed figure, which that of a share does not name."""
    return claim.text + (f" ({claim.claimed})" if claim.unit == "%" else "")


def _rows(rows: Iterable[tuple[Experiment, str, str]]) -> list[str]:
    """Return the lines of a table of claims: the experiment, to whose file there is a link, the
    claim, and the other three cells."""
    return [
        "",
        "| figure, claim | measured | verdict | reason |",
        "|---|---|---|---|",
        *(
            _escaped(
                f"| [{e.figure.removeprefix('Fig. ')}](../benchmarks/results/experiments/"
                f"{e.name}.txt) {claim} | {told} |"
            )
            for e, claim, told in rows
        ),
    ]


def claims_of_paper(prefix: str) -> str:
    """Return the table of a paper's claims, one row each."""
    lines = [
        "",
        "| experiment, figure | claim | measured | verdict | reason |",
        "| --- | --- | --- | --- | --- |",
    ]
    found = _kept_claims(prefix)
    lines += [
        _escaped(f"| {_titled(e)} | {claim.text} | {_claim(kept)} |")
        for e, claims in found
        for claim, kept in claims
    ]
    return "\n".join([*lines, *_again(found), ""])


def _kept_claims(prefix: str) -> list[tuple[Experiment, list[tuple[Claim, dict[str, Any]]]]]:
    """Return the claims of a paper's experiments, each with its kept results. Three kinds are
    omitted, which are only in the experiments' files: this project's own aims, claims about single
    equations, and results that cannot distinguish R-MESHJOIN from MESHJOIN."""
    found = []
    for e in (e for e in EXPERIMENTS.values() if e.name.startswith(f"{prefix}-")):
        path = KEPT / f"{e.name}.json"
        known = json.loads(path.read_text())["claims"] if path.exists() else []
        by_text = {c["claim"]: c for c in known}
        if not e.name.endswith(EQUATIONS):
            claims = [(c, by_text.get(c.text, UNMEASURED)) for c in e.claims if not c.aim]
            found.append((e, [(c, k) for c, k in claims if ONE_SLICE not in k["brief"]]))
    return found


def _again(experiments: Iterable[tuple[Experiment, object]]) -> list[str]:
    """Return the mark below a table of several experiments' results; no lines if none is needed."""
    changed, dirty = set[str](), False
    for path in (KEPT / f"{e.name}.txt" for e, _ in experiments):
        if path.exists():
            at, was_dirty = _commit(path)
            changed |= {
                a
                for a in {r["algorithm"] for r in _points(path.with_suffix(".csv"))}
                if changes_since(at, False, [a], [])
            }
            dirty |= was_dirty
    return to_measure_again(changed, dirty)


def _titled(experiment: Experiment) -> str:
    return f"{experiment.name}, {experiment.figure.removeprefix('Fig. ')}"


def _escaped(line: str) -> str:
    return line.replace("|R|", r"\|R\|")


def _claim(claim: Mapping[str, Any]) -> str:
    """Return a claim's measured number, verdict and reason as text."""
    if claim["measured"] is None:
        return "– | not measured yet | "
    measured = shown(claim["measured"], claim["unit"], claim["interval"] or 0)
    if claim.get("beside"):
        measured += f"; as before: {shown(claim['beside'], claim['unit'])}"
    if full := claim.get("full"):
        there = shown(full["measured"], claim["unit"], full["interval"])
        verdict = "not settled" if "not settled" in full["told"] else full["verdict"]
        measured += f"; paper's size: {there}, {verdict}"
    others = claim.get("against")
    also = f"the paper also states {', '.join(others)}" if others else ""
    return f"{measured} | {claim['verdict']} | {'; '.join(filter(None, (also, claim['brief'])))}"


def _in_short(claim: Mapping[str, Any]) -> str:
    """Return a claim's measured number, verdict and reason without what only `_claim` has."""
    if claim["measured"] is None:
        return _claim(claim)
    measured = shown(claim["measured"], claim["unit"], claim["interval"] or 0)
    also = "contradicted" if claim.get("against") else ""
    return f"{measured} | {claim['verdict']} | {'; '.join(filter(None, (also, claim['brief'])))}"


def contradicted(_: str = "") -> str:
    lines = ["", "| paper | setting | ratio of | stated |", "| --- | --- | --- | --- |"]
    for c in contradictions():
        stated = "; ".join(map(str, c.stated))
        lines.append(_escaped(f"| {c.paper} | {c.at} | {c.about} | {stated} |"))
    return "\n".join([*lines, ""])


class Behind(NamedTuple):
    """A point of an experiment at which another algorithm is faster, by the means over all
    repetitions. half: half of the interval of the ratio, which is that of two independent means."""

    experiment: str
    data: str
    memory: float
    skew: float
    fastest: str
    ratio: float
    half: float
    changed: frozenset[str]  # algorithms to measure again

    @property
    def decided(self) -> bool:
        return self.ratio + self.half < 1

    def __str__(self) -> str:
        undecided = "" if self.decided else ", not decided"
        return f"{self.ratio:.2f} ± {self.half:.2f}{undecided}"


def behind(ours: str) -> str:
    """Return the points of experiments at which another algorithm is faster than `ours`."""
    points = list(_behind(ours))
    lines = [
        "",
        f"| experiment | data | M, % of R | skew | fastest algorithm | {ours}'s rate over its |",
        "| --- | --- | --: | --: | --- | --- |",
        *(
            f"| {p.experiment} | {p.data} | {p.memory:g} | {p.skew:g} | {p.fastest} | {p} |"
            for p in points
        ),
    ]
    return "\n".join([*lines, *_points_again(points), ""])


def behind_in_short(ours: str) -> str:
    """Return the number of these points, and the lowest ratio, for each data set and each fastest
    algorithm."""
    points = list(_behind(ours))
    found: dict[tuple[str, str], list[Behind]] = {}
    for p in points:
        found.setdefault((p.data, p.fastest), []).append(p)
    lines = [
        "",
        f"| data | fastest algorithm | points | decided | {ours}'s least rate over its |",
        "| --- | --- | --: | --: | --- |",
        *(
            f"| {data} | {fastest} | {len(mine)} | {sum(p.decided for p in mine)} | "
            f"{min(mine, key=lambda p: p.ratio)} |"
            for (data, fastest), mine in found.items()
        ),
    ]
    return "\n".join([*lines, *_points_again(points), ""])


def _points_again(points: Iterable[Behind]) -> list[str]:
    return to_measure_again(frozenset[str]().union(*(p.changed for p in points)))


def _behind(ours: str) -> Iterator[Behind]:
    """Yield the points of all experiments at which another algorithm is faster than `ours`."""
    for path in sorted(KEPT.glob("*.csv")):
        points: dict[tuple[str, ...], dict[str, Mapping[str, str]]] = {}
        for r in _points(path):
            if r.get("mu") and not any(k.startswith("at_") and r[k] for k in r):
                at = tuple(r[k] for k in SETTING)
                points.setdefault(at, {})[r["algorithm"]] = r
        for (data, _, memory, skew, rate), rows in sorted(
            points.items(), key=lambda p: (p[0][0], *map(float, p[0][1:]))
        ):
            best = max(rows, key=lambda a: float(rows[a]["mu"]))
            if ours in rows and best != ours and float(rate) == 0:
                ratio = float(rows[ours]["mu"]) / float(rows[best]["mu"])
                half = ratio * math.hypot(
                    *(float(rows[a]["mu_interval"]) / float(rows[a]["mu"]) for a in (ours, best))
                )
                measured = _commit(path.with_suffix(".txt"))
                changed = {a for a in (ours, best) if changes_since(*measured, (a,), [])}
                yield Behind(
                    path.stem,
                    data,
                    float(memory),
                    float(skew),
                    best,
                    ratio,
                    half,
                    frozenset(changed),
                )


def _commit(path: Path) -> tuple[str, bool]:
    """Return the commit at which an experiment was measured, and whether files had changed."""
    at = path.read_text().splitlines()[1].removeprefix("commit ").split(",")[0]
    return at.split()[0].split("-")[0], "change" in at


def _points(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
