"""The settings of a job that stay as they were when its app began.

Facts of former loads are known, joined and proven by them: with another join key, say, a fact would
be joined otherwise than the facts beside it, and the proof could not hold for both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.column_format import ColumnFormat, formats
from semistream.data_files import same_names
from semistream.ddl import type_name
from semistream.errors import ConfigError
from semistream.job import SIDES, AnyJob, Job
from semistream.streaming.position import begun_sink
from semistream.streaming.stream_schemas import former_schema
from semistream.warehouse.ledger import Ledger


def check_same_job(ledger: Ledger, job: AnyJob, sink: str, checkpoint: Path) -> None:
    """Check that these are the same as in the app's former loads: sink, fact table, paths, id
    columns, join keys and dimensions of roles, the unknown member of left joins, and normal forms
    of keys. sink: the setting's value; checkpoint: the app's, which knows the sink of a batch that
    has begun. Raises ConfigError."""
    app = ledger.app
    # the facts of one app, and so its proof, are in one place
    if others := {*ledger.sinks(), begun_sink(checkpoint) or sink} - {sink}:
        raise ConfigError(
            "sink",
            f"must stay {' and '.join(sorted(others))}, into which {app} has loaded so far",
            sink,
            remedy(app),
        )
    if (newest := ledger.newest_job()) is None:
        return
    table, values = newest
    former = json.loads(values)
    if table != job.fact_table:
        raise ConfigError(
            "fact_table",
            f"must stay {table}, which {app} has loaded so far",
            job.fact_table,
            remedy(app),
        )
    before = [(name, former[name]) for name in ("stream", *SIDES) if name in former]
    for (name, known), stream in zip(before, job.streams, strict=False):
        path, ids = known.get("path"), known.get("id", [])
        if list(stream.id) != ids:
            raise ConfigError(
                f"{name}.id",
                f"must stay {ids}, by which the tuples that {app} has loaded so far are known",
                list(stream.id),
                remedy(app),
            )
        if path and stream.path and not same_names(stream.path, path):
            raise ConfigError(
                f"{name}.path",
                f"must stay {path}, which {app} has read so far, or be a path or pattern that has "
                "it in it",
                stream.path,
                "Files are known by their paths, so that those of before would be loaded "
                "again: if they were moved, put a link to them there. " + remedy(app),
            )
    if isinstance(job, Job):
        _check_roles(app, job, former.get("dimensions") or {})
    check_kept(job, former)


def _check_roles(app: str, job: Job, former: dict[str, Any]) -> None:
    """Raise ConfigError if a role is joined with another dimension, or by other columns, or if the
    facts of a left join without a row would get another surrogate key. The order of the columns
    does not matter."""
    for name in former.keys() & job.dimensions.keys():
        role, known = job.dimensions[name], former[name]
        of, was_of = role.dimension, known["dimension"]
        kept: list[tuple[str, Any, Any]] = [
            ("dimension", of.name, was_of["name"]),
            ("on", dict(role.on), dict(known["on"])),
        ]
        if known.get("join_type") == "left":
            unknown = was_of.get("unknown_member", False)
            kept.append(("dimension.unknown_member", of.unknown_member, unknown))
        for setting, now, was in kept:
            if now != was:
                raise ConfigError(
                    f"dimensions.{name}.{setting}",
                    f"must stay {was}, by which the facts that {app} has loaded so far were joined",
                    now,
                    remedy(app),
                )


def check_same_types(
    app: str, job: AnyJob, checkpoint: Path, schemas: Sequence[pa.Schema | None]
) -> None:
    """Check that the columns of streams have the types with which the app began, according to its
    checkpoint, or wider integers. schemas: of each stream, None if only Spark can find it. Raises
    ConfigError."""
    for side, (name, schema) in enumerate(zip(job.stream_names, schemas, strict=True)):
        former = former_schema(checkpoint, side)
        if former is None or schema is None:
            continue
        for field in schema:
            number = former.get_field_index(field.name)
            if number < 0 or _holds(field.type, was := former.field(number).type):
                continue
            raise ConfigError(
                f"{name}.columns.{field.name}",
                f"must stay {type_name(was)}, the type with which {app} has loaded it so far",
                type_name(field.type),
                remedy(app),
            )


def _holds(now: pa.DataType, was: pa.DataType) -> bool:
    """Tell whether a value that was read as one type is the same value, read as the other."""
    if pa.types.is_signed_integer(now) and pa.types.is_signed_integer(was):
        return bool(now.bit_width >= was.bit_width)
    return type_name(now) == type_name(was)


def remedy(app: str) -> str:
    return (
        "Give the former one, load under another --app name, or load the source anew: "
        f"semistream reset {app}."
    )


def check_kept(job: AnyJob, former: dict[str, Any]) -> None:
    """Raise ConfigError if the texts of keys, or the ids, are normalised differently than when the
    load began. Otherwise waiting tuples would find no partner, and the proof would find no tuple.
    former: the job at that time, from the ledger."""
    plain = ColumnFormat()
    keys, names = (
        ([[c for role in job.roles for c in role.on]], ("stream",))
        if isinstance(job, Job)
        else ([list(job.on), list(job.on.values())], SIDES)
    )
    for name, spec, on in zip(names, job.streams, keys, strict=True):
        before = formats((former.get(name) or {}).get("formats") or {})
        for column in dict.fromkeys((*on, *spec.id)):
            was, now = before.get(column, plain), spec.formats.get(column, plain)
            if was.normal_form != now.normal_form or (column in spec.id and was != now):
                raise ConfigError(
                    f"{name}.formats.{column}",
                    f"must stay what the load began with, as keys and ids go by it: {was}",
                    str(now),
                    "Give the former one, or load anew: semistream reset APP.",
                )
