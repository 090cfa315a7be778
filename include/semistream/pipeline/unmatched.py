"""The unmatched tuples of an app, for people: their numbers by key and reason, the keys that may
have been meant, and a file with all tuples that can be corrected."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Engine, and_, or_, select

from semistream.errors import ConfigError, SemistreamError
from semistream.files.convert import cast_cells
from semistream.files.nearest_keys import nearest_keys
from semistream.files.sink import OutputFile, check_output
from semistream.job import SIDES, AnyJob, Job, StreamStreamJob
from semistream.job import Role as JobRole
from semistream.master.published import current_version, snapshot_root
from semistream.master.snapshot import SnapshotRelation
from semistream.paths import Paths
from semistream.pipeline.loaded import loaded_job
from semistream.progress import Progress, silent
from semistream.quality.tuple_places import Places, TuplePlaces
from semistream.reasons import QUARANTINED, Reason
from semistream.streaming.spool import TEXT
from semistream.streaming.stream_schemas import former_schema
from semistream.streaming.unmatched_keys import find_near_misses
from semistream.warehouse import open_warehouse
from semistream.warehouse.bulk import fetch
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.schema import load_apps, unmatched
from semistream.warehouse.unmatched_groups import (
    Group,
    Kind,
    Row,
    count_of,
    examples_of,
    groups_of,
    is_of,
    kinds_of,
)

LIMIT = 10  # keys of a reason and role that are shown
EXAMPLE_BYTES = 256_000_000  # bytes of files that are searched for examples from a range of loads
COMPARED = 100  # keys whose nearest ones are looked for
MEANINGS = 10_000  # different reasons of unparsable tuples that are distinguished
PLACED = 500_000  # tuples whose files and lines are looked up at a time
SHOWN = 100  # characters that are shown of a tuple without an id and a known line
WRITTEN = 10_000  # tuples converted at a time
PLACED_KEYS = pa.schema(
    [("load_id", pa.int64()), ("load_row", pa.int32()), ("stream_id", pa.string())]
)
OWN = ("load_id", "load_row", "reason", "role", "file", "line")  # columns of the file


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
        return " in ".join(filter(None, known)) or str(self.values)[:SHOWN]


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
        return ", ".join(map(_text, self.nearest))


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
        tuples = f"{self.tuples:,} {'tuple' if self.tuples == 1 else 'tuples'}"
        if self.reason == Reason.UNPARSABLE:
            reasons = f"{self.keys:,} {'reason' if self.keys == 1 else 'reasons'}"
            return f"{what}: {tuples}, for {reasons}"
        return f"{what}: {tuples}" + (f" of {self.keys:,} keys" if self.keys > 1 else "")


class _Loaded(NamedTuple):
    """The job and state of an app that has loaded data. checkpoint: the app's directory."""

    app: str
    job: AnyJob
    checkpoint: Path


def list_unmatched(
    app: str, places: Paths, *, reason: str = "", role: str = "", limit: int = LIMIT
) -> list[Listed]:
    """List an app's unmatched tuples by reason, role and key. limit: the number of keys for each
    reason and role. Memory does not grow with the number of tuples. Raises ConfigError."""
    if limit < 1:
        raise ConfigError("limit", "must be at least 1", limit, "Leave it out for ten keys.")
    with open_warehouse(places.warehouse_url) as engine:
        loaded = _loaded(engine, app, places)
        found = list[Listed]()
        for kind in _kinds(engine, loaded, reason, role):
            with engine.connect() as connection:
                found += _listed(connection, loaded, kind, limit, places)
        return _with_places(engine, loaded, found)


def export_unmatched(
    app: str, places: Paths, out: Path, *, reason: str = "", role: str = "", tell: Progress = silent
) -> int:
    """Write an app's unmatched tuples to a CSV, JSON lines or Parquet file, and return their
    number. If there are none, no file is written. Raises ConfigError.

    The file has the columns ``OWN``, then the tuple's columns, and ``text`` for tuples that could
    not be parsed. If the tuple has a column with the name of one in ``OWN``, the column in ``OWN``
    is called ``_NAME``. A user can correct rows of the file and give them back to a load.
    """
    check_output("out", out)
    with open_warehouse(places.warehouse_url) as engine:
        loaded = _loaded(engine, app, places)
        kinds = _kinds(engine, loaded, reason, role)
        if not kinds:
            return 0
        side = _side(loaded, kinds)
        tuples = _schema(loaded, side)
        schema = _file_schema(tuples)
        check_output("out", out, schema)
        search = TuplePlaces(engine, app, loaded.job, _schemas(loaded))
        with OutputFile("out", out, schema) as file:
            for batch in _rows(engine, loaded, kinds, tuples, schema, search, side):
                file.write(batch)
                tell("unmatched tuples", file.rows, None)
            file.finish()
            if file.rows:
                file.publish()
            return file.rows


# ---- what there is


def _loaded(engine: Engine, app: str, places: Paths) -> _Loaded:
    job, a = loaded_job(engine, app), load_apps.c
    with engine.connect() as connection:
        noted = connection.scalar(select(a.checkpoint).where(a.app == app))
    return _Loaded(app, job, Path(noted) if noted else places.checkpoints / app)


def _kinds(engine: Engine, loaded: _Loaded, reason: str, role: str) -> list[Kind]:
    """Return the kinds of unmatched tuples with this reason and role. Raises ConfigError for an
    impossible reason or role."""
    if reason and reason not in {*Reason}:
        raise ConfigError("reason", "must be a reason", reason, f"They are: {', '.join(Reason)}.")
    roles = SIDES if isinstance(loaded.job, StreamStreamJob) else tuple(loaded.job.dimensions)
    if role and role not in roles:
        raise ConfigError(
            "role", f"must be one of {loaded.app}", role, f"It has: {', '.join(roles)}."
        )
    with engine.connect() as connection:
        return [
            kind
            for kind in kinds_of(connection, loaded.app)
            if reason in ("", kind.reason) and role in ("", kind.role)
        ]


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
    connection: Connection, loaded: _Loaded, kind: Kind, limit: int, places: Paths
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
        top, remarks = _near(connection, loaded.app, role, top, places)
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
    connection: Connection, app: str, role: JobRole, top: Sequence[Key], places: Paths
) -> tuple[list[Key], tuple[str, ...]]:
    """Return the keys with their nearest keys in the dimension's newest snapshot, and remarks on
    forms in which more keys would match."""
    root = snapshot_root(places.snapshots, role.dimension.name, role.key)
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
        connection, app_loads(_number(connection, app)), role.name, role.on, root / version
    )
    if misses is not None:
        remarks.append(f"{misses}: formats: {misses.declaration}")
    return [*named, *top[COMPARED:]], tuple(remarks)


def _number(connection: Connection, app: str) -> int:
    return connection.scalar(select(load_apps.c.number).where(load_apps.c.app == app)) or 0


def _with_places(engine: Engine, loaded: _Loaded, listed: Sequence[Listed]) -> list[Listed]:
    """Return the listed tuples, with the file and line of each example."""
    if not (schemas := _schemas(loaded)):
        return list(listed)
    search = TuplePlaces(engine, loaded.app, loaded.job, schemas, EXAMPLE_BYTES)
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


# ---- all of them


def _side(loaded: _Loaded, kinds: Sequence[Kind]) -> int:
    """Return the number of the stream whose tuples are exported. Raises ConfigError if there are
    tuples of two streams, which have different columns."""
    if not isinstance(loaded.job, StreamStreamJob):
        return 0
    sides = {kind.role for kind in kinds}
    if len(sides) > 1:
        raise ConfigError(
            "role",
            "must be given, as the two streams have different columns",
            None,
            "Write a file of each: --role left, and --role right.",
        )
    return SIDES.index(sides.pop())


def _schemas(loaded: _Loaded) -> list[pa.Schema]:
    """Return the schema of each stream at the time of loading. The result is empty if the
    checkpoint does not exist."""
    found = [former_schema(loaded.checkpoint, side) for side in range(len(loaded.job.streams))]
    return [schema for schema in found if schema is not None]


def _schema(loaded: _Loaded, side: int) -> pa.Schema:
    if not (schemas := _schemas(loaded)):
        raise ConfigError(
            "checkpoint",
            f"must be here, as it has the columns of {loaded.app}",
            str(loaded.checkpoint),
            "Call this where the load runs, with its SEMISTREAM_HOME.",
        )
    return schemas[side]


def _file_schema(tuples: pa.Schema) -> pa.Schema:
    kinds = (pa.int64(), pa.int32(), pa.string(), pa.string(), pa.string(), pa.int64())

    def free(name: str) -> str:
        while name in tuples.names:
            name = f"_{name}"
        return name

    own = [pa.field(free(name), kind) for name, kind in zip(OWN, kinds, strict=True)]
    return pa.schema(
        [*own, *(f.with_nullable(True) for f in tuples), pa.field(free("text"), pa.string())]
    ).remove_metadata()


def _rows(
    engine: Engine,
    loaded: _Loaded,
    kinds: Sequence[Kind],
    tuples: pa.Schema,
    schema: pa.Schema,
    search: TuplePlaces,
    side: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the file. For several rows at a time, the ids are read first, then the
    files and lines are looked up, and then the rows are read."""
    u, role = unmatched.c, _role_of(loaded.job)
    with engine.connect() as connection:
        mine = or_(*(is_of(connection, loaded.app, kind) for kind in kinds))
        after = (-1, -1)
        while True:
            beyond = and_(u.load_id >= after[0], or_(u.load_id > after[0], u.load_row > after[1]))
            keys = (
                select(u.load_id, u.load_row, u.stream_id)
                .where(mine, beyond)
                .order_by(u.load_id, u.load_row)
                .limit(PLACED)
            )
            some = pa.Table.from_batches(fetch(connection, keys, PLACED_KEYS), PLACED_KEYS)
            if not some.num_rows:
                return
            some = some.combine_chunks()
            loads, numbers, ids = (column.chunk(0) for column in some.columns)
            last = (loads[-1].as_py(), numbers[-1].as_py())
            places = search.find(loads.to_numpy(), ids, side)
            within = and_(u.load_id <= last[0], or_(u.load_id < last[0], u.load_row <= last[1]))
            query = (
                select(u.load_id, u.load_row, u.reason, u.role, u.side, u.tuple.label("kept"))
                .where(mine, beyond, within)
                .order_by(u.load_id, u.load_row)
            )
            done = 0
            with connection.execution_options(yield_per=WRITTEN).execute(query) as rows:
                for part in rows.partitions(WRITTEN):
                    yield _batch(part, places, done, tuples, schema, role)
                    done += len(part)
            after = last


def _role_of(job: AnyJob) -> str | None:
    """Return the role of unmatched tuples whose rows do not name a role."""
    return job.roles[0].name if isinstance(job, Job) else None


def _batch(
    rows: Sequence[Any],
    places: Places,
    first: int,
    tuples: pa.Schema,
    schema: pa.Schema,
    role: str | None,
) -> pa.RecordBatch:
    """Return a batch of unmatched tuples in the columns of the file to write. first: the position
    of the first row in ``places``."""
    values = [json.loads(row.kept) for row in rows]
    unparsable = [row.reason == Reason.UNPARSABLE for row in rows]
    own: list[Sequence[Any]] = [
        [row.load_id for row in rows],
        [row.load_row for row in rows],
        [row.reason for row in rows],
        [row.role or row.side or (None if row.reason in QUARANTINED else role) for row in rows],
        [
            of.get("file") if bad else places.file(first + n)
            for n, (of, bad) in enumerate(zip(values, unparsable, strict=True))
        ],
        [
            of.get("line") if bad else places.line(first + n)
            for n, (of, bad) in enumerate(zip(values, unparsable, strict=True))
        ],
    ]
    cells = [
        typed_column(
            f.name,
            [None if bad else of.get(f.name) for of, bad in zip(values, unparsable, strict=True)],
            f.type,
        )
        for f in tuples
    ]
    text = [of[TEXT] if bad else None for of, bad in zip(values, unparsable, strict=True)]
    columns = [pa.array(of, f.type) for of, f in zip(own, schema, strict=False)]
    return pa.RecordBatch.from_arrays(
        [*columns, *cells, pa.array(text, pa.string())], schema=schema
    )


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
            f"{kind}, as the stream has it now"
        )
    return cells


def _text(key: dict[str, Any]) -> str:
    """Return a key as text for people: its only value, or the values of its columns."""
    if len(key) == 1:
        (value,) = key.values()
        return "(none)" if value is None else _shown(value)
    return ", ".join(f"{name}={_shown(value)}" for name, value in key.items()) or "(any)"


def _shown(value: Any) -> str:
    """Return a value as text, in quotes if it begins or ends with blanks."""
    text = str(value)
    return repr(text) if text != text.strip() or not text else text


def as_dicts(listed: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return the listed tuples as JSON values."""
    return [asdict(of) for of in listed]
