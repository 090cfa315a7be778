"""The jobs' YAML files as a bundle of DAG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle

from semistream.durable import write_text
from semistream.paths import Paths

REFRESH = 30  # s
DAG_FILE = '''"""The Airflow DAG of a job. Written by JobsBundle from the file of {version}."""

from semistream.airflow.job_dags import job_dag

dag = job_dag({file!r})
'''


class JobsBundle(BaseDagBundle):
    """A bundle that has a DAG file for each YAML file of the directory of jobs, so that Airflow
    parses each by itself: a wrong one is an import error of its own, and hides no other.

    A DAG file is written when its YAML file has changed, and removed with it.
    """

    supports_versioning = False

    def __init__(self, *, refresh_interval: int = REFRESH, **kwargs: Any):
        super().__init__(refresh_interval=refresh_interval, **kwargs)

    @property
    def path(self) -> Path:
        return self.base_dir

    def get_current_version(self) -> None:
        return None

    def initialize(self) -> None:
        self.refresh()
        super().initialize()

    def refresh(self) -> None:
        jobs = Paths.from_environment().jobs
        with self.lock():
            self.path.mkdir(parents=True, exist_ok=True)
            files = {self.path / f"{job.stem}.py": job for job in jobs.glob("*.yaml")}
            for old in set(self.path.glob("*.py")) - files.keys():
                old.unlink()
            for file, job in files.items():
                stat = job.stat()
                version = f"{stat.st_mtime_ns}, {stat.st_size} bytes"
                wanted = DAG_FILE.format(version=version, file=str(job))
                if not file.exists() or file.read_text() != wanted:
                    write_text(file, wanted)
