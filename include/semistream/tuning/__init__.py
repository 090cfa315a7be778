"""Calibrating, predicting and tuning the joins."""

from semistream.tuning.calibration import calibrate
from semistream.tuning.choice import Choice, choose, known_costs
from semistream.tuning.search import predict, tune, tune_all
from semistream.tuning.workload import describe, observe

__all__ = ["Choice", "calibrate", "choose", "describe", "known_costs", "observe", "predict", "tune", "tune_all"]
