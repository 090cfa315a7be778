"""Which warehouse this is: keys of loads, and apps' numbers, are unique within one only."""

from __future__ import annotations

import uuid

from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError

from semistream.warehouse.ledger import retrying
from semistream.warehouse.schema import identity


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
