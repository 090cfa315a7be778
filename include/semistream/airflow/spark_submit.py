"""``spark-submit`` in client mode: the driver runs on the machine of Airflow's task.

Airflow's Spark provider is not used: it requires pyspark-client, which overwrites files of pyspark.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from semistream.errors import MissingExtra
from semistream.streaming.spark_master import local_environment

LINES = 20  # of an app's output that its error shows
IGNORED = ("keytab", "principal")  # fields that only Airflow's Spark provider reads


class Target(NamedTuple):
    """The target to which an app is submitted. master: the Spark master; "" leaves the choice to
    spark-defaults.conf, or else to the app, which then runs on this machine; options: further
    options of spark-submit; binary: the executable's name."""

    master: str = ""
    options: tuple[str, ...] = ()
    binary: str = "spark-submit"


def target_of(connection: Connection) -> Target:
    """Return the target that a connection of the type Spark describes, with the same meaning as in
    Airflow's Spark provider. Raises AirflowFailException for a target that cannot work."""
    extra, name = connection.extra_dejson, connection.conn_id
    if extra.get("deploy-mode", "client") != "client":
        raise AirflowFailException(
            f"The connection {name!r} has the deploy mode {extra['deploy-mode']!r}. A load runs "
            "in client mode, as Airflow follows its driver: set deploy-mode to client."
        )
    if ignored := [key for key in IGNORED if extra.get(key)]:
        raise AirflowFailException(
            f"The connection {name!r} has {' and '.join(ignored)}. Give them to the operator "
            "instead, as conf: spark.kerberos.keytab, a path, and spark.kerberos.principal."
        )
    host, kind = connection.host or "", connection.conn_type
    if kind == "yarn" or (kind == "spark" and (not connection.port or "://" in host)):
        master = host if kind == "spark" else kind  # from the form
    else:
        master = f"{kind}://{host}"  # from a URL
    if connection.port and kind != "yarn":
        master = f"{master}:{connection.port}"
    options = ["--queue", extra["queue"]] if extra.get("queue") else []
    if extra.get("namespace"):
        options += ["--conf", f"spark.kubernetes.namespace={extra['namespace']}"]
    return Target(master, tuple(options), extra.get("spark-binary") or "spark-submit")


def environment(target: Target) -> dict[str, str]:
    """Return the environment variables to add for spark-submit. The driver uses this process's
    Python, and a local driver listens on the loopback interface, unless the user's environment says
    otherwise."""
    python = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & set(os.environ)
    return ({} if python else {"PYSPARK_DRIVER_PYTHON": sys.executable}) | local_environment(
        target.master
    )


def command(
    target: Target,
    application: str,
    arguments: Sequence[str],
    name: str,
    conf: Mapping[str, object],
) -> list[str]:
    """Return the command line that submits an app. Raises MissingExtra if there is no
    spark-submit."""
    beside = Path(sys.executable).with_name(target.binary)  # Airflow's PATH may lack its own venv
    binary = str(beside) if beside.exists() else shutil.which(target.binary)
    if binary is None:
        raise MissingExtra("pyspark")
    master = ["--master", target.master] if target.master else []
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    return [
        binary,
        *master,
        *("--deploy-mode", "client", "--name", name),
        *target.options,
        *settings,
        application,
        *arguments,
    ]


class Submission:
    """A submitted app that ends with the task."""

    def __init__(self, line: Sequence[str], variables: Mapping[str, str]):
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **variables},
        )

    def wait(self, log: Callable[[str], object]) -> None:
        """Wait for the app's end. log: a function that is called with each line of the app's
        output. Raises AirflowException if the app failed, AirflowFailException if its settings
        cannot work."""
        last = deque[str](maxlen=LINES)
        with self._process as process:
            for line in process.stdout or ():
                log(line.rstrip())
                last.append(line)
        if code := process.returncode:
            # the app exits with 2 if its settings cannot work, and a retry cannot help
            kind = AirflowFailException if code == 2 else AirflowException
            raise kind(f"The app ended with exit code {code}:\n{''.join(last)}")

    def end(self) -> None:
        """Ask the app's processes to end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
