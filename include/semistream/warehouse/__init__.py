"""The warehouse: dimension, fact and ledger tables on SQLite or MySQL."""

from sqlalchemy import Engine

from semistream.warehouse.connect import connect
from semistream.warehouse.schema import metadata

__all__ = ["connect", "create_all"]


def create_all(engine: Engine) -> None:
    """Make the warehouse's own tables where they are missing."""
    metadata.create_all(engine)
