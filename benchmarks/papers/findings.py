"""The findings: the papers' claims, each with the measured number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.papers.contradictions import against
from benchmarks.papers.explain import Setting, brief, explain, reason
from benchmarks.papers.model import FAILED, Claim, Experiment, Find, Number, Row, apart
from benchmarks.papers.repetitions import combined
from benchmarks.verdicts import Verdict, half_width


@dataclass(frozen=True)
class Finding:
    """A claim with its measured number, the verdict and explanations."""

    claim: Claim
    number: Number | None
    verdict: Verdict
    why: list[Setting]
    paper: str = ""
    elsewhere: bool = False  # not decided, because |R| is not the paper's
    beside: Number | None = None  # the number of `Claim.beside`

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        claim: Claim,
        number: Number | None,
        scale: float,
        beside: Number | None = None,
    ) -> Finding:
        """Judge a claim's number and return the finding. beside: a number that is shown next to the
        claim's."""
        elsewhere = claim.full_size and number is not None and scale != 1
        verdict = Verdict.NOT_DECIDED if elsewhere else claim.verdict(number)
        return cls(claim, number, verdict, [], experiment.paper, elsewhere, beside)

    @property
    def reason(self) -> str:
        """Why the claim does not hold: a contradiction in the paper, the explanation of the cost
        models, what the measured rows tell, and the claim's note. For a claim that holds, only
        further remarks."""
        parts = []
        if self.failed:
            if self.against:
                parts.append(
                    f"The paper contradicts the claim: for the same setting "
                    f"({self.claim.stated[0].at}) it also states {', '.join(self.against)}."
                )
            parts += [
                reason(self.claim, self.why, self.number.predicted if self.number else None)
                or _sentence(self.by_models),
                _sentence(self.number.told if self.number else ""),
                _sentence(self.claim.note),
            ]
        if self.elsewhere:
            parts.append(
                "It is of the paper's |R|: of a Zipf stream a cache answers another share "
                "where |R| is another."
            )
        if self.no_slices:
            parts.append(NO_SLICES)
        return " ".join(filter(None, (*parts, _sentence(self.claim.reading), self._beside)))

    @property
    def brief(self) -> str:
        """The reason in a few words, for a table, without what else the paper states and without
        remarks on how the claim's words are interpreted."""
        parts = []
        if self.failed:
            parts += [
                brief(self.claim, self.why, self.number.predicted if self.number else None)
                or self.by_models.replace(" at the sizes and costs here:", " here"),
                self.number.told if self.number else "",
                self.claim.short or self.claim.note,
            ]
        if self.elsewhere:
            parts.append("of another |R|")
        if self.no_slices:
            parts.append(ONE_SLICE)
        return "; ".join(filter(None, parts))

    @property
    def against(self) -> list[str]:
        """What else the paper states of the setting of a claim that does not hold."""
        return list(map(str, against(self.paper, self.claim))) if self.failed else []

    @property
    def by_models(self) -> str:
        """The models' prediction for this machine, if there is one."""
        if self.number is None or not self.number.predicted:
            return ""
        given = self.number.predicted
        figure = f"{given:.1%}" if self.claim.unit == "%" else f"{given:.2f}"
        return (
            f"models at the sizes and costs here: {figure}, "
            f"measured {apart(self.number.value / given - 1)}"
        )

    @property
    def failed(self) -> bool:
        return self.verdict not in (Verdict.REPRODUCED, Verdict.MET, Verdict.NOT_MEASURED)

    @property
    def no_slices(self) -> bool:
        return any(
            r["algorithm"] == "r-meshjoin" and r.get("slices") == 1
            for r in (self.number.rows if self.number else ())
        )

    @property
    def _beside(self) -> str:
        if not (self.claim.beside and self.beside):
            return ""
        interval = self.beside.interval
        about = f" ± {interval:.2f}" if 0 < interval < math.inf else ""
        return f"{self.claim.beside[0]}: {self.beside.value:.2f}{about}."


ONE_SLICE = "q = 1"
NO_SLICES = (
    f"Of R-MESHJOIN the model chooses {ONE_SLICE} slices, with which it is MESHJOIN: "
    "nothing here tells one from the other."
)


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}." if note else ""


def key(point: Any) -> str:
    return json.dumps(asdict(point), sort_keys=True)


def judge(
    experiment: Experiment, bench: Any, points: Sequence[Any], runs: Sequence[dict[str, Any]]
) -> list[Finding]:
    """Judge the claims. A claim's number is computed from the means over the repetitions, and its
    interval from the numbers of the single repetitions."""
    of = {key(p): p for p in points}
    findings = []
    for claim, number, beside in _numbers(experiment, runs):
        if number is None and claim.aim:  # the algorithm was not chosen
            continue
        why = (
            explain(bench, [of[r["point"]] for r in number.rows])
            if claim.explain and number and number.rows
            else []
        )
        scale = bench.scale if claim.full_size else 1.0
        findings.append(replace(Finding.of(experiment, claim, number, scale, beside), why=why))
    return findings


def undecided(experiment: Experiment, runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the claims that more repetitions might decide."""
    return [
        claim.text + (" (our own aim)" if claim.aim else "")
        for claim, number, _ in _numbers(experiment, runs)
        if claim.verdict(number) is Verdict.NOT_DECIDED
    ]


def _numbers(
    experiment: Experiment, runs: Sequence[dict[str, Any]]
) -> Iterator[tuple[Claim, Number | None, Number | None]]:
    """Yield each claim with its number, and with a second number that is shown next to it."""
    rows = combined(runs)
    repetitions = [
        [r for r in runs if r["repetition"] == i] for i in sorted({r["repetition"] for r in runs})
    ]

    def found(find: Find) -> Number | None:
        number = find(rows)
        if number and not experiment.study:
            each = [n.value for r in repetitions if (n := find(r))]
            number = replace(number, interval=half_width(each))
        return number

    for claim in experiment.claims:
        yield claim, found(claim.find), found(claim.beside[1]) if claim.beside else None


def wrong_answers(rows: Sequence[Row]) -> list[str]:
    """Return a line for each data set whose joins gave different answers."""
    wrong = []
    answers: dict[tuple[Any, ...], dict[str, str]] = {}
    for r in rows:
        if r["state"] != FAILED:
            answers.setdefault((r["data"], r["master_tuples"], r["skew"]), {}).setdefault(
                r["answer"], r["series"]
            )
    for (data, tuples, skew), found in answers.items():
        if len(found) > 1:
            wrong.append(
                f"{data}, |R| = {tuples:,}, skew {skew:g}: "
                + ", ".join(f"{who} {sum_}" for sum_, who in found.items())
            )
    return wrong


def claims(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the findings in the form of results.json."""
    return [
        {
            "claim": f.claim.text,
            "claimed": f.claim.claimed,
            "unit": f.claim.unit,
            "verdict": f.verdict,
            "measured": f.number and f.number.value,
            "interval": f.number.interval
            if f.number and math.isfinite(f.number.interval)
            else None,
            "predicted": f.number and f.number.predicted,
            "why": [asdict(s) for s in f.why],
            "reason": f.reason,
            "brief": f.brief,
            **{k: v for k, v in _further(f).items() if v},
        }
        for f in findings
    ]


def _further(finding: Finding) -> dict[str, Any]:
    """Return the values that only some findings have."""
    return {
        "aim": finding.claim.aim,
        "against": finding.against,
        "beside": finding.beside and finding.beside.value,
    }
