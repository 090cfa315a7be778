"""Master rows in staging tables, by the version of the master data that has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import sqlalchemy as sa
from sqlalchemy import Column

from semistream.quality.scope import Role
from semistream.quality.staging import Staging
from semistream.warehouse.schema import NAME


def copied(role: Role) -> list[str]:
    """Return the columns of a role's dimension that facts have, its surrogate key first."""
    return list(dict.fromkeys([role.surrogate, *role.on.values(), *role.added.values()]))


def master_table(staging: Staging, role: Role, name: str) -> sa.Table:
    """Create a staging table for master rows: quality_version, and the dimension's compared
    columns."""
    return staging.table(
        name,
        Column("quality_version", NAME),
        *(Column(n, role.dimension.c[n].type) for n in copied(role)),
    )


def stage_version(
    staging: Staging, role: Role, table: sa.Table, version: str, column: str, values: Iterable[Any]
) -> None:
    """Stage the master rows of a version whose column has one of these values, read from the
    version's snapshot."""
    files = ds.dataset(
        [str(p) for p in sorted((role.snapshots / version).glob("bucket-*.arrow"))], format="ipc"
    )
    stored = {name: str(role.dimension.c[name].name) for name in copied(role)}
    wanted = pa.array([v for v in values if v is not None]).cast(
        files.schema.field(stored[column]).type
    )
    for batch in files.to_batches(
        columns={name: pc.field(of) for name, of in stored.items()},
        filter=pc.field(stored[column]).isin(wanted),
    ):
        rows = pa.table(
            [pa.repeat(version, len(batch)), *batch.columns],
            names=["quality_version", *batch.schema.names],
        )
        staging.write(table, rows)
