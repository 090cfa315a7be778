"""Compiled functions that are kept for the next process."""

import subprocess
import sys

import pytest

INLINED = """
import numpy as np
from semistream.compiled import njit

ADDED = np.int64({added})

@njit(inline="always")
def scaled(x):
    return {factor} * x
"""
KERNEL = """
from inlined import ADDED, scaled
from semistream.compiled import njit

@njit(cache=True)
def kernel(x):
    return scaled(x) + ADDED

if __name__ == "__main__":
    print(kernel(10), sum(kernel.stats.cache_hits.values()))
"""


@pytest.fixture
def run(tmp_path):
    def result(added: int = 1, factor: int = 2) -> str:
        """What the kernel gives, and how often its code was there already."""
        (tmp_path / "inlined.py").write_text(INLINED.format(added=added, factor=factor))
        (tmp_path / "kernel.py").write_text(KERNEL)
        return subprocess.run(
            [sys.executable, "-B", "kernel.py"],
            cwd=tmp_path,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout.strip()

    return result


def test_a_kernel_is_compiled_once(run):
    assert [run(), run()] == ["21 0", "21 1"]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "now"), [({"factor": 3}, "31 0"), ({"added": 5}, "25 0")])
def test_a_change_in_another_file_that_a_kernel_takes_in_compiles_it_again(run, change, now):
    assert [run(), run(**change)] == ["21 0", now]


def test_kernels_run_without_pythons_lock():
    from semistream.keys import _hash_longs

    assert _hash_longs.targetoptions["nogil"]
