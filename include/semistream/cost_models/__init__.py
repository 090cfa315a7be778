"""The papers' cost models: one module per algorithm, one function per equation. ``MODELS`` lists
them by the joins' names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semistream.cost_models import (
    cmeshjoin,
    elevatorjoin,
    hybridjoin,
    meshjoin,
    partition_join,
    r_meshjoin,
    ssbj,
    sscj,
    ssij,
    ssj,
    x_hybridjoin,
)
from semistream.cost_models.costs import TYPICAL, Costs, Cut, Prediction, Workload
from semistream.cost_models.frequencies import Frequencies


@dataclass(frozen=True)
class Model:
    predict: Callable[..., Prediction]  # (workload, memory in bytes, costs, **sizes)
    sizes: tuple[str, ...]  # the operator's parameters that can be tuned
    chooses: tuple[str, ...] = ()  # parameters that `predict` chooses for given sizes
    phase: str = "scan"  # how the join reads R, one of `costs.PHASES`


MODELS: dict[str, Model] = {
    "meshjoin": Model(meshjoin.predict, ("disk_tuples",)),
    "r-meshjoin": Model(r_meshjoin.predict, ("disk_tuples", "slices")),
    "cmeshjoin": Model(cmeshjoin.predict, ("disk_tuples", "cache_tuples")),
    "ssj": Model(ssj.predict, ("disk_tuples", "cache_tuples")),
    "ssbj": Model(ssbj.predict, ("disk_tuples",)),
    "hybridjoin": Model(hybridjoin.predict, ("disk_tuples",), phase="index"),
    "x-hybridjoin": Model(x_hybridjoin.predict, ("disk_tuples",), phase="index"),
    "tuned-x-hybridjoin": Model(x_hybridjoin.predict, ("disk_tuples", "resident_tuples"),
                                phase="index"),
    "sscj": Model(sscj.predict, ("disk_tuples", "cache_tuples"), phase="index"),
    "ssij": Model(ssij.predict, ("disk_tuples", "cache_share"), phase="index"),
    "partition-join": Model(partition_join.predict, ("disk_tuples", "cache_share"), phase="index"),
    "elevatorjoin": Model(elevatorjoin.predict, ("disk_tuples",), ("filter_bits",), "elevator"),
}

__all__ = ["MODELS", "TYPICAL", "Costs", "Cut", "Frequencies", "Model", "Prediction", "Workload"]
