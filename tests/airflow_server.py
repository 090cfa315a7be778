"""Airflow as `make up` starts it, and its REST API, for tests."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from semistream.local import members

DEADLINE = 180.0  # s


def wait_until(
    true: Callable[[], Any], what: str, seconds: float = DEADLINE, every: float = 0.2
) -> Any:
    end = time.monotonic() + seconds
    while not (result := true()):
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(every)
    return result


class AirflowServer:
    def __init__(self, home: Path, port: int):
        self.home, self.url = home, f"http://localhost:{port}"
        self.environment = {
            **os.environ,
            "SEMISTREAM_HOME": str(home),
            "AIRFLOW__API__PORT": str(port),
            "WAREHOUSE_URL": f"sqlite:///{home / 'warehouse.db'}",
            "PYTHONPATH": os.pathsep.join(
                [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parent)]
            ),
            # by default every 30 s, which takes most of a processor
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            # how soon a new triggerer takes over from one that was killed; 30 s and
            # 5 s by default
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        }

    def up(self) -> str:
        return self._local("up")

    def down(self) -> str:
        return self._local("down")

    def _local(self, command: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "semistream.local", command],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def kill(self) -> None:
        """SIGKILL to scheduler, triggerer and all others at once."""
        group = int((self.home / "airflow" / "standalone.pid").read_text())
        os.killpg(group, signal.SIGKILL)
        wait_until(lambda: not members(group), "Airflow is dead", 30)

    @property
    def password(self) -> str:
        return json.loads(
            (self.home / "airflow" / "simple_auth_manager_passwords.json.generated").read_text()
        )["admin"]

    def call(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
        if not hasattr(self, "token"):
            self.token = self._send(
                "/auth/token", {"username": "admin", "password": self.password}, None, None
            )["access_token"]
        return self._send(path, body, method, self.token)

    def _send(
        self, path: str, body: dict[str, Any] | None, method: str | None, token: str | None
    ) -> Any:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, data, headers, method=method), timeout=30
        ) as answer:
            return json.load(answer)

    def trigger(self, dag: str, **conf: Any) -> str:
        return self.call(f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})[
            "dag_run_id"
        ]

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        found = self.call(f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {t["task_id"]: t["state"] for t in found}

    def state(self, dag: str, run: str) -> str:
        return self.call(f"/api/v2/dags/{dag}/dagRuns/{run}")["state"]

    def pass_deadline(self, dag: str, run: str) -> datetime:
        """Let the deadline of a run have passed. Return when it would have been."""
        of_run = "WHERE dagrun_id = (SELECT id FROM dag_run WHERE dag_id = ? AND run_id = ?)"
        with closing(sqlite3.connect(self.home / "airflow" / "airflow.db", timeout=60)) as database:
            found = database.execute(f"SELECT deadline_time FROM deadline {of_run}", [dag, run])
            ((due,),) = found.fetchall()
            database.execute(f"UPDATE deadline SET deadline_time = created_at {of_run}", [dag, run])
            database.commit()
        return datetime.fromisoformat(due)

    def knows(self, dag: str) -> bool:
        try:
            return bool(self.call(f"/api/v2/dags/{dag}"))
        except urllib.error.HTTPError:
            return False

    def runs(self, dag: str) -> list[str]:
        """The states of a DAG's runs, but for those that its timetable began."""
        return [
            r["state"]
            for r in self.call(f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
            if r["run_type"] != "scheduled"
        ]
