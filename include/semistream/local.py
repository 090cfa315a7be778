"""Airflow on this machine only: ``python -m semistream.local load | up | down``.

``load`` runs the DAGs of each job, one after the other, without a scheduler and with its own
metadata database, so that a scheduler started by ``up`` neither sees nor repeats those runs.

Everything is kept under SEMISTREAM_HOME (``var``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console

from semistream.errors import ConfigError, SemistreamError
from semistream.job import StreamStreamJob
from semistream.paths import Paths
from semistream.pipeline import drivers
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import request_stop

ROOT = Path(__file__).resolve().parents[2]
SEMI_STREAM_DAGS = ("provision_master_data", "semi_stream_load", "verify_completeness")
STREAM_STREAM_DAGS = ("stream_stream_load", "verify_completeness")
SMALL = ("tpch", "nycflights13")  # shipped jobs that are loaded in a minute
BUNDLES = [
    {
        "name": "dags-folder",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {},
    },
    {"name": "semistream-jobs", "classpath": "semistream.airflow.bundle.JobsBundle", "kwargs": {}},
]
START_SECONDS = 300  # time that Airflow may take to become healthy
# s that an Airflow process waits while another one writes metadata; 5 are too few
SQLITE_ARGUMENTS = {"timeout": 60}
# Airflow's commands, without their log servers, which would listen on every network and are useful
# only if logs are on other machines.
PARTS = {
    "api-server": "",
    "scheduler": "--skip-serve-logs",
    "dag-processor": "",
    "triggerer": "--skip-serve-logs",
}
# All run under one shell, which is the session leader, and records the process of each
AIRFLOW = "\n".join(
    [
        "airflow db migrate || exit",
        *(
            f'airflow {part} {options} & echo {part} $! >> "$AIRFLOW_HOME/standalone.parts"'
            for part, options in PARTS.items()
        ),
        "wait",
    ]
)
ENDING = (signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)  # to end Airflow; s to wait
SECONDS_BETWEEN_LINES = 5.0  # between lines of progress, without a terminal


def environment(home: Path, database: str = "airflow.db") -> dict[str, str]:
    """Return the environment variables for Airflow, Spark and the library. Settings of Spark and of
    the warehouse in the caller's environment take precedence."""
    airflow = home / "airflow"
    spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    fixed = {
        "SEMISTREAM_HOME": str(home),
        "AIRFLOW_HOME": str(airflow),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow / database}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "semistream.local.SQLITE_ARGUMENTS",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": "semistream.local.SQLITE_ARGUMENTS",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(BUNDLES),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "8",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS": "0o700",  # whatever the umask
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS": "0o600",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "include"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        ),
    }
    chosen = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "AIRFLOW__API__PORT": "8080",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "WAREHOUSE_URL": f"sqlite:///{home / 'warehouse.db'}",
    }
    settings = {**{k: os.environ.get(k) or v for k, v in chosen.items()}, **fixed}
    url = f"http://localhost:{settings['AIRFLOW__API__PORT']}"  # not derived from the port
    return settings | {
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
    }


class Interrupted(KeyboardInterrupt):
    """An interrupt by SIGINT or SIGTERM."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


def _interrupt(number: int, _frame: Any) -> None:
    raise Interrupted(number)


class AirflowCommands:
    """Airflow's command line in one process, so that it starts up only once for all DAGs.

    The process has a separate session, so that signals to this process do not reach it. A task that
    runs inside a process catches the exceptions that signals raise, and handles SIGTERM itself.
    """

    def __init__(self, settings: Mapping[str, str], log: Path):
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._pipe, settings, log))
        self._process.start()
        other.close()

    def wait(self) -> bool:
        """Wait for the start or for the last command. Return whether it succeeded."""
        try:
            return bool(self._pipe.recv())
        except EOFError:
            return False

    def run(self, *arguments: str) -> bool:
        """Run ``airflow …``. Return whether it succeeded."""
        self._pipe.send(arguments)
        return self.wait()

    def end(self) -> None:
        """End the process, and all processes that still run in its session."""
        self._pipe.close()
        self._process.join(1.0)
        assert self._process.pid is not None
        _end_group(self._process.pid, (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
        self._process.join()


def _serve(pipe: Connection, others: Connection, settings: Mapping[str, str], log: Path) -> None:
    others.close()  # otherwise the pipe would not end with the other process
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
    os.environ |= settings
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    pipe.send(True)
    with suppress(EOFError):
        while True:
            arguments = parser.parse_args(pipe.recv())
            try:
                arguments.func(arguments)
                failed: Any = None
            except SystemExit as e:
                failed = e.code
            except Exception:
                failed = True
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush()
            pipe.send(not failed)


def load(jobs: Sequence[str], screen: Console, paths: Paths) -> int:
    """Run the DAGs for each job. Return the exit code. SIGINT and SIGTERM stop all processes that
    this function has started."""
    from sqlalchemy import make_url

    from semistream import workloads
    from semistream.pipeline import summary

    began, started = time.time(), time.monotonic()
    log = paths.home / "logs" / "load.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    settings = environment(paths.home, "load.db")
    airflow = AirflowCommands(settings, log)
    try:
        with _step(screen, "Airflow", lambda: "importing") as step:
            step.succeeded = airflow.wait()
        with _step(screen, "Airflow metadata", lambda: "") as step:
            step.succeeded = airflow.run("db", "migrate")
        for job in jobs:
            two = isinstance(workloads.load_any_job(job, paths), StreamStreamJob)
            for dag in STREAM_STREAM_DAGS if two else SEMI_STREAM_DAGS:
                if not _run_dag(airflow, dag, job, screen, paths, log):
                    return 1
    except Interrupted:
        screen.print(
            "Interrupted: stopping what was started. A second time leaves a load to drain "
            "by itself."
        )
        with _step(screen, "Airflow's tasks", lambda: "stopping"):
            airflow.end()
        for job in jobs:
            _drain(paths.checkpoints / _app(job), began, screen)
        screen.print(
            "Stopped. What is loaded is committed, and running it again goes on from there."
        )
        raise
    finally:
        airflow.end()
    for job in jobs:
        screen.print(summary.summary_table(summary.final_summary(_app(job), paths)))
    screen.print(
        f"Done in {time.monotonic() - started:.0f} s. Warehouse: "
        f"{make_url(paths.warehouse_url).render_as_string()}"
    )
    screen.print(f"Log: {log}")
    return 0


def _app(job: str) -> str:
    return LoadSettings.load({"job": job}).name()


def _drain(checkpoint: Path, began: float, screen: Console) -> None:
    """Stop a load's driver if it was launched after `began`, and wait for its end."""
    launched = drivers.last_launch(checkpoint)
    if launched is None or launched.at < began or not drivers.is_alive(checkpoint):
        return
    request_stop(checkpoint)
    with _step(
        screen, f"{checkpoint.name}: draining", lambda: drivers.progress(checkpoint)
    ) as step:
        while drivers.is_alive(checkpoint):
            time.sleep(0.2)
        step.succeeded = drivers.ending(checkpoint) == ("stopped", "")


def _run_dag(
    airflow: AirflowCommands, dag: str, job: str, screen: Console, paths: Paths, log: Path
) -> bool:
    begin = log.stat().st_size

    def doing() -> str:
        *_, task = "starting", *re.findall(r"starting task_id=(\w+)", _text_from(log, begin))
        driver = paths.checkpoints / _app(job)
        return f"{task}: {drivers.progress(driver)}" if task == "load" else task

    with _step(screen, f"{_app(job)}: {dag}", doing) as step:
        form = (
            {"app": _app(job), "since_last": True} if dag == "verify_completeness" else {"job": job}
        )
        # parse only the DAG's own file
        step.succeeded = airflow.run(
            "dags",
            "test",
            dag,
            "--conf",
            json.dumps(form),
            "--bundle-name",
            "dags-folder",
            "--dagfile-path",
            str(ROOT / "dags" / f"{dag}.py"),
        )
    if not step.succeeded:
        text = _text_from(log, begin).replace("\\n", "\n")
        failed = re.search(r"[^\n]*\d+ of \d+ checks failed\.\n.*?\nReport: \S+", text, re.DOTALL)
        errors = (
            failed[0].splitlines()
            if failed
            else [
                line for line in text.splitlines() if re.search(r"Error|Exception|error *\]", line)
            ][-8:]
        )
        screen.print(f"[red]{dag} failed for {job}.[/red] The whole log: {log}", highlight=False)
        for line in errors:
            screen.print("  " + line[:400], markup=False, highlight=False)
    return step.succeeded


@dataclass
class Step:
    succeeded: bool = True


@contextmanager
def _step(screen: Console, name: str, doing: Callable[[], str]) -> Iterator[Step]:
    """Show a step while it runs: on a terminal as one line that is updated, elsewhere as a new line
    for each change."""
    started, over = time.monotonic(), threading.Event()

    def follow() -> None:
        said, at = "", started
        while not over.wait(0.5):
            now, clock = doing(), time.monotonic()
            if status is not None:
                status.update(f"{name}: {now}")
            elif now.split(" ")[0] != said.split(" ", maxsplit=1)[0] or (
                now != said and clock - at > SECONDS_BETWEEN_LINES
            ):
                screen.print(f"    {name}: {now}", highlight=False)
                said, at = now, clock

    status = screen.status(name) if screen.is_terminal else None
    follower = threading.Thread(target=follow, daemon=True)
    if status is not None:
        status.start()
    follower.start()
    step = Step()
    try:
        yield step
    except BaseException:
        step.succeeded = False
        raise
    finally:
        over.set()
        follower.join()
        if status is not None:
            status.stop()
        mark = "[green]✓[/green]" if step.succeeded else "[red]✗[/red]"
        screen.print(
            f"{mark} {name} [dim]{time.monotonic() - started:.1f} s[/dim]", highlight=False
        )


def _text_from(path: Path, begin: int) -> str:
    with open(path, "rb") as f:
        f.seek(begin)
        return f.read().decode(errors="replace")


def up(screen: Console, paths: Paths) -> int:
    """Start Airflow with its UI in the background, and wait until it is healthy."""
    settings = environment(paths.home)
    url, home = settings["AIRFLOW__API__BASE_URL"], Path(settings["AIRFLOW_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    if session := _running(home):
        if not (ended := _ended_parts(home, session)):
            screen.print(f"Airflow runs already (session {session}): {url}")
            return 0
        screen.print(
            f"Airflow runs without its {', '.join(ended)}: ending the rest, and starting all of it."
        )
        _stop(home, session)
    _free_port(int(settings["AIRFLOW__API__PORT"]))
    log = home / "standalone.log"
    (home / "standalone.parts").unlink(missing_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", AIRFLOW],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **settings},
            cwd=ROOT,
        )
    (home / "standalone.pid").write_text(str(process.pid))
    with _step(screen, "Airflow", lambda: "starting"):
        deadline = time.monotonic() + START_SECONDS
        while not _healthy(url):
            if (
                process.poll() is not None
                or _ended_parts(home, process.pid)
                or time.monotonic() > deadline
            ):
                screen.print(_text_from(log, 0)[-3000:], markup=False)
                raise SemistreamError(f"Airflow did not start; its log is {log}")
            time.sleep(1)
    users = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text())
    screen.print(f"Airflow is at {url}, its log at {log}. Log in as:", highlight=False)
    for user, password in users.items():
        screen.print(f"    {user}  {password}", highlight=False, markup=False)
    screen.print("The DAGs are unpaused; `make down` stops it. Running loads go on without it.")
    return 0


def down(screen: Console, paths: Paths) -> int:
    """Stop the processes that ``up`` started. Spark drivers, which have separate sessions, keep
    running."""
    home = paths.home / "airflow"
    if session := _running(home):
        _stop(home, session)
    screen.print("Airflow has stopped." if session else "Airflow does not run.")
    return 0


def _stop(home: Path, session: int) -> None:
    """End all processes of the session. Raises SemistreamError if some processes do not end."""
    _end_group(session, *ENDING)
    if left := members(session):
        raise SemistreamError(
            f"Of Airflow, the processes {', '.join(map(str, left))} do not end. "
            f"End them, for instance: kill -9 {' '.join(map(str, left))}"
        )
    (home / "standalone.pid").unlink()


def _keep_private(home: Path) -> None:
    """Make ``home``, and all files created from now on, accessible only to their owner, because
    they include databases, logs and a password."""
    os.umask(0o077)
    home.mkdir(parents=True, exist_ok=True)
    if home.stat().st_uid == os.getuid():
        home.chmod(0o700)


def _running(home: Path) -> int | None:
    """Return the session that ``up`` started if any of its processes is alive; otherwise None."""
    try:
        session = int((home / "standalone.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return session if any(_is_airflow(process, home) for process in members(session)) else None


def _is_airflow(process: int, home: Path) -> bool:
    """Return whether ``up`` started the process. Another program may have got the session's number
    later. Airflow overwrites a process's command line with its title."""
    try:
        command, environment = (
            Path(f"/proc/{process}/{name}").read_bytes() for name in ("cmdline", "environ")
        )
    except OSError:
        return False
    return b"airflow" in command or f"AIRFLOW_HOME={home}".encode() in environment.split(b"\0")


def _ended_parts(home: Path, session: int) -> list[str]:
    """Return the names of those processes of Airflow that have ended, including processes that can
    no longer be started."""
    started = dict[str, int]()
    with suppress(FileNotFoundError):
        for line in (home / "standalone.parts").read_text().splitlines():
            name, _, process = line.partition(" ")
            started[name] = int(process)
    living = members(session)
    return [
        part
        for part in PARTS
        if (started[part] not in living if part in started else session not in living)
    ]


def _end_group(group: int, *signals: tuple[signal.Signals, float]) -> None:
    """Send signals to all processes of a group or session, one signal after the other, until all
    processes have ended. signals: (number, longest time in seconds to wait for the end)."""
    for number, seconds in signals:
        for process in members(group):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        deadline = time.monotonic() + seconds
        while members(group) and time.monotonic() < deadline:
            time.sleep(0.1)


def members(number: int) -> list[int]:
    """Return the ids of the living processes in the process group or the session with this
    number."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group, session, *_ = stat.read_text().rpartition(")")[2].split()
            if number in (int(group), int(session)) and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def _free_port(port: int) -> None:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except OSError:
            raise ConfigError(
                "AIRFLOW__API__PORT", "must be a free port", port, "Set it to another one."
            ) from None


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=5) as response:  # noqa: S310
            health = json.load(response)
    except OSError:
        return False
    return all(
        health[part]["status"] == "healthy"
        for part in ("metadatabase", "scheduler", "triggerer", "dag_processor")
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m semistream.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("load", help="run the DAGs of the jobs named").add_argument(
        "job", nargs="*", default=list(SMALL), help=f"shipped job or YAML file [{' '.join(SMALL)}]"
    )
    commands.add_parser("up", help="start Airflow with its UI")
    commands.add_parser("down", help="stop it")
    arguments = parser.parse_args(argv)
    screen = Console(soft_wrap=True)
    paths = Paths.from_environment()
    os.environ["SEMISTREAM_HOME"] = str(paths.home)
    _keep_private(paths.home)
    run: dict[str, Callable[[], int]] = {
        "load": lambda: load(arguments.job, screen, paths),
        "up": lambda: up(screen, paths),
        "down": lambda: down(screen, paths),
    }
    try:
        return run[arguments.command]()
    except Interrupted as e:
        return 128 + e.number
    except KeyboardInterrupt:
        return 130
    except SemistreamError as e:
        screen.print(f"[red]{type(e).__name__}:[/red] ", end="")
        screen.print(str(e), markup=False, highlight=False)
        return 2 if isinstance(e, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
