"""Whole programs as peers: their time, their answer, and the memory of all their processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.data import Answer
from benchmarks.harness import MB, ROOT
from semistream.resident import INTERVAL, resident

# s between measurements of the memory: each walks the page tables of all processes, and stops them
# meanwhile
LOOK = 3.0
PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
LONGEST = 3600  # s that a program may take
SAMPLED = 0.1  # s between measurements of the processors


@dataclass
class Program:
    """A running program and its descendants."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    look: float = LOOK
    memory_peak: int = 0  # bytes, the sum of proportional set sizes
    anonymous_peak: int = 0  # of it without mapped files, which the system can always take back
    # (s since the epoch, core seconds for which the machine was busy)
    busy: list[tuple[float, float]] = field(default_factory=list)

    def memory(self) -> dict[str, float]:
        """Return the peaks of the memory as remarks for a table."""
        return {"resident MB": self.memory_peak / MB, "anonymous MB": self.anonymous_peak / MB}

    def end(self) -> float:
        """Wait for the end and return the seconds since the start. Raises RuntimeError, with the
        end of the log, if the program failed."""
        code = self.process.wait(LONGEST)
        seconds = time.monotonic() - self.started
        if code:
            raise RuntimeError(
                f"{self.name} ended with {code}:\n{self.log.read_text(errors='replace')[-4000:]}"
            )
        return seconds

    def until(self, condition: Callable[[], object], timeout: float = 600) -> float:
        """Wait until a condition holds and return the seconds since the start. Raises RuntimeError
        if the program ends or the time runs out before."""
        while not condition():
            if self.process.poll() is not None or time.monotonic() - self.started > timeout:
                raise RuntimeError(
                    f"{self.name} did not get "
                    f"there:\n{self.log.read_text(errors='replace')[-4000:]}"
                )
            time.sleep(0.01)
        return time.monotonic() - self.started

    def resident_peak(self) -> int:
        """Wait for the end and return the peak of the process's anonymous memory, in bytes."""
        peak = 0
        while self.process.poll() is None:
            peak = max(peak, resident(self.process.pid))
            time.sleep(INTERVAL)
        return peak

    def kill(self) -> None:
        """Kill the program and all its descendants, as in a crash."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.process.wait()

    def watch(self) -> None:
        looked = 0.0
        while self.process.poll() is None:
            if time.monotonic() - looked > self.look:
                sizes = np.array([proportional(process.pid) for process in self._tree()])
                peaks = np.maximum([self.memory_peak, self.anonymous_peak], sizes.sum(axis=0))
                self.memory_peak, self.anonymous_peak = map(int, peaks)
                looked = time.monotonic()
            times = psutil.cpu_times()
            self.busy.append(
                (
                    time.time(),
                    sum(times) - times.idle - times.iowait - times.guest - times.guest_nice,
                )
            )
            time.sleep(SAMPLED)

    def cores(self, first: float, last: float) -> float:
        """Return how many cores of the machine were busy between two times since the epoch, in all
        processes."""
        begun, ended = np.interp([first, last], *zip(*self.busy, strict=True))
        return float(ended - begun) / (last - first)

    def _tree(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [*root.children(recursive=True), root]
        return []


@contextmanager
def program(
    command: Sequence[str | Path],
    log: Path,
    environment: dict[str, str] | None = None,
    look: float = LOOK,
) -> Iterator[Program]:
    """Yield a program that runs in the project's directory. At the end of the context, the
    program's remaining processes are killed. look: seconds between measurements of its memory."""
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [str(c) for c in command],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    running = Program(
        Path(command[1]).name if len(command) > 1 else str(command[0]),
        process,
        log,
        time.monotonic(),
        look,
    )
    threading.Thread(target=running.watch, daemon=True).start()
    try:
        yield running
    finally:
        if process.poll() is None:
            running.kill()


def proportional(process: int) -> tuple[int, int]:
    """Return the proportional set size of a process, and the part of it that is of no file, in
    bytes; zeros if the process has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    except OSError:
        return 0, 0
    return 1024 * sizes["Pss"], 1024 * (sizes["Pss_Anon"] + sizes["Pss_Shmem"])


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parents end, so that `children_seconds` has their
    time."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def await_orphans() -> None:
    """Wait for the end of all children."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def children_seconds() -> float:
    """Return the processor seconds of the ended child processes."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def spark_environment(master: str, memory: str, scratch: Path) -> dict[str, str]:
    """Return the environment of a program that opens a Spark session; the same for every peer."""
    scratch.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "ERROR",
    }
    arguments = " ".join(f"--conf {k}={v}" for k, v in settings.items())
    return {
        "PYSPARK_SUBMIT_ARGS": f"--master {master} --driver-memory {memory} {arguments} "
        f"pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def commits(query: Path) -> dict[int, float]:
    """Return the time at which Spark recorded each micro-batch of a query as finished, from the
    query's checkpoint."""
    return {
        int(p.name): p.stat().st_mtime for p in (query / "commits").glob("*") if p.name.isdigit()
    }


def answer_of(files: Sequence[str | Path], answer: Answer | None = None) -> Answer:
    """Return the answer of joined rows in Parquet files. answer: an empty one of another kind."""
    answer = answer or Answer()
    if files:
        for batch in ds.dataset([str(f) for f in files], format="parquet").to_batches(
            batch_size=65_536, use_threads=False
        ):
            answer.add(batch)
    return answer


def rows_of(files: Iterable[Path]) -> int:
    return sum(map(_rows, files))


@cache
def _rows(file: Path) -> int:
    return pq.read_metadata(file).num_rows


def forget(files: Path) -> None:
    """Ask the system to drop a file, or a directory's files, from the page cache."""
    for path in (files, *files.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
