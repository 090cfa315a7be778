"""The formats of a load's columns that may never change: those of keys and ids."""

from __future__ import annotations

from typing import Any

from semistream.column_format import ColumnFormat, formats
from semistream.errors import ConfigError
from semistream.job import SIDES, AnyJob, Job


def check_kept(job: AnyJob, former: dict[str, Any]) -> None:
    """Raise ConfigError if the texts of keys, or ids, are normalised differently than when the load
    began: waiting tuples would find no partner, and the proof no tuple. former: the job at that
    time, from the ledger."""
    keys = (
        [[c for role in job.roles for c in role.on]]
        if isinstance(job, Job)
        else [list(job.on), list(job.on.values())]
    )
    names = ("stream",) if isinstance(job, Job) else SIDES
    plain = ColumnFormat()
    for name, spec, on in zip(names, job.streams, keys, strict=True):
        before = formats((former.get(name) or {}).get("formats") or {})
        for column in dict.fromkeys((*on, *spec.id)):
            was, now = before.get(column, plain), spec.formats.get(column, plain)
            if was.normal_form != now.normal_form or (column in spec.id and was != now):
                raise ConfigError(
                    f"{name}.formats.{column}",
                    f"must stay what the load began with, as keys and ids go by it: {was}",
                    str(now),
                    "Give the former one, or load anew: semistream reset APP.",
                )
