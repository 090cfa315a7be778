"""A directory for what a process needs while it lives. Those of processes that were killed are
swept by the next one."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "semistream-scratch-"
# the locks of this process's own; the kernel lets go of them, however it ends
_held: list[IO[bytes]] = []


def scratch_directory() -> Path:
    """A new one, below the system's directory for temporary files; removed when the process
    ends."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = open(directory / "lock", "wb")  # noqa: SIM115 - held as long as the process lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def sweep(parent: Path) -> None:
    """Remove those of this user whose process has ended."""
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another one sweeps it, or it has no lock yet
            if directory.stat().st_uid == os.getuid():
                with open(directory / "lock", "r+b") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory)


def task_directory() -> str | None:
    """Where a Spark task has its temporary files; None: in the system's directory for them."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
