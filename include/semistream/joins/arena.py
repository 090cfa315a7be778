"""The memory of one operator: the budget M, and arrays whose pages take memory only once they are
written.

Each array is a memory mapping of its own, with the largest size that it may ever need: anonymous,
or a `Region` that another process can map too. `release` gives an array's last pages back.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from typing import Any

import numpy as np

from semistream.errors import ConfigError

_MAP_NORESERVE, _PAGE = 0x4000, mmap.PAGESIZE  # Linux; the first is not in Python 3.11
# bytes from which an array gets huge pages, where the system has them: the unused part of a page
# of 2 MB is small beside so large an array
LARGE = 32 << 20
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
        """Set the bytes that a component reserves. Raises ConfigError when the sum exceeds M."""
        self.components[component] = int(size)
        if self.used > self.budget:
            raise ConfigError("memory", f"must hold {self.components} ({self.used:,} bytes)",
                              self.budget, "Give more memory.")
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
        """Return the region that an array lies in; None if the array lies elsewhere."""
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        return base if isinstance(base, cls) else None


def mapped(count: int, dtype: np.dtype | type, width: int = 1) -> np.ndarray:
    """Return a zeroed array whose pages become resident when first written.

    Large arrays get huge pages: a look-up by a random key touches a page of its own, and the
    processor translates addresses faster where pages are few.
    """
    dtype = np.dtype(dtype)
    size = max(count, 1) * width * dtype.itemsize
    if Region.wanted:
        region: mmap.mmap = Region(size)
    else:
        region = mmap.mmap(-1, size,
                           flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        if size >= LARGE:
            with suppress(OSError):  # a system without them
                region.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(region, dtype, count * width)
    return array.reshape(count, width) if width > 1 else array


def release(array: np.ndarray, first: int) -> None:
    """Give back the pages behind array[first:]. These elements read as zero afterwards."""
    start = -(-(array.ctypes.data + first * array.strides[0]) // _PAGE) * _PAGE
    end = array.ctypes.data + array.nbytes
    if end > start:
        advice = mmap.MADV_REMOVE if Region.of(array) else mmap.MADV_DONTNEED
        _libc.madvise(start, (end - start) // _PAGE * _PAGE, advice)
