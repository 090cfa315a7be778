"""What the papers claim, and what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semistream.experiments.explain import Setting, explain
from semistream.experiments.model import FAILED, Claim, Experiment, Number, Row


@dataclass(frozen=True)
class Finding:
    """A claim, and what was found."""

    claim: Claim
    number: Number | None
    verdict: str
    why: list[Setting]


def key(point: Any) -> str:
    return json.dumps(asdict(point), sort_keys=True)


def judge(experiment: Experiment, bench: Any, points: Sequence[Any],
          rows: Sequence[dict[str, Any]]) -> list[Finding]:
    of = {key(p): p for p in points}
    findings = []
    for claim in experiment.claims:
        number = claim.find(rows)
        if number is None and claim.aim:  # of an algorithm that was not asked for
            continue
        why = (explain(bench, [of[r["point"]] for r in number.rows]) if claim.explain and number
               and number.rows else [])
        findings.append(Finding(claim, number, claim.verdict(number), why))
    return findings


def wrong_answers(rows: Sequence[Row]) -> list[str]:
    """Where joins of the same tuples gave different answers."""
    wrong = []
    answers: dict[tuple[Any, ...], dict[str, str]] = {}
    for r in rows:
        if r["state"] != FAILED:
            answers.setdefault((r["data"], r["master_tuples"], r["skew"]),
                               {}).setdefault(r["answer"], r["series"])
    for (data, tuples, skew), found in answers.items():
        if len(found) > 1:
            wrong.append(f"{data}, |R| = {tuples:,}, skew {skew:g}: "
                         + ", ".join(f"{who} {sum_}" for sum_, who in found.items()))
    return wrong


def claims(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """As results.json has them."""
    return [{"claim": f.claim.text, "claimed": f.claim.claimed, "unit": f.claim.unit,
             "verdict": f.verdict,
             "measured": f.number and f.number.value, "interval": f.number and f.number.interval,
             "predicted": f.number and f.number.predicted, "why": [asdict(s) for s in f.why]}
            for f in findings]
