"""Peers of a benchmark that measure nothing. The processes of `harness.run_once` import this file,
which is all that they need of the tests."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import harness
from benchmarks.data import Answer


class Fixed:
    """A peer that gives so many rows, and notes in a file that it ran."""

    def __init__(self, rows: int = 3, log: Path | None = None, name: str = ""):
        self.rows, self.log, self.name = rows, log, name

    def __call__(self):
        return self

    def measure(self):
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{self.name} {os.getpid()}\n")
        return harness.Sample(3, 0.5)

    def finish(self):
        return harness.Result(Answer(self.rows, 7), Answer(3, 7))


class Starved(Fixed):
    """A peer whose memory does not do."""

    def measure(self):
        raise harness.Unavailable("no memory")
