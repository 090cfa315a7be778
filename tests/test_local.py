"""`make load` as a process, interrupted in the midst of things (that it comes to its end is in
test_dags), and `make up` and `make down` after something of Airflow was killed."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from loads import until
from semistream import local
from semistream.errors import SemistreamError
from semistream.paths import Paths
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
                [sys.executable, "-m", "semistream.local", "load", str(self.job)],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

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
                    directory / "environ"
                ).read_bytes().split(b"\0"):
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
            if f"SEMISTREAM_HOME={make.home}".encode() in (
                directory / "environ"
            ).read_bytes().split(b"\0"):
                os.kill(int(directory.name), signal.SIGKILL)
        except OSError:
            pass


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_interrupted_load_stops_all_that_it_started_and_can_be_started_again(make):
    make.start()
    said = make.interrupt(signal.SIGTERM, (make.home / "warehouse.db").exists)
    assert "Stopped. What is loaded is committed" in said and "draining" not in said
    assert make.left() == []
    make.start()
    said = make.interrupt(signal.SIGINT, lambda: drivers.last_launch(make.checkpoint))
    # a driver that is asked while Spark starts may have ended before Airflow's tasks have
    assert "Stopped. What is loaded is committed" in said
    assert make.left() == []
    status = read_status(make.checkpoint)
    assert (status.state, status.waiting) == ("stopped", 0)


# ---- `make up` and `make down`, with stand-ins for Airflow's commands

AIRFLOW = """#!/bin/sh
if [ "$1" = db ]; then
    echo '{"admin": "secret"}' > "$AIRFLOW_HOME/simple_auth_manager_passwords.json.generated"
elif [ "$1" != "$(cat "$AIRFLOW_HOME/broken" 2> /dev/null)" ]; then
    sleep 1000
fi
"""


class Airflow:
    """What `make up` starts, and prints."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch):
        program, home = directory / "bin" / "airflow", directory / "var"
        program.parent.mkdir()
        program.write_text(AIRFLOW)
        program.chmod(0o755)
        settings = local.environment(home)
        settings |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "AIRFLOW__API__PORT": "0"}
        monkeypatch.setattr(local, "environment", lambda _: settings)
        monkeypatch.setattr(local, "_healthy", lambda _: len(self.parts) == len(local.PARTS))
        monkeypatch.setenv("SEMISTREAM_HOME", str(home))
        self.home, self.paths = home / "airflow", Paths.from_environment()

    @property
    def session(self) -> int:
        return int((self.home / "standalone.pid").read_text())

    @property
    def parts(self) -> dict[str, int]:
        noted = self.home / "standalone.parts"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return {name: int(process) for name, process in map(str.split, lines)}

    def up(self) -> str:
        return self._run(local.up)

    def down(self) -> str:
        return self._run(local.down)

    def _run(self, command: Callable[[Console, Paths], int]) -> str:
        screen = Console(file=io.StringIO(), width=1000)
        assert command(screen, self.paths) == 0
        return screen.file.getvalue()

    def kill(self, *processes: int) -> None:
        for process in processes:
            os.kill(process, signal.SIGKILL)
        until(lambda: not set(processes) & set(local.members(self.session)), 30, "the end")


@pytest.fixture
def airflow(tmp_path, monkeypatch):
    airflow = Airflow(tmp_path, monkeypatch)
    yield airflow
    airflow.down()


@pytest.mark.parametrize("part", [*local.PARTS, "head"])
def test_airflow_is_told_by_all_its_processes_whichever_was_killed(airflow, part):
    assert "Airflow does not run" in airflow.down()
    assert "secret" in airflow.up()
    first = airflow.session
    assert f"runs already (session {first})" in airflow.up()
    airflow.kill(first if part == "head" else airflow.parts[part])
    said = airflow.up()
    if part == "head":  # nobody needs it
        assert f"runs already (session {first})" in said and airflow.session == first
    else:
        assert f"Airflow runs without its {part}" in said and "secret" in said
        assert airflow.session != first and not local.members(first)
    assert set(airflow.parts.values()) < set(local.members(airflow.session))
    last = airflow.session
    airflow.kill(airflow.parts["scheduler"])
    assert "Airflow has stopped" in airflow.down() and not local.members(last)
    assert "Airflow does not run" in airflow.down()


def test_airflow_is_started_anew_where_its_head_and_a_part_are_gone(airflow):
    airflow.up()
    first = airflow.session
    airflow.kill(first, airflow.parts["triggerer"])
    assert "Airflow runs without its triggerer" in airflow.up()
    assert not local.members(first) and len(local.members(airflow.session)) > len(local.PARTS)


def test_a_part_that_ends_at_once_is_not_waited_for(airflow, monkeypatch):
    monkeypatch.setattr(local, "_healthy", lambda _: False)
    (airflow.home / "broken").parent.mkdir(parents=True)
    (airflow.home / "broken").write_text("dag-processor")
    with pytest.raises(SemistreamError, match="Airflow did not start"):
        airflow.up()


def test_the_session_of_another_is_left_alone(airflow):
    """The number of a session that has ended may be given anew."""
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        airflow.home.mkdir(parents=True)
        (airflow.home / "standalone.pid").write_text(str(other.pid))
        assert "Airflow does not run" in airflow.down()
        assert "secret" in airflow.up() and other.poll() is None
    finally:
        other.kill()
        other.wait()
