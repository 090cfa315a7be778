"""The app on a standalone cluster of local processes: one executor compared with two, one core
each.

Both have the same files, the same M in total, and as many partitions as executors. Driver and
master are on the same machine. On two cores, two executors lack the driver's share of the cores;
"busy cores" shows how much one executor leaves free. Rows "model" show what the cost models expect
of these executors and of more, without Spark's own time.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark

from benchmarks.data import COLUMNS, MASTER_BYTES, Files, Stream
from benchmarks.harness import MB, Bench, Result
from benchmarks.processes import Program, program
from benchmarks.spark_join import App, AppPeer, Case
from semistream.cost_models import TYPICAL
from semistream.job import Job
from semistream.master.published import current_version
from semistream.sizing.scale_out import Scaled, scale_out
from semistream.sizing.sizing_input import SizingInput

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_SECONDS = 90.0
SAMPLE = 100_000  # stream tuples that the models sample


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 10.0  # M, percent of R
    batch: int = 500_000  # tuples of a micro-batch
    batches: int = 6
    warm_up: int = 3  # of them
    executors: tuple[int, ...] = (1, 2)
    planned: tuple[int, ...] = (1, 2, 4, 8, 16)  # numbers of executors that only the model predicts
    algorithm: str = "elevatorjoin"
    driver_memory: str = "1g"
    executor_memory: str = "1g"


SCALES = {
    "smallest": Settings(master=50_000, batch=20_000, batches=2, warm_up=1, algorithm="ssbj"),
    "small": Settings(),
    "full": Settings(master=20_000_000, batch=8_000_000),
}


def run(bench: Bench, s: Settings) -> None:
    case = Case(bench.files, Stream(s.master), s.batch, s.batches, s.warm_up, s.driver_memory, "")
    case.make()
    memory = int(s.share / 100 * s.master * MASTER_BYTES)
    peers = {
        f"{n} executor{'s' * (n > 1)}": OnCluster(
            App(case, s.algorithm, memory, n), s.executor_memory
        )
        for n in s.executors
    }
    name = f"R={s.master:,} M={s.share:g}% batch={s.batch:,}"
    bench.compare("scale-out", name, peers, next(iter(peers)))
    for plan in planned(bench.files, case.stream, memory, s):
        bench.add(
            "scale-out",
            name,
            f"model, {plan.operators}",
            {
                "operators": plan.operators,
                "note": (
                    f"{plan.rate:,.0f} tuples/s; each M {plan.memory_each / MB:,.1f} MB, R "
                    f"{plan.master_each / MB:,.1f} MB; the slowest {plan.share:.1%} of S; "
                    f"{plan.shuffled:.1f} bytes a tuple shuffled"
                ),
            },
        )


def planned(files: Files, stream: Stream, memory: int, s: Settings) -> list[Scaled]:
    root = files.snapshot(s.master, COLUMNS)
    job = Job.load(
        {
            "name": "benchmark",
            "stream": {"path": "stream"},
            "master": {"name": "master"},
            "on": {"key": "key"},
            "fact_table": "fact",
        }
    )
    case = SizingInput(job, stream.batch(0, SAMPLE), root / str(current_version(root)), 1)
    with closing(case.relation):
        return scale_out(case, [memory], s.planned, [s.algorithm], TYPICAL)


@dataclass(frozen=True)
class OnCluster:
    app: App
    executor_memory: str

    def __call__(self) -> ClusterPeer:
        return ClusterPeer(self)


class ClusterPeer(AppPeer):
    """A master and a worker of one core for each executor, which live as long as the peer."""

    def __init__(self, of: OnCluster):
        self._stack, self._programs = ExitStack(), list[Program]()
        url = self._start(of)
        case = replace(
            of.app.case,
            master=f"{url} --conf spark.executor.cores=1 --conf "
            f"spark.cores.max={of.app.partitions} --executor-memory "
            f"{of.executor_memory}",
        )
        super().__init__(replace(of.app, case=case))

    def finish(self) -> Result:
        result = super().finish()
        self._stack.close()
        result.rss_peak += sum(p.memory_peak for p in self._programs)
        return result

    def _start(self, of: OnCluster) -> str:
        count = of.app.partitions
        home = of.app.case.files.runs / f"cluster-{count}"
        home.mkdir(parents=True, exist_ok=True)
        port, web, *others = free_ports(2 + count)
        url = f"spark://127.0.0.1:{port}"
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(home / "scratch"),
            "SPARK_WORKER_DIR": str(home / "work"),
        }
        master = [
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--webui-port",
            web,
        ]
        worker = [
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            of.executor_memory,
            "--webui-port",
        ]
        for command in (master, *([*worker, other, url] for other in others)):
            self._programs.append(
                self._stack.enter_context(
                    program([SPARK_CLASS, *map(str, command)], home / "log", environment)
                )
            )
        self._programs[0].until(lambda: alive_workers(web) == count, START_SECONDS)
        return url


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def alive_workers(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as page:
            return json.load(page)["aliveworkers"]
    except (OSError, ValueError):  # not up yet
        return 0
