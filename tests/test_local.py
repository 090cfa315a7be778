"""`make load` as a process, interrupted in the midst of things. That it comes to its end is in
test_dags."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loads import until
from semistream.pipeline import drivers
from semistream.streaming.status import read_status


class Make:
    """`make load` of one job, without the installation."""

    def __init__(self, home: Path, job: Path):
        self.home, self.job, self.output = home, job, home.parent / "output"
        self.checkpoint = home / "checkpoints" / job.stem

    def start(self) -> None:
        environment = {**os.environ, "SEMISTREAM_HOME": str(self.home), "WAREHOUSE_URL": ""}
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "semistream.local", "load", str(self.job)], stdout=output,
                stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)

    def interrupt(self, number: int, when: Callable[[], object]) -> str:
        """Send a signal at a certain moment; gives what it printed."""
        until(when, 300, "the moment", self._lives)
        self.process.send_signal(number)
        return self.end(128 + number)

    def end(self, code: int) -> str:
        assert self.process.wait(300) == code, self.output.read_text()
        return self.output.read_text()

    def _lives(self) -> None:
        assert self.process.poll() is None, self.output.read_text()

    def left(self) -> list[str]:
        """The commands of processes that it has started and that are there still."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if f"SEMISTREAM_HOME={self.home}".encode() in (
                        directory / "environ").read_bytes().split(b"\0"):
                    found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                pass
        return found

    def has(self, word: str) -> bool:
        return any(word in command for command in self.left())


@pytest.fixture
def make(tmp_path, small_job):
    make = Make(tmp_path / "var", small_job.file)
    yield make
    for directory in Path("/proc").glob("[0-9]*"):  # only after a failure
        try:
            if f"SEMISTREAM_HOME={make.home}".encode() in (directory
                                                           / "environ").read_bytes().split(b"\0"):
                os.kill(int(directory.name), signal.SIGKILL)
        except OSError:
            pass


@pytest.mark.timeout(900)
def test_an_interrupted_load_stops_all_that_it_started_and_can_be_started_again(make):
    make.start()
    said = make.interrupt(signal.SIGTERM, lambda: make.has("publish_snapshot.py"))
    assert "Stopped. What is loaded is committed" in said and "draining" not in said
    assert make.left() == []
    make.start()
    said = make.interrupt(signal.SIGINT, lambda: drivers.last_launch(make.checkpoint))
    assert "small: draining" in said and "Stopped. What is loaded is committed" in said
    assert make.left() == []
    status = read_status(make.checkpoint)
    assert (status.state, status.waiting) == ("stopped", 0)
