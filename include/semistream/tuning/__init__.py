"""Calibrating, predicting and tuning the joins. What is listed here is imported when it is asked for; ``settings`` is light."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.tuning.calibration import calibrate
    from semistream.tuning.choice import SMALLEST, Choice, choose, known_costs
    from semistream.tuning.search import predict, tune, tune_all
    from semistream.tuning.workload import describe, observe

__all__ = ["SMALLEST", "Choice", "calibrate", "choose", "describe", "known_costs", "observe", "predict", "tune", "tune_all"]
MODULES = {"calibrate": "calibration", "describe": "workload", "observe": "workload", "Choice": "choice", "choose": "choice",
           "known_costs": "choice", "SMALLEST": "choice"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{MODULES.get(name, 'search')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
