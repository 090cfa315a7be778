"""The data that an app has loaded, according to the ledger."""

from __future__ import annotations

import difflib
import json

from sqlalchemy import Engine, select

from semistream.errors import ConfigError
from semistream.job import AnyJob, job_of
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.schema import load_commits


def loaded_job(engine: Engine, app: str) -> AnyJob:
    """Return the job that an app has loaded, according to its newest commit. Raises ConfigError,
    with the likely name, for an app that has committed nothing."""
    if (newest := Ledger(engine, app).newest_job()) is not None:
        return job_of(json.loads(newest[1]))
    c = load_commits.c
    with engine.connect() as connection:
        known = list(connection.scalars(select(c.app).distinct().order_by(c.app)))
    near = difflib.get_close_matches(app, known, 1, 0.5)
    raise ConfigError(
        "app",
        "must have loaded into this warehouse",
        app,
        (f"Did you mean {near[0]}? " if near else "")
        + f"Those that have: {', '.join(known) or 'none; load something first'}.",
    )
