"""Compiled functions that are kept for the next process."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from semistream.compiled import Kernel, njit

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
    print(kernel(10), kernel.loaded, "numba" in __import__("sys").modules)
"""
EVERYTHING = """
import sys
import numpy as np
from semistream.compiled import njit

LIMITS = np.array([3, 5])

@njit(cache=True)
def inner(x):
    return x + 1

@njit(cache=True)
def kernel(array, limit, out, by=2):
    for i in range(len(array)):
        out[i] = inner(array[i]) // (limit - LIMITS[0]) * by
    return out.sum(), limit > 4

for limit in (5, 3):
    try:
        out, other = np.empty((2, 3), np.int64)
        total, larger = kernel(np.arange(6)[::2], limit, out)
        print(out.tolist(), total, larger, kernel(np.arange(3), 4, other, 1)[0])
    except ZeroDivisionError as error:
        print(error)
    print("numba" in sys.modules)
"""

INTERRUPTED = """
import os, signal, threading
import numpy as np
from semistream import interrupts
from semistream.master.snapshot import _find

first, count = np.arange(0, 3_000_000, 3000), 3_000_000
zone_map = np.array([0, 1000]), first, first + 2999, np.arange(1000, dtype=np.int32)
codes, place, out = np.arange(count), np.zeros(count, np.int32), np.empty((count, 2), np.int32)
_find(codes, place, *zone_map, out)
interrupts.raise_from_now_on()
for _ in range(10):
    sent = threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT])
    try:
        sent.start()
        _find(codes, place, *zone_map, out)
        sent.join()
    except KeyboardInterrupt:
        print("interrupted")
    sent.join()
"""


COMPILED, LOADED = "0 True", "1 False"  # how often it was loaded, and whether Numba was


@pytest.fixture
def run(tmp_path):
    def result(added: int = 1, factor: int = 2, **environment: str) -> str:
        """What the kernel gives, and where its machine code comes from."""
        (tmp_path / "inlined.py").write_text(INLINED.format(added=added, factor=factor))
        (tmp_path / "kernel.py").write_text(KERNEL)
        return python(tmp_path, "kernel.py", **environment)

    return result


def python(directory, file: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-B", file],
        cwd=directory,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        env={n: v for n, v in os.environ.items() if n != "NUMBA_CACHE_DIR"} | environment,
    ).stdout.strip()


def test_a_kernel_is_compiled_once_and_then_loaded_without_numba(run):
    assert [run(), run()] == [f"21 {COMPILED}", f"21 {LOADED}"]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "now"), [({"factor": 3}, 31), ({"added": 5}, 25)])
def test_a_change_in_another_file_that_a_kernel_takes_in_compiles_it_again(
    run, change, now, tmp_path
):
    assert [run(), run(**change)] == [f"21 {COMPILED}", f"{now} {COMPILED}"]
    [_] = (tmp_path / "__pycache__").glob("*.kernel")  # the former one is gone


@pytest.mark.slow
def test_a_damaged_file_is_written_again(run, tmp_path):
    run()
    [file] = (tmp_path / "__pycache__").glob("*.kernel")
    content = file.read_bytes()
    for damaged in (b"", content[:-1], content[:-1] + b"?"):
        file.write_bytes(damaged)
        assert run() == f"21 {COMPILED}"
        assert run() == f"21 {LOADED}"


@pytest.mark.slow
def test_where_nothing_can_be_written_a_kernel_is_compiled_each_time(run, tmp_path):
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "cache")
    assert [run(NUMBA_CACHE_DIR=below), run(NUMBA_CACHE_DIR=below)] == 2 * [f"21 {COMPILED}"]


@pytest.mark.slow
def test_loaded_code_gives_what_compiled_code_gives(tmp_path):
    (tmp_path / "everything.py").write_text(EVERYTHING)
    first, second = (python(tmp_path, "everything.py").splitlines() for _ in range(2))
    assert first == ["[0, 2, 4] 6 True 6", "True", "integer division by zero", "True"]
    assert second == [first[0], "False", first[2], "False"]


@njit()
def dimensions_and_sum(values, factor):
    total = 0.0
    for value in values.flat:
        total += value * factor
    return values.ndim, total


def test_each_type_of_arguments_has_its_own_code():
    array = np.arange(6.0).reshape(2, 3)
    readonly = array.copy()
    readonly.flags.writeable = False
    for values in (array, array.T, array[:, ::2], readonly, array.astype(np.int32), array[0]):
        for factor in (2, 2.5, True, np.float32(0.5), np.int8(3)):
            assert dimensions_and_sum(values, factor) == (values.ndim, (values * factor).sum())


def test_a_contiguous_array_and_a_number_of_numpy_are_of_no_types_of_their_own():
    kernel = Kernel(dimensions_and_sum.py_func, {}, cache=False)
    for values in (np.arange(3), np.arange(6).reshape(1, 6)[0]):
        for factor in (2, np.int64(2)):
            kernel(values, factor)
    assert kernel.compiled == 1


@pytest.mark.parametrize("wrong", [None, "2", (1, 2), [1]])
def test_a_kernel_takes_arrays_and_numbers_only(wrong):
    with pytest.raises(TypeError, match="factor must be an array or a number"):
        dimensions_and_sum(np.arange(3), wrong)
    with pytest.raises(OverflowError):
        dimensions_and_sum(np.arange(3), 2**63)


def test_a_kernel_returns_no_array():
    """The machine code would call Python for the array's class, where a signal may raise."""
    with pytest.raises(TypeError, match="must fill an array that is given"):
        Kernel(lambda values: values, {}, cache=False)(np.zeros(3))
    with pytest.raises(TypeError, match="must fill an array that is given"):
        Kernel(lambda values: (values, 1), {}, cache=False)(np.zeros(3))


@pytest.mark.slow
def test_a_signal_while_a_kernel_runs_is_raised_behind_it(tmp_path):
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    assert python(tmp_path, "interrupted.py").splitlines() == ["interrupted"] * 10


def test_a_kernel_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(dimensions_and_sum)) is dimensions_and_sum  # noqa: S301


def test_kernels_run_without_pythons_lock():
    from semistream.keys import _hash_longs

    assert _hash_longs.options["nogil"]
