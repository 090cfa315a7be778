"""Tuning by measurement: calibration of the costs, sweeps, and their reports. Importing
``settings`` is fast."""
