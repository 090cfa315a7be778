"""The choice of an algorithm and of its sizes. The cost models decide everything that a user left
open.

The names listed here are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.sizing.choice import choose, known_costs
    from semistream.sizing.opening import open_join
    from semistream.sizing.search import predict, tune, tune_all
    from semistream.sizing.workload import describe

MODULES = {
    "choose": "choice",
    "known_costs": "choice",
    "open_join": "opening",
    "predict": "search",
    "tune": "search",
    "tune_all": "search",
    "describe": "workload",
}
__all__ = ["choose", "describe", "known_costs", "open_join", "predict", "tune", "tune_all"]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
