"""The experiments of the papers, by name. A new experiment is an entry in its paper's module."""

from __future__ import annotations

from benchmarks.papers import (
    cost_models,
    pjoin,
    sketches,
    ssbj,
    sscj,
    ssj,
    state_on_disk,
    x_hybridjoin,
)
from benchmarks.papers.model import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for module in (ssj, ssbj, sscj, x_hybridjoin, pjoin, state_on_disk, sketches, cost_models)
    for e in module.EXPERIMENTS
}

__all__ = ["EXPERIMENTS", "Experiment"]
