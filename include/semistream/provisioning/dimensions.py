"""Master data loaded into dimension tables: in bulk into a staging table, then by one set-based
upsert that keeps surrogate keys."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    Row,
    Table,
    func,
    insert,
    inspect,
    literal_column,
    or_,
    select,
    update,
)

from semistream.column_format import ColumnFormat, key_forms
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError, SemistreamError, StateError
from semistream.job import Dimension, check_same, surrogate_key
from semistream.keys import canonical_type
from semistream.master.manifest import Manifest, decode_schema, encode_schema
from semistream.master.publish import MEMORY, current_manifest, publish_snapshot
from semistream.master.published import snapshot_root
from semistream.progress import Progress, silent
from semistream.warehouse import create_all
from semistream.warehouse.bulk import bulk_insert, fetch, fetch_texts, nulled, say_nulled
from semistream.warehouse.dialects import connect, system_of
from semistream.warehouse.dialects.rows import UNSIGNED
from semistream.warehouse.identity import snapshot_source
from semistream.warehouse.limits import said
from semistream.warehouse.schema import masters, rejected_master
from semistream.warehouse.tables import (
    arrow_schema,
    dimension_name,
    dimension_table,
    ensure,
    existing_table,
    quoted,
)
from semistream.warehouse.types import (
    KEY_CHARACTERS,
    outside_years,
    python_rows,
    sql_type,
    stored_schema,
)
from semistream.workloads.jobs import JoinedDimension, declaration

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProvisionResult:
    """The counts of the rows read: inserted + updated + unchanged + rejected = read. ``reasons``
    counts the rejected rows by reason. nulled: by column, the number of values stored as null
    because the database cannot represent them."""

    read: int
    inserted: int
    updated: int
    unchanged: int
    rejected: int
    reasons: dict[str, int] = field(default_factory=dict)
    nulled: dict[str, int] = field(default_factory=dict)


def provision(
    joined: JoinedDimension, engine: Engine, progress: Progress = silent, *, url: str | None = None
) -> ProvisionResult:
    """Upsert a dimension's rows into ``dim_<name>`` by business key. Unchanged rows are not
    rewritten.

    url: the database of the dimension's table, if not the warehouse. If a business key occurs
    twice, the last row is taken. Rows that cannot be stored go to ``rejected_master``, with the
    reason. All is one transaction. Raises ConfigError for rows that do not fit the declaration, the
    roles or the existing table.
    """
    create_all(engine)
    dimension = joined.dimension
    name, keys = dimension.name, dimension.business_key
    known = _known(engine, name)
    _check_declaration(joined, known)
    declared = parse_ddl(dimension.columns) if dimension.columns else None
    former = forms_of(known) if known is not None else {}
    keyed = list(dict.fromkeys((*keys, *former, *(c for key in joined.keys for c in key))))
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
    rows = _open(dimension, keyed, engine, url, known.remove(0) if known else declared)
    for role in joined.roles:
        check_columns(dimension, "columns", role.columns, rows.schema)
    is_new = not inspect(engine).has_table(dimension_name(name))
    table = ensure(engine, dimension_table(name, rows.schema, keys, joined.keys))
    try:
        return _provision(joined, keyed, forms, engine, rows, table, known is None, progress)
    except BaseException:
        if is_new:
            _take_back(engine, name, table)
        raise


def _check_declaration(joined: JoinedDimension, known: pa.Schema | None) -> None:
    """Raise ConfigError if the file from which the dimension was provisioned before still declares
    it, in another way."""
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
    dimension: Table,
    is_new: bool,
    progress: Progress,
) -> ProvisionResult:
    """Stage the rows and upsert them. keyed: columns of keys; forms: how these are normalised."""
    of, schema = joined.dimension, rows.schema
    name, keys = of.name, of.business_key
    system = system_of(engine)
    with said(engine, dimension.name), engine.begin() as connection:
        # prefixes as long as ``dim_``, so that the names are never too long
        staging = _staging_table(f"new_{name}", schema, keyed, keys)
        # unsorted rows would be written to random places of a table with a key
        unsorted = _staging_table(f"raw_{name}", schema) if system.one_writer else staging
        # a failed provisioning leaves it: it belongs to the connection, not to the transaction
        for table in {staging, unsorted}:
            system.drop_temporary(connection, table)
            table.create(connection)
        staged = _stage(connection, unsorted, rows, of, keyed, progress)
        read, reasons = staged.read, staged.reasons
        if sum(reasons.values()) > of.max_rejected * read:
            raise TooManyRejected(of, read, reasons, staged.first)
        if sum(reasons.values()) == read and not of.allow_empty:
            raise EmptyDimension(of, read)
        if unsorted is not staging:
            _sort(connection, unsorted, staging)
        count = connection.scalar(select(func.count()).select_from(staging)) or 0
        if duplicates := read - sum(reasons.values()) - count:
            reasons["duplicate_key"] = duplicates
        progress(f"upserting {dimension.name}", 0, count)
        updated, inserted = _upsert(connection, staging, dimension, keys)
        progress(f"upserting {dimension.name}", count, count)
        kept = {FORMS: json.dumps(forms), DECLARED: str(joined.declared_in or "")}
        _record(
            connection,
            name,
            dimension,
            schema.with_metadata(kept),
            keys,
            is_new or bool(updated or inserted),
        )
        system.drop_temporary(connection, staging)
    if staged.nulled:
        log.warning("%s: %s", dimension.name, say_nulled(staged.nulled, engine))
    return ProvisionResult(
        read,
        inserted,
        updated,
        count - inserted - updated,
        sum(reasons.values()),
        dict(reasons),
        dict(staged.nulled),
    )


def _take_back(engine: Engine, name: str, dimension: Table) -> None:
    """Drop the table that a failed first provisioning has made, because its column types may be
    wrong. A table that another process has filled meanwhile stays."""
    with system_of(engine).locked(engine, dimension, masters) as connection:
        if _row(connection, name) is None:
            dimension.drop(connection, checkfirst=False)


def forms_of(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return how the texts of a dimension's key columns are normalised; see ``column_format``."""
    forms: dict[str, dict[str, Any]] = json.loads((schema.metadata or {}).get(FORMS, b"{}"))
    return forms


class TooManyRejected(SemistreamError):
    """More rows are rejected than the dimension allows; its table is unchanged."""

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
    """A dimension's source has no row that can be taken, and the dimension does not allow it; its
    table is unchanged."""

    def __init__(self, of: Dimension, read: int):
        rows = f"{read:,} rows, none of which can be taken" if read else "no row"
        super().__init__(
            f"{of.path or of.table} has {rows}: no tuple would match the dimension {of.name}. "
            f"{dimension_name(of.name)} is as it was. Check the source. Where it may be empty: "
            "allow_empty: true (setting of the dimension)."
        )


class Rejected(NamedTuple):
    """A row that is not stored: the reason, details and the row's text."""

    reason: str
    detail: str
    tuple: str


# keys in the metadata of a dimension's schema: its keys' forms, and the file that declares it
FORMS, DECLARED = b"semistream.formats", b"semistream.declared"
SMALL = 20_000_000  # values that one process publishes sooner than Spark starts
EXAMPLES = 5  # rejected rows that an error shows


@dataclass(frozen=True)
class MasterRows:
    """Master data from their source. Iterate once over (rows in ``schema``, the rows that do not
    fit it)."""

    schema: pa.Schema
    batches: Iterator[tuple[pa.RecordBatch, list[Rejected]]]


def _open(
    dimension: Dimension,
    keyed: Collection[str],
    engine: Engine,
    url: str | None,
    known: pa.Schema | None,
) -> MasterRows:
    """Open the dimension's source and check it against the columns of keys and against ``known``,
    the table's present columns, whose types the rows get."""
    if dimension.path is not None:
        return _open_files(dimension, keyed, Path(dimension.path), known)
    if dimension.table is None:
        raise ConfigError(
            f"dimension {dimension.name}",
            "must have a path or a table",
            None,
            "Say where its rows come from.",
        )
    source = connect(url) if url else engine
    table = existing_table(source, dimension.table)
    found = pa.schema([f for f in arrow_schema(table) if f.name != dimension.surrogate_key])
    given, formats = found if known else _widened(source, table, found), dimension.formats
    if not formats:
        return MasterRows(
            schema := _checked(dimension, keyed, given, known),
            _from_table(source, table, found, schema, {}),
        )
    # imported only here: they import Numba, which reading a dimension does not need
    from semistream.files.formats import check_formats, implied_schema

    schema = _checked(dimension, keyed, implied_schema(given, formats), known)
    check_formats(schema, formats, "master", given)
    return MasterRows(schema, _from_table(source, table, found, schema, formats))


def _widened(engine: Engine, table: Table, found: pa.Schema) -> pa.Schema:
    """Return the columns' types, where a BIGINT UNSIGNED column is a signed 64-bit integer, like
    keys of streams, if its largest number fits."""
    unsigned = [
        table.c[name]
        for name in found.names
        if isinstance(kind := table.c[name].type, BigInteger) and getattr(kind, "unsigned", False)
    ]
    if not unsigned:
        return found
    with engine.connect() as connection:
        largest = connection.execute(select(*map(func.max, unsigned))).one()
    wide = {c.name for c, most in zip(unsigned, largest, strict=True) if (most or 0) >= 2**63}
    return pa.schema([f.with_type(UNSIGNED) if f.name in wide else f for f in found])


def _open_files(
    dimension: Dimension, keyed: Collection[str], path: Path, known: pa.Schema | None
) -> MasterRows:
    # imported only here: they import Numba, which reading a dimension does not need
    from semistream.files.formats import check_formats
    from semistream.files.json_source import JsonSource
    from semistream.files.opening import open_source

    source = open_source("master", path, formats=dimension.formats)
    source.assign_types()
    schema = _checked(
        dimension, keyed, source.schema, known, leave_out=isinstance(source, JsonSource)
    )
    source.read_as(schema, schema.names if dimension.columns else ())
    check_formats(schema, dimension.formats, "master")

    def batches() -> Iterator[tuple[pa.RecordBatch, list[Rejected]]]:
        for chunk in source.chunks():
            yield (
                chunk.rows.select(schema.names),
                [Rejected("unparsable", f"{r.place}: {r.detail}", r.text) for r in chunk.rejected],
            )

    return MasterRows(schema, batches())


def _from_table(
    engine: Engine,
    table: Table,
    found: pa.Schema,
    schema: pa.Schema,
    formats: Mapping[str, ColumnFormat],
) -> Iterator[tuple[pa.RecordBatch, list[Rejected]]]:
    """Yield a table's rows, read as text: a database may hold values that do not fit the column's
    type, such as 0000-00-00, or any text in a numeric column of SQLite."""
    from semistream.files.convert import cast_rows

    is_bytes = {f.name for f in found if pa.types.is_binary(f.type)}
    is_text = {f.name for f in found if pa.types.is_string(f.type)}.intersection(formats)
    shown = pa.schema(
        [
            pa.field(f.name, pa.binary())
            if f.name in is_bytes
            else pa.field(f.name, pa.string())
            if f.name in is_text or pa.types.is_binary(f.type)
            else f
            for f in schema
        ]
    )
    exact = {f.name for f in schema if pa.types.is_floating(f.type)}
    with engine.connect() as connection:
        for texts in fetch_texts(connection, select(*[table.c[n] for n in schema.names]), shown):
            rows, wrong = cast_rows(texts, schema, exact, formats=formats)
            yield rows, [Rejected("unparsable", why, _json(texts, i)) for i, why in wrong.items()]


def _checked(
    dimension: Dimension,
    keyed: Collection[str],
    found: pa.Schema,
    known: pa.Schema | None,
    leave_out: bool = False,
) -> pa.Schema:
    """Return the schema to store. leave_out: a known column may be missing and is null then,
    because JSON objects may omit keys."""
    where = dimension.path or dimension.table
    different = (
        set()
        if known is None
        else set(found.names) - set(known.names)
        if leave_out
        else set(known.names) ^ set(found.names)
    )
    if different:
        raise ConfigError(
            f"dimension {dimension.name}",
            f"must have the columns of {dimension_name(dimension.name)}",
            sorted(different),
            f"{where} and the table differ in them. Give the rows the table's "
            f"columns, or the dimension another name. A dimension made anew would "
            f"give its surrogate keys to other tuples than those that the facts "
            f"mean.",
        )
    schema = stored_schema(known or found)
    check_columns(dimension, "on, business_key", keyed, schema)
    for column in keyed:
        canonical_type(column, schema.field(column).type)
    return schema


@dataclass
class _Staged:
    """The counts of staging: rows read, rejected rows by reason, the first rejected rows, and by
    column the values that became null."""

    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    first: list[Rejected] = field(default_factory=list)
    nulled: Counter[str] = field(default_factory=Counter)


def check_columns(
    dimension: Dimension, parameter: str, columns: Collection[str], schema: pa.Schema
) -> None:
    """Raise ConfigError if a dimension has not all of these columns."""
    for column in columns:
        if column not in schema.names and column != dimension.surrogate_key:
            raise ConfigError(
                parameter,
                f"must name columns of {dimension.path or dimension.table}",
                column,
                f"It has: {', '.join(schema.names)}.",
            )


def _stage(
    connection: Connection,
    staging: Table,
    rows: MasterRows,
    of: Dimension,
    keyed: Collection[str],
    progress: Progress,
) -> _Staged:
    """Write all rows to the staging table or to ``rejected_master``."""
    name, keys, staged = of.name, of.business_key, _Staged()
    connection.execute(rejected_master.delete().where(rejected_master.c.master == name))
    for batch, unfit in rows.batches:
        staged.read += batch.num_rows + len(unfit)
        good, not_stored = _storable(batch, keys, keyed)
        rejected = unfit + not_stored
        _reject(connection, name, rejected)
        staged.first += rejected[: EXAMPLES - len(staged.first)]
        staged.reasons.update(r.reason for r in rejected)
        staged.nulled.update(nulled(good, connection))
        bulk_insert(connection, staging, good, replace=bool(staging.primary_key.columns))
        progress(f"reading {name}", staged.read, None)
    return staged


def _storable(
    batch: pa.RecordBatch, business_key: Collection[str], keyed: Collection[str]
) -> tuple[pa.RecordBatch, list[Rejected]]:
    """Return the rows whose keys, dates and times can be stored, and the others as rejected."""
    reasons: dict[int, tuple[str, str]] = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        for i in pc.indices_nonzero(outside_years(values)).to_pylist():
            reasons[i] = (
                "unparsable",
                (f"{name}: {values[i].cast(pa.string())} is not within the years 1 to 9999"),
            )
    for column in keyed:
        values = batch.column(column)
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            length = (
                pc.utf8_length(values)
                if pa.types.is_string(values.type)
                else pc.binary_length(values)
            )
            for i in pc.indices_nonzero(pc.greater(length, KEY_CHARACTERS)).to_pylist():
                reasons[i] = "long_key", f"{column} has more than {KEY_CHARACTERS} characters"
        if column in business_key and values.null_count:
            for i in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                reasons[i] = "null_key", f"{column} is null"
    if not reasons:
        return batch, []
    rejected = [
        Rejected(reason, detail, _json(batch, i)) for i, (reason, detail) in sorted(reasons.items())
    ]
    return batch.filter(pa.array([i not in reasons for i in range(batch.num_rows)])), rejected


def _json(rows: pa.RecordBatch, i: int) -> str:
    return json.dumps(python_rows(rows.slice(i, 1))[0], default=str)


def _reject(connection: Connection, master: str, rejected: list[Rejected]) -> None:
    if rejected:
        now = datetime.now(UTC).replace(tzinfo=None)
        connection.execute(
            insert(rejected_master),
            [
                {
                    "master": master,
                    "reason": r.reason,
                    "detail": r.detail,
                    "tuple": r.tuple,
                    "rejected_at": now,
                }
                for r in rejected
            ],
        )


def _upsert(
    connection: Connection, staging: Table, dimension: Table, keys: tuple[str, ...]
) -> tuple[int, int]:
    """Update and insert the staged rows. Return (rows updated, rows inserted)."""
    values = [c.name for c in staging.columns if c.name not in keys]
    same = [dimension.c[k] == staging.c[k] for k in keys]
    updated = 0
    if values:
        changed = or_(*[dimension.c[v].is_distinct_from(staging.c[v]) for v in values])
        updated = connection.execute(
            update(dimension).values({v: staging.c[v] for v in values}).where(*same, changed)
        ).rowcount
    names = [c.name for c in staging.columns]
    new = (
        select(*[staging.c[n] for n in names])
        .outerjoin(dimension, same[0] if len(same) == 1 else same[0] & _all(same[1:]))
        .where(next(iter(dimension.primary_key)).is_(None))
        .order_by(*[staging.c[k] for k in keys])
    )
    return updated, connection.execute(insert(dimension).from_select(names, new)).rowcount


def _all(conditions: list[Any]) -> Any:
    first, *rest = conditions
    return first & _all(rest) if rest else first


def _staging_table(
    name: str, schema: pa.Schema, indexed: Collection[str] = (), keys: Sequence[str] = ()
) -> Table:
    """Return a temporary table, clustered by its keys if it has any. indexed: columns that are
    indexed, whose texts are short."""
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
        name,
        MetaData(),
        *columns,
        prefixes=["TEMPORARY"],
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        sqlite_with_rowid=not keys,
    )


def _sort(connection: Connection, unsorted: Table, staging: Table) -> None:
    """Move SQLite's rows to the staging table in the order of their keys. Of rows with the same key
    the last one stays."""
    names = [c.name for c in staging.columns]
    arrival = next(
        alias for alias in ("rowid", "oid", "_rowid_") if alias not in map(str.lower, names)
    )
    rows = select(*unsorted.columns).order_by(
        *[unsorted.c[k.name] for k in staging.primary_key], literal_column(arrival)
    )
    connection.execute(insert(staging).prefix_with("OR REPLACE").from_select(names, rows))
    system_of(connection).drop_temporary(connection, unsorted)


def _record(
    connection: Connection,
    name: str,
    dimension: Table,
    schema: pa.Schema,
    keys: tuple[str, ...],
    changed: bool,
) -> None:
    """Write the master's row in ``masters``. ``changes`` is a time, so that no two states of two
    warehouses have the same number."""
    sk = pa.field(surrogate_key(name), pa.int64(), False)
    values: dict[str, Any] = {
        "table_name": dimension.name,
        "arrow_schema": encode_schema(pa.schema([sk, *schema], schema.metadata)),
        "business_key": json.dumps(keys),
        "rows": select(func.count()).select_from(dimension).scalar_subquery(),
        "provisioned_at": datetime.now(UTC).replace(tzinfo=None),
    }
    if changed:
        values["changes"] = time.time_ns()
    if not connection.execute(
        update(masters).where(masters.c.name == name).values(values)
    ).rowcount:
        connection.execute(
            insert(masters).values({"changes": time.time_ns()} | values | {"name": name})
        )


def _row(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(masters).where(masters.c.name == name)).first()


def _known(engine: Engine, name: str) -> pa.Schema | None:
    """Return the dimension's schema as it was first provisioned, or None if it was not."""
    with engine.connect() as connection:
        row = _row(connection, name)
    return None if row is None else decode_schema(row.arrow_schema)


@dataclass(frozen=True)
class DimensionTable:
    """A provisioned dimension table and its state."""

    table: Table
    schema: pa.Schema
    rows: int
    changes: int

    @property
    def is_small(self) -> bool:
        """Return whether one process publishes the dimension sooner than Spark does."""
        return self.rows * len(self.schema) <= SMALL

    def key_forms(self, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return how the key columns are normalised, for a snapshot's manifest."""
        return {c: form for c, form in forms_of(self.schema).items() if c in columns}

    def source(self, engine: Engine) -> dict[str, Any]:
        """Return the origin of a snapshot, for its manifest."""
        return snapshot_source(engine, self.table.name, self.changes)


def open_dimension(engine: Engine, name: str) -> DimensionTable:
    """Open a dimension. Raises ConfigError if it was never provisioned."""
    create_all(engine)
    with engine.connect() as connection:
        row = _row(connection, name)
    if row is None:
        raise ConfigError(
            "dimension", "must have been provisioned", name, "Run `semistream provision` first."
        )
    return DimensionTable(
        existing_table(engine, row.table_name),
        decode_schema(row.arrow_schema),
        row.rows,
        row.changes,
    )


def read_dimension(
    connection: Connection,
    dimension: DimensionTable,
    keys_from: int | None = None,
    keys_to: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a dimension's rows, or those whose surrogate key is in [keys_from, keys_to)."""
    table, sk = dimension.table, dimension.table.c[dimension.schema.names[0]]
    query = select(*[table.c[n] for n in dimension.schema.names])
    if keys_from is not None and keys_to is not None:
        query = query.where(sk >= keys_from, sk < keys_to)
    yield from fetch(connection, query, dimension.schema)


def needs_publishing(engine: Engine, dimension: DimensionTable, root: Path) -> bool:
    """Return whether the current snapshot under ``root`` differs from the dimension as it is
    now."""
    current = current_manifest(root)
    return current is None or current.source != dimension.source(engine)


def check_unchanged(engine: Engine, name: str, dimension: DimensionTable) -> None:
    """Raise StateError if the dimension was provisioned again while it was read."""
    if open_dimension(engine, name).changes != dimension.changes:
        raise StateError(f"{dimension.table.name} changed while it was read. Publish it again.")


def publish(
    name: str,
    key: Sequence[str],
    engine: Engine,
    snapshots: Path,
    progress: Progress = silent,
    memory: int = MEMORY,
) -> tuple[Manifest, bool]:
    """Publish a dimension's snapshot by a key if the dimension has changed. Return the current
    snapshot, and whether it is new. memory: bytes that publishing may use."""
    dimension, root = open_dimension(engine, name), snapshot_root(snapshots, name, key)
    if not needs_publishing(engine, dimension, root):
        current = current_manifest(root)
        assert current is not None
        return current, False
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        progress(f"publishing {name}", done // 2, dimension.rows)

    def batches() -> Iterator[pa.RecordBatch]:
        with engine.connect() as connection:
            yield from read_dimension(connection, dimension)
        check_unchanged(engine, name, dimension)

    return publish_snapshot(
        batches(),
        dimension.schema,
        root,
        name,
        key,
        source=dimension.source(engine),
        memory=memory,
        progress=count,
        formats=dimension.key_forms(key),
    ), True
