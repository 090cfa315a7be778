"""Measuring what sizes bring: calibration of the costs, sweeps, their pages. ``settings`` is
light."""
