"""The memory of one operator: the budget M, and arrays whose pages take memory only once they are
written.

Each array is a separate memory mapping, with the largest size that it may ever need: an anonymous
mapping, or a `Region` that another process can map too. `release` returns an array's last pages to
the system.
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
# bytes from which an array gets huge pages, where the system has them: the unused part of a page of
# 2 MB is small compared with so large an array
LARGE = 32 << 20
# Arrays are mapped for the most that each may ever hold. H_S and H_R, their tuples and strings,
# together map 4 M. The arrays of an operator that was tried before may be mapped still.
MAPPED = 8
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Arena:
    """The budget M of one operator, in bytes, and the bytes that each component has reserved."""

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
        """Set the bytes that a component reserves. Raises ConfigError when the sum exceeds M."""
        self.components[component] = int(size)
        if self.used > self.budget:
            raise ConfigError(
                "memory",
                f"must hold {self.components} ({self.used:,} bytes)",
                self.budget,
                "Give more memory.",
            )
        self.peak = max(self.peak, self.used)


class Region(mmap.mmap):
    """Memory like that of an anonymous mapping, with a file handle through which another process
    can map it too."""

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
        """Return the region that contains an array; None if the array is elsewhere."""
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        return base if isinstance(base, cls) else None


def mapped(count: int, dtype: np.dtype | type, width: int = 1) -> np.ndarray:
    """Return a zeroed array whose pages become resident when first written.

    Large arrays get huge pages, because nearly every look-up by a random key touches a different
    page, and the processor translates addresses faster if there are few pages. Raises TooMuchMemory
    if the system refuses the array.
    """
    dtype = np.dtype(dtype)
    size = max(count, 1) * width * dtype.itemsize
    before = _mapped_before()
    try:
        region = (
            Region(size)
            if Region.wanted
            else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        )
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
    """Return the bytes that a process may map: the smallest of the machine's memory, the kernel's
    commit limit if it is enforced, and the limit of the process."""
    most = os.sysconf("SC_PHYS_PAGES") * _PAGE
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        (limit,) = (
            line.split()[1]
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("CommitLimit:")
        )
        most = min(most, int(limit) * 1024)
    most_here, _ = resource.getrlimit(resource.RLIMIT_AS)
    return most if most_here == resource.RLIM_INFINITY else min(most, most_here)


def release(array: np.ndarray, first: int) -> None:
    """Return the memory of the pages after array[first:] to the system. These elements read as zero
    afterwards."""
    start = -(-(array.ctypes.data + first * array.strides[0]) // _PAGE) * _PAGE
    end = array.ctypes.data + array.nbytes
    if end > start:
        advice = mmap.MADV_REMOVE if Region.of(array) else mmap.MADV_DONTNEED
        _libc.madvise(start, (end - start) // _PAGE * _PAGE, advice)
