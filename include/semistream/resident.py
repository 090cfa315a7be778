"""Anonymous resident memory of this process, which is what a container's limit counts: without
mapped files, and with the memory files that arenas of workers are."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache

import pyarrow as pa

from semistream.imports import without

INTERVAL = 0.02  # s between two looks

_libc = ctypes.CDLL(None)


def resident(process: int | str = "self") -> int:
    """Bytes that a process has now, by default this one; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            return sum(1024 * int(line.split()[1]) for line in file
                       if line.startswith((b"RssAnon:", b"RssShmem:")))
    except OSError:
        return 0


def give_back() -> None:
    """Return to the system what the allocators keep of a phase that has ended."""
    pa.default_memory_pool().release_unused()
    if hasattr(_libc, "malloc_trim"):  # glibc
        _libc.malloc_trim(0)


def spare_pandas() -> None:
    """Do without pandas from now on, in a process that has no use for it: PyArrow imports it, some
    20 MB, at the first Python list that it is given."""
    if "pandas" not in sys.modules:
        with without("pandas"):
            pa.array([0])  # PyArrow tries once


class ResidentPeak:
    """The most bytes resident since it was made, of what a thread sees every ``INTERVAL`` seconds
    until ``stop``."""

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


# of this process, from the first call on
process_peak = cache(ResidentPeak)
