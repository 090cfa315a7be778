"""The directories and the database of an installation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from semistream.errors import ConfigError
from semistream.settings import Settings


def one_name(directory: Path) -> Path:
    """Return a directory's path from the root. One with ``..`` is resolved, so that it has the name
    that it has elsewhere; any other is not, as a link may lead to another place tomorrow."""
    found = directory.absolute()
    return found.resolve() if ".." in found.parts else found


def without_dots(path: str) -> str:
    """Return a path without ``..``, so that a place has one name, and without following links. The
    path is unchanged if it leads to another place without them, as beyond a link."""
    plain = os.path.normpath(path)
    same = ".." in Path(path).parts and os.path.realpath(plain) == os.path.realpath(path)
    return plain if same else path


class Paths(Settings):
    """The directories and the database of an installation, from SEMISTREAM_HOME, SEMISTREAM_JOBS
    and WAREHOUSE_URL.

    jobs_dir: the directory of the jobs that are DAGs; default: ``jobs`` below the home.
    reports_kept: the number of reports that are kept of each app's verifications, and of tuning
    sweeps.
    """

    home: Path = Path("var")
    warehouse_url: str = ""
    jobs_dir: Path | None = None
    reports_kept: int = Field(50, ge=1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Paths:
        """Return the paths that environment variables give, by default those of this process."""
        of = os.environ if environment is None else environment
        home = one_name(Path(of.get("SEMISTREAM_HOME", "var")))
        given = {
            "warehouse_url": of.get("WAREHOUSE_URL") or f"sqlite:///{home / 'warehouse.db'}",
            "jobs_dir": of.get("SEMISTREAM_JOBS"),
            "reports_kept": of.get("SEMISTREAM_REPORTS_KEPT"),
        }
        return cls.load({"home": home} | {k: v for k, v in given.items() if v})

    def check_warehouse(self) -> None:
        """Raise ConfigError for an SQLite file in a directory that does not exist, unless that is
        in the home, which a load makes."""
        _, sqlite, file = self.warehouse_url.partition("sqlite:///")
        place = Path(file.partition("?")[0]).absolute().parent
        if sqlite and not place.is_dir() and not place.is_relative_to(one_name(self.home)):
            raise ConfigError(
                "WAREHOUSE_URL",
                "must name a file in a directory that exists",
                self.warehouse_url,
                f"There is no {place}.",
            )

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def jobs(self) -> Path:
        """The directory of jobs. Its YAML files with a schedule become DAGs."""
        return one_name(self.jobs_dir or self.home / "jobs")

    @property
    def dag_files(self) -> Path:
        """The directory of the DAG files that are generated from jobs."""
        return self.home / "dag_files"

    @property
    def dimensions(self) -> Path:
        """The directory of declarations of dimensions that are not declared in or next to a job."""
        return self.home / "dimensions"

    @property
    def snapshots(self) -> Path:
        return self.home / "snapshots"

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    @property
    def reports(self) -> Path:
        return self.home / "reports"
