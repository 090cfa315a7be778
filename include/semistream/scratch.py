"""A directory for temporary files of a process. Directories of processes that were killed are
removed by the next process."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "semistream-scratch-"


def scratch_directory() -> Path:
    """Return a new directory below the system's directory for temporary files. It is removed when
    the process ends."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    # The directory has its lock before others see it. The descriptor stays open, so that the kernel
    # releases the lock, however the process ends.
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    lock = os.open(hidden / "lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    directory = hidden.rename(parent / hidden.name[1:])
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def sweep(parent: Path) -> None:
    """Remove scratch directories of this user whose process has ended. A directory without a lock
    file is removed too: its process was killed while removing it, or its JVM created it again."""
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # its process lives, or another process is removing it
            if directory.stat().st_uid == os.getuid():
                with suppress(FileNotFoundError), open(directory / "lock", "r+b") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)


def task_directory() -> str | None:
    """Return the directory for a Spark task's temporary files; None for the system's directory."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
