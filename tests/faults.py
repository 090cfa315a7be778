"""Crashes as data: an app in a process of its own, and a seeded list of what is killed when."""

from __future__ import annotations

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from loads import SmallLoad, until
from semistream.streaming.session import DEFAULTS
from semistream.streaming.status import Status, read_status
from stream_pairs import Pair

ROOT = Path(__file__).resolve().parents[1]
APPS = ROOT / "spark_apps"
DAEMON = DEFAULTS["spark.python.daemon.module"]  # of Python workers
CONF = (
    "--driver-memory",
    "512m",
    "--conf",
    "spark.ui.enabled=false",
    "--conf",
    "spark.driver.host=127.0.0.1",
    "--conf",
    "spark.driver.bindAddress=127.0.0.1",
    "--conf",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)

What = Literal["driver", "worker", "database"]


@dataclass(frozen=True)
class Fault:
    """Kill ``what`` once ``batches`` more micro-batches are being or were committed, a fraction of
    a batch later."""

    what: What
    batches: int
    later: float  # s


def plan(seed: int, kills: Mapping[What, int]) -> list[Fault]:
    """So many kills of each, in random order at random moments."""
    order, chance = list(Counter(kills).elements()), random.Random(seed)
    chance.shuffle(order)
    return [Fault(what, chance.randint(0, 2), chance.uniform(0, 0.5)) for what in order]


class App:
    """The streaming app as its own process, started again and again on one checkpoint. The fixture
    `make_app` makes one, and ends what is left of its processes."""

    def __init__(self, load: SmallLoad | Pair, master: str = "local[2,4]", **settings: Any):
        self.load, self.master, self.script = load, master, APPS / load.script
        self.settings = load.settings(**settings).model_copy(update={"job": str(load.yaml())})
        self.checkpoint = self.settings.directory(load.paths)
        self.log = load.paths.home / "app.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._groups: list[int] = []

    def start(
        self, command: Sequence[str] = (sys.executable,), local_directories: bool = True
    ) -> None:
        paths = self.load.paths
        environment = {
            **os.environ,
            "SEMISTREAM_HOME": str(paths.home),
            "WAREHOUSE_URL": paths.warehouse_url,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(paths.home / "scratch"),
        }
        if not local_directories:
            del environment["SPARK_LOCAL_DIRS"]
        if command == (sys.executable,):
            conf = " ".join(f"'{c}'" if " " in c else c for c in CONF)
            environment["PYSPARK_SUBMIT_ARGS"] = f"--master {self.master} {conf} pyspark-shell"
        with open(self.log, "ab") as log:
            arguments = [*command, str(self.script), *self.settings.to_arguments()]
            self.process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._groups.append(self.process.pid)

    def submit(self, *options: str, **how: Any) -> None:
        """Start it by spark-submit, as from Airflow: on this machine, or with these options."""
        self.start(
            [
                str(Path(sys.executable).with_name("spark-submit")),
                *(options or ("--master", "local[2]", "--driver-memory", "512m")),
            ],
            **how,
        )

    def wait(self, reached: Callable[[Status], object], what: str) -> Status:
        """Wait until its status, of this run, is so; gives it."""
        assert self.process is not None
        begun = self.process.pid

        def status() -> Status | None:
            assert self.running, self.output()
            found = read_status(self.checkpoint)
            mine = found is not None and begun in (found.pid, *ancestors(found.pid))
            return found if found is not None and mine and reached(found) else None

        return until(status, 120, what)

    def read(self, rows: int) -> Status:
        """Wait until it has read so many rows; gives its status."""
        return self.wait(lambda status: status.rows_read == rows, f"{rows} rows")

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs or was never started."""
        return self.process.poll() if self.process else None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, timeout: float = 120) -> int:
        """Wait for the end; gives the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError("the app did not end:\n" + self.output()) from None

    def output(self, characters: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def close(self) -> None:
        """End whatever is left of the processes started."""
        for group in self._groups:
            for pid in [group, *descendants(group)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def workers(self) -> list[int]:
        """Python workers of the app: what the daemons forked."""
        assert self.process is not None
        return [
            pid
            for pid in descendants(self.process.pid)
            if DAEMON in command_of(pid) and DAEMON in command_of(parent_of(pid))
        ]


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(parent_of(int(entry.name)), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def ancestors(pid: int) -> list[int]:
    found = []
    while pid := parent_of(pid):
        found.append(pid)
    return found


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def command_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def listening(pids: Iterable[int]) -> set[str]:
    """The addresses, as /proc/net has them, at which processes wait for TCP connections."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # one that is closed meanwhile hides no other
                    inodes.add(link.readlink().name)
    sockets = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {s[1] for s in sockets if s[3] == "0A" and f"socket:[{s[9]}]" in inodes}


def is_loopback(address: str) -> bool:
    return address.split(":", maxsplit=1)[0] in (
        "0100007F",
        "0000000000000000FFFF00000100007F",
        "00000000000000000000000001000000",
    )


def run_through(app: App, seed: int, kills: Mapping[What, int], database: Any = None) -> None:
    """Run the app to its end through all the kills.

    A run that ends by itself with a failure is started again, as an orchestrator would.
    """
    chance, history, faults = random.Random(seed), [], plan(seed, kills)
    for fault in faults:
        target = batches(app.load) + fault.batches
        while not app.running or batches(app.load) < target:
            if not app.running:
                if app.code == 0:  # done before all faults were: there is more to load
                    app.load.add_file(300)
                elif app.code is not None:
                    history.append(f"exit {app.code}")
                app.start()
            until(
                lambda t=target: not app.running or batches(app.load) >= t,
                120,
                f"progress to {target} batches",
            )
        if fault.what == "worker":
            until(lambda: not app.running or app.workers(), 60, "a Python worker")
        time.sleep(fault.later)  # not synchronisation: the moment within a batch
        history.append(strike(app, fault, chance, database))
    while not app.running or app.end() != 0:
        if not app.running:
            assert len(history) < 3 * len(faults) + 6, (
                f"it does not recover: {history}\n{app.output()}"
            )
            history += [f"exit {app.code}"] if app.code is not None else []
            app.start()
    struck = Counter(what for what in history if what in kills)
    assert struck == Counter(kills), history


def strike(app: App, fault: Fault, chance: random.Random, database: Any) -> str:
    if fault.what == "driver":
        assert app.process is not None
        app.process.kill()  # its JVM and tasks may live on for a while: that is part of it
        app.process.wait()
    elif fault.what == "worker":
        for pid in chance.sample(
            found := sorted(app.workers()), min(len(found), chance.choice((1, 2)))
        ):
            os.kill(pid, signal.SIGKILL)
    else:
        database.kill()
        time.sleep(0.2)  # the time that it is away
        database.start()
    return fault.what


def batches(load: SmallLoad) -> int:
    """Micro-batches of which at least one partition is in the ledger; -1 while there is no
    answer."""
    try:
        return int(load.query("SELECT count(DISTINCT 10 * batch + drain) FROM load_batches")[0][0])
    except Exception:  # no table yet, or no server
        return -1


POINTS = [  # where the driver dies, in the order in which a batch passes them
    ("semistream.streaming.progress.Progress.write", "before"),
    ("semistream.streaming.progress.Progress.write", "after"),
    ("semistream.streaming.app.run_tasks", "after"),
    ("semistream.warehouse.ledger.Ledger.commit", "before"),
    ("semistream.warehouse.ledger.Ledger.commit", "after"),
    ("semistream.streaming.commit.Commits.finish", "after"),
    ("semistream.streaming.app.App._finish", "after"),
]
OF_DELTA = [  # what it has besides: an intent, and a commit that Spark need not wait for
    ("semistream.streaming.commit.Commits.prepare", "before"),
    ("semistream.streaming.commit.Commits.prepare", "after"),
    ("semistream.streaming.sinks.delta.DeltaSink.commit", "before"),
    ("semistream.streaming.sinks.delta.DeltaSink.commit", "after"),
]


def points(sink: str) -> list[tuple[str, str]]:
    """The steps at which the driver of a load with this sink can die, for ``crash_at``."""
    return POINTS if sink == "sql" else POINTS + OF_DELTA


def crash() -> None:
    raise OSError("crash")


def crash_at(
    patch: pytest.MonkeyPatch, name: str, when: str, nth: int, crash: Callable[[], None] = crash
) -> None:
    """The n-th call ends in an OSError, or another crash, before or after it did its work."""
    module, kind, method = name.rsplit(".", 2)
    owner = getattr(importlib.import_module(module), kind)
    original, calls = getattr(owner, method), iter(range(1, 100))

    def crashing(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        if number == nth and when == "before":
            crash()
        result = original(*args, **kwargs)
        if number == nth:
            crash()
        return result

    patch.setattr(owner, method, crashing)
