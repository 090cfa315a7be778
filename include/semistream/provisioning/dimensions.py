"""Master data loaded into dimension tables: in bulk into a staging table, then by one set-based
upsert that keeps surrogate keys."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    and_,
    false,
    func,
    insert,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from semistream.column_format import key_forms
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError, SemistreamError
from semistream.job import UNKNOWN, Dimension, check_same, surrogate_key
from semistream.keys import key_text, master_keys
from semistream.master.manifest import decode_schema, encode_schema
from semistream.progress import Progress, silent
from semistream.provisioning.inferred import TRIES, let_infer, may_infer
from semistream.provisioning.master_rows import (
    MasterRows,
    Rejected,
    check_columns,
    json_of,
    open_rows,
    replaced_rows,
)
from semistream.provisioning.publishing import FORMS, forms_of, master_row
from semistream.warehouse import create_all
from semistream.warehouse.bulk import bulk_insert, nulled, nulled_sentence
from semistream.warehouse.dialects import refusals_as_errors, system_of, table_options
from semistream.warehouse.ids import is_long
from semistream.warehouse.schema import master_changes, masters, rejected_master
from semistream.warehouse.tables import IS_INFERRED, dimension_name, dimension_table, ensure, quoted
from semistream.warehouse.types import KEY_CHARACTERS, outside_years, sql_type
from semistream.workloads.jobs import JoinedDimension, declaration

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProvisionResult:
    """The counts of the rows read: inserted + updated + unchanged + rejected = read. reasons: the
    numbers of rejected rows by reason; nulled: by column, the number of values stored as null
    because the database cannot represent them; duplicates: the first business keys of which an
    earlier row was not taken; absent: the number of rows of the table that were not among the rows
    read, and stay."""

    read: int
    inserted: int
    updated: int
    unchanged: int
    rejected: int
    reasons: dict[str, int] = field(default_factory=dict)
    nulled: dict[str, int] = field(default_factory=dict)
    duplicates: tuple[str, ...] = ()
    absent: int = 0


def stored_rows(connection: Connection, dimension: Table, name: str) -> int:
    """Return how many rows of a dimension's table have come from its source: all but the unknown
    member and inferred members."""
    came = dimension.c[surrogate_key(name)] != UNKNOWN
    if IS_INFERRED in dimension.c:
        came = and_(came, dimension.c[IS_INFERRED] == 0)
    return connection.scalar(select(func.count()).select_from(dimension).where(came)) or 0


def provision(
    joined: JoinedDimension, engine: Engine, progress: Progress = silent, *, url: str | None = None
) -> ProvisionResult:
    """Upsert a dimension's rows into ``dim_<name>`` by business key. Unchanged rows are not
    rewritten. When the row of an inferred member arrives, the member is filled in and keeps its
    surrogate key.

    url: the database of the dimension's table, if not the warehouse. If a business key occurs
    twice, the last row is taken. The other rows, at most DUPLICATES of them, and rows that cannot
    be stored go to ``rejected_master``, with the reason. The whole upsert is one transaction.
    Raises ConfigError for rows that do not fit the declaration, the roles or the existing table.
    """
    create_all(engine)
    dimension = joined.dimension
    name, keys = dimension.name, dimension.business_key
    with engine.connect() as connection:
        row = master_row(connection, name)
    known = None if row is None else decode_schema(row.arrow_schema)
    check_declaration(joined, known)
    declared = parse_ddl(dimension.columns) if dimension.columns else None
    former = forms_of(known) if known is not None else {}
    keyed = list(dict.fromkeys((*joined.key_columns, *former)))
    forms = key_forms(keyed, dimension.formats)
    if known is not None and any(forms.get(c) != former.get(c) for c in (*keys, *former)):
        raise ConfigError(
            f"formats of the dimension {name}",
            f"must give keys the form that they have in {dimension_name(name)}, "
            f"{json.dumps(former)}",
            json.dumps(forms),
            "Facts mean its rows by surrogate keys, which rows of other keys would "
            "not have. Declare them as before, or give the dimension another name.",
        )
    rows = open_rows(dimension, keyed, engine, url, known.remove(0) if known else declared)

    def again() -> MasterRows:
        return open_rows(dimension, keyed, engine, url, rows.schema)

    for role in joined.roles:
        check_columns(dimension, "columns", role.columns, rows.schema)
    is_new = not inspect(engine).has_table(dimension_name(name))
    infers = any(role.late == "infer" for role in joined.roles)
    if not is_new and IS_INFERRED not in rows.schema.names:
        if infers and not may_infer(engine, name):
            let_infer(engine, name)
        infers = infers or may_infer(engine, name)
    table = ensure(
        engine,
        dimension_table(
            name,
            rows.schema,
            keys,
            joined.keys,
            unknown_member=dimension.unknown_member,
            inferred=infers,
        ),
    )
    if dimension.unknown_member:
        check_unknown_allowed(engine, name)
    try:
        return _provision(joined, keyed, forms, engine, rows, again, table, known is None, progress)
    except BaseException:
        if is_new:  # the column types may be wrong; another process may have filled it meanwhile
            with system_of(engine).locked(engine, table, masters) as connection:
                if master_row(connection, name) is None:
                    table.drop(connection, checkfirst=False)
        raise


def check_declaration(joined: JoinedDimension, known: pa.Schema | None) -> None:
    """Raise ConfigError if another file, from which the dimension was provisioned before, still
    declares the dimension differently."""
    former = ((known.metadata or {}).get(DECLARED, b"") if known is not None else b"").decode()
    if joined.declared_in is None or former in ("", str(joined.declared_in)):
        return
    if (other := declaration(joined.dimension.name, Path(former))) is not None:
        check_same(joined.dimension, str(joined.declared_in), other, former)


def _provision(
    joined: JoinedDimension,
    keyed: Collection[str],
    forms: Mapping[str, Any],
    engine: Engine,
    rows: MasterRows,
    again: Callable[[], MasterRows],
    dimension: Table,
    is_new: bool,
    progress: Progress,
) -> ProvisionResult:
    """Stage the rows and upsert them. keyed: columns of keys; forms: the normal forms of these
    columns; again: a function that opens the same rows once more."""
    of, schema = joined.dimension, rows.schema
    name, keys = of.name, of.business_key
    system = system_of(engine)
    with (
        TemporaryFile() as codes,
        refusals_as_errors(engine, dimension.name),
        engine.begin() as connection,
    ):
        # a prefix as long as ``dim_``, so that the name is never too long
        staging = _staging_table(f"new_{name}", schema, keyed, keys)
        # a failed provisioning leaves it: it belongs to the connection, not to the transaction
        system.drop_temporary(connection, staging)
        staging.create(connection)
        with system.unsorted(connection, staging) as table:
            staged = _stage(connection, table, rows, of, keyed, codes, progress)
            read, reasons = staged.read, staged.reasons
            if sum(reasons.values()) > of.max_rejected * read:
                raise TooManyRejected(of, read, reasons, staged.first)
            if sum(reasons.values()) == read and not of.allow_empty:
                raise EmptyDimension(of, read)
        count = connection.scalar(select(func.count()).select_from(staging)) or 0
        if duplicates := read - sum(reasons.values()) - count:
            reasons["duplicate_key"] = duplicates
            codes.seek(0)
            known = np.fromfile(codes, np.int64)
            _keep_duplicates(connection, staged, known, again, schema, of, keyed)
        progress(f"upserting {dimension.name}", 0, count)
        updated, inserted = _upsert(connection, staging, dimension, keys)
        if of.unknown_member and insert_unknown(connection, dimension, keys):
            is_new = True
        absent = stored_rows(connection, dimension, name) - count
        progress(f"upserting {dimension.name}", count, count)
        kept = {FORMS: json.dumps(forms), DECLARED: str(joined.declared_in or "")}
        rejected = sum(reasons.values())
        changes = time.time_ns() if is_new or updated or inserted else None
        _record(connection, name, dimension, schema.with_metadata(kept), keys, changes)
        if changes is not None:
            counts = {"inserted": inserted, "updated": updated, "rejected": rejected}
            connection.execute(
                insert(master_changes).values(master=name, changes=changes, **counts)
            )
        system.drop_temporary(connection, staging)
    if staged.nulled:
        log.warning("%s: %s", dimension.name, nulled_sentence(staged.nulled, engine))
    return ProvisionResult(
        read,
        inserted,
        updated,
        count - inserted - updated,
        rejected,
        dict(reasons),
        dict(staged.nulled),
        tuple(staged.duplicates),
        absent,
    )


class TooManyRejected(SemistreamError):
    """More rows are rejected than the dimension allows. Its table is unchanged."""

    def __init__(self, of: Dimension, read: int, reasons: dict[str, int], first: list[Rejected]):
        why = ", ".join(f"{reason} {n:,}" for reason, n in reasons.items())
        rows = "".join(f"\n  {r.reason}: {r.detail} in {r.tuple[:200]}" for r in first)
        super().__init__(
            f"{sum(reasons.values()):,} of {read:,} rows of "
            f"{of.path or of.table} cannot be taken ({why}), and no "
            f"more than {of.max_rejected:.4g} of them may be left out (max_rejected "
            f"of the dimension {of.name}). Where a column holds other values than its "
            f"type tells of, declare it a STRING (columns of the dimension). "
            f"{dimension_name(of.name)} is as it was. The first:{rows}"
        )


class EmptyDimension(SemistreamError):
    """A dimension's source has no row that can be stored, and the dimension does not allow this.
    Its table is unchanged."""

    def __init__(self, of: Dimension, read: int):
        rows = f"{read:,} rows, none of which can be taken" if read else "no row"
        super().__init__(
            f"{of.path or of.table} has {rows}: no tuple would match the dimension {of.name}. "
            f"{dimension_name(of.name)} is as it was. Check the source. Where it may be empty: "
            "allow_empty: true (setting of the dimension)."
        )


DECLARED = b"semistream.declared"  # key, like FORMS, of the file that declares the dimension
EXAMPLES = 5  # rejected rows that an error shows
DUPLICATES = 1000  # rows with the business key of a later one that are kept
LOOKED_AT = 10_000_000  # rows among which they are looked for, whose keys' codes are kept


@dataclass
class _Staged:
    """The counts of staging: rows read, rejected rows by reason, the first rejected rows, and by
    column the number of values that became null. duplicates: the first business keys of which
    several rows were staged."""

    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: list[Rejected] = field(default_factory=list)
    nulled: Counter[str] = field(default_factory=Counter)
    duplicates: list[str] = field(default_factory=list)


def _stage(
    connection: Connection,
    staging: Table,
    rows: MasterRows,
    of: Dimension,
    keyed: Collection[str],
    codes: IO[bytes],
    progress: Progress,
) -> _Staged:
    """Write all rows to the staging table or to ``rejected_master``. codes: a file that gets the
    codes of the business keys of the first LOOKED_AT staged rows, int64 each."""
    name, keys, staged = of.name, of.business_key, _Staged()
    identity = master_keys(rows.schema, list(keys))
    connection.execute(rejected_master.delete().where(rejected_master.c.master == name))
    for batch, unfit in rows.batches:
        good, not_stored = _storable(batch, keys, keyed)
        if staged.read < LOOKED_AT:
            identity.master_codes(good)[0].tofile(codes)
        staged.read += batch.num_rows + len(unfit)
        rejected = unfit + not_stored
        _keep(connection, name, rejected)
        staged.first += rejected[: EXAMPLES - len(staged.first)]
        staged.reasons.update(r.reason for r in rejected)
        staged.nulled.update(nulled(good, connection))
        bulk_insert(connection, staging, good, replace=bool(staging.primary_key.columns))
        progress(f"reading {name}", staged.read, None)
    return staged


def _keep(connection: Connection, name: str, rejected: Sequence[Rejected]) -> None:
    """Write rejected rows of a dimension to ``rejected_master``."""
    if rejected:
        common = {"master": name, "rejected_at": datetime.now(UTC).replace(tzinfo=None)}
        connection.execute(insert(rejected_master), [common | r._asdict() for r in rejected])


def _keep_duplicates(
    connection: Connection,
    staged: _Staged,
    codes: np.ndarray,
    again: Callable[[], MasterRows],
    schema: pa.Schema,
    of: Dimension,
    keyed: Collection[str],
) -> None:
    """Write the first DUPLICATES rows whose business key a later row has to ``rejected_master``.
    The source is read once more, at most its first LOOKED_AT rows, as only its end tells which rows
    a later one replaces. codes: those of ``_stage``."""
    keys, left = of.business_key, DUPLICATES
    identity = master_keys(schema, list(keys))
    good = (_storable(batch, keys, keyed)[0] for batch, _ in again().batches)
    for batch in replaced_rows(identity, [codes], good):
        texts = [key_text(batch, keys, i) for i in range(min(batch.num_rows, left))]
        said = f"a later row has the same {', '.join(keys)}"
        _keep(
            connection,
            of.name,
            [
                Rejected("duplicate_key", f"{said}, {text}", json_of(batch, i))
                for i, text in enumerate(texts)
            ],
        )
        known = dict.fromkeys([*staged.duplicates, *texts])
        staged.duplicates, left = list(known)[:EXAMPLES], left - len(texts)
        if not left:
            return


def _storable(
    batch: pa.RecordBatch, business_key: Collection[str], keyed: Collection[str]
) -> tuple[pa.RecordBatch, list[Rejected]]:
    """Return the rows whose keys, dates and times can be stored, and the other rows as rejected."""
    reasons: dict[int, tuple[str, str]] = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        for i in pc.indices_nonzero(outside_years(values)).to_pylist():
            text = values[i].cast(pa.string())
            reasons[i] = "unparsable", f"{name}: {text} is not within the years 1 to 9999"
    for column in keyed:
        values = batch.column(column)
        for i in pc.indices_nonzero(is_long(values)).to_pylist():
            reasons[i] = "long_key", f"{column} has more than {KEY_CHARACTERS} characters"
        if column in business_key:
            for i in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                reasons[i] = "null_key", f"{column} is null"
    if not reasons:
        return batch, []
    rejected = [
        Rejected(reason, detail, json_of(batch, i))
        for i, (reason, detail) in sorted(reasons.items())
    ]
    return batch.filter(pa.array([i not in reasons for i in range(batch.num_rows)])), rejected


def _upsert(
    connection: Connection, staging: Table, dimension: Table, keys: tuple[str, ...]
) -> tuple[int, int]:
    """Update and insert the staged rows. Return (rows updated, rows inserted). A member that a task
    infers at the same moment is updated."""
    values: dict[str, Any] = {c.name: c for c in staging.columns if c.name not in keys}
    same = [dimension.c[k] == staging.c[k] for k in keys]
    changed = [dimension.c[name].is_distinct_from(value) for name, value in values.items()]
    if IS_INFERRED in dimension.c:
        values, changed = values | {IS_INFERRED: 0}, [*changed, dimension.c[IS_INFERRED] != 0]
    names = [c.name for c in staging.columns]
    new = (
        select(*[staging.c[n] for n in names])
        .outerjoin(dimension, and_(*same))
        .where(next(iter(dimension.primary_key)).is_(None))
        .order_by(*[staging.c[k] for k in keys])
    )
    # of an INSERT, only a few drivers keep the count unasked
    inserting = insert(dimension).from_select(names, new).execution_options(preserve_rowcount=True)
    updating = update(dimension).values(values).where(*same, or_(false(), *changed))
    updated, tries = 0, 0
    while True:
        if values:
            updated += connection.execute(updating).rowcount
        try:
            return updated, connection.execute(inserting).rowcount
        except IntegrityError:  # a task was first with one of them, and nothing was inserted
            if (tries := tries + 1) == TRIES:
                raise


def check_unknown_allowed(engine: Engine, dimension: str) -> None:
    """Raise ConfigError if a dimension's table does not allow null in its business key, or in what
    has been it, because the table was created before the dimension had an unknown member."""
    table, given = dimension_name(dimension), surrogate_key(dimension)
    strict = [
        column["name"]
        for column in inspect(engine).get_columns(table)
        if not column["nullable"] and column["default"] is None and column["name"] != given
    ]
    if strict:
        raise ConfigError(
            "unknown_member",
            f"needs a table {table} whose business key may be null",
            f"{', '.join(strict)} NOT NULL",
            "Let the database drop NOT NULL from these columns, or, where no facts mean its rows "
            "yet, drop the table and provision it anew.",
        )


def insert_unknown(connection: Connection, dimension: Table, keys: Sequence[str]) -> bool:
    """Insert the unknown member, whose columns are null until a user fills them in. Return whether
    the member was missing."""
    (sk,) = dimension.primary_key
    if connection.execute(select(sk).where(sk == UNKNOWN)).first() is not None:
        return False
    # MySQL takes an inserted 0 for the next number
    connection.execute(insert(dimension).values(dict.fromkeys(keys)))
    unnamed = and_(*(dimension.c[key].is_(None) for key in keys))
    connection.execute(update(dimension).values({sk: UNKNOWN}).where(unnamed))
    return True


def _staging_table(
    name: str, schema: pa.Schema, indexed: Collection[str], keys: Sequence[str]
) -> Table:
    """Return a temporary table, clustered by its keys. indexed: columns to index; their texts have
    a limited length."""
    columns = [
        Column(
            quoted(f.name),
            sql_type(f, f.name in indexed),
            primary_key=f.name in keys,
            autoincrement=False,
        )
        for f in schema
    ]
    return Table(
        name, MetaData(), *columns, prefixes=["TEMPORARY"], **table_options(clustered=True)
    )


def _record(
    connection: Connection,
    name: str,
    dimension: Table,
    schema: pa.Schema,
    keys: tuple[str, ...],
    changes: int | None,
) -> None:
    """Write the dimension's row in ``masters``. changes: a time, ns since 1970, so that the number
    of every state is unique, even across warehouses; None if no row has changed."""
    sk = pa.field(surrogate_key(name), pa.int64(), False)
    values: dict[str, Any] = {
        "table_name": dimension.name,
        "arrow_schema": encode_schema(pa.schema([sk, *schema], schema.metadata)),
        "business_key": json.dumps(keys),
        "rows": select(func.count()).select_from(dimension).scalar_subquery(),
        "provisioned_at": datetime.now(UTC).replace(tzinfo=None),
    }
    if changes is not None:
        values["changes"] = changes
    if not connection.execute(
        update(masters).where(masters.c.name == name).values(values)
    ).rowcount:
        connection.execute(
            insert(masters).values({"changes": time.time_ns()} | values | {"name": name})
        )
