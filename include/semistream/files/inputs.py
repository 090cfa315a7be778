"""The inputs of a join of files: a stream's file and the master data's snapshot, and the types of
the join columns of any two inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.column_format import ColumnFormat, formats, paired
from semistream.ddl import parse_ddl
from semistream.errors import ConfigError
from semistream.files.master_file import no_rows, publish_file
from semistream.files.opening import open_source
from semistream.files.settings import FileRole, JoinFiles
from semistream.files.source import FileSource
from semistream.job import added_columns
from semistream.joins.spec import output_names
from semistream.keys import resolve_keys
from semistream.master.bucket_writer import BUCKETS, choose_buckets
from semistream.master.publish import MEMORY, current_manifest
from semistream.master.snapshot import SnapshotRelation, open_snapshot
from semistream.progress import Progress
from semistream.scratch import scratch_directory


class RoleInput(NamedTuple):
    """A dimension in one of its roles, and how the stream is joined with it.

    rejected: the numbers of left-out rows of its file, by reason; columns: dimension columns to
    add, with their names in the output; max_unmatched: the share of tuples that may have no row,
    None for any share; from_file: whether the rows were read from a file now, and not from a
    snapshot.
    """

    name: str
    master: SnapshotRelation
    rejected: dict[str, int]
    on: list[tuple[str, str]]
    columns: dict[str, str]
    join_type: str
    many: bool
    max_unmatched: float | None
    from_file: bool


class StarInputs(NamedTuple):
    """The stream, and its dimensions in the order of the settings. notes: remarks for the user on
    the inferred types."""

    stream: FileSource
    roles: list[RoleInput]
    notes: list[str]

    def role(self, name: str) -> RoleInput:
        return next(role for role in self.roles if role.name == name)


@dataclass(frozen=True)
class _Master:
    """A source of master data: its place, how it is read, and how the stream is joined with it.
    name: the role's, "" if there is only one."""

    on: Mapping[str, str]
    path: Path | None
    snapshot: Path | None
    types: Mapping[str, str | pa.DataType]
    kind: str
    formats: Mapping[str, ColumnFormat]
    allow_empty: bool
    options: Mapping[str, str]
    join_type: str = ""
    max_unmatched: float | None = None
    many: bool = True
    max_rejected: float = 1.0
    name: str = ""

    @property
    def place(self) -> str:
        """The prefix of its settings in errors, if there are several dimensions."""
        return f"dimensions.{self.name}" if self.name else ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(self.on.items())

    def identity(self) -> tuple[object, ...]:
        """Return what is equal for two roles if they can share one snapshot."""
        assert self.path is not None
        read_as = (self.kind, self.types, self.formats, self.options)
        return self.path.resolve(), self.snapshot, set(self.on.values()), *read_as


def open_inputs(
    settings: Any, stack: ExitStack, progress: Progress
) -> tuple[FileSource, SnapshotRelation]:
    """Open the stream and the master data by settings like ``JoinFiles`` with one dimension.
    Columns of unknown type get a type.

    The master data are read from an existing snapshot, or published as a new one; ``stack`` closes
    it. Raises ConfigError for settings that cannot work.
    """
    stream, ((master, _),), _ = _open(settings, [_only(settings)], stack, progress, MEMORY, BUCKETS)
    return stream, master


def open_star(settings: JoinFiles, stack: ExitStack, progress: Progress, memory: int) -> StarInputs:
    """Open the stream and all its dimensions, as ``open_inputs`` does, and publish within
    ``memory`` bytes. A file that is a dimension in several roles is published once for each join
    key. Raises ConfigError also for master data without a row, unless the settings allow that."""
    roles = list(settings.dimensions.values())
    masters = [_of_role(role) for role in roles] or [_only(settings)]
    stream, opened, notes = _open(settings, masters, stack, progress, memory)
    columns = (
        added_columns(roles, [relation.schema.names for relation, _ in opened])
        if roles
        else [{c: c for c in settings.columns}]
    )
    found = []
    for master, (relation, rejected), given in zip(masters, opened, columns, strict=True):
        wanted = given or {c: c for c in relation.schema.names if c not in master.on.values()}
        unnamed = [c for c, name in wanted.items() if c == name]
        name = master.name or relation.name
        found.append(
            RoleInput(
                name,
                relation,
                rejected,
                master.pairs,
                wanted | output_names(stream.schema, name, unnamed),
                master.join_type or settings.join_type,
                master.many,
                master.max_unmatched,
                master.path is not None,
            )
        )
    return StarInputs(stream, found, notes)


def _only(settings: Any) -> _Master:
    return _Master(
        settings.on,
        settings.master,
        settings.snapshot,
        settings.master_types,
        settings.master_format or "",
        settings.master_formats,
        getattr(settings, "allow_empty", True),
        getattr(settings, "master_options", {}),
        max_unmatched=getattr(settings, "max_unmatched", None),
    )


def _of_role(role: FileRole) -> _Master:
    dimension = role.dimension
    where = f"dimensions.{role.name}.dimension.columns"
    declared = parse_ddl(dimension.columns, where) if dimension.columns else ()
    return _Master(
        role.on,
        Path(dimension.path) if dimension.path else None,
        role.snapshot,
        {field.name: field.type for field in declared} | role.types,
        role.format or "",
        dimension.formats,
        dimension.allow_empty,
        dimension.options,
        role.join_type or "",
        role.max_unmatched if "max_unmatched" in role.model_fields_set else None,
        role.many,
        dimension.max_rejected if "max_rejected" in dimension.model_fields_set else 1.0,
        role.name,
    )


def _open(
    settings: Any,
    masters: Sequence[_Master],
    stack: ExitStack,
    progress: Progress,
    memory: int,
    buckets: int = 0,
) -> tuple[FileSource, list[tuple[SnapshotRelation, dict[str, int]]], list[str]]:
    """Open the stream and its master data, like ``open_inputs``. Return the stream, the relations
    with the numbers of their left-out rows by reason, and the remarks. buckets: of a snapshot that
    is not kept; 0: as many as a single operator needs."""
    csv = {"null_values": settings.null_values, "delimiter": settings.delimiter}
    of_stream, of_masters = settings.formats, list[Mapping[str, ColumnFormat]]()
    for master in masters:
        with _placed(master.place):
            _check(master)
            of_masters.append(_known_formats(master))
    for _ in range(2):  # in the second pass, each gets the formats that a later one declares
        for number, master in enumerate(masters):
            with _placed(master.place):
                of_stream, of_masters[number] = paired(master.pairs, of_stream, of_masters[number])
    stream = open_source(
        "stream",
        settings.stream,
        kind=settings.stream_format or "",
        types=settings.types,
        formats=of_stream,
        options=getattr(settings, "stream_options", None),
        **csv,
    )
    opened, notes = [], list[str]()
    published = list[tuple[tuple[object, ...], Path, dict[str, int]]]()
    for given, theirs in zip(masters, of_masters, strict=True):
        master = replace(given, formats=theirs)
        with _placed(master.place):
            source = _source(master, stream, csv)
            if source is None:
                root, rejected = master.snapshot or Path(), dict[str, int]()
            elif same := [of for of in published if of[0] == master.identity()]:
                _, root, rejected = same[0]
            else:
                root = master.snapshot or scratch_directory()
                if root in (other for _, other, _ in published):
                    raise ConfigError(
                        "snapshot",
                        "must be a directory of its own for each file and join key",
                        str(root),
                        "Choose another one.",
                    )
                number = (
                    BUCKETS if master.snapshot else buckets or choose_buckets(source.bytes_total)
                )
                rejected = _publish(master, source, root, progress, memory, number)
                published.append((master.identity(), root, rejected))
                notes += source.notes
            relation = stack.enter_context(closing(open_snapshot(root)))
            if not relation.tuple_count and not master.allow_empty:
                raise no_rows("snapshot", str(root))
            opened.append((relation, rejected))
    return stream, opened, notes + stream.notes


def _check(master: _Master) -> None:
    if master.path is None and master.snapshot is None:
        one = not master.place
        raise ConfigError(
            "master" if one else "path",
            f"must be given, or {'--' if one else ''}snapshot with a directory published before",
            None,
            "Give --master FILE." if one else "Give the file of the dimension.",
        )
    if not master.on:
        raise ConfigError(
            "on", "must name at least one pair of columns", None, "For instance --on product=sku."
        )


def _known_formats(master: _Master) -> Mapping[str, ColumnFormat]:
    """Return the formats of the master's columns: the declared ones, or those of the snapshot."""
    if master.path is None and (manifest := current_manifest(master.snapshot or "")) is not None:
        if master.formats:
            raise ConfigError(
                "master_formats",
                "must not be given with a snapshot published before",
                list(master.formats),
                "Leave them out: its rows have been read.",
            )
        return formats(manifest.formats)
    return master.formats


def _source(master: _Master, stream: FileSource, csv: dict[str, Any]) -> FileSource | None:
    """Open the master's file. Return None if there is only a snapshot. Columns of both inputs
    without a type get one. Raises ConfigError if the join columns cannot be compared."""
    keys, partners = list(master.on), list(master.on.values())
    flags = ("--types", f"{master.place}.types:" if master.place else "--master-types")
    if master.path is None:
        with closing(open_snapshot(master.snapshot or "")) as published:
            assign_types(stream, keys, published.schema, partners)
            check_key_types(stream.schema, published.schema, master.pairs, flags=flags)
        return None
    source = open_source(
        "master",
        master.path,
        kind=master.kind,
        types=master.types,
        formats=master.formats,
        options=master.options,
        **csv,
    )
    assign_types(stream, keys, source.schema, partners)
    assign_types(source, partners, stream.schema, keys)
    check_key_types(stream.schema, source.schema, master.pairs, flags=flags)
    return source


def _publish(
    master: _Master, source: FileSource, root: Path, progress: Progress, memory: int, buckets: int
) -> dict[str, int]:
    """Publish the master's file under ``root``, in this number of buckets. Return the numbers of
    left-out rows by reason. Raises ConfigError if more rows are left out than the settings allow.
    """
    assert master.path is not None

    def tell(what: str, done: int, total: int | None) -> None:
        progress(f"{what}: {master.name}" if master.name else what, done, total)

    manifest, rejected = publish_file(
        master.path,
        list(master.on.values()),
        root,
        source,
        tell,
        memory=memory,
        flush=master.snapshot is not None,
        bucket_count=buckets,
        allow_empty=master.allow_empty,
    )
    lost = sum(rejected.values())
    if lost > master.max_rejected * (manifest.tuple_count + lost):
        raise ConfigError(
            "dimension.max_rejected",
            f"must allow that {lost:,} rows are left out: {rejected}",
            master.max_rejected,
            "Correct the file, or allow more.",
        )
    return rejected


# settings of the only master data, and those of a role that mean the same
NAMES = {
    "master": "path",
    "master_format": "format",
    "master_formats": "dimension.formats",
    "--master-format": "format:",
    "--allow-empty": "dimension: {allow_empty: true}",
}


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Add the role's name to the settings that an error names. place: the role's place in the
    settings; "" if there is only one role."""
    try:
        yield
    except ConfigError as e:
        if not place:
            raise
        remedy = e.remedy
        for flag in ("--master-format", "--allow-empty"):
            remedy = remedy.replace(flag, NAMES[flag])
        named = f"{place}.{NAMES.get(e.parameter, e.parameter)}"
        raise ConfigError(named, e.constraint, e.value, remedy) from None


def assign_types(
    source: FileSource, keys: Sequence[str], other: pa.Schema, partners: Sequence[str]
) -> None:
    """Give a type to each column without any value in the file. A join column gets the type of its
    partner in the other input; any other column becomes a string."""
    if not source.schema.names:  # JSON lines without a line, which would show the columns
        source.schema = pa.schema([(key, pa.null()) for key in keys])
    known = {
        key: other.field(partner).type
        for key, partner in zip(keys, partners, strict=True)
        if partner in other.names
    }
    source.assign_types({k: t for k, t in known.items() if not pa.types.is_null(t)})


def check_key_types(
    left: pa.Schema,
    right: pa.Schema,
    pairs: list[tuple[str, str]],
    sides: tuple[str, str] = ("stream", "master"),
    flags: tuple[str, str] = ("--types", "--master-types"),
) -> tuple[pa.DataType, ...]:
    """Return the types in which the join columns are compared. Raises ConfigError for a column that
    does not exist, and for types that cannot be compared.

    pairs: (left column, right column); sides: the inputs' names; flags: for each input, the flag
    with which the user can declare types.
    """
    try:
        return resolve_keys(left, right, pairs, sides=sides).types
    except ConfigError as e:
        if "type" not in e.constraint:
            raise
        a, b = next(
            ((a, b) for a, b in pairs if left.field(a).type != right.field(b).type), pairs[0]
        )
        types = _common_types(left.field(a).type, right.field(b).type)
        given = " ".join(
            f"{flag} {quote(f'{column}={kind}')}"
            for flag, column, kind in zip(flags, (a, b), types, strict=True)
            if kind
        )
        raise ConfigError(
            "on", e.constraint, e.value, f"Name the type that they should have: {given}."
        ) from None


def _common_types(left: pa.DataType, right: pa.DataType) -> tuple[str, str]:
    """Propose types in which two key columns can be compared: int64 if one is integer and the other
    floating, a decimal if both are floating, otherwise string. "" means that the column's type
    stays."""
    if pa.types.is_floating(left) and pa.types.is_integer(right):
        return "int64", ""
    if pa.types.is_integer(left) and pa.types.is_floating(right):
        return "int64", "int64"
    kind = "decimal(18,2)" if pa.types.is_floating(left) else "string"
    return kind, kind
