"""Anonymous resident memory of a process, which counts towards a container's limit. The memory
files that hold workers' arenas are included, other mapped files are not."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache

import pyarrow as pa

from semistream.imports import without

INTERVAL = 0.02  # s between two samples
KEPT = 32 << 20  # bytes
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

_libc = ctypes.CDLL(None)


def resident(process: int | str = "self") -> int:
    """Return the resident bytes of a process, by default this one; 0 if the system does not give
    them."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            return sum(
                1024 * int(line.split()[1])
                for line in file
                if line.startswith((b"RssAnon:", b"RssShmem:"))
            )
    except OSError:
        return 0


def give_back() -> None:
    """Return freed memory that the allocators retain to the system."""
    pa.default_memory_pool().release_unused()
    if hasattr(_libc, "malloc_trim"):  # glibc
        _libc.malloc_trim(0)


def keep_freed() -> None:
    """Keep up to ``KEPT`` bytes of freed memory in the process. Otherwise every array of some
    hundred KB gets new pages, which the system clears first."""
    if hasattr(_libc, "mallopt"):  # glibc
        for setting in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            _libc.mallopt(setting, KEPT)


def spare_pandas() -> None:
    """Prevent PyArrow from importing pandas in a process that does not need it. Otherwise PyArrow
    imports pandas, some 20 MB, when it first converts a Python list."""
    if "pandas" not in sys.modules:
        with without("pandas"):
            pa.array([0])  # PyArrow tries once


class ResidentPeak:
    """The peak of resident bytes since this object was created. A thread measures the bytes every
    ``INTERVAL`` seconds until ``stop`` is called."""

    def __init__(self) -> None:
        self._most, self._ended = 0, threading.Event()
        threading.Thread(target=self._watch, name="resident memory", daemon=True).start()

    def read(self) -> int:
        self._most = max(self._most, resident())
        return self._most

    def stop(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.read()


# the peak of this process, from the first call on
process_peak = cache(ResidentPeak)
