"""The containers of docker-compose.yaml, started for real: a load, restarts in the midst of another
one, down, up, and a recount.

Run by ``make compose-test``. It needs root, Docker's engine and Compose. Where no registry of
images is reached, what the images are based on is made from Debian's packages by debootstrap
(``Dockerfile`` beside this file). The project has a name, volumes and ports of its own, which go at
the end.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_server import wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SECRETS = (
    "POSTGRES_PASSWORD",
    "MYSQL_PASSWORD",
    "MYSQL_ROOT_PASSWORD",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_SECRET_KEY",
)
BASES = {
    "python": "python:3.11-slim-bookworm",
    "mysql": COMPOSE["services"]["mysql"]["image"],
    "postgres": COMPOSE["services"]["postgres"]["image"],
}
ROWS, KEYS = 2_000_000, 20_000  # of the load that is disturbed
MINUTES = 20


def run(*command: str | Path, check: bool = True, **options: Any) -> str:
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=ROOT, **options
    )
    if check:
        assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def why_not() -> str:
    """Why the containers cannot be started here; empty where they can."""
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        return "docker with its plugin compose is not installed"
    if subprocess.run(["docker", "info"], capture_output=True).returncode:
        return "no Docker engine answers; start dockerd, as root"
    if not all(map(has_image, BASES.values())) and not (
        os.geteuid() == 0 and shutil.which("debootstrap")
    ):
        return (
            "no registry of images is reached, and making the base images takes root and "
            "debootstrap"
        )
    return ""


def has_image(name: str) -> bool:
    return any(
        not subprocess.run(["docker", *how, name], capture_output=True).returncode
        for how in (["image", "inspect"], ["pull"])
    )


def stand_in(stage: str, directory: Path) -> str:
    """An image made from Debian's packages in the place of one that cannot be had; gives its
    name."""
    name = f"semistream-test/{stage}"
    if subprocess.run(
        ["docker", "image", "inspect", "semistream-test/debian"], capture_output=True
    ).returncode:
        root = directory / "debian"
        run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", root)
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs")
        archive = directory / "debian.tar"
        run("tar", "-C", root, "-cf", archive, ".")
        run("docker", "import", archive, "semistream-test/debian")
        shutil.rmtree(root)
    run("docker", "build", "--network=host", "--target", stage, "--tag", name, HERE)
    return name


class Stack:
    """The containers of one Compose project."""

    def __init__(self, directory: Path):
        self.port, self.environment = free_port(), {**os.environ, "DOCKER_BUILDKIT": "0"}
        self.environment |= {name: secrets.token_hex(16) for name in SECRETS}
        self.environment |= {
            "AIRFLOW_FERNET_KEY": secrets.token_urlsafe(32) + "=",
            "AIRFLOW_PORT": str(self.port),
            "SPARK_UI_PORT": str(free_port()),
        }
        bases = {
            stage: image if has_image(image) else stand_in(stage, directory)
            for stage, image in BASES.items()
        }
        own = {
            "image": "semistream-test/semistream",
            "build": {
                "context": str(ROOT),
                "network": "host",
                "args": {"PYTHON_IMAGE": bases["python"]},
            },
        }
        services = {
            name: {"image": bases[name]} if name in bases else own for name in COMPOSE["services"]
        }
        (directory / "override.yaml").write_text(json.dumps({"services": services}))
        self.compose = (
            "docker",
            "compose",
            "--project-name",
            "semistream-test",
            "--file",
            ROOT / "docker-compose.yaml",
            "--file",
            directory / "override.yaml",
        )

    def __call__(self, *command: str, **options: Any) -> str:
        return run(*self.compose, *command, env=self.environment, **options)

    def up(self) -> None:
        self("up", "--detach", "--wait", "--wait-timeout", str(60 * MINUTES))
        users = "/var/lib/semistream/airflow/simple_auth_manager_passwords.json.generated"
        password = json.loads(self("exec", "-T", "airflow-api-server", "cat", users))["admin"]
        self.token = json.loads(
            self.get("/auth/token", {"username": "admin", "password": password}, {})
        )["access_token"]

    def get(
        self, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> str:
        headers = {"Authorization": f"Bearer {self.token}"} if headers is None else headers
        data = None if body is None else json.dumps(body).encode()
        headers = headers | {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://localhost:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def runs(self, dag: str) -> list[str]:
        """The states of a DAG's runs, but for those that its timetable began."""
        found = json.loads(self.get(f"/api/v2/dags/{dag}/dagRuns?limit=100"))["dag_runs"]
        return [r["state"] for r in found if r["run_type"] != "scheduled"]

    def trigger(self, dag: str, **conf: Any) -> None:
        self.get(f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})

    def wait(self, dag: str, count: int) -> None:
        """Until so many runs of a DAG have ended well."""

        def over() -> bool:
            states = self.runs(dag)
            if "failed" in states:
                log = self("logs", "--tail=100", "airflow-scheduler")
                raise AssertionError(f"{dag}: {states}\n{log[-8000:]}")
            return states.count("success") >= count

        wait_until(over, f"{count} runs of {dag}", 60 * MINUTES)

    def query(self, sql: str) -> list[list[int]]:
        out = self(
            "exec",
            "-T",
            "mysql",
            "sh",
            "-c",
            f'exec mysql --user="$MYSQL_USER" --password="$MYSQL_PASSWORD" -N -B warehouse '
            f'-e "{sql}"',
        )
        return [[int(float(value)) for value in line.split("\t")] for line in out.splitlines()]

    def counts(self) -> list[list[int]]:
        """Of both facts: rows, different ids, a sum over what the master data brought; and the
        ledgers' rows read."""
        return self.query(
            "SELECT COUNT(*), COUNT(DISTINCT o_orderkey), SUM(c_acctbal) FROM "
            "fact_orders; SELECT COUNT(*), COUNT(DISTINCT id), SUM(weight) FROM "
            "fact_zipf; SELECT SUM(rows_read), SUM(matched), SUM(unmatched) FROM "
            "load_batches GROUP BY app ORDER BY app"
        )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    stack = Stack(tmp_path_factory.mktemp("compose"))
    try:
        stack("build", "airflow-init")
        stack("down", "--volumes", "--remove-orphans")
        stack.up()
        yield stack
    finally:
        stack("down", "--volumes", "--remove-orphans", check=False)


def test_a_load_is_provisioned_joined_on_the_cluster_and_found_complete(stack):
    stack.trigger("provision_master_data", job="tpch")
    for dag in ("provision_master_data", "semi_stream_load", "verify_completeness"):
        stack.wait(dag, 1)
    assert stack.query("SELECT COUNT(*), COUNT(DISTINCT o_orderkey) FROM fact_orders") == [
        [150_000, 150_000]
    ]


def test_the_page_answers(stack):
    assert "tpch" in stack.get("/semistream/")


def test_nothing_that_airflow_imports_has_to_be_compiled(stack):
    program = (
        "import os, sys, airflow.cli.cli_parser; "
        "print([m.__name__ for m in list(sys.modules.values()) if getattr(m, '__cached__', "
        "None) and not os.path.exists(m.__cached__)])"
    )
    assert (
        stack("exec", "-T", "airflow-scheduler", "python", "-c", program).splitlines()[-1] == "[]"
    )


def test_a_load_outlives_restarts_of_scheduler_and_worker(stack):
    job = {
        "name": "zipf",
        "on": {"key": "key"},
        "columns": ["weight"],
        "fact_table": "fact_zipf",
        "stream": {
            "format": "zipf",
            "id": ["id"],
            "options": {
                "rows": str(ROWS),
                "keys": str(KEYS),
                "rowsPerBatch": "100000",
                "partitions": "2",
            },
        },
        "master": {"name": "keys", "path": "/var/lib/semistream/keys.csv"},
    }
    keys = 'BEGIN { print "key,weight" } { print $1 "," $1 % 97 }'
    write = f"cat > zipf.yaml && seq 1 {KEYS} | awk '{keys}' > keys.csv"
    stack(
        "exec",
        "-T",
        "--workdir",
        "/var/lib/semistream",
        "airflow-scheduler",
        "sh",
        "-c",
        write,
        input=json.dumps(job),
    )
    stack.trigger("provision_master_data", job="/var/lib/semistream/zipf.yaml")
    committed = "SELECT COUNT(*) FROM load_commits WHERE app = 'zipf'"
    wait_until(lambda: stack.query(committed)[0][0] >= 3, "three micro-batches", 60 * MINUTES)
    stack("restart", "airflow-scheduler", "spark-worker")
    assert stack.query(committed)[0][0] < ROWS // 100_000, "the load was over before the restart"
    for dag in ("provision_master_data", "semi_stream_load", "verify_completeness"):
        stack.wait(dag, 2)
    rows, ids, _ = stack.query("SELECT COUNT(*), COUNT(DISTINCT id), SUM(weight) FROM fact_zipf")[0]
    assert rows == ids == ROWS


def test_everything_is_there_after_down_and_up(stack):
    before = stack.counts()
    stack("down")
    stack.up()
    assert stack.counts() == before
    stack.trigger("verify_completeness")
    stack.wait("verify_completeness", 3)
