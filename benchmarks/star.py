"""A star in one pass, compared with a chain of Spark's stream-static joins, with loads one after
the other, and with DuckDB, one micro-batch at a time.

"six": sales with six foreign keys, whose three large dimensions exceed M each; all peers read the
same Parquet files and write the same columns. Semistream's peers are `semistream join` with six
roles, which reads the dimensions from Parquet as Spark does, and the app, which has them as
snapshots as DuckDB has them in its own database. "chained" is a run of `semistream join` for each
dimension, with all of M, over the rows that the former run has written. Spark runs one chain of
joins, with one file in each micro-batch. DuckDB runs one query for each file, with a memory_limit
of M, and with a limit of the memory that Semistream's process may take, its base and M, or with
more if that does not work. The rate is that of the whole command; for Spark and the app it is that
from the first micro-batch to the last commit. Resident: the anonymous memory of the process, of
which 1.1 M and its base are allowed; for Spark and the app the proportional set sizes of all their
processes.

"split": the star's operators in process, with the chosen split of M compared with others.

"shares": P operators of the star with two foreign keys, both of large dimensions. The first
dimension alone is split among them (P x 1), so that each operator reads all of the second one, or
both are. The operators take turns in one thread: seconds and bytes of R are those of all of them,
without an exchange.

"two": the star's operators with two foreign keys, as in Naeem, Nguyen, Weber: *A Multi-Way
Semi-Stream Join for a Near-Real-Time Data Warehouse* (ADC 2017). They are compared with that
paper's semi-concurrent scheme, made of two SSCJ, which the paper calls CACHEJOIN, with half of M
each: a tuple that the first one has matched, in its cache or on disk, is looked up in the second
one's cache at once, and their disk-probing phases take turns. This is an interpretation of the
paper's abstract, without its text.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from benchmarks.console import BASE
from benchmarks.data import Answer
from benchmarks.flink_join import LoadingPeer
from benchmarks.harness import MB, Bench, Peer, Result, Sample, Unavailable
from benchmarks.nexmark import StreamStaticPeer
from benchmarks.processes import answer_of, forget, program
from benchmarks.spark_join import App, Case, ProgramPeer, Spark, arguments
from benchmarks.star_data import Sales, of_two
from benchmarks.star_operators import CHOSEN, Operators, Share, chosen, grids, splits
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan

ONE_PASS, CHAINED = "semistream join", "semistream join chained"
OURS, SPARK = "semistream app", "spark chained"
DUCKDB_M, DUCKDB = "duckdb limit M", "duckdb limit base and M"
SEMI_CONCURRENT = "sscj semi-concurrent"
ALLOWED = 1.1  # bytes of a process for a byte of M, besides its base


@dataclass(frozen=True)
class Settings:
    parts: tuple[str, ...] = ("six", "split", "two", "shares")
    # tuples of the dimensions; the first three exceed M
    dimensions: tuple[int, ...] = (2_000_000, 1_500_000, 1_500_000, 50_000, 5_000, 100)
    tuples: int = 1_000_000  # sales
    files: int = 4  # micro-batches
    memory: int = 64_000_000  # M, bytes
    skew: float = 1.0
    peers: tuple[str, ...] = (ONE_PASS, CHAINED, OURS, SPARK, DUCKDB_M, DUCKDB)
    driver_memory: str = "2g"
    cores: int = 2
    steps: int = 6  # of "split": parts of M that are dealt out among the large dimensions
    operators: int = 4  # P of "shares"
    batch: int = 16_384  # of "split", "two" and "shares": sales that are processed at a time
    seconds: float = 2.0  # likewise, least time of a run
    warm_up: float = 60.0  # likewise, at most


SCALES = {
    "smallest": Settings(
        dimensions=(20_000, 15_000, 15_000, 500, 50, 10),
        tuples=20_000,
        files=2,
        memory=700_000,
        peers=(ONE_PASS, CHAINED, DUCKDB),
        steps=3,
        seconds=0.02,
        warm_up=0.3,
    ),
    "small": Settings(),
    "full": Settings(
        dimensions=(10_000_000, 6_000_000, 4_000_000, 100_000, 10_000, 100),
        tuples=8_000_000,
        files=8,
        seconds=10.0,
        warm_up=300.0,
        steps=8,
    ),
}


def run(bench: Bench, s: Settings) -> None:
    sales = Sales(s.dimensions[0], s.skew, others=s.dimensions[1:])
    for part in s.parts:
        PARTS[part](bench, s, sales)


def run_six(bench: Bench, s: Settings, sales: Sales) -> None:
    case = StarCase(
        bench.files, sales, s.tuples // s.files, s.files, 0, s.driver_memory, f"local[{s.cores},4]"
    )
    case.make()
    peers = {name: partial(PEERS[name], case, name, s) for name in s.peers}
    baseline = SPARK if SPARK in s.peers else CHAINED
    bench.compare("star", f"six dimensions, M={s.memory / MB:g} MB", peers, baseline)


def run_split(bench: Bench, s: Settings, sales: Sales) -> None:
    ours = chosen(bench.files, sales, s.memory)
    _run_operators(bench, s, sales, "split of M", {CHOSEN: ours, **splits(ours, s.steps)}, CHOSEN)


def run_two(bench: Bench, s: Settings, sales: Sales) -> None:
    two, half = of_two(sales), s.memory // 2
    peers = {
        CHOSEN: chosen(bench.files, two, s.memory),
        SEMI_CONCURRENT: [Share(0, half, "sscj"), Share(1, half, "sscj")],
    }
    _run_operators(bench, s, two, "two foreign keys", peers, SEMI_CONCURRENT)


def run_shares(bench: Bench, s: Settings, sales: Sales) -> None:
    two = of_two(sales)
    plans = grids(bench.files, two, s.memory, s.operators)
    peers = {" x ".join(map(str, shares)): plan for shares, plan in plans.items()}
    case = f"shares of {s.operators} operators"
    _run_operators(bench, s, two, case, peers, next(iter(peers)))


def _run_operators(
    bench: Bench,
    s: Settings,
    sales: Sales,
    case: str,
    shares: Mapping[str, Sequence[Share] | Plan[RolePlan]],
    baseline: str,
) -> None:
    """Compare the star's operators with different shares of M, or of the stream and R."""
    peers: dict[str, Callable[[], Peer]] = {
        name: Operators(bench.files, sales, of, s.batch, s.seconds, s.warm_up)
        for name, of in shares.items()
    }
    bench.compare("star", f"{case}, M={s.memory / MB:g} MB", peers, baseline)


PARTS = {"six": run_six, "split": run_split, "two": run_two, "shares": run_shares}


# ---- the star as programs


class StarCase(Case):
    """Sales and their dimensions as files."""

    stream: Sales

    @property
    def tuples(self) -> Path:
        return self.stream.parquet(self.files, self.batches, self.batch)

    @property
    def masters(self) -> list[Path]:
        return [d.parquet(self.files) for d in self.stream.dimensions]

    @property
    def database(self) -> Path:
        """A DuckDB file with the dimensions as the tables d0, d1, …"""
        import duckdb

        def make(at: Path) -> None:
            with duckdb.connect(str(at)) as connection:
                for d, path in zip(self.stream.dimensions, self.masters, strict=True):
                    connection.execute(
                        f"CREATE TABLE d{d.number} AS SELECT * FROM '{path}/*.parquet'"
                    )
                connection.execute("CHECKPOINT")

        sizes = "-".join(str(d.tuples) for d in self.stream.dimensions)
        return self.files.made(f"star-{sizes}.duckdb", make)

    def make(self) -> None:
        for dimension in self.stream.dimensions:
            dimension.snapshot(self.files)
            dimension.parquet(self.files)
        _ = self.tuples


class StarPeer(ProgramPeer):
    """A program that is measured from its start to its end."""

    case: StarCase

    def __init__(self, case: StarCase, name: str, settings: Settings):
        super().__init__(case, name, settings.memory)
        self.settings = settings

    def _run(self) -> Sample:
        for path in (self.case.tuples, *self.case.masters):
            forget(path)
        seconds = self._seconds()
        return Sample(
            self.case.count(),
            seconds,
            extra={"resident MB": self.rss_peak / MB, "allowed MB": self._allowed / MB},
        )

    @property
    def _allowed(self) -> float:
        return BASE + ALLOWED * self.memory

    def _seconds(self) -> float:
        raise NotImplementedError

    def _measured(self, command: Sequence[str | Path]) -> float:
        """Run a program and return its seconds."""
        environment = {"TMPDIR": str(self.home)}
        with program(command, self.home / "log", environment) as running:
            self.rss_peak = max(self.rss_peak, running.resident_peak())
            return running.end()

    def _join(self, out: Path, options: Sequence[str | Path]) -> float:
        """Run `semistream join` and return its seconds."""
        stats = self.home / "stats.json"
        seconds = self._measured(
            [
                Path(sys.executable).parent / "semistream",
                "join",
                *options,
                "--memory",
                str(self.memory),
                "--out",
                out,
                "--stats",
                stats,
            ]
        )
        told = json.loads(stats.read_text())
        self.memory_peak = max(self.memory_peak, told["memory_peak"])
        return seconds

    def _written(self) -> Sequence[Path]:
        """Return the files of joined rows."""
        return [self.home / "out.parquet"]

    def _answer(self) -> Answer:
        return answer_of(self._written(), self.case.stream.answer())


class OnePass(StarPeer):
    """`semistream join` with a role for each dimension."""

    def _seconds(self) -> float:
        dimensions = {
            f"d{d.number}": {"path": str(path), "on": d.key}
            for d, path in zip(self.case.stream.dimensions, self.case.masters, strict=True)
        }
        config = self.home / "star.yaml"
        values = {"stream": str(self.case.tuples), "dimensions": dimensions}
        config.write_text(yaml.safe_dump(values))
        return self._join(*self._written(), ["--config", config])


class Chained(StarPeer):
    """`semistream join` once for each dimension, over the rows that the former run has written."""

    def _seconds(self) -> float:
        seconds, stream = 0.0, self.case.tuples
        (last,) = self._written()
        for d, path in zip(self.case.stream.dimensions, self.case.masters, strict=True):
            out = last.with_name(f"joined-{d.number}.parquet")
            seconds += self._join(out, ["--stream", stream, "--master", path, "--on", d.key])
            if stream.parent == self.home:
                stream.unlink()
            stream = out
        stream.rename(last)
        return seconds


class DuckDB(StarPeer):
    """DuckDB with one query for each file. Its memory_limit is M or, if `raised`, the base of
    Semistream's process and M, and more where DuckDB does not work with that."""

    def __init__(self, case: StarCase, name: str, settings: Settings, raised: bool):
        try:
            import duckdb  # noqa: F401
        except ImportError as e:
            raise Unavailable(f"{e}: install the group dev") from None
        super().__init__(case, name, settings)
        self.raised, self.database = raised, case.database
        self.limit = settings.memory + (BASE if raised else 0)

    def _seconds(self) -> float:
        while True:
            shutil.rmtree(self.home / "out", ignore_errors=True)
            (self.home / "log").unlink(missing_ok=True)
            forget(self.database)
            try:
                return self._measured(self._command())
            except RuntimeError as e:
                if "Out of Memory" not in str(e):
                    raise
                if not self.raised:
                    said = re.search(r"Out of Memory[^\n]*", str(e))
                    raise Unavailable(said[0] if said else "Out of Memory") from None
                self.limit = int(1.25 * self.limit)

    def _command(self) -> list[str | Path]:
        return [
            sys.executable,
            "-m",
            "benchmarks.duckdb_star",
            self.database,
            self.case.tuples,
            self.home / "out",
            self.home / "scratch",
            "--threads",
            str(self.settings.cores),
            "--memory",
            str(self.limit),
        ]

    def _written(self) -> Sequence[Path]:
        return sorted((self.home / "out").iterdir())

    def finish(self) -> Result:
        return replace(super().finish(), note=f"memory_limit {self.limit / MB:,.0f} MB")


class SparkChain(StreamStaticPeer):
    """Spark's stream-static joins, one after the other in one query."""

    case: StarCase

    def __init__(self, case: StarCase, name: str, settings: Settings):
        super().__init__(Spark(case, "as is"))

    def _masters(self) -> list[Path]:
        return self.case.masters


class AppStar(LoadingPeer):
    """The app with a role for each dimension."""

    case: StarCase

    def __init__(self, case: StarCase, name: str, settings: Settings):
        super().__init__(App(case, "auto", settings.memory))

    def _arguments(self) -> list[str]:
        dimensions = self.case.stream.dimensions
        snapshots = {f"d{d.number}/{d.key}": d.snapshot(self.case.files) for d in dimensions}
        for root in snapshots.values():
            forget(root)
        roles = {
            f"d{d.number}": {"on": d.key, "dimension": {"name": f"d{d.number}"}} for d in dimensions
        }
        return arguments(
            self.home,
            snapshots,
            self.case.tuples,
            self.of.algorithm,
            self.memory,
            joined={"dimensions": roles},
        )


PEERS: dict[str, Callable[[StarCase, str, Settings], Peer]] = {
    ONE_PASS: OnePass,
    CHAINED: Chained,
    OURS: AppStar,
    SPARK: SparkChain,
    DUCKDB_M: partial(DuckDB, raised=False),
    DUCKDB: partial(DuckDB, raised=True),
}
