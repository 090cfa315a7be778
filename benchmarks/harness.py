"""The measurement of peers side by side: complete repetitions in random order, each in a separate
process, with checked answers and rows that have everything needed to judge them."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import random
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from benchmarks.data import Answer, Files
from benchmarks.provenance import commit, machine, versions
from benchmarks.verdicts import half_width, ratio_of
from semistream.errors import ConfigError

ROOT = Path(__file__).parent.parent
MB = 1_000_000
PACKAGES = (
    "numpy",
    "numba",
    "pyarrow",
    "duckdb",
    "pyspark",
    "deltalake",
    "adbc-driver-sqlite",
    "pymysql",
    "rocksdict",
    "lmdb",
    "polars",
    "datafusion",
)


Item = TypeVar("Item")


class Unavailable(Exception):
    """A peer or a benchmark cannot run here; the message says why."""


class WrongAnswer(Exception):
    """The rows of a peer are not the rows of the join."""


@dataclass
class Sample:
    """One run of one peer."""

    tuples: int  # tuples finished in the run
    seconds: float
    bytes_read: int = 0  # of R
    cpu_seconds: float = 0.0
    # other figures of the run, by name
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.tuples / self.seconds


@dataclass
class Result:
    """The report of a peer at the end of its runs."""

    answer: Answer
    expected: Answer
    memory_budget: int = 0  # M, bytes
    memory_peak: int = 0  # of the arena, or what the peer itself counts against its limit
    rss_peak: int = 0  # of the process, or of the process tree
    note: str = ""
    settled: bool = True  # whether its rate had settled when it was measured


class Peer(Protocol):
    """A peer that is ready to be measured once it is constructed."""

    def measure(self) -> Sample: ...

    def finish(self) -> Result: ...


@dataclass
class Bench:
    """One invocation: where files and results are, and how often everything runs."""

    scale: str
    runs: int
    files: Files
    output: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=lambda: about())  # noqa: PLW0108 - a field hides it

    def say(self, text: str) -> None:
        print(f"# {text}", file=sys.stderr, flush=True)

    def compare(
        self, benchmark: str, case: str, peers: Mapping[str, Callable[[], Peer]], baseline: str
    ) -> None:
        """Run the peers ``runs`` times, each time in random order, and each in a new process. Write
        a row for each peer, with its ratio to the baseline in the same repetition.

        Raises WrongAnswer, after the rows are written, if an answer is wrong.
        """
        runs: dict[str, list[tuple[Sample, Result]]] = {name: [] for name in peers}
        failed: dict[str, str] = {}
        for repetition in range(self.runs):
            for name in shuffled(f"{benchmark} {case}", repetition, list(peers)):
                if name not in failed:
                    try:
                        runs[name].append(run_once(peers[name]))
                        rate = runs[name][-1][0].rate
                        self.say(f"{case}: {name}, run {repetition + 1}: {rate:,.6g} tuples/s")
                    except Unavailable as e:
                        failed[name] = str(e)
        rates = {
            name: [sample.rate for sample, _ in runs[name]] for name in peers if name not in failed
        }
        for name in peers:
            if name in failed:
                self.add(benchmark, case, name, {"note": f"cannot run: {failed[name]}"})
            else:
                self.add(benchmark, case, name, summary(runs[name], rates.get(baseline), baseline))
        wrong = [
            f"{n}: {r.answer}, expected {r.expected}"
            for n in rates
            for _, r in runs[n]
            if r.answer != r.expected
        ]
        if wrong:
            raise WrongAnswer(f"{benchmark}, {case}: {'; '.join(wrong)}")

    def add(self, benchmark: str, case: str, peer: str, values: dict[str, Any]) -> None:
        """Write one row at once."""
        row = {"benchmark": benchmark, "scale": self.scale, "case": case, "peer": peer, **values}
        if not any(r["benchmark"] == benchmark for r in self.rows):
            self.path(benchmark, "jsonl").unlink(missing_ok=True)
            print(HEAD)
        self.rows.append(row)
        with open(self.path(benchmark, "jsonl"), "a") as file:
            file.write(
                json.dumps(
                    row
                    | self.about
                    | {"load": os.getloadavg()[0], "at": time.strftime("%FT%TZ", time.gmtime())}
                )
                + "\n"
            )
        print(line(row), flush=True)

    def path(self, benchmark: str, suffix: str) -> Path:
        """Return the path of a benchmark's results."""
        self.output.mkdir(parents=True, exist_ok=True)
        return self.output / f"{benchmark}-{self.scale}.{suffix}"


def summary(
    runs: Sequence[tuple[Sample, Result]], baseline: Sequence[float] | None, name: str
) -> dict[str, Any]:
    """Return a peer's row, computed from its repetitions. baseline: the rates of the peer of this
    name in the same repetitions; None if that peer could not run."""
    samples, results = zip(*runs, strict=True)
    mean = lambda values: float(np.mean(list(values)))
    rates = [s.rate for s in samples]
    wide = half_width(rates)
    extra = {what: mean(s.extra[what] for s in samples) for what in samples[0].extra}
    notes = [
        *dict.fromkeys(r.note for r in results),
        *(f"{what} {value:,.6g}" for what, value in extra.items()),
    ]
    answer = next((r for r in results if r.answer != r.expected), results[-1])
    row = {
        "rate": mean(rates),
        "rate_interval": wide if math.isfinite(wide) else None,
        "ratio": None,
        "baseline": name,
        "rates": [float(f"{r:.4g}") for r in rates],
        "runs": len(runs),
        "tuples": mean(s.tuples for s in samples),
        "seconds": mean(s.seconds for s in samples),
        "cpu_seconds": mean(s.cpu_seconds for s in samples),
        "bytes_read": mean(s.bytes_read for s in samples),
        "rows": answer.answer.rows,
        "checksum": f"{answer.answer.checksum:016x}",
        "right": all(r.answer == r.expected for r in results),
        "memory_budget": max(r.memory_budget for r in results),
        "memory_peak": max(r.memory_peak for r in results),
        "rss_peak": max(r.rss_peak for r in results),
        "settled": all(r.settled for r in results),
        "extra": extra,
        "note": ", ".join(filter(None, notes)),
    }
    if baseline:
        ratio = ratio_of(rates, baseline)
        known = math.isfinite(wide)
        row |= {
            "ratio": ratio.value,
            "ratio_low": ratio.low if known else None,
            "ratio_high": ratio.high if known else None,
            "verdict": ratio.verdict,
        }
    return row


# ---- repetitions: their order, and processes of their own


def shuffled(name: str, repetition: int, items: Sequence[Item]) -> list[Item]:
    """Return the items in a random order, which is always the same for one repetition of a
    benchmark or an experiment."""
    return random.Random(f"{name} {repetition}").sample(items, len(items))


def _context() -> multiprocessing.context.ForkServerContext:
    """Return the context of processes that start with the modules imported and without other
    state."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.operators"])
    return context


def run_once(make: Callable[[], Peer]) -> tuple[Sample, Result]:
    """Run a peer once, in a separate process, from its construction to its result."""
    peer = Remote(make)
    try:
        return peer.call("measure"), peer.call("finish")
    finally:
        peer.close()


class Remote:
    """A peer, or another object that measures, in a separate process. Repeated runs thus share
    neither memory nor anything else that varies between processes."""

    def __init__(self, make: Callable[[], Peer]):
        context = _context()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make))
        self._process.start()
        theirs.close()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        return self._answer()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the peer's process ended with {self._process.exitcode}") from None
        if kind == "unavailable":
            raise Unavailable(value)
        if kind == "error":
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        self._pipe.close()
        self._process.join(60)
        if self._process.is_alive():
            self._process.terminate()


def _serve(pipe: Any, make: Callable[[], Peer]) -> None:
    def answer(work: Callable[[], Any]) -> Any:
        try:
            value = work()
            pipe.send(("value", None if work is make else value))
            return value
        except (Unavailable, ConfigError) as e:
            pipe.send(("unavailable", str(e)))
        except Exception:
            pipe.send(("error", traceback.format_exc()))
        return None

    peer = answer(make)
    while peer is not None:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        answer(partial(getattr(peer, method), *arguments))


def peak_rss() -> int:
    """Return the peak resident memory of this process, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("VmHWM:")[1].split()[0])


def read_bytes() -> int:
    """Return the bytes that this process has read from the disk."""
    return int(Path("/proc/self/io").read_text().split("\nread_bytes:")[1].split()[0])


# ---- settings, machine, table


def change(settings: Any, changes: dict[str, str]) -> Any:
    """Return a frozen dataclass with some fields replaced. changes: the new values as texts, which
    are converted to the type of the present values."""
    known = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return dataclasses.replace(
        settings, **{n: _parse(known[n], v) for n, v in changes.items() if n in known}
    )


def _parse(value: Any, text: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_parse(value[0] if value else "", t) for t in text.split(",") if t)
    return type(value)(float(text)) if isinstance(value, int) else type(value)(text)


def about() -> dict[str, Any]:
    """Return everything besides the settings on which the figures depend."""
    here = machine()
    return {
        "machine": here["system"],
        **{k: here[k] for k in ("processor", "cores", "memory")},
        **commit(),
        "command": "python -m benchmarks " + shlex.join(sys.argv[1:]),
        "versions": {"python": here["python"], **versions(PACKAGES)},
    }


HEAD = (
    f"{'case':<42}{'peer':<26}{'tuples/s':>12}{'ratio':>8}{'95% interval':^16}{'seconds':>9}"
    f"{'read MB':>10}{'M MB':>9}{'arena MB':>9}{'RSS MB':>8}{'rows':>13}  checksum"
)


def line(row: dict[str, Any]) -> str:
    start = f"{row['case']:<42}{row['peer']:<26}"
    if "rate" not in row:
        return f"{start}{row['note']}"

    def mb(name: str, width: int) -> str:
        return f"{row[name] / MB:>{width},.1f}" if row.get(name) else f"{'-':>{width}}"

    ratio = f"{row['ratio']:>8.2f}" if row.get("ratio") is not None else f"{'-':>8}"
    known = row.get("ratio_low") is not None
    ratio += f"{row['ratio_low']:>8.2f}–{row['ratio_high']:<7.2f}" if known else f"{'-':^16}"
    rate = f"{row['rate']:>12,.0f}" if row["rate"] >= 100 else f"{row['rate']:>12.3g}"
    return (
        f"{start}{rate}{ratio}{row['seconds']:>9.3f}{mb('bytes_read', 10)}"
        f"{mb('memory_budget', 9)}{mb('memory_peak', 9)}{mb('rss_peak', 8)}{row['rows']:>13,}  "
        f"{row['checksum']}{'' if row['right'] else ' WRONG'}"
        f"{'  ' + row['note'] if row.get('note') else ''}"
    )
