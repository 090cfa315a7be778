"""What the papers claim, and what was found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from semistream.experiments.explain import Setting, explain, reason
from semistream.experiments.model import FAILED, Claim, Experiment, Find, Number, Row
from semistream.experiments.repetitions import combined
from semistream.experiments.verdicts import Verdict, half_width


@dataclass(frozen=True)
class Finding:
    """A claim, and what was found."""

    claim: Claim
    number: Number | None
    verdict: Verdict
    why: list[Setting]
    beside: Number | None = None  # of `Claim.beside`

    @property
    def reason(self) -> str:
        """Why the claim does not hold, by the cost models, or what is noted of it; and what is told
        beside it. Empty where it holds and there is nothing else to tell."""
        return " ".join(part for part in (self._why, self._beside) if part)

    @property
    def _why(self) -> str:
        if self.verdict in (Verdict.REPRODUCED, Verdict.MET, Verdict.NOT_MEASURED):
            return ""
        note = self.claim.note
        return reason(self.claim, self.why) or (f"{note[0].upper()}{note[1:]}." if note else "")

    @property
    def _beside(self) -> str:
        if not (self.claim.beside and self.beside):
            return ""
        interval = self.beside.interval
        about = f" ± {interval:.2f}" if 0 < interval < math.inf else ""
        return f"{self.claim.beside[0]}: {self.beside.value:.2f}{about}."


def key(point: Any) -> str:
    return json.dumps(asdict(point), sort_keys=True)


def judge(experiment: Experiment, bench: Any, points: Sequence[Any],
          runs: Sequence[dict[str, Any]]) -> list[Finding]:
    """A claim's figure is that of the means; its interval is over those of each repetition."""
    of, rows = {key(p): p for p in points}, combined(runs)
    repetitions = [[r for r in runs if r["repetition"] == i]
                   for i in sorted({r["repetition"] for r in runs})]
    findings = []

    def found(find: Find) -> Number | None:
        number = find(rows)
        if number and not experiment.study:
            each = [n.value for r in repetitions if (n := find(r))]
            number = replace(number, interval=half_width(each))
        return number

    for claim in experiment.claims:
        number = found(claim.find)
        if number is None and claim.aim:  # of an algorithm that was not asked for
            continue
        why = (explain(bench, [of[r["point"]] for r in number.rows]) if claim.explain and number
               and number.rows else [])
        findings.append(Finding(claim, number, claim.verdict(number), why,
                                found(claim.beside[1]) if claim.beside else None))
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
             "verdict": f.verdict, "measured": f.number and f.number.value,
             "interval": f.number.interval if f.number and math.isfinite(f.number.interval)
             else None, "predicted": f.number and f.number.predicted,
             "why": [asdict(s) for s in f.why], "reason": f.reason} for f in findings]
