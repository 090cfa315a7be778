"""Which algorithm, and which sizes: the one place where what a user left open is decided, by the
cost models.

What is listed here is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.sizing.choice import Choice, choose, known_costs
    from semistream.sizing.opening import open_join
    from semistream.sizing.plan import Plan
    from semistream.sizing.search import predict, tune, tune_all
    from semistream.sizing.workload import describe, observe

MODULES = {"Choice": "choice", "choose": "choice", "known_costs": "choice", "open_join": "opening",
           "Plan": "plan", "predict": "search", "tune": "search", "tune_all": "search",
           "describe": "workload", "observe": "workload"}
__all__ = ["Choice", "Plan", "choose", "describe", "known_costs", "observe", "open_join", "predict",
           "tune", "tune_all"]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
