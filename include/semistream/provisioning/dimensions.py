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
from semistream.config import Job, surrogate_key
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError, SemistreamError, StateError
from semistream.keys import canonical_type
from semistream.master.manifest import Manifest, decode_schema, encode_schema
from semistream.master.publish import MEMORY, current_manifest, publish_snapshot
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


def provision(job: Job, engine: Engine, progress: Progress = silent, *,
              url: str | None = None) -> ProvisionResult:
    """Upsert a job's master data into ``dim_<master>`` by business key. Unchanged rows are not
    rewritten.

    url: the database of ``master.table``, if not the warehouse. If a business key occurs twice, the
    last row is taken. Rows that cannot be stored go to ``rejected_master``, with the reason. All is
    one transaction. Raises ConfigError for master data that do not fit the job or the existing
    table.
    """
    create_all(engine)
    name, keys = job.master.name, key_columns(job)
    known = _known(engine, name)
    declared = parse_ddl(job.master.columns) if job.master.columns else None
    forms = key_forms(dict.fromkeys((*keys, *job.on.values())), job.master.formats)
    if known is not None and forms != (former := forms_of(known)):
        raise ConfigError("master.formats",
                          f"must give keys the form that they have in {dimension_name(name)}, "
                          f"{json.dumps(former)}", json.dumps(forms),
                          "Facts mean its rows by surrogate keys, which rows of other keys would "
                          "not have. Declare them as before, or give the master another name in "
                          "the job.")
    rows = _open(job, engine, url, known.remove(0) if known else declared)
    is_new = not inspect(engine).has_table(dimension_name(name))
    dimension = ensure(engine,
                       dimension_table(name, rows.schema, keys, tuple(job.on.values())))
    try:
        return _provision(job, engine, rows, dimension, known is None, progress)
    except BaseException:
        if is_new:
            _take_back(engine, name, dimension)
        raise


def _provision(job: Job, engine: Engine, rows: MasterRows, dimension: Table, is_new: bool,
               progress: Progress) -> ProvisionResult:
    name, keys, schema = job.master.name, key_columns(job), rows.schema
    system = system_of(engine)
    with said(engine, dimension.name), engine.begin() as connection:
        # prefixes as long as ``dim_``, so that the names are never too long
        staging = _staging_table(f"new_{name}", schema, {*keys, *job.on.values()}, keys)
        # unsorted rows would be written to random places of a table with a key
        unsorted = _staging_table(f"raw_{name}", schema) if system.one_writer else staging
        # a failed provisioning leaves it: it belongs to the connection, not to the transaction
        for table in {staging, unsorted}:
            system.drop_temporary(connection, table)
            table.create(connection)
        staged = _stage(connection, unsorted, rows, job, progress)
        read, reasons = staged.read, staged.reasons
        if sum(reasons.values()) > job.master.max_rejected * read:
            raise TooManyRejected(job, read, reasons, staged.first)
        if unsorted is not staging:
            _sort(connection, unsorted, staging)
        count = connection.scalar(select(func.count()).select_from(staging)) or 0
        if duplicates := read - sum(reasons.values()) - count:
            reasons["duplicate_key"] = duplicates
        progress(f"upserting {dimension.name}", 0, count)
        updated, inserted = _upsert(connection, staging, dimension, keys)
        progress(f"upserting {dimension.name}", count, count)
        forms = key_forms(dict.fromkeys((*keys, *job.on.values())), job.master.formats)
        _record(connection, name, dimension, schema.with_metadata({FORMS: json.dumps(forms)}), keys,
                is_new or bool(updated or inserted))
        system.drop_temporary(connection, staging)
    if staged.nulled:
        log.warning("%s: %s", dimension.name, say_nulled(staged.nulled, engine))
    return ProvisionResult(read, inserted, updated, count - inserted - updated,
                           sum(reasons.values()), dict(reasons), dict(staged.nulled))


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


def key_columns(job: Job) -> tuple[str, ...]:
    """Return the business key: the one that the job declares, or the join columns."""
    return job.master.business_key or tuple(job.on.values())


class TooManyRejected(SemistreamError):
    """More master rows are rejected than the job allows; the dimension is unchanged."""

    def __init__(self, job: Job, read: int, reasons: dict[str, int], first: list[Rejected]):
        why = ", ".join(f"{reason} {n:,}" for reason, n in reasons.items())
        rows = "".join(f"\n  {r.reason}: {r.detail} in {r.tuple[:200]}" for r in first)
        super().__init__(f"{sum(reasons.values()):,} of {read:,} rows of "
                         f"{job.master.path or job.master.table} cannot be taken ({why}), and no "
                         f"more than {job.master.max_rejected:.4g} of them may be left out "
                         f"(max_rejected under master: in the job). Where a column holds other "
                         f"values than its type tells of, declare it a STRING (columns under "
                         f"master:). "
                         f"{dimension_name(job.master.name)} is as it was. The first:{rows}")


class Rejected(NamedTuple):
    """A row that is not stored: the reason, details and the row's text."""

    reason: str
    detail: str
    tuple: str


FORMS = b"semistream.formats"  # key in the metadata of a dimension's schema
SMALL = 20_000_000  # values that one process publishes sooner than Spark starts
EXAMPLES = 5  # rejected rows that an error shows


@dataclass(frozen=True)
class MasterRows:
    """Master data from their source. Iterate once over (rows in ``schema``, the rows that do not
    fit it)."""

    schema: pa.Schema
    batches: Iterator[tuple[pa.RecordBatch, list[Rejected]]]


def _open(job: Job, engine: Engine, url: str | None, known: pa.Schema | None) -> MasterRows:
    """Open the master data and check them against the job and against ``known``, the dimension's
    present columns, whose types they get."""
    if job.master.path is not None:
        return _open_files(job, Path(job.master.path), known)
    if job.master.table is None:
        raise ConfigError("master", "must have a path or a table", job.master.name,
                          "Say where the master data come from.")
    source = connect(url) if url else engine
    table = existing_table(source, job.master.table)
    found = pa.schema([f for f in arrow_schema(table) if f.name != surrogate_key(job.master.name)])
    given, formats = found if known else _widened(source, table, found), job.master.formats
    if not formats:
        return MasterRows(schema := _checked(job, given, known),
                          _from_table(source, table, found, schema, {}))
    # imported only here: they import Numba, which reading a dimension does not need
    from semistream.files.formats import check_formats, implied_schema

    schema = _checked(job, implied_schema(given, formats), known)
    check_formats(schema, formats, "master", given)
    return MasterRows(schema, _from_table(source, table, found, schema, formats))


def _widened(engine: Engine, table: Table, found: pa.Schema) -> pa.Schema:
    """Return the columns' types, where a BIGINT UNSIGNED column is a signed 64-bit integer, like
    keys of streams, if its largest number fits."""
    unsigned = [table.c[name] for name in found.names
                if isinstance(kind := table.c[name].type, BigInteger)
                and getattr(kind, "unsigned", False)]
    if not unsigned:
        return found
    with engine.connect() as connection:
        largest = connection.execute(select(*map(func.max, unsigned))).one()
    wide = {c.name for c, most in zip(unsigned, largest, strict=True) if (most or 0) >= 2**63}
    return pa.schema([f.with_type(UNSIGNED) if f.name in wide else f for f in found])


def _open_files(job: Job, path: Path, known: pa.Schema | None) -> MasterRows:
    # imported only here: they import Numba, which reading a dimension does not need
    from semistream.files.formats import check_formats
    from semistream.files.json_source import JsonSource
    from semistream.files.opening import open_source

    source = open_source("master", path, formats=job.master.formats)
    source.assign_types()
    schema = _checked(job, source.schema, known, leave_out=isinstance(source, JsonSource))
    source.read_as(schema, schema.names if job.master.columns else ())
    check_formats(schema, job.master.formats, "master")
    def batches() -> Iterator[tuple[pa.RecordBatch, list[Rejected]]]:
        for chunk in source.chunks():
            yield chunk.rows.select(schema.names), [
                Rejected("unparsable", f"{r.place}: {r.detail}", r.text) for r in chunk.rejected]

    return MasterRows(schema, batches())


def _from_table(engine: Engine, table: Table, found: pa.Schema, schema: pa.Schema,
                formats: Mapping[str, ColumnFormat]
                ) -> Iterator[tuple[pa.RecordBatch, list[Rejected]]]:
    """Yield a table's rows, read as text: a database may hold values that do not fit the column's
    type, such as 0000-00-00, or any text in a numeric column of SQLite."""
    from semistream.files.convert import cast_rows

    is_bytes = {f.name for f in found if pa.types.is_binary(f.type)}
    is_text = {f.name for f in found if pa.types.is_string(f.type)}.intersection(formats)
    shown = pa.schema([
        pa.field(f.name, pa.binary()) if f.name in is_bytes else
        pa.field(f.name, pa.string()) if f.name in is_text or pa.types.is_binary(f.type) else f
        for f in schema])
    exact = {f.name for f in schema if pa.types.is_floating(f.type)}
    with engine.connect() as connection:
        for texts in fetch_texts(connection, select(*[table.c[n] for n in schema.names]), shown):
            rows, wrong = cast_rows(texts, schema, exact, formats=formats)
            yield rows, [Rejected("unparsable", why, _json(texts, i)) for i, why in wrong.items()]


def _checked(job: Job, found: pa.Schema, known: pa.Schema | None,
             leave_out: bool = False) -> pa.Schema:
    """Return the schema to store. leave_out: a known column may be missing and is null then,
    because JSON objects may omit keys."""
    where = job.master.path or job.master.table
    different = set() if known is None else set(found.names) - set(known.names) if leave_out else \
        set(known.names) ^ set(found.names)
    if different:
        raise ConfigError("master", f"must have the columns of {dimension_name(job.master.name)}",
                          sorted(different),
                          f"{where} and the table differ in them. Give the master data the table's "
                          f"columns, or the master "
                          "another name in the job. A dimension made anew would give its surrogate "
                          "keys to other tuples than those that the facts mean.")
    schema = stored_schema(known or found)
    for column in (*key_columns(job), *job.on.values(), *job.columns):
        if column not in schema.names and column != surrogate_key(job.master.name):
            raise ConfigError("on, columns, master.business_key", f"must name columns of {where}",
                              column, f"It has: {', '.join(schema.names)}.")
    for column in (*key_columns(job), *job.on.values()):
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


def _stage(connection: Connection, staging: Table, rows: MasterRows, job: Job,
           progress: Progress) -> _Staged:
    """Write all rows to the staging table or to ``rejected_master``."""
    name, keys, staged = job.master.name, key_columns(job), _Staged()
    connection.execute(rejected_master.delete().where(rejected_master.c.master == name))
    for batch, unfit in rows.batches:
        staged.read += batch.num_rows + len(unfit)
        good, not_stored = _storable(batch, keys, tuple(job.on.values()))
        rejected = unfit + not_stored
        _reject(connection, name, rejected)
        staged.first += rejected[:EXAMPLES - len(staged.first)]
        staged.reasons.update(r.reason for r in rejected)
        staged.nulled.update(nulled(good, connection))
        bulk_insert(connection, staging, good, replace=bool(staging.primary_key.columns))
        progress(f"reading {name}", staged.read, None)
    return staged


def _storable(batch: pa.RecordBatch, business_key: tuple[str, ...],
              join_key: tuple[str, ...]) -> tuple[pa.RecordBatch, list[Rejected]]:
    """Return the rows whose keys, dates and times can be stored, and the others as rejected."""
    reasons: dict[int, tuple[str, str]] = {}
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        for i in pc.indices_nonzero(outside_years(values)).to_pylist():
            reasons[i] = "unparsable", (f"{name}: {values[i].cast(pa.string())} is not "
                                        "within the years 1 to 9999")
    for column in dict.fromkeys((*join_key, *business_key)):
        values = batch.column(column)
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            length = (pc.utf8_length(values) if pa.types.is_string(values.type)
                      else pc.binary_length(values))
            for i in pc.indices_nonzero(pc.greater(length, KEY_CHARACTERS)).to_pylist():
                reasons[i] = "long_key", f"{column} has more than {KEY_CHARACTERS} characters"
        if column in business_key and values.null_count:
            for i in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                reasons[i] = "null_key", f"{column} is null"
    if not reasons:
        return batch, []
    rejected = [Rejected(reason, detail, _json(batch, i))
                for i, (reason, detail) in sorted(reasons.items())]
    return batch.filter(pa.array([i not in reasons for i in range(batch.num_rows)])), rejected


def _json(rows: pa.RecordBatch, i: int) -> str:
    return json.dumps(python_rows(rows.slice(i, 1))[0], default=str)


def _reject(connection: Connection, master: str, rejected: list[Rejected]) -> None:
    if rejected:
        now = datetime.now(UTC).replace(tzinfo=None)
        connection.execute(insert(rejected_master),
                           [{"master": master, "reason": r.reason, "detail": r.detail,
                             "tuple": r.tuple, "rejected_at": now} for r in rejected])


def _upsert(connection: Connection, staging: Table, dimension: Table,
            keys: tuple[str, ...]) -> tuple[int, int]:
    """Update and insert the staged rows. Return (rows updated, rows inserted)."""
    values = [c.name for c in staging.columns if c.name not in keys]
    same = [dimension.c[k] == staging.c[k] for k in keys]
    updated = 0
    if values:
        changed = or_(*[dimension.c[v].is_distinct_from(staging.c[v]) for v in values])
        updated = connection.execute(update(dimension).values({v: staging.c[v] for v in values})
                                     .where(*same, changed)).rowcount
    names = [c.name for c in staging.columns]
    new = (select(*[staging.c[n] for n in names])
           .outerjoin(dimension, same[0] if len(same) == 1 else same[0] & _all(same[1:]))
           .where(next(iter(dimension.primary_key)).is_(None))
           .order_by(*[staging.c[k] for k in keys]))
    return updated, connection.execute(insert(dimension).from_select(names, new)).rowcount


def _all(conditions: list[Any]) -> Any:
    first, *rest = conditions
    return first & _all(rest) if rest else first


def _staging_table(name: str, schema: pa.Schema, indexed: Collection[str] = (),
                   keys: Sequence[str] = ()) -> Table:
    """Return a temporary table, clustered by its keys if it has any. indexed: columns that are
    indexed, whose texts are short."""
    columns = [Column(quoted(f.name), sql_type(f, f.name in indexed), primary_key=f.name in keys,
                      autoincrement=False) for f in schema]
    return Table(name, MetaData(), *columns, prefixes=["TEMPORARY"], mysql_engine="InnoDB",
                 mysql_charset="utf8mb4", sqlite_with_rowid=not keys)


def _sort(connection: Connection, unsorted: Table, staging: Table) -> None:
    """Move SQLite's rows to the staging table in the order of their keys. Of rows with the same key
    the last one stays."""
    names = [c.name for c in staging.columns]
    arrival = next(alias for alias in ("rowid", "oid", "_rowid_")
                   if alias not in map(str.lower, names))
    rows = select(*unsorted.columns).order_by(
        *[unsorted.c[k.name] for k in staging.primary_key], literal_column(arrival))
    connection.execute(insert(staging).prefix_with("OR REPLACE").from_select(names, rows))
    system_of(connection).drop_temporary(connection, unsorted)


def _record(connection: Connection, name: str, dimension: Table, schema: pa.Schema,
            keys: tuple[str, ...], changed: bool) -> None:
    """Write the master's row in ``masters``. ``changes`` is a time, so that no two states of two
    warehouses have the same number."""
    sk = pa.field(surrogate_key(name), pa.int64(), False)
    values: dict[str, Any] = {"table_name": dimension.name,
                              "arrow_schema": encode_schema(
                                  pa.schema([sk, *schema], schema.metadata)),
                              "business_key": json.dumps(keys),
                              "rows": select(func.count()).select_from(dimension).scalar_subquery(),
                              "provisioned_at": datetime.now(UTC).replace(tzinfo=None)}
    if changed:
        values["changes"] = time.time_ns()
    if not connection.execute(update(masters).where(masters.c.name == name)
                              .values(values)).rowcount:
        connection.execute(insert(masters)
                           .values({"changes": time.time_ns()} | values | {"name": name}))


def _row(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(masters).where(masters.c.name == name)).first()


def _known(engine: Engine, name: str) -> pa.Schema | None:
    """Return the dimension's schema as it was first provisioned, or None if it was not."""
    with engine.connect() as connection:
        row = _row(connection, name)
    return None if row is None else decode_schema(row.arrow_schema)


@dataclass(frozen=True)
class Dimension:
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


def open_dimension(engine: Engine, master: str) -> Dimension:
    """Open a dimension. Raises ConfigError if the master was never provisioned."""
    create_all(engine)
    with engine.connect() as connection:
        row = _row(connection, master)
    if row is None:
        raise ConfigError("master", "must have been provisioned", master,
                          "Run `semistream provision` first.")
    return Dimension(existing_table(engine, row.table_name), decode_schema(row.arrow_schema),
                     row.rows, row.changes)


def read_dimension(connection: Connection, dimension: Dimension, keys_from: int | None = None,
                   keys_to: int | None = None) -> Iterator[pa.RecordBatch]:
    """Yield a dimension's rows, or those whose surrogate key is in [keys_from, keys_to)."""
    table, sk = dimension.table, dimension.table.c[dimension.schema.names[0]]
    query = select(*[table.c[n] for n in dimension.schema.names])
    if keys_from is not None and keys_to is not None:
        query = query.where(sk >= keys_from, sk < keys_to)
    yield from fetch(connection, query, dimension.schema)


def needs_publishing(engine: Engine, dimension: Dimension, root: Path,
                     key_columns: tuple[str, ...]) -> bool:
    """Return whether the current snapshot under ``root`` differs from the dimension as it is
    now."""
    current = current_manifest(root)
    return current is None or (current.source,
                               current.key_columns) != (dimension.source(engine), key_columns)


def check_unchanged(engine: Engine, master: str, dimension: Dimension) -> None:
    """Raise StateError if the dimension was provisioned again while it was read."""
    if open_dimension(engine, master).changes != dimension.changes:
        raise StateError(f"{dimension.table.name} changed while it was read. Publish it again.")


def publish(job: Job, engine: Engine, snapshots: Path,
            progress: Progress = silent, memory: int = MEMORY) -> tuple[Manifest, bool]:
    """Publish a job's dimension if it has changed. Return the current snapshot, and whether it is
    new. memory: bytes that publishing may use."""
    name, keys = job.master.name, tuple(job.on.values())
    dimension, root = open_dimension(engine, name), snapshots / name
    if not needs_publishing(engine, dimension, root, keys):
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

    return publish_snapshot(batches(), dimension.schema, root, name, keys,
                            source=dimension.source(engine), memory=memory, progress=count,
                            formats=dimension.key_forms(keys)), True
