"""A clock that tests move."""

from __future__ import annotations


class Seconds:
    """It stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-7  # readings differ
        return self.now
