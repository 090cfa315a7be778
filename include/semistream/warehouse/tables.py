"""Dimension and fact tables, created from a job's schemas."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Index,
    Inspector,
    Integer,
    MetaData,
    Table,
    and_,
    inspect,
    quoted_name,
    select,
)
from sqlalchemy.exc import DBAPIError, NoSuchTableError

from semistream.errors import ConfigError
from semistream.job import Role, surrogate_key
from semistream.warehouse import dialects
from semistream.warehouse.dialects import name_length, refusals_as_errors, system_of, table_options
from semistream.warehouse.schema import load_commits, row_key
from semistream.warehouse.schema import metadata as own
from semistream.warehouse.types import (
    DECIMAL_DIGITS,
    KEY_CHARACTERS,
    LongString,
    arrow_type,
    big_integer,
    sql_type,
    stored_schema,
)

ROW_KEY = ("load_id", "load_row")  # the primary key of loaded rows
# column of a dimension table: 1 for a member that was created for a fact, and not filled in yet
IS_INFERRED = "is_inferred"


def dimension_name(name: str) -> str:
    return f"dim_{name}"


def dimension_table(
    name: str,
    schema: pa.Schema,
    business_key: Sequence[str],
    join_keys: Collection[Sequence[str]] = (),
    *,
    unknown_member: bool = False,
    inferred: bool = False,
) -> Table:
    """Return ``dim_<name>``: a surrogate key, then the columns of ``schema``; unique on the
    business key, indexed on each join key. unknown_member: whether a row may be without a business
    key; inferred: whether rows may be inferred members, which are marked by a column
    ``IS_INFERRED``.

    Raises ConfigError for a missing key column, or a column with the name of the surrogate key or
    ``IS_INFERRED``.
    """
    keys = {*business_key, *(c for key in join_keys for c in key)}
    _need("business_key", keys, schema)
    _avoid((surrogate_key(name), *((IS_INFERRED,) if inferred else ())), schema)
    stored = stored_schema(schema)
    table = Table(
        dimension_name(name),
        MetaData(),
        Column(surrogate_key(name), big_integer(), primary_key=True, autoincrement=True),
        *[
            Column(
                quoted(f.name),
                sql_type(f, f.name in keys),
                nullable=unknown_member or f.name not in business_key,
            )
            for f in stored
        ],
        *([Column(IS_INFERRED, Integer, nullable=False, server_default="0")] if inferred else []),
        **table_options(numbered=True),
    )
    Index(index_name(table.name, "key"), *[table.c[c] for c in business_key], unique=True)
    # a column that was no key when the table was made has long texts
    texts = {f.name for f in stored if pa.types.is_string(f.type) or pa.types.is_binary(f.type)}
    for key in join_keys:
        if tuple(key) != tuple(business_key):
            suffix = hashlib.sha256(",".join(key).encode()).hexdigest()[:8]
            Index(
                index_name(table.name, f"join_{suffix}"),
                *[table.c[c] for c in key],
                **dialects.index_options(texts.intersection(key), KEY_CHARACTERS),
            )
    return table


def fact_table(
    name: str,
    stream: pa.Schema,
    surrogates: Sequence[str],
    added: pa.Schema,
    id_columns: Sequence[str] = (),
    *,
    index_ids: bool = False,
    keys: Sequence[str] = (),
) -> Table:
    """Return a job's fact table: the stream's columns, the surrogate keys of its roles, the added
    columns of their dimensions, and the row's key.

    added: the dimensions' columns, with their names in the join's output. A join of two streams has
    no surrogate keys, and ``added`` contains the right stream's columns. The primary key is
    ``schema.row_key``. index_ids: whether to add an index on the id columns; keys: columns to
    index, because rows are looked up by them. Raises ConfigError for a missing id column, or for a
    name that occurs twice.
    """
    _avoid((*ROW_KEY, *surrogates), stream)
    added = pa.schema([f for f in added if f.name not in surrogates])
    _avoid(
        (*ROW_KEY, *stream.names), added, "Give it another name: columns: {name_there: other_name}."
    )
    _need("stream.id", id_columns, stream if surrogates else pa.schema([*stream, *added]))
    table = Table(
        name,
        MetaData(),
        *[Column(quoted(f.name), sql_type(f, f.name in id_columns)) for f in stored_schema(stream)],
        *(Column(name, BigInteger) for name in surrogates),
        *[Column(quoted(f.name), sql_type(f, f.name in id_columns)) for f in stored_schema(added)],
        *row_key(),
        **table_options(clustered=True),
    )
    if id_columns and index_ids:
        Index(index_name(name, "id"), *[table.c[c] for c in id_columns])
    if keys:
        columns = [table.c[c] for c in keys]
        Index(index_name(name, "key"), *columns, **index_options(columns))
    return table


def ensure(engine: Engine, table: Table) -> Table:
    """Create the table, or check that the existing one has its columns, and add missing indexes.

    Other indexes of the existing table are kept. Raises ConfigError that names the column that does
    not fit, or what the database does not accept.
    """
    system = system_of(engine)
    system.check_table(inspect(engine).dialect, table)
    with refusals_as_errors(engine, table.name):
        create_missing(engine, [table])
    check_columns(engine, table)
    indexes = {index["name"] for index in inspect(engine).get_indexes(table.name)}
    for index in table.indexes:
        if index.name not in indexes:
            try:
                index.create(engine)
            except DBAPIError:  # another process was first, or it cannot be made
                if index.name not in {i["name"] for i in inspect(engine).get_indexes(table.name)}:
                    raise
    return table


def check_columns(engine: Engine, table: Table) -> None:
    """Raise ConfigError that names a column of the table that the existing one lacks, or has with
    another type."""
    system = system_of(engine)
    existing = {c.name: c.type for c in existing_table(engine, table.name).columns}
    for column in table.columns:
        if column.name not in existing:
            raise ConfigError(
                column.name,
                f"must be a column of the table {table.name}",
                sorted(existing),
                "Add the column to the table, leave it out of the job, or name another table.",
            )
        wanted = _family(arrow_type(column.name, column.type))
        found = _family(arrow_type(column.name, existing[column.name]))
        if wanted != found and not (system.decimal_is_text(DECIMAL_DIGITS) and "decimal" in wanted):
            raise ConfigError(
                f"{table.name}.{column.name}",
                f"must be a column of type {wanted}",
                found,
                "Change the column's type, or name another table.",
            )


def is_left_over(engine: Engine, table: Table) -> bool:
    """Return whether a fact table of this name exists that does not fit, but is empty, and was made
    by a first load that was refused. Raises ConfigError for another one that does not fit."""
    if not inspect(engine).has_table(table.name):
        return False
    try:
        check_columns(engine, table)
    except ConfigError:
        c, found = load_commits.c, existing_table(engine, table.name)
        loaded = select(c.app).where(c.fact_table == table.name)
        with engine.connect() as connection:
            if {*ROW_KEY} <= {*found.c.keys()} and not any(
                connection.execute(rows.limit(1)).first() for rows in (select(found), loaded)
            ):
                return True
        raise
    return False


def create_missing(engine: Engine, tables: Sequence[Table]) -> None:
    """Create the missing ones of these tables, all of which belong to one metadata. Other processes
    may do so at the same time."""
    missing = _missing(engine, tables)
    while missing:
        try:
            missing[0].metadata.create_all(engine, missing)
            return
        except DBAPIError:  # another process was first with one of them, or it cannot be made
            still = _missing(engine, tables)
            if len(still) == len(missing):
                raise
            missing = still


def _missing(engine: Engine, tables: Sequence[Table]) -> list[Table]:
    there = set(inspect(engine).get_table_names())
    return [table for table in tables if table.name not in there]


def fact_tables(inspector: Inspector) -> list[str]:
    """Return the names of all fact tables, which are recognised by their primary key."""
    keys = inspector.get_multi_pk_constraint()
    return sorted(
        name
        for (_, name), key in keys.items()
        if key["constrained_columns"] == list(ROW_KEY) and name not in own.tables
    )


def check_fact_table(name: str, dimensions: Collection[str], engine: Engine | None) -> None:
    """Raise ConfigError if a job's fact table would be a table of Semistream's own, a dimension's,
    or an existing table that loads do not write. dimensions: names of the job's dimensions; engine:
    the warehouse's, None if there is no warehouse yet."""
    what = ""
    if name.lower() in own.tables:
        what = "one of Semistream's own tables"
    elif name.lower() in {dimension_name(d).lower() for d in dimensions}:
        what = "the table of a dimension"
    elif engine is not None and inspect(engine).has_table(name):
        columns = existing_table(engine, name).c.keys()
        what = "" if {*ROW_KEY} <= {*columns} else "an existing table that is no fact table"
    if what:
        raise ConfigError("fact_table", f"must not be {what}", name, "Choose another name.")


def existing_table(
    bind: Engine | Connection, name: str, keys: Mapping[str, str] | None = None
) -> Table:
    """Return an existing table or view. keys: for some of its columns, the name under which
    ``Table.c`` has them. Raises ConfigError if there is no such table."""

    def reflected(inspector: Any, _table: Table, column: Any) -> None:
        column["name"] = quoted(system_of(inspector.dialect).reflected(column["name"]))
        column["key"] = (keys or {}).get(column["name"], column["name"])

    try:
        return Table(
            name, MetaData(), autoload_with=bind, listeners=[("column_reflect", reflected)]
        )
    except NoSuchTableError:
        found = sorted(inspect(bind).get_table_names() + inspect(bind).get_view_names())
        raise ConfigError(
            "table",
            "must be a table of the database",
            name,
            f"It has: {', '.join(found) or 'none'}.",
        ) from None


def quoted(name: str) -> quoted_name:
    """Return a column's name that is always quoted, because SQLAlchemy does not know every reserved
    word of every database version."""
    return quoted_name(name, True)


def copied_columns(facts: Container[str], dimension: Table, role: Role) -> dict[str, str]:
    """Return the columns that the join added: by fact column, the dimension column. If the stream
    also has a column of this name, the added column is called ROLE_name. facts: the names of the
    facts' columns."""
    names = role.columns or {
        c.key: c.key for c in dimension.columns if c.key not in (*role.on.values(), IS_INFERRED)
    }
    out = {}
    for m, given in names.items():
        for a in (f"{role.name}_{m}", m) if given == m else (given,):
            if a in facts and m in dimension.columns and a != role.surrogate_key:
                out[a] = m
                break
    return out


def same_row(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Return the condition that joins rows which have the same ``ROW_KEY``."""
    return and_(*(one.c[name] == other.c[name] for name in ROW_KEY))


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of a table's rows."""
    return pa.schema(
        [
            pa.field(c.name, arrow_type(f"{table.name}.{c.name}", c.type), bool(c.nullable))
            for c in table.columns
        ]
    )


def _family(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return "integer"
    return "float" if pa.types.is_floating(kind) else str(kind)


def _need(parameter: str, names: Sequence[str] | set[str], schema: pa.Schema) -> None:
    for name in names:
        if name not in schema.names:
            raise ConfigError(
                parameter,
                "must name columns of the data",
                name,
                f"They have: {', '.join(schema.names)}.",
            )


def _avoid(
    reserved: Sequence[str], schema: pa.Schema, remedy: str = "Rename the column in the source."
) -> None:
    seen = {n.lower() for n in reserved}  # neither database distinguishes the case of column names
    for name in schema.names:
        if name.lower() in seen:
            raise ConfigError("columns", "must not repeat a column of the table", name, remedy)
        seen.add(name.lower())


def index_options(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the options of an index over these columns."""
    long = {c.name for c in columns if isinstance(c.type, LongString)}
    return dialects.index_options(long, KEY_CHARACTERS)


def index_name(table: str, suffix: str) -> str:
    name = f"ix_{table}_{suffix}"
    if len(name) <= name_length():
        return name
    digest = hashlib.sha1(table.encode(), usedforsecurity=False).hexdigest()
    return f"ix_{digest[:16]}_{suffix}"
