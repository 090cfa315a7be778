"""Spark drivers that outlive the process that started them: which driver was launched on a
checkpoint, and whether it is alive.

A launched driver is recorded in ``<checkpoint>/driver.json``. The driver holds the checkpoint's
lock while it runs, so that every machine of a shared file system can see whether it is alive. Until
the driver has taken the lock, its process is checked instead.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from semistream.counted import counted
from semistream.durable import write_json
from semistream.joins.waits import in_seconds
from semistream.streaming.status import LAUNCHED, Status, clear_stop, read_status

LINES = 30  # of a driver's output that a failed task shows
CONSOLE = "semistream load"  # how the owner begins if a console command launched the driver
SILENCE = 60.0  # s without a heartbeat after which a driver on another machine counts as dead


@dataclass(frozen=True)
class Launch:
    """A start of a driver. pid: the started process (spark-submit); started: the process's start
    time according to the kernel, in ticks."""

    pid: int
    started: int
    host: str
    owner: str  # who launched it, for instance a DAG run
    at: float  # epoch seconds

    @property
    def command(self) -> str:
        """The console command that launched the driver; "" if something else did."""
        found = re.fullmatch(rf"({CONSOLE} .+), \d+", self.owner)
        return found[1] if found else ""


LAUNCH = TypeAdapter(Launch)


def app_names(checkpoints: Path) -> list[str]:
    """Return the names of all apps that have ever run."""
    return sorted(path.parent.name for path in checkpoints.glob("[!.]*/status.json"))


@contextmanager
def launching(checkpoint: Path) -> Iterator[None]:
    """Wait for the right to launch a driver on the checkpoint, and hold it, so that the second of
    two runs at the same time sees the driver of the first."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    with open(checkpoint / "launch.lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def launch(
    command: Sequence[str], checkpoint: Path, owner: str, environment: Mapping[str, str]
) -> Launch:
    """Start a driver in a new session. Its output is appended to ``<checkpoint>/driver.log``.

    A stop request from the time of another owner's driver is deleted; a request from the time of
    the same owner stays valid.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    former = last_launch(checkpoint)
    if former is None or former.owner != owner:
        clear_stop(checkpoint)
    with open(checkpoint / "driver.log", "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment, LAUNCHED: "1"},
        )
    record = Launch(
        process.pid, _start_time(process.pid) or 0, socket.gethostname(), owner, time.time()
    )
    write_json(checkpoint / "driver.json", asdict(record))
    return record


def last_launch(checkpoint: Path) -> Launch | None:
    """Return the last launch on a checkpoint; None if there was none, or if its record is
    damaged."""
    try:
        return LAUNCH.validate_json((checkpoint / "driver.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def is_alive(checkpoint: Path, heartbeat: float = 0.0) -> bool:
    """Return whether a driver runs on the checkpoint. heartbeat: the driver's latest heartbeat, in
    epoch seconds, if known."""
    if is_locked(checkpoint):
        return True
    record = last_launch(checkpoint)
    if record is None:
        return False
    if record.host == socket.gethostname():
        return _start_time(record.pid) == record.started
    return time.time() - max(record.at, heartbeat) < SILENCE


def ending(checkpoint: Path) -> tuple[str, str] | None:
    """Return how the last launched driver ended, as ("stopped", "") or ("failed", reason); None
    while the driver is alive."""
    status, record = read_status(checkpoint), last_launch(checkpoint)
    heartbeat = datetime.fromisoformat(status.heartbeat).timestamp() if status else 0.0
    if is_alive(checkpoint, heartbeat):
        return None
    status = read_status(checkpoint)  # its last status, read again now that it is dead
    if status is None or not _speaks_of(status, record):
        return "failed", "ended before its first sign of life"
    if status.state == "stopped":
        return "stopped", ""
    if status.state == "failed":
        return "failed", f"failed: {status.error}"
    return "failed", f"was killed while {status.state}"


def unfinished(checkpoint: Path) -> str:
    """Return how and when the last load on a checkpoint has failed; "" if it has not, if it runs,
    or if there is no checkpoint here."""
    end = ending(checkpoint) if (checkpoint / "status.json").exists() else None
    if end is None or end[0] != "failed":
        return ""
    said, status = end[1].partition("\n")[0], read_status(checkpoint)  # Spark's stack traces follow
    what, colon, error = said.partition(": ")
    at = f" at {status.heartbeat[:16].replace('T', ' ')} UTC" if status else ""
    return f"{what}{at}{colon}{error}".rstrip(".")


def refusal(checkpoint: Path, why: str) -> str:
    """Return the error message of an ended driver about a setting that cannot work; "" if the
    driver ended for another reason. why: the reason for which it ended."""
    status = read_status(checkpoint)
    if status is None or not status.refused or not why.endswith(status.error):
        return ""
    return status.error.partition(": ")[2]  # after the error's type


def _speaks_of(status: Status, record: Launch | None) -> bool:
    """Return whether the launched driver has written a status, rather than an earlier driver."""
    return record is None or datetime.fromisoformat(status.heartbeat).timestamp() >= record.at - 1


def state_of(checkpoint: Path, status: Status) -> str:
    """Return the state of an app. The state is "killed" if the app's driver is gone without having
    reported an end."""
    end = ending(checkpoint)
    if end is None:
        return status.state
    return end[0] if status.state in ("stopped", "failed") else "killed"


def describe(checkpoint: Path, status: Status) -> str:
    """Return a description of an app's latest run for people."""
    s, state = status, state_of(checkpoint, status)
    held = "".join(f", {name} {n:,}" for name, n in s.inputs.items())
    bound = f"; bound (max_wait): {in_seconds(s.max_wait)}" if s.max_wait else ""
    lines = [
        f"{checkpoint.name}: {state}"
        + (", was " + s.state if state == "killed" else "")
        + ("" if s.batch is None else f", batch {s.batch}")
        + (f", master data {s.master_version}" if s.master_version else ""),
        f"last sign of life {s.heartbeat[:19].replace('T', ' ')} UTC, from pid {s.pid} on {s.host}",
        f"this run: {counted(s.rows_read, 'row')} read, {s.matched:,} matched, "
        f"{s.unmatched:,} unmatched, {s.waiting:,} waiting{held}",
        f"{s.service_rate:,.0f} tuples/s inside the join, {s.rate:,.0f} tuples/s end to end",
    ]
    if s.master_version:
        lines.append(
            f"waited for master data: median {in_seconds(s.median_wait)}, longest "
            f"{in_seconds(s.longest_wait)}{bound}"
        )
    if split := {role: parts for role, parts in s.shares.items() if parts > 1}:
        parts = " and ".join(f"1/{parts} of {role}" for role, parts in split.items())
        lines.append(f"each operator has {parts}")
    if s.sizes:
        parts = ", ".join(f"{role} {size / 1e6:,.1f} MB" for role, size in s.sizes.items())
        lines.append(f"M: {parts}")
    lines.append(
        f"peak memory {s.memory_peak / 1e6:,.1f} MB of arrays; resident "
        f"{s.resident_peak / 1e6:,.1f} MB a worker"
    )
    if s.error:
        lines.append(s.error.partition("\n")[0])  # Spark's stack traces follow
    if state in ("killed", "failed"):
        lines.append("started again, it goes on where it was")
    return "\n  ".join(lines)


def progress(checkpoint: Path) -> str:
    """Return one line about the progress of the app's present run."""
    status, record = read_status(checkpoint), last_launch(checkpoint)
    if status is None or not _speaks_of(status, record):
        return "the driver is starting"
    return (
        f"{status.state}: batch {status.batch if status.batch is not None else '-'}, "
        f"{counted(status.rows_read, 'row')} read, {status.matched:,} matched, "
        f"{status.unmatched:,} unmatched, {status.waiting:,} waiting"
    )


def is_locked(checkpoint: Path) -> bool:
    """Return whether a driver holds the checkpoint's lock."""
    try:
        with open(checkpoint / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when the file is closed
        return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def log_tail(checkpoint: Path) -> str:
    """Return the end of the driver's output."""
    try:
        with open(checkpoint / "driver.log", "rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - 65536))
            return "\n".join(f.read().decode(errors="replace").splitlines()[-LINES:])
    except FileNotFoundError:
        return ""


def _start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it does not exist or is a
    zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
