"""Apache Flink as a peer: its installation, a cluster of a job manager and a task manager, and SQL
jobs that run on it.

Flink is installed from PyPI into a separate virtual environment under var/ on first use, with jars
from Maven; both are pinned by hashes. MAVEN_URL names the repository, the central one or a mirror.
The connector's dialect for MariaDB is compiled from benchmarks/flink.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import ROOT
from benchmarks.peer_environments import peer_environment, run
from benchmarks.processes import Program, program

HERE = ROOT / "benchmarks" / "flink"
PYFLINK = "lib/python3.11/site-packages/pyflink"
JARS = {  # path in a Maven repository: SHA-256
    "commons-logging/commons-logging/1.3.5": "6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4",
    "org/apache/flink/flink-connector-jdbc-core/4.0.0-2.0": "ccb9691bf1d0f97574ae768e1bef05a39c06d7f7b13996e9d485fbdd69dcbfec",
    "org/apache/flink/flink-sql-parquet/2.3.0": "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd",
    "org/apache/hadoop/hadoop-client-api/3.4.1": "a964d4daa054c9615bbafb4553efbb140fa7fb9ac6f358a24393f183a5703438",
    "org/apache/hadoop/hadoop-client-runtime/3.4.1": "f6a800a159f918670db533606d33560d6c13b7e13f14eda493280ae33b9eeb2f",
    "org/mariadb/jdbc/mariadb-java-client/3.5.3": "85c4ba2f221d0dfd439c26affbb294f784960763544263c65aba9c2c76858706",
}


# ---- installation


def install() -> Path:
    """Install Flink and return its home: the directory that has bin and lib."""
    return peer_environment("flink", _add_jars) / PYFLINK


def _add_jars(home: Path) -> None:
    lib, classes, maven = home / PYFLINK / "lib", home / "classes", os.environ.get("MAVEN_URL")
    if not maven:
        raise OSError("MAVEN_URL must be the address of Maven's central repository, or a mirror's")
    for path, digest in JARS.items():
        _, artifact, version = path.rsplit("/", 2)
        name = f"{artifact}-{version}.jar"
        url = f"{maven.rstrip('/')}/{path}/{name}"
        with urllib.request.urlopen(url, timeout=300) as answer:
            found = answer.read()
        if hashlib.sha256(found).hexdigest() != digest:
            raise OSError(f"{url} is not the file that is pinned")
        (lib / name).write_bytes(found)
    run("javac", "-nowarn", "-cp", f"{lib}/*", "-d", classes, HERE / "MariaDb.java")
    run(
        "jar",
        "--create",
        "--file",
        lib / "mariadb-dialect.jar",
        "-C",
        classes,
        ".",
        "-C",
        HERE,
        "META-INF",
    )


# ---- a cluster


@dataclass
class Cluster:
    """A running job manager and task manager."""

    home: Path  # of Flink
    address: str  # of the job manager's REST interface
    processes: Sequence[Program]
    configuration: Mapping[str, Any]

    @property
    def memory_peak(self) -> int:
        """The peak memory of both processes, in bytes."""
        return sum(p.memory_peak for p in self.processes)

    def memory(self) -> dict[str, float]:
        """Return the peaks of the memory of both processes as remarks for a table."""
        return dict(sum((Counter(p.memory()) for p in self.processes), Counter[str]()))

    def submit(self, statements: Sequence[str], log: Path, configuration: Mapping[str, Any]) -> str:
        """Start the job of the last statement and return its id."""
        job = {
            "statements": list(statements),
            "configuration": {**self.configuration, "execution.target": "remote", **configuration},
        }
        with open(log, "ab") as out:
            done = subprocess.run(
                [self.home.parents[3] / "bin" / "python", HERE / "submit.py"],
                input=json.dumps(job),
                text=True,
                stdout=subprocess.PIPE,
                stderr=out,
                check=False,
            )
        lines = [line for line in done.stdout.splitlines() if line.startswith("job ")]
        if done.returncode or not lines:
            raise RuntimeError(f"the job was not taken:\n{log.read_text()[-4000:]}")
        return lines[-1].split()[1]

    def job(self, job: str) -> dict[str, Any]:
        """Return the report of Flink's REST interface on a job. Raises RuntimeError if the job has
        failed."""
        status = self.get(f"jobs/{job}")
        if status["state"] in ("FAILED", "CANCELED", "FAILING", "SUSPENDED"):
            cause = self.get(f"jobs/{job}/exceptions")["exceptionHistory"]["entries"]
            text = "\n".join(e["stacktrace"][:3000] for e in cause[:1])
            raise RuntimeError(f"Flink's job is {status['state']}:\n{text}")
        return status

    def end(self, job: str, timeout: float = 3600) -> float:
        """Wait until a job has finished, and return its run time in seconds, as Flink reports
        it."""
        deadline = time.monotonic() + timeout
        while (status := self.job(job))["state"] != "FINISHED":
            if time.monotonic() > deadline:
                raise RuntimeError(f"Flink's job was {status['state']} after {timeout} s")
            time.sleep(0.1)
        return status["duration"] / 1000

    def consumed(self, job: str) -> int:
        """Return the number of records of both inputs that have reached the join of a job."""
        return max(v["metrics"]["read-records"] for v in self.job(job)["vertices"])

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}/{path}", timeout=60) as answer:
            return json.load(answer)


@contextmanager
def cluster(directory: Path, settings: Mapping[str, Any], look: float) -> Iterator[Cluster]:
    """Yield a running cluster whose files are in a directory. The cluster ends with the context.
    settings: replace Flink's defaults; a value of None removes a setting."""
    home = install()
    rest, rpc = _free_ports(2)
    configured = {
        **_flat(yaml.safe_load((home / "conf" / "config.yaml").read_text())),
        "rest.port": rest,
        "rest.bind-port": rest,
        "rest.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc,
        "io.tmp.dirs": str(directory / "tmp"),
        "metrics.fetcher.update-interval": 500,
        **settings,
    }
    configuration = {name: value for name, value in configured.items() if value is not None}
    conf = directory / "conf"
    (directory / "tmp").mkdir(parents=True)
    shutil.copytree(home / "conf", conf)
    (conf / "config.yaml").write_text(yaml.safe_dump(configuration))
    environment = {
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(directory / "log"),
        "FLINK_PID_DIR": str(directory),
        "FLINK_HOME": str(home),
    }
    with ExitStack() as stack:

        def start(script: str) -> Program:
            return stack.enter_context(
                program(
                    [home / "bin" / script, "start-foreground"],
                    directory / f"{script}.log",
                    environment,
                    look,
                )
            )

        manager = start("jobmanager.sh")
        address = f"http://127.0.0.1:{rest}"
        manager.until(lambda: _answers(address, 0))  # an earlier task manager would wait 10 s
        workers = start("taskmanager.sh")
        workers.until(lambda: _answers(address, 1))
        yield Cluster(home, address, (manager, workers), configuration)


def _answers(address: str, workers: int) -> bool:
    """Return whether the job manager answers and has `workers` task managers registered."""
    try:
        with urllib.request.urlopen(f"{address}/overview", timeout=5) as answer:
            return json.load(answer)["taskmanagers"] >= workers
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings as a flat mapping from their full names."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= (
            _flat(value, f"{above}{name}.")
            if isinstance(value, dict)
            else {f"{above}{name}": value}
        )
    return flat
