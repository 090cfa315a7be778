"""The arrays of an operator's arena."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from semistream.joins.arena import LARGE, Region, mapped

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def advised(array):
    """Whether the system may give the array's mapping huge pages."""
    address = array.ctypes.data
    for one in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        first, last = (int(x, 16) for x in one.split(" ", 1)[0].split("-"))
        if first <= address < last:
            return " hg" in re.search("VmFlags:.*", one)[0]
    raise AssertionError("the array is not mapped")


@pytest.mark.skipif(not ENABLED.exists(), reason="a system without huge pages")
def test_only_large_arrays_ask_for_huge_pages(monkeypatch):
    monkeypatch.setattr(Region, "wanted", False)
    large, small = mapped(LARGE // 8, np.int64), mapped(LARGE // 8 - 1, np.int64)
    assert advised(large) and not advised(small)
    assert not large.any()
