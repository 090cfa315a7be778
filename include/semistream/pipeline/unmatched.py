"""The unmatched tuples of an app, for people: how many there are of which key and why, and what the
keys may have meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Engine

from semistream.counted import counted
from semistream.ddl import type_name
from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import cast_cells
from semistream.files.nearest_keys import nearest_keys
from semistream.job import SIDES, AnyJob, Job, StreamStreamJob
from semistream.job import Role as JobRole
from semistream.master.published import current_version, snapshot_root
from semistream.master.snapshot import SnapshotRelation
from semistream.paths import Paths
from semistream.pipeline.loaded import loaded_job
from semistream.quality.tuple_origins import TupleOrigins
from semistream.reasons import Reason
from semistream.streaming.spool import TEXT
from semistream.streaming.stream_schemas import former_schema
from semistream.streaming.unmatched_keys import find_near_misses
from semistream.warehouse import existing, open_warehouse
from semistream.warehouse.ledger import app_number, checkpoint_of
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.unmatched_groups import (
    Group,
    Kind,
    Row,
    count_of,
    examples_of,
    groups_of,
    kinds_of,
)

LIMIT = 10  # keys of a reason and role that are shown
EXAMPLE_BYTES = 256_000_000  # bytes of files that are searched for examples from a range of loads
COMPARED = 100  # keys whose nearest ones are looked for
MEANINGS = 10_000  # different reasons of unparsable tuples that are told apart
TUPLE_CHARACTERS = 100  # of a tuple without an id and a place


@dataclass(frozen=True, eq=False)
class Example:
    """An unmatched tuple that is an example of its key. id: the value of ``stream_id``; file, line:
    the tuple's origin, None if unknown."""

    load_id: int
    load_row: int
    id: str | None
    values: dict[str, Any]
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """Return the tuple's id and origin, or its values if neither is known."""
        line = "" if self.line is None else f", line {self.line:,}"
        known = (
            "" if self.id is None else f"id {self.id}",
            "" if self.file is None else f"{self.file}{line}",
        )
        return " in ".join(filter(None, known)) or str(self.values)[:TUPLE_CHARACTERS]


@dataclass(frozen=True)
class Key:
    """The unmatched tuples of a key. key: the key's values by stream column; for unparsable tuples,
    the reason; nearest: the nearest keys of the dimension; if the first of them equals the key, the
    dimension now has the key."""

    key: dict[str, Any]
    tuples: int
    example: Example | None = None
    nearest: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        return _text(self.key)

    @property
    def near(self) -> str:
        """The nearest keys as a text for people."""
        if self.nearest and self.nearest[0] == self.key:
            return "is there now"
        return ("; " if len(self.key) > 1 else ", ").join(map(_text, self.nearest))


@dataclass(frozen=True)
class Listed:
    """The unmatched tuples of a reason and a role. keys: the number of different keys; top: the
    most frequent keys; remarks: sentences about changes with which keys would match."""

    reason: str
    role: str
    tuples: int
    keys: int
    top: tuple[Key, ...]
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        what = f"{self.reason} in {self.role}" if self.role else self.reason
        tuples = counted(self.tuples, "tuple")
        if self.reason == Reason.UNPARSABLE:
            return f"{what}: {tuples}, for {counted(self.keys, 'reason')}"
        return f"{what}: {tuples}" + (f" of {self.keys:,} keys" if self.keys > 1 else "")


class Loaded(NamedTuple):
    """An app that has loaded something, with its newest job. checkpoint: the directory of its
    checkpoint."""

    app: str
    job: AnyJob
    checkpoint: Path

    @classmethod
    def of(cls, engine: Engine, app: str, paths: Paths) -> Self:
        """Look an app up in the warehouse. Raises ConfigError."""
        job = loaded_job(engine, app)
        with engine.connect() as connection:
            noted = checkpoint_of(connection, app)
        return cls(app, job, Path(noted) if noted else paths.checkpoints / app)

    def kinds(self, engine: Engine, reason: str, role: str) -> list[Kind]:
        """Return the kinds of unmatched tuples that are asked for. Raises ConfigError for a reason
        or role that there cannot be."""
        if reason and reason not in {*Reason}:
            raise ConfigError(
                "reason", "must be a reason", reason, f"They are: {', '.join(Reason)}."
            )
        roles = SIDES if isinstance(self.job, StreamStreamJob) else tuple(self.job.dimensions)
        if role and role not in roles:
            raise ConfigError(
                "role", f"must be one of {self.app}", role, f"It has: {', '.join(roles)}."
            )
        with engine.connect() as connection:
            return [
                kind
                for kind in kinds_of(connection, self.app)
                if reason in ("", kind.reason) and role in ("", kind.role)
            ]

    def schemas(self) -> list[pa.Schema]:
        """Return the schema of each stream as it was loaded; none if the checkpoint is not here."""
        found = [former_schema(self.checkpoint, side) for side in range(len(self.job.streams))]
        return [schema for schema in found if schema is not None]


def list_unmatched(
    app: str, paths: Paths, *, reason: str = "", role: str = "", limit: int = LIMIT
) -> list[Listed]:
    """List an app's unmatched tuples by reason, role and key. limit: the number of keys for each
    reason and role. Memory does not grow with the number of tuples. Raises ConfigError."""
    if limit < 1:
        raise ConfigError("limit", "must be at least 1", limit, "Leave it out for ten keys.")
    with open_warehouse(existing(paths.warehouse_url)) as engine:
        loaded = Loaded.of(engine, app, paths)
        found = list[Listed]()
        for kind in loaded.kinds(engine, reason, role):
            with engine.connect() as connection:
                found += _listed(connection, loaded, kind, limit, paths)
        return _with_origins(engine, loaded, found)


def _columns(job: AnyJob, kind: Kind) -> tuple[str, ...]:
    """Return the columns that form the key of a kind's tuples."""
    if kind.reason == Reason.UNPARSABLE:
        return ("why",)
    if kind.reason == Reason.LONG_ID:
        return ()
    if isinstance(job, StreamStreamJob):
        return tuple(pair[SIDES.index(kind.role)] for pair in job.on.items())
    return tuple(job.role(kind.role).on)


# ---- by key


def _listed(
    connection: Connection, loaded: Loaded, kind: Kind, limit: int, paths: Paths
) -> Iterator[Listed]:
    columns = _columns(loaded.job, kind)
    tuples, keys = count_of(connection, loaded.app, kind, columns)
    if not tuples:
        return
    if kind.reason == Reason.UNPARSABLE:
        groups, keys = _combined(groups_of(connection, loaded.app, kind, columns, None), limit)
    else:
        groups = list(groups_of(connection, loaded.app, kind, columns, limit))
    examples = examples_of(connection, loaded.app, kind, columns, groups)
    top = []
    for group in groups:
        row = examples.get(group.key)
        values = dict(zip(columns, group.key, strict=True))
        if kind.reason == Reason.UNPARSABLE:
            values = {"why": _meaning(str(group.key[0]))}
        top.append(Key(values, group.tuples, None if row is None else _example(row)))
    remarks: tuple[str, ...] = ()
    if kind.reason == Reason.NO_MATCH and isinstance(loaded.job, Job):
        role = loaded.job.role(kind.role)
        top, remarks = _near(connection, loaded.app, role, top, paths)
    yield Listed(kind.reason, kind.role, tuples, keys, tuple(top), remarks)


def _combined(groups: Iterable[Group], limit: int) -> tuple[list[Group], int]:
    """Combine the groups of unparsable tuples whose reasons differ only in quoted texts. Return the
    largest combined groups, and the number of all combined groups."""
    counts, one = Counter[str](), dict[str, Group]()
    for group in groups:
        meaning = _meaning(str(group.key[0]))
        if meaning not in one and len(one) == MEANINGS:
            meaning = "other reasons"
        counts[meaning] += group.tuples
        if meaning not in one or group.newest > one[meaning].newest:
            one[meaning] = group
    largest = sorted(counts, key=lambda meaning: (-counts[meaning], meaning))[:limit]
    return [one[meaning]._replace(tuples=counts[meaning]) for meaning in largest], len(counts)


def _meaning(why: str) -> str:
    return re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "…", why)


def _example(row: Row) -> Example:
    return Example(
        row.load_id,
        row.load_row,
        row.stream_id,
        row.values,
        row.values.get("file") if TEXT in row.values else None,
        row.values.get("line") if TEXT in row.values else None,
    )


def _near(
    connection: Connection, app: str, role: JobRole, top: Sequence[Key], paths: Paths
) -> tuple[list[Key], tuple[str, ...]]:
    """Return the keys with their nearest keys in the dimension's newest snapshot, and remarks on
    forms in which more keys would match."""
    root = snapshot_root(paths.snapshots, role.dimension.name, role.key)
    try:
        version = current_version(root)
        if version is None:
            raise SemistreamError(f"{root} has no version")
        with closing(SnapshotRelation(root / version)) as relation:
            stream = {m: s for s, m in role.on.items()}
            columns = [stream[m] for m in relation.keys.master]
            compared = top[:COMPARED]
            keys = pa.RecordBatch.from_arrays(
                [
                    typed_column(name, [of.key[name] for of in compared], kind)
                    for name, kind in zip(columns, relation.keys.types, strict=True)
                ],
                names=columns,
            )
            near = nearest_keys(keys, relation)
    except (SemistreamError, OSError, pa.ArrowException) as e:  # for instance a version is gone
        return list(top), (f"The nearest keys of {role.name} are not known: {e}",)
    named = [
        replace(of, nearest=tuple(dict(zip(columns, key, strict=True)) for key in found))
        for of, found in zip(compared, near.found, strict=True)
    ]
    remarks = []
    if near.rows < near.of:
        remarks.append(
            f"Of {near.of:,} rows of {role.name}, {near.rows:,} were read for the nearest keys"
        )
    misses = find_near_misses(
        connection, app_loads(app_number(connection, app)), role.name, role.on, root / version
    )
    if misses is not None:
        remarks.append(f"{misses}: formats: {misses.declaration}")
    return [*named, *top[COMPARED:]], tuple(remarks)


def _with_origins(engine: Engine, loaded: Loaded, listed: Sequence[Listed]) -> list[Listed]:
    """Return the listed tuples, with the file and line of each example."""
    if not (schemas := loaded.schemas()):
        return list(listed)
    search = TupleOrigins(engine, loaded.app, loaded.job, schemas, EXAMPLE_BYTES)
    where: dict[Example, Example] = {}
    two = isinstance(loaded.job, StreamStreamJob)
    for side in range(len(schemas)):
        examples = [
            key.example
            for of in listed
            for key in of.top
            if key.example is not None
            and key.example.file is None
            and (not two or of.role == SIDES[side])
        ]
        found = search.find(
            np.array([e.load_id for e in examples], np.int64),
            pa.array([e.id for e in examples], pa.string()),
            side,
        )
        where |= {
            e: replace(e, file=found.file(n), line=found.line(n)) for n, e in enumerate(examples)
        }
    return [
        replace(
            of,
            top=tuple(
                key
                if key.example is None
                else replace(key, example=where.get(key.example, key.example))
                for key in of.top
            ),
        )
        for of in listed
    ]


def typed_column(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert the values that a column has in the JSON of unmatched tuples to the column's type.
    Raises SemistreamError for a value that is not of the type."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if v is None else bytes.fromhex(v) for v in values], kind)
    if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError):  # texts of a column that had another type before
            pass
    texts = pa.array([None if v is None else str(v) for v in values], pa.string())
    cells, wrong = cast_cells(texts, kind)
    if len(wrong):
        raise SemistreamError(
            f"the column {name} of an unmatched tuple, {texts[int(wrong[0])].as_py()!r}, is not "
            f"{type_name(kind)}, as the stream has it now"
        )
    return cells


def _text(key: dict[str, Any]) -> str:
    """Return a key as text for people: its only value, or the values of its columns."""
    if len(key) == 1:
        (value,) = key.values()
        return _readable(value)
    return ", ".join(f"{name}={_readable(value)}" for name, value in key.items()) or "(any)"


def _readable(value: Any) -> str:
    """Return a value as text, in quotes if it begins or ends with blanks, or has characters that
    cannot be seen or told from a blank; these are escaped."""
    if value is None:
        return "(none)"
    text = str(value)
    plain = text and text == text.strip() and text.isprintable()
    return text if plain else repr(text)
