"""Which warehouse this is: keys of loads, and apps' numbers, are unique within one only."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, inspect, select
from sqlalchemy.exc import IntegrityError

from semistream.errors import ConfigError
from semistream.warehouse.ledger import retrying
from semistream.warehouse.schema import identity, masters


def warehouse_identity(engine: Engine, retry: float) -> str:
    """The warehouse's own random name, which it gets when it is asked for the first time."""
    def once() -> str:
        with engine.begin() as connection:
            found = connection.scalar(select(identity.c.uuid))
            if found is None:
                found = str(uuid.uuid4())
                connection.execute(identity.insert().values(number=1, uuid=found))
            return found

    try:
        return retrying(once, retry)
    except IntegrityError:  # another process was first
        return retrying(once, retry)


def adopt(engine: Engine, source: Mapping[str, Any]) -> None:
    """Give a new warehouse, which only measures, the name of the one that a snapshot was published
    from. source: see ``snapshot_source``."""
    if "identity" in source:
        with engine.begin() as connection:
            connection.execute(identity.insert().values(number=1, uuid=source["identity"]))


def snapshot_source(engine: Engine, table: str, changes: int,
                    retry: float = 60.0) -> dict[str, Any]:
    """What a snapshot's manifest says of the dimension table that it was published from. changes:
    see ``masters``."""
    return {"warehouse": engine.url.render_as_string(hide_password=True),
            "identity": warehouse_identity(engine, retry), "table": table, "changes": changes}


def check_snapshot(engine: Engine, source: Mapping[str, Any], snapshot: str, master: str,
                   retry: float) -> None:
    """Raises ConfigError for a snapshot whose surrogate keys are not those of this warehouse's
    dimension: it is of another warehouse, or of a later state than the dimension has.

    source: what its manifest says; one that was published from a file says nothing of a warehouse,
    and has no surrogate keys of one. A former version named the warehouse by its URL only.
    """
    if "changes" not in source:
        return
    mine, known = retrying(lambda: _known(engine, master), retry)
    remedy = (f"Run `semistream provision` with this WAREHOUSE_URL, or the DAG "
              f"provision_master_data: it publishes {master} anew.")
    if "identity" in source:
        same = source["identity"] == mine
    else:
        same = (source["changes"] == known
                or source.get("warehouse") == engine.url.render_as_string(hide_password=True))
    if not same:
        raise ConfigError("snapshot", "must be of this warehouse, as its surrogate keys are", (
            f"{snapshot}, published from {source.get('warehouse')}"), f"{remedy} Warehouses that "
                          "are loaded at the same time need a SEMISTREAM_HOME each.")
    if known is not None and source["changes"] > known:
        raise ConfigError("snapshot", f"must not be newer than {source.get('table')}, of which an "
                                      "older backup was put back", snapshot, remedy)


def _known(engine: Engine, master: str) -> tuple[str | None, int | None]:
    """The warehouse's name, and which state its dimension is in; None for what it does not have
    yet. Nothing is made."""
    changes = select(masters.c.changes).where(masters.c.name == master)
    with engine.connect() as connection:
        has = inspect(connection).has_table
        return (connection.scalar(select(identity.c.uuid)) if has(identity.name) else None,
                connection.scalar(changes) if has(masters.name) else None)
