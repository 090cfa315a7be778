"""Pathway, a peer in memory, compared with `semistream join` on the same files. R and S are read
from CSV files and the output is a CSV file, because Pathway's readers do not read Parquet.

Both have two threads. Pathway holds R and the part of S that has arrived; `semistream join` has M.
The rate is that of the run: for Pathway from the start of its engine, for the console the whole
command. "by wall" also counts the start of the programs. Resident: the sum of the proportional set
sizes of all processes.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
from pyarrow import csv

from benchmarks.data import COLUMNS, STREAM, Answer, master_batches
from benchmarks.flink_join import LOOK, Absent
from benchmarks.harness import MB, ROOT, Bench, Sample
from benchmarks.peer_environments import peer_environment
from benchmarks.processes import program
from benchmarks.spark_join import Case, ProgramPeer

PATHWAY, OURS = "pathway", "semistream join"
NUMBER = "number"  # replaces the column name id, which Pathway reserves


@dataclass(frozen=True)
class Settings:
    master: int = 200_000  # R_t
    tuples: int = 1_000_000  # of S
    memory: int = 6  # M, MB


SCALES = {
    "smallest": Settings(master=20_000, tuples=20_000),
    "small": Settings(),
    "full": Settings(master=1_000_000, tuples=5_000_000, memory=32),
}


def run(bench: Bench, s: Settings) -> None:
    peer_environment("pathway")
    case = Texts(bench.files, Absent(s.master), s.tuples, 1, 0, "", "")
    case.make()
    bench.compare(
        "pathway",
        f"R={s.master:,} S={s.tuples:,} M={s.memory}MB, CSV",
        {OURS: Peer(case, s.memory * MB), PATHWAY: Peer(case)},
        OURS,
    )


class Texts(Case):
    """R and S as one CSV file each."""

    def make(self) -> None:
        _ = self.tuples, self.master_text

    @property
    def tuples(self) -> Path:
        names = [*STREAM.names]
        names[names.index("id")] = NUMBER
        schema = self.stream.batch(0, 1).rename_columns(names).schema

        def make(at: Path) -> None:
            at.mkdir()
            with csv.CSVWriter(at / "s.csv", schema) as writer:
                for first in range(0, self.batch, 100_000):
                    rows = min(100_000, self.batch - first)
                    writer.write_batch(self.stream.batch(first, rows).rename_columns(names))

        return self.files.made(f"absent-{self.stream.master}-{self.batch}.csv", make) / "s.csv"

    @property
    def master_text(self) -> Path:
        def make(at: Path) -> None:
            at.mkdir()
            with csv.CSVWriter(at / "r.csv", COLUMNS) as writer:
                for batch in master_batches(self.stream.master, COLUMNS):
                    writer.write_batch(batch)

        return self.files.made(f"master-{self.stream.master}.csv", make) / "r.csv"


@dataclass(frozen=True)
class Peer:
    case: Texts
    memory: int = 0  # M of ours; 0: Pathway

    def __call__(self) -> ProgramPeer:
        if self.memory:
            return ConsolePeer(self.case, OURS, self.memory)
        return PathwayPeer(self.case, PATHWAY)


class TextPeer(ProgramPeer):
    case: Texts

    def _command(self) -> list[str | Path]:
        raise NotImplementedError

    def _seconds(self) -> float:
        raise NotImplementedError

    def _run(self) -> Sample:
        environment = {"TMPDIR": str(self.home), "PATHWAY_THREADS": "2"}
        with program(self._command(), self.home / "log", environment, LOOK) as running:
            wall = running.end()
        self.rss_peak = max(self.rss_peak, running.memory_peak)
        return Sample(
            self.case.count(),
            self._seconds(),
            extra={
                "by wall tuples/s": self.case.count() / wall,
                "resident MB": running.memory_peak / MB,
            },
        )

    def _answer(self) -> Answer:
        answer = Answer()
        for batch in ds.dataset(self.home / "out.csv", format="csv").to_batches():
            names = ["id" if n == NUMBER else n for n in batch.schema.names]
            answer.add(batch.rename_columns(names))
        return answer


class PathwayPeer(TextPeer):
    def _command(self) -> list[str | Path]:
        python = peer_environment("pathway") / "bin" / "python"
        return [
            python,
            ROOT / "benchmarks" / "pathway" / "program.py",
            self.case.tuples,
            self.case.master_text,
            self.home / "out.csv",
            ",".join(COLUMNS.names[1:]),
        ]

    def _seconds(self) -> float:
        return float(re.findall(r"seconds ([\d.]+)", (self.home / "log").read_text())[-1])


class ConsolePeer(TextPeer):
    def _command(self) -> list[str | Path]:
        return [
            Path(sys.executable).parent / "semistream",
            "join",
            "--stream",
            self.case.tuples,
            "--master",
            self.case.master_text,
            "--on",
            "key",
            "--memory",
            str(self.memory),
            "--out",
            self.home / "out.csv",
            "--stats",
            self.home / "stats.json",
        ]

    def _seconds(self) -> float:
        return json.loads((self.home / "stats.json").read_text())["seconds"]
