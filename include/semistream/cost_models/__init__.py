"""The papers' cost models: one module per algorithm, one function per equation. ``MODELS`` lists
the models by the names of the joins.

Sizes are bytes or tuples, costs and times are seconds, rates are tuples per second. The papers give
costs in nanoseconds and multiply each c_loop by 10^-9; here that factor does not appear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from semistream.cost_models.sizes import (
    CACHE_SHARE,
    CACHE_TUPLES,
    DISK_TUPLES,
    RESIDENT_TUPLES,
    SLICES,
    Size,
)


@dataclass(frozen=True)
class Model:
    """The cost model of an algorithm, and the sizes that the search chooses for it."""

    predict: Callable[..., Prediction]  # (workload, memory in bytes, costs, **sizes)
    sizes: Mapping[str, Size]  # the operator's parameters that the search chooses, by name
    chooses: tuple[str, ...] = ()  # parameters that `predict` chooses for given sizes
    phase: str = "scan"  # how the join reads R, one of `costs.PHASES`


_DISK: dict[str, Size] = {"disk_tuples": DISK_TUPLES}
_CACHE = _DISK | {"cache_tuples": CACHE_TUPLES}
_BLOCKS = _DISK | {"cache_share": CACHE_SHARE}

MODELS: dict[str, Model] = {
    "meshjoin": Model(meshjoin.predict, _DISK),
    "r-meshjoin": Model(r_meshjoin.predict, _DISK | {"slices": SLICES}),
    "cmeshjoin": Model(cmeshjoin.predict, _CACHE),
    "ssj": Model(ssj.predict, _CACHE),
    "ssbj": Model(ssbj.predict, _DISK),
    "hybridjoin": Model(hybridjoin.predict, _DISK, phase="index"),
    "x-hybridjoin": Model(x_hybridjoin.predict, _DISK, phase="index"),
    "tuned-x-hybridjoin": Model(
        x_hybridjoin.predict, _DISK | {"resident_tuples": RESIDENT_TUPLES}, phase="index"
    ),
    "sscj": Model(sscj.predict, _CACHE, phase="index"),
    "ssij": Model(ssij.predict, _BLOCKS, phase="index"),
    "partition-join": Model(partition_join.predict, _BLOCKS, phase="index"),
    "elevatorjoin": Model(elevatorjoin.predict, _DISK, ("filter_bits",), "elevator"),
}

__all__ = [
    "MODELS",
    "TYPICAL",
    "Costs",
    "Cut",
    "Frequencies",
    "Model",
    "Prediction",
    "Size",
    "Workload",
]
