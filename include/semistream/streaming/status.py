"""Communication between an app and other processes through the checkpoint directory: status, stop
request, lock. This module does not need Spark."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from semistream.durable import write_json
from semistream.errors import ConfigError

HEARTBEAT = 2.0  # s
# the environment variable of a driver whose launcher has decided whether a former stop holds
LAUNCHED = "SEMISTREAM_LAUNCHED"
LOCK_TIMEOUT = 2.0  # s; a process that checks whether the lock is held takes it for a moment

State = Literal["starting", "running", "draining", "stopped", "failed"]


@dataclass(frozen=True)
class Status:
    """``<checkpoint>/status.json``: the state of an app. Counts are those of this run; rates are in
    tuples/s; memory_peak (all operators' arrays together) and resident_peak (the worker with the
    largest memory) are in bytes; heartbeat is UTC, ISO 8601."""

    state: State
    pid: int
    host: str
    heartbeat: str
    app: str = ""
    batch: int | None = None
    rows_read: int = 0
    matched: int = 0
    unmatched: int = 0
    waiting: int = 0
    # waiting tuples by role or by stream; empty if there is one role
    inputs: dict[str, int] = field(default_factory=dict)
    service_rate: float = 0.0  # inside the operators
    rate: float = 0.0  # end to end, from the start of the run to its end, or its newest commit
    memory_peak: int = 0
    resident_peak: int = 0
    median_wait: float = 0.0  # s that tuples waited for master data
    longest_wait: float = 0.0
    max_wait: float = 0.0  # s that tuples may wait; 0: no bound
    # by role, the parts into which its dimension is split; empty if there is one role
    shares: dict[str, int] = field(default_factory=dict)
    # by role, the bytes of M that it has; empty if there is one role
    sizes: dict[str, int] = field(default_factory=dict)
    master_version: str = ""
    error: str = ""
    refused: bool = False  # the error is of a setting
    spark_ui: str = ""  # URL of the driver's UI


STATUS = TypeAdapter(Status)


def read_status(checkpoint: str | Path) -> Status | None:
    """Return the latest status. Return None if no app has ever run on this checkpoint, or if a
    crash of the machine left no complete file."""
    try:
        status = STATUS.validate_json((Path(checkpoint) / "status.json").read_bytes())
        datetime.fromisoformat(status.heartbeat)
    except (OSError, ValueError):
        return None
    return status


def request_stop(checkpoint: str | Path) -> None:
    """Ask the app on this checkpoint to drain and stop."""
    directory = Path(checkpoint)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "stop").touch()


def stop_requested(checkpoint: str | Path) -> bool:
    return (Path(checkpoint) / "stop").exists()


def forget_former_stop(checkpoint: Path) -> None:
    """Delete a stop request for a former driver. The caller is a new driver that holds the
    checkpoint's lock. A driver that was started by a launcher keeps the request, because the
    launcher has decided whether it is valid."""
    if LAUNCHED not in os.environ:
        clear_stop(checkpoint)


def clear_stop(checkpoint: str | Path) -> None:
    (Path(checkpoint) / "stop").unlink(missing_ok=True)


class StatusFile:
    """A writer of the status. It writes at every change, and a thread writes a heartbeat in
    between."""

    def __init__(self, checkpoint: Path, app: str):
        self.path = checkpoint / "status.json"
        self.status = Status("starting", os.getpid(), socket.gethostname(), _now(), app)
        self._mutex, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> StatusFile:
        self.update()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is not None:
            self._fail(_why(error)[:3000], refused=isinstance(error, ConfigError))

    def update(self, **changes: Any) -> None:
        with self._mutex:
            self.status = replace(self.status, heartbeat=_now(), **changes)
            # not flushed, because the status matters only while this machine is up
            write_json(self.path, asdict(self.status), flush=False)

    def _fail(self, error: str, *, refused: bool) -> None:
        """Write the status of a failed app. On a full disk, overwrite the former status in place.
        An error in writing is ignored, so that it does not hide the error of the app."""
        try:
            self.update(state="failed", error=error, refused=refused)
        except OSError:
            with suppress(OSError), open(self.path, "r+b") as file:
                file.write(json.dumps(asdict(self.status)).encode())
                file.truncate()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            with suppress(OSError):  # the load itself will report a full disk
                self.update()


# The end of a Python traceback: the error after the last frame and its code.
RAISED = re.compile(
    r'^  File "[^\n]*\n(?:    [^\n]*\n)*(?:[\w.]+\.)?(\S[^\n]*(?:\n\S[^\n]*)*)', re.MULTILINE
)


def _why(error: BaseException) -> str:
    """Describe an error by its type and message. For an error in a Python worker, Spark's message
    is a traceback, from which the worker's error is extracted. For an error of the JVM, the stack
    frames are left out."""
    raised = RAISED.findall(str(error))
    if not raised and (in_jvm := getattr(error, "java_exception", None)) is not None:
        return str(in_jvm)
    return raised[-1] if raised else f"{type(error).__name__}: {error}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def checkpoint_lock(checkpoint: Path) -> Iterator[None]:
    """Hold the lock of the checkpoint for this process. Raises ConfigError, which names the holder,
    if another app has it.

    The kernel releases the lock when the process ends, even if it is killed.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_TIMEOUT
    with open(checkpoint / "lock", "a+") as f:
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    f.seek(0)
                    holder = f.read().strip() or "unknown"
                    raise ConfigError(
                        "checkpoint",
                        f"is in use by another app ({holder})",
                        str(checkpoint),
                        f"Stop it first, semistream stop {checkpoint.name}, or give another "
                        "--checkpoint.",
                    ) from None
                time.sleep(0.05)
        f.truncate(0)
        f.write(f"pid {os.getpid()} on {socket.gethostname()}")
        f.flush()
        try:
            yield
        finally:
            f.truncate(0)
