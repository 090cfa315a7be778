"""The identity of a warehouse. It is needed because load_ids and the numbers of apps are unique
only within one warehouse."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, inspect, select

from semistream.errors import ConfigError
from semistream.warehouse.ledger import assigned, retrying
from semistream.warehouse.schema import identity, masters


def warehouse_identity(engine: Engine, retry: float) -> str:
    """Return the random name that identifies the warehouse. The first call creates it."""
    i = identity
    return assigned(engine, select(i.c.uuid), i, retry, number=1, uuid=str(uuid.uuid4()))


def adopt(engine: Engine, source: Mapping[str, Any]) -> None:
    """Give a new warehouse, which is used only for measuring, the identity of the warehouse from
    which a snapshot was published. source: see ``snapshot_source``."""
    if "identity" in source:
        with engine.begin() as connection:
            connection.execute(identity.insert().values(number=1, uuid=source["identity"]))


def snapshot_source(
    engine: Engine, table: str, changes: int, retry: float = 60.0
) -> dict[str, Any]:
    """Return the part of a snapshot's manifest that describes the dimension table from which it was
    published. changes: see ``masters``."""
    return {
        "warehouse": engine.url.render_as_string(hide_password=True),
        "identity": warehouse_identity(engine, retry),
        "table": table,
        "changes": changes,
    }


def check_snapshot(
    engine: Engine, source: Mapping[str, Any], snapshot: str, master: str, retry: float
) -> None:
    """Raise ConfigError for a snapshot whose surrogate keys do not belong to this warehouse's
    dimension: it was published from another warehouse, or from a later state of the dimension.

    source: the source in the snapshot's manifest. A snapshot that was published from a file names
    no warehouse and has no surrogate keys; it is accepted.
    """
    if "changes" not in source:
        return
    mine, known = retrying(lambda: _known(engine, master), retry)
    remedy = (
        f"Run `semistream provision` with this WAREHOUSE_URL, or the DAG "
        f"provision_master_data: it publishes {master} anew."
    )
    if source.get("identity") != mine:
        raise ConfigError(
            "snapshot",
            "must be of this warehouse, as its surrogate keys are",
            (f"{snapshot}, published from {source.get('warehouse')}"),
            f"{remedy} Warehouses that are loaded at the same time need a SEMISTREAM_HOME each.",
        )
    if known is not None and source["changes"] > known:
        raise ConfigError(
            "snapshot",
            f"must not be newer than {source.get('table')}, of which an older backup was put back",
            snapshot,
            remedy,
        )


def _known(engine: Engine, master: str) -> tuple[str | None, int | None]:
    """Return the warehouse's identity and the time of the last change of its dimension, with None
    for missing values. Nothing is created."""
    changes = select(masters.c.changes).where(masters.c.name == master)
    with engine.connect() as connection:
        has = inspect(connection).has_table
        return (
            connection.scalar(select(identity.c.uuid)) if has(identity.name) else None,
            connection.scalar(changes) if has(masters.name) else None,
        )
