"""A join that is interrupted or fails says so in a line and leaves no partial output."""

from __future__ import annotations

import functools
import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from console import JOIN, put, write
from loads import until
from semistream.files import join as join_module


def interruptible(directory, *arguments):
    """Start the command as a shell does in the foreground; the background ignores SIGINT."""
    return subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", *arguments],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def living(process):
    assert process.poll() is None


def end(process, number):
    """Send it a signal, and return its exit code and what it said."""
    with process:
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_an_interrupt_within_a_finaliser_is_no_traceback():
    code = """
import os, signal
from semistream import cli, interrupts

class Kept:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

cli.main(["algorithms"])
kept = Kept()
del kept
assert interrupts.came == [signal.SIGTERM]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_partial_output(number, tmp_path):
    write(tmp_path / "m.csv", "k,v\n" + "".join(f"{i},{i}\n" for i in range(20_000)))
    (tmp_path / "in").mkdir()
    write(
        tmp_path / "in/0.csv",
        "k,x\n" + "".join(f"{i * 7 % 30_000},{'x' * 50}\n" for i in range(1_500_000)),
    )
    write(tmp_path / "out.parquet", "an earlier result")
    files = "join --stream in --master m.csv --on k --out out.parquet --unmatched bad.csv"
    process = interruptible(tmp_path, *files.split(), "--stats", "stats.json", "--memory", "200KB")
    until(lambda: list(tmp_path.glob(".out.parquet.*")), watch=lambda: living(process))
    code, said = end(process, number)
    assert code == 130 and "Interrupted" in said and "Traceback" not in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "m.csv", "out.parquet"]
    assert (tmp_path / "out.parquet").read_text() == "an earlier result"


def has_begun(process):
    """Whether the command's own handlers are there: Python itself has none for SIGTERM."""
    caught = Path(f"/proc/{process.pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return int(caught, 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize(
    "moment", ["its first line", "_pydantic_core", "libarrow", "_multiarray", "libllvmlite"]
)
def test_an_interrupt_while_modules_are_imported_is_one_line(moment, tmp_path):
    put("k,a\n1,x\n", "k,v\n1,y\n", tmp_path)
    process = interruptible(tmp_path, *JOIN, "o.csv")
    maps, deadline = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 60
    while not has_begun(process) or not (moment == "its first line" or moment in maps.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
    assert end(process, signal.SIGINT) == (130, "Interrupted; nothing was written.\n")
    assert sorted(os.listdir(tmp_path)) == ["m.csv", "s.csv"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finaliser_swallows_is_heard_all_the_same(run, monkeypatch):
    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def swallowed(*arguments, **settings):
        Finalised()
        return opened(*arguments, **settings)

    opened = join_module.open_join
    monkeypatch.setattr(join_module, "open_join", swallowed)
    put("k,a\n1,x\n", "k,v\n1,y\n")
    code, _, err = run(*JOIN, "o.csv")
    assert code == 130 and "Interrupted" in err and not Path("o.csv").exists()


def test_a_failing_join_leaves_no_partial_output(run):
    Path("s.csv.gz").write_bytes(gzip.compress(b"k\n" + b"a\n" * 3_000_000)[:-300])
    write("m.csv", "k,v\na,x\n")
    code, _, err = run(*JOIN, "o.csv", "--stream", "s.csv.gz")
    assert code == 1 and "cannot be read" in err
    assert sorted(os.listdir()) == ["m.csv", "s.csv.gz"]
