"""Put payments into the outbox table of the database that WAREHOUSE_URL names: 20 of them, or as
many as the argument says. Each run adds more."""

import os
import sys

from sqlalchemy import Column, Integer, MetaData, Numeric, String, Table, create_engine

COUNTRIES = ("AT", "BE", "CH", "DE", "FR", "XX")
count = int(sys.argv[1]) if len(sys.argv) > 1 else 20

metadata = MetaData()
payments = Table(
    "payments_outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("payer", String(40), nullable=False),
    Column("country", String(2), nullable=False),
    Column("amount", Numeric(10, 2), nullable=False),
)
engine = create_engine(os.environ["WAREHOUSE_URL"])
metadata.create_all(engine)
with engine.begin() as connection:
    connection.execute(
        payments.insert(),
        [
            {"payer": f"payer {i % 7}", "country": COUNTRIES[i % len(COUNTRIES)], "amount": 10 + i}
            for i in range(count)
        ],
    )
print(f"payments_outbox: {count} more rows")
