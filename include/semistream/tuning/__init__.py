"""Tuning by measurement: calibration of the costs, sweeps, their reports. Importing ``settings`` is
cheap."""
