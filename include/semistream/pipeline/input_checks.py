"""Checks of a job's inputs before anything is written: whether its stream exists and can be read,
and whether it fits the dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import pyarrow as pa
from sqlalchemy import Engine, inspect

from semistream.data_files import ENDINGS, is_remote, list_files
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError
from semistream.job import AnyJob, Job, Role, StreamSpec, added_columns
from semistream.joins.spec import output_names
from semistream.keys import resolve_keys
from semistream.master.manifest import decode_schema
from semistream.provisioning.master_rows import check_columns, open_rows
from semistream.provisioning.publishing import master_row
from semistream.streaming.sinks.registry import sink_kind
from semistream.streaming.sources.registry import SOURCES, find_source
from semistream.warehouse.schema import masters
from semistream.warehouse.tables import check_fact_table, fact_table, is_left_over
from semistream.workloads.jobs import JoinedDimension


def check_inputs(
    job: Job,
    dimensions: Sequence[JoinedDimension],
    engine: Engine,
    url: str | None = None,
    *,
    former: pa.Schema | None = None,
    loads: bool = False,
    sink: str = "sql",
) -> list[str]:
    """Check a job's stream, and whether it fits dimensions of the job. Return remarks for the user.

    url: the database of the dimensions' tables, if not the warehouse; former: see
    ``stream_schema``; loads: whether the stream is loaded next, so that files must exist from which
    its columns are found; sink: where facts will go. Raises ConfigError.
    """
    remarks = list[str]()
    if loads or not _is_empty(job.stream):
        stream = stream_schema(job.stream, former)
    else:
        stream = job.stream.declared
        remarks.append(f"The stream has no file yet in {job.stream.path}.")
    found = {joined.dimension.name: dimension_schema(joined, engine, url) for joined in dimensions}
    for error in problems(job, stream, found):
        raise error
    if stream is not None:
        check_facts(job, sink, engine, stream, found)
    return remarks


def check_target(job: AnyJob, sink: str, engine: Engine | None) -> None:
    """Raise ConfigError if facts go to the warehouse, and it cannot have the job's fact table.
    sink: the setting's value; engine: see ``check_fact_table``."""
    if sink_kind(sink).in_warehouse:
        check_fact_table(job.fact_table, job.dimension_names, engine)


def check_facts(
    job: Job,
    sink: str,
    engine: Engine | None,
    stream: pa.Schema,
    dimensions: Mapping[str, pa.Schema],
) -> None:
    """Raise ConfigError if facts go to the warehouse, and the fact table that it has lacks a column
    of the job's facts, or has one of another type. sink: the setting's value; stream: its columns;
    dimensions: by name, the columns of the dimensions that are known."""
    if engine is None or not sink_kind(sink).in_warehouse:
        return
    if not inspect(engine).has_table(job.fact_table):  # a first load has its own checks
        return
    roles = [role for role in job.roles if role.dimension.name in dimensions]
    schemas, added = [dimensions[role.dimension.name] for role in roles], list[pa.Field]()
    whole = len(roles) == len(job.roles)  # else it is not known which names are in several roles
    columns = added_columns(roles, [schema.names for schema in schemas]) if whole else []
    for role, schema, given in zip(roles, schemas, columns, strict=False):
        names = given or {c: c for c in schema.names if c not in role.key}
        own = output_names(stream, role.name, [c for c, name in names.items() if c == name])
        added += [
            schema.field(c).with_name(n) for c, n in (names | own).items() if c in schema.names
        ]
    surrogates = [role.surrogate_key for role in job.roles]
    is_left_over(
        engine, fact_table(job.fact_table, stream, surrogates, pa.schema(added), job.stream.id)
    )


def _is_empty(spec: StreamSpec) -> bool:
    """Return whether a stream of local files has no files."""
    return bool(
        spec.format in ENDINGS
        and spec.path
        and not is_remote(spec.path)
        and next(iter(list_files(spec.path, spec.options, spec.format)), None) is None
    )


def stream_schema(spec: StreamSpec, former: pa.Schema | None = None) -> pa.Schema | None:
    """Return the columns of a stream; None if only Spark can find them. former: those with which
    the app began. Raises ConfigError for a stream that cannot be read."""
    if spec.format not in SOURCES and (near := get_close_matches(spec.format.lower(), SOURCES, 1)):
        raise ConfigError(
            "stream.format",
            "must be a format that Semistream reads, or a streaming source of Spark's",
            spec.format,
            f"Did you mean {near[0]}? Semistream reads {', '.join(SOURCES)}.",
        )
    source = find_source(spec, former)
    source.check()
    return source.schema


def dimension_schema(joined: JoinedDimension, engine: Engine, url: str | None) -> pa.Schema:
    """Return the columns of a dimension, with the types that its table has or will have. Raises
    ConfigError for rows that cannot be read or do not fit the table."""
    dimension, provisioned = joined.dimension, provisioned_schema(engine, joined.dimension.name)
    known = None if provisioned is None else provisioned.remove(0)
    known = known or (parse_ddl(dimension.columns) if dimension.columns else None)
    return open_rows(dimension, joined.key_columns, engine, url, known).schema


def provisioned_schema(engine: Engine, name: str) -> pa.Schema | None:
    """Return the columns of a dimension's table; None if it was not provisioned yet."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(masters.name):
            return None
        row = master_row(connection, name)
    return None if row is None else decode_schema(row.arrow_schema)


def problems(
    job: Job, stream: pa.Schema | None, dimensions: Mapping[str, pa.Schema]
) -> Iterator[ConfigError]:
    """Yield the conflicts between a job's stream and its dimensions. stream: the stream's columns,
    None if unknown; dimensions: by name, the columns of the dimensions that could be read."""
    if stream is None:
        return
    for name in job.stream.id:
        if name not in stream.names:
            near = "".join(f"Did you mean {n}? " for n in get_close_matches(name, stream.names, 1))
            yield ConfigError(
                "stream.id",
                "must name a column of the stream",
                name,
                f"{near}It has: {', '.join(stream.names)}.",
            )
    for role in job.roles:
        if role.dimension.name in dimensions:
            yield from _of_role(role, stream, dimensions[role.dimension.name], len(job.roles) > 1)


def _of_role(
    role: Role, stream: pa.Schema, rows: pa.Schema, several: bool
) -> Iterator[ConfigError]:
    place = f"dimensions.{role.name}." if several else ""
    try:
        check_columns(role.dimension, "columns", role.columns, rows)
        resolve_keys(stream, rows, list(role.on.items()))
    except ConfigError as e:
        yield ConfigError(f"{place}{e.parameter}", e.constraint, e.value, e.remedy)
