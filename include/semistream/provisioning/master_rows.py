"""Rows of master data from their source, which is a file or a table. The rows are checked and
converted to the types of the dimension's table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import BigInteger, Engine, Table, func, select

from semistream.column_format import ColumnFormat
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError
from semistream.files.convert import json_text
from semistream.job import Dimension
from semistream.keys import JoinKeys, canonical_type
from semistream.warehouse.bulk import fetch_texts
from semistream.warehouse.dialects import shared_engine
from semistream.warehouse.dialects.rows import UNSIGNED
from semistream.warehouse.tables import arrow_schema, dimension_name, existing_table
from semistream.warehouse.types import python_rows, stored_schema


class Rejected(NamedTuple):
    """A row that is not stored: the reason, details and the row's text."""

    reason: str
    detail: str
    tuple: str


@dataclass(frozen=True)
class MasterRows:
    """The rows of master data from their source. Iterate once over (rows in ``schema``, rows that
    do not fit ``schema``)."""

    schema: pa.Schema
    batches: Iterator[tuple[pa.RecordBatch, list[Rejected]]]


def open_rows(
    dimension: Dimension,
    keyed: Collection[str],
    engine: Engine | None,
    url: str | None,
    known: pa.Schema | None,
) -> MasterRows:
    """Open the dimension's source, and check its columns against the columns of keys and the
    table's present columns, ``known``, whose types the rows get. engine: the warehouse's, which
    only tables need."""
    if dimension.path is not None:
        return _open_files(dimension, keyed, Path(dimension.path), known)
    if dimension.table is None:
        raise ConfigError(
            f"dimension {dimension.name}",
            "must have a path or a table",
            None,
            "Say where its rows come from.",
        )
    source = shared_engine(url) if url else engine
    assert source is not None
    table = existing_table(source, dimension.table)
    found = pa.schema([f for f in arrow_schema(table) if f.name != dimension.surrogate_key])
    given, formats = found if known else _widened(source, table, found), dimension.formats
    if formats:
        # imported only here: they import Numba, which reading a dimension does not need
        from semistream.files.formats import check_formats, implied_schema

        schema = _checked(dimension, keyed, implied_schema(given, formats), known)
        check_formats(schema, formats, "master", given)
    else:
        schema = _checked(dimension, keyed, given, known)
    return MasterRows(schema, _from_table(source, table, found, schema, formats))


def _widened(engine: Engine, table: Table, found: pa.Schema) -> pa.Schema:
    """Return the columns' types. A BIGINT UNSIGNED column becomes a signed 64-bit integer, like
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
    from semistream.files.csv_source import CsvSource
    from semistream.files.formats import check_formats
    from semistream.files.json_source import JsonSource
    from semistream.files.opening import open_source

    source = open_source("master", path, formats=dimension.formats, options=dimension.options)
    source.assign_types()
    schema = _checked(
        dimension,
        keyed,
        source.schema,
        known,
        lacks=isinstance(source, JsonSource),
        more=not isinstance(source, CsvSource),
    )
    source.only([name for name in source.schema.names if name in schema.names])
    source.read_as(schema, schema.names if dimension.columns else ())
    check_formats(schema, dimension.formats, "master")

    return MasterRows(
        schema,
        (
            (
                chunk.rows.select(schema.names),
                [Rejected("unparsable", f"{r.place}: {r.detail}", r.text) for r in chunk.rejected],
            )
            for chunk in source.chunks()
        ),
    )


def _from_table(
    engine: Engine,
    table: Table,
    found: pa.Schema,
    schema: pa.Schema,
    formats: Mapping[str, ColumnFormat],
) -> Iterator[tuple[pa.RecordBatch, list[Rejected]]]:
    """Yield a table's rows, read as text, because a database may hold values that do not fit the
    column's type, such as 0000-00-00, or any text in a numeric column of SQLite."""
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
            yield rows, [Rejected("unparsable", why, json_of(texts, i)) for i, why in wrong.items()]


def _checked(
    dimension: Dimension,
    keyed: Collection[str],
    found: pa.Schema,
    known: pa.Schema | None,
    lacks: bool = False,
    more: bool = True,
) -> pa.Schema:
    """Return the schema in which rows are stored: of the columns found, those that the dimension
    declares, or all.

    lacks: whether a known column may be missing, in which case it is null, because JSON objects may
    omit keys; more: whether columns may be found that are not declared. Raises ConfigError for
    other columns.
    """
    where, has = dimension.path or dimension.table, set(found.names)
    declared = set(parse_ddl(dimension.columns).names) if dimension.columns else None
    if declared is not None:
        lacking, new = (set() if lacks else declared - has), (set() if more else has - declared)
        if lacking or new:
            raise ConfigError(
                f"dimension {dimension.name}.columns",
                f"must name columns of {where}"
                if lacking
                else f"must name all columns of {where}, as it is CSV",
                sorted(lacking or new),
                f"It has: {', '.join(found.names)}.",
            )
        has = declared
    different = set()
    if known is not None:
        different = has - set(known.names) if lacks and declared is None else has ^ set(known.names)
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


def check_columns(
    dimension: Dimension, parameter: str, columns: Collection[str], schema: pa.Schema
) -> None:
    """Raise ConfigError if a dimension lacks some of these columns."""
    for column in columns:
        if column not in schema.names and column != dimension.surrogate_key:
            raise ConfigError(
                parameter,
                f"must name columns of {dimension.path or dimension.table}",
                column,
                f"It has: {', '.join(schema.names)}.",
            )


def replaced_rows(
    keys: JoinKeys, codes: Sequence[np.ndarray], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose key a later row has, too. Rows without a key are passed over.

    codes: the codes of the keys, as they were read; batches: the same rows, read once more. If the
    source has changed meanwhile, no more rows are yielded.
    """
    known = np.concatenate([np.zeros(0, np.int64), *codes])
    replaced, start = np.ones(len(known), bool), 0
    replaced[len(known) - 1 - np.unique(known[::-1], return_index=True)[1]] = False
    for batch in batches:
        found, valid = keys.master_codes(batch)
        end = start + int(valid.sum())
        if not np.array_equal(found[valid], known[start:end]):
            return
        chosen = np.zeros(batch.num_rows, bool)
        chosen[valid] = replaced[start:end]
        start = end
        if chosen.any():
            yield batch.filter(pa.array(chosen))


def json_of(rows: pa.RecordBatch, i: int) -> str:
    return json.dumps(python_rows(rows.slice(i, 1))[0], default=json_text)
