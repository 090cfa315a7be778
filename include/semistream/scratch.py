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
    # has its lock before others see it
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    lock = open(hidden / "lock", "wb")  # noqa: SIM115 - held as long as the process lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    directory = hidden.rename(parent / hidden.name[1:])
    _held.append(lock)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def sweep(parent: Path) -> None:
    """Remove those of this user whose process has ended. One without a lock is what a process left
    that was killed while it removed it, or what its JVM made anew after that."""
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # its process lives, or another one sweeps it
            if directory.stat().st_uid == os.getuid():
                with suppress(FileNotFoundError), open(directory / "lock", "r+b") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)


def task_directory() -> str | None:
    """Where a Spark task has its temporary files; None: in the system's directory for them."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
