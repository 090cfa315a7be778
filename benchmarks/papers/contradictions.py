"""Contradictions within a paper: different figures for one setting. They are found without a model,
and no implementation can reproduce all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.papers import EXPERIMENTS, Experiment
from benchmarks.papers.model import At, Claim, Stated
from semistream.joins import REGISTRY

ABOUT = 0.1  # "about 7 times" may be so much more or less


@dataclass(frozen=True)
class Contradiction:
    """A contradiction. stated: what the paper says about one setting."""

    paper: str
    at: At
    stated: tuple[Stated, ...]

    @property
    def about(self) -> str:
        """The titles of the two algorithms that the contradiction is about."""
        one = self.stated[0]
        return f"{REGISTRY[one.faster].title} over {REGISTRY[one.slower].title}"


def contradictions(experiments: Iterable[Experiment] = ()) -> list[Contradiction]:
    """Return the settings for which a paper states ratios that contradict each other."""
    groups: dict[tuple[str, At, str, str], dict[Stated, None]] = {}
    for e in experiments or EXPERIMENTS.values():
        for s in (s for c in e.claims for s in c.stated):
            groups.setdefault((e.paper, s.at, s.faster, s.slower), {})[s] = None
    return [
        Contradiction(paper, at, tuple(stated))
        for (paper, at, _, _), stated in groups.items()
        if not _agree(stated)
    ]


def _agree(stated: Iterable[Stated]) -> bool:
    """Return whether one ratio can satisfy all statements."""
    low = max(0.0 if s.at_most else s.times * (1 - ABOUT) for s in stated)
    high = min(s.times * (1 + ABOUT) for s in stated)
    return low <= high


def against(paper: str, claim: Claim) -> list[Stated]:
    """Return the other statements of the paper on the claim's setting that contradict the claim."""
    return [
        s
        for c in contradictions()
        if c.paper == paper and set(claim.stated) & set(c.stated)
        for s in c.stated
        if not any(_agree((s, mine)) for mine in claim.stated)
    ]
