"""The memory of one operator: the budget M, and arrays whose pages cost memory only once they are
written.

Each array is a memory mapping of its own, of the most that it may ever hold: anonymous, or a
`Region` that another process can map too. A part gives pages back when it shrinks (`release`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from semistream.errors import ConfigError, TooMuchMemory

_MAP_NORESERVE, _PAGE = 0x4000, mmap.PAGESIZE  # Linux; the first is not in Python 3.11
# bytes of an array that has huge pages where the system gives them: so large that a part of a page
# of 2 MB, which it may not need, is little beside it
LARGE = 32 << 20
# an operator's arrays are mapped for the most that each may ever hold: H_S and H_R, tuples and
# their strings, together for 4 M; and those of one that was tried before it may be there still
MAPPED = 8
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Arena:
    """The budget M of one operator, in bytes, and what each component has reserved of it."""

    def __init__(self, budget: int):
        self.budget, self.peak = budget, 0
        self.components: dict[str, int] = {}

    @property
    def used(self) -> int:
        return sum(self.components.values())

    @property
    def free(self) -> int:
        return self.budget - self.used

    def reserve(self, component: str, size: int) -> None:
        """Set what the component has. Raises ConfigError when M is exceeded."""
        self.components[component] = int(size)
        if self.used > self.budget:
            raise ConfigError("memory", f"must hold {self.components} ({self.used:,} bytes)",
                              self.budget, "Give more memory.")
        self.peak = max(self.peak, self.used)


class Region(mmap.mmap):
    """Memory like an anonymous mapping's, with a file handle by which another process can have
    it."""

    wanted = False  # whether new arrays are regions: set by a process that passes its operators on
    handle: int

    def __new__(cls, size: int, handle: int = -1) -> Region:
        if handle < 0:
            handle = os.memfd_create("semistream")
            os.truncate(handle, size)
        region = super().__new__(cls, handle, size, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        region.handle = handle
        return region

    def __del__(self) -> None:
        os.close(self.handle)

    @classmethod
    def of(cls, array: np.ndarray) -> Region | None:
        """The region that an array lies in."""
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        return base if isinstance(base, cls) else None


def mapped(count: int, dtype: np.dtype | type, width: int = 1) -> np.ndarray:
    """A zeroed array whose pages become resident when first written.

    A look-up by a random key touches a page of its own, whose address the processor then has to
    find: of huge pages there are few. Raises TooMuchMemory where the system refuses it.
    """
    dtype = np.dtype(dtype)
    size = max(count, 1) * width * dtype.itemsize
    before = _mapped_before()
    try:
        region = Region(size) if Region.wanted else mmap.mmap(
            -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError as e:
        if e.errno != errno.ENOMEM:
            raise
        most = _most_mapped()
        raise TooMuchMemory(size, most, before, max(most - before, 0) // MAPPED) from None
    if not Region.wanted and size >= LARGE:
        with suppress(OSError):  # a system without them
            region.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(region, dtype, count * width)
    return array.reshape(count, width) if width > 1 else array


@cache
def _mapped_before() -> int:
    """Bytes that the process had mapped before its first array."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE


def _most_mapped() -> int:
    """Bytes that a process may have: of the machine's memory, of what the kernel promises to all
    processes, where it keeps to that, and of the process's own limit."""
    most = os.sysconf("SC_PHYS_PAGES") * _PAGE
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        limit, = (line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()
                  if line.startswith("CommitLimit:"))
        most = min(most, int(limit) * 1024)
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    return most if own == resource.RLIM_INFINITY else min(most, own)


def release(array: np.ndarray, first: int) -> None:
    """Give back the pages behind array[first:]; what was there reads as zero."""
    start = -(-(array.ctypes.data + first * array.strides[0]) // _PAGE) * _PAGE
    end = array.ctypes.data + array.nbytes
    if end > start:
        advice = mmap.MADV_REMOVE if Region.of(array) else mmap.MADV_DONTNEED
        _libc.madvise(start, (end - start) // _PAGE * _PAGE, advice)
