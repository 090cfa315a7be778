"""The directories and the database of an installation."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from semistream.settings import Settings


class Paths(Settings):
    """The directories and the database of an installation, from SEMISTREAM_HOME and WAREHOUSE_URL.

    reports_kept: how many of the latest reports are kept, of each app's verifications and of tuning
    sweeps.
    """

    home: Path = Path("var")
    warehouse_url: str = ""
    reports_kept: int = Field(50, ge=1)

    @classmethod
    def from_environment(cls) -> Paths:
        home = Path(os.environ.get("SEMISTREAM_HOME", "var")).absolute()
        given = {
            "warehouse_url": os.environ.get("WAREHOUSE_URL")
            or f"sqlite:///{home / 'warehouse.db'}",
            "reports_kept": os.environ.get("SEMISTREAM_REPORTS_KEPT"),
        }
        return cls.load({"home": home} | {k: v for k, v in given.items() if v})

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def dimensions(self) -> Path:
        """The declarations of dimensions, beside those that stand next to jobs."""
        return self.home / "dimensions"

    @property
    def jobs(self) -> Path:
        """The files of jobs."""
        return self.home / "jobs"

    @property
    def snapshots(self) -> Path:
        return self.home / "snapshots"

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    @property
    def reports(self) -> Path:
        return self.home / "reports"
