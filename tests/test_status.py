"""A load's status file, its lock, and the request to stop it."""

import os
import subprocess
import sys

import pytest

import faults
from loads import until
from semistream.errors import ConfigError
from semistream.pipeline import drivers
from semistream.streaming.status import (
    Status,
    StatusFile,
    checkpoint_lock,
    clear_stop,
    read_status,
    request_stop,
    stop_requested,
)


@pytest.mark.slow
def test_a_stop_of_a_driver_that_is_gone_is_forgotten_but_by_its_own_launcher(tmp_path):
    """By drivers that end when they read the job."""
    checkpoint = tmp_path / "checkpoints" / "nope"
    command = [sys.executable, str(faults.APPS / "semi_stream_join.py"), "--job", "nope"]
    home = {"SEMISTREAM_HOME": str(tmp_path)}

    def launch(owner: str) -> bool:
        request_stop(checkpoint)
        drivers.launch(command, checkpoint, owner, home)
        until(lambda: drivers.ending(checkpoint), 60, "the driver's end")
        assert read_status(checkpoint).state == "failed"
        return stop_requested(checkpoint)

    request_stop(checkpoint)
    with checkpoint_lock(checkpoint):
        subprocess.run(command, env={**os.environ, **home}, capture_output=True)
    assert stop_requested(checkpoint), "the driver that runs was not asked any more"
    assert subprocess.run(command, env={**os.environ, **home}, capture_output=True).returncode == 2
    assert not stop_requested(checkpoint)
    assert not launch("a run") and launch("a run") and not launch("another run")


def test_lock_goes_with_its_process(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from semistream.streaming.status import "
        "checkpoint_lock\nwith checkpoint_lock(Path(sys.argv[1])): print('held', flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"pid {process.pid} on"), checkpoint_lock(tmp_path):
            pass
        process.kill()
    with checkpoint_lock(tmp_path):
        pass


def test_status_file_beats_and_says_why_it_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.streaming.status.HEARTBEAT", 0.02)
    assert read_status(tmp_path) is None
    with pytest.raises(ValueError, match="broken"), StatusFile(tmp_path, "app") as status:
        first = read_status(tmp_path)
        assert (first.state, first.pid, first.app) == ("starting", os.getpid(), "app")
        until(lambda: read_status(tmp_path).heartbeat > first.heartbeat, 10)
        status.update(state="running", batch=3, rows_read=7)
        assert read_status(tmp_path).rows_read == 7
        raise ValueError("broken")
    last = read_status(tmp_path)
    assert isinstance(last, Status)
    assert (last.state, last.error, last.batch) == ("failed", "ValueError: broken", 3)
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_stop_request(tmp_path):
    assert not stop_requested(tmp_path / "new")
    request_stop(tmp_path / "new")
    assert stop_requested(tmp_path / "new")
    clear_stop(tmp_path / "new")
    clear_stop(tmp_path / "new")
    assert not stop_requested(tmp_path / "new")
