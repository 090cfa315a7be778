"""Bundles of DAG files: the jobs' YAML files, and the package's own DAGs."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.dag_processing.bundles.local import LocalDagBundle

from semistream.durable import write_text
from semistream.paths import Paths

REFRESH = 30  # s
CHECKOUT = Path(__file__).resolve().parents[3]  # where the package is not installed
DAG_FILE = '''"""The Airflow DAG of a job. Written by JobsBundle from the file of {version}."""

from semistream.airflow.job_dags import job_dag

dag = job_dag({file!r})
'''


class DagsBundle(LocalDagBundle):
    """The DAGs that are installed with the package, or those of its checkout: loads by hand,
    verifications, replays, sweeps. The buttons of the page "Semistream" trigger some of them."""

    def __init__(self, **kwargs: Any):
        own = (f for f in files("semistream") or () if f.match("share/semistream/dags/*.py"))
        installed = next((Path(file.locate()).parent.resolve() for file in own), None)
        super().__init__(path=str(installed or CHECKOUT / "dags"), **kwargs)


class JobsBundle(BaseDagBundle):
    """A bundle with one DAG file for each YAML file in the directory of jobs. Airflow parses each
    DAG file separately: an error in one job is an import error of that job alone.

    A DAG file is written when its YAML file has changed, and removed when its YAML file is gone.
    """

    supports_versioning = False

    def __init__(self, *, refresh_interval: int = REFRESH, **kwargs: Any):
        super().__init__(refresh_interval=refresh_interval, **kwargs)

    @property
    def path(self) -> Path:
        return Paths.from_environment().dag_files

    def get_current_version(self) -> None:
        return None

    def initialize(self) -> None:
        self.refresh()
        super().initialize()

    def refresh(self) -> None:
        """Write and remove DAG files. Several processes may do so at the same time."""
        jobs = Paths.from_environment().jobs
        self.path.mkdir(parents=True, exist_ok=True)
        files = {self.path / f"{job.stem}.py": job for job in jobs.glob("*.yaml")}
        for old in set(self.path.glob("*.py")) - files.keys():
            old.unlink(missing_ok=True)
        for file, job in files.items():
            version = f"{job.stat().st_mtime_ns}, {job.stat().st_size} bytes"
            wanted = DAG_FILE.format(version=version, file=str(job))
            if not file.exists() or file.read_text() != wanted:
                write_text(file, wanted)
