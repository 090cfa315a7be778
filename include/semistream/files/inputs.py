"""The inputs of a join of files: a stream's file and the master data's snapshot, and the types of
the join columns of any two inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from shlex import quote
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.column_format import formats, paired
from semistream.errors import ConfigError
from semistream.files.master_file import no_rows, publish_file
from semistream.files.opening import open_source
from semistream.files.source import FileSource
from semistream.keys import resolve_keys
from semistream.master.publish import MEMORY, current_manifest
from semistream.master.snapshot import SnapshotRelation, open_snapshot
from semistream.progress import Progress
from semistream.scratch import scratch_directory


class Inputs(NamedTuple):
    """The stream, and the master data with the numbers of rows left out by reason. notes: remarks
    for the user on the inferred types."""

    stream: FileSource
    master: SnapshotRelation
    master_rejected: dict[str, int]
    notes: list[str]


def open_inputs(
    settings: Any,
    stack: ExitStack,
    progress: Progress,
    memory: int = MEMORY,
    allow_empty: bool = True,
) -> Inputs:
    """Open both inputs by settings like ``JoinFiles``. Columns of unknown type get one.

    The master data's snapshot is one published before, or a new one of the file, made in ``memory``
    bytes; ``stack`` closes it. Raises ConfigError for settings that cannot work, and for master
    data without a row unless ``allow_empty``.
    """
    if settings.master is None and settings.snapshot is None:
        raise ConfigError(
            "master",
            "must be given, or --snapshot with a directory published before",
            None,
            "Give --master FILE.",
        )
    if not settings.on:
        raise ConfigError(
            "on", "must name at least one pair of columns", None, "For instance --on product=sku."
        )
    pairs, known = list(settings.on.items()), settings.master_formats
    if settings.master is None and (manifest := current_manifest(settings.snapshot)) is not None:
        if known:
            raise ConfigError(
                "master_formats",
                "must not be given with a snapshot published before",
                list(known),
                "Leave them out: its rows have been read.",
            )
        known = formats(manifest.formats)
    stream_formats, master_formats = paired(pairs, settings.formats, known)
    csv = {"null_values": settings.null_values, "delimiter": settings.delimiter}
    stream = open_source(
        "stream",
        settings.stream,
        kind=settings.stream_format or "",
        types=settings.types,
        formats=stream_formats,
        **csv,
    )
    keys, partners = [s for s, _ in pairs], [m for _, m in pairs]
    root, rejected, notes = settings.snapshot, dict[str, int](), list[str]()
    if settings.master is None:
        master = stack.enter_context(closing(open_snapshot(root or "")))
        if not master.tuple_count and not allow_empty:
            raise no_rows("snapshot", str(root))
        assign_types(stream, keys, master.schema, partners)
        check_key_types(stream.schema, master.schema, pairs)
    else:
        source = open_source(
            "master",
            settings.master,
            kind=settings.master_format or "",
            types=settings.master_types,
            formats=master_formats,
            **csv,
        )
        assign_types(stream, keys, source.schema, partners)
        assign_types(source, partners, stream.schema, keys)
        check_key_types(stream.schema, source.schema, pairs)
        root = root or scratch_directory()
        _, rejected = publish_file(
            settings.master,
            partners,
            root,
            source,
            progress,
            memory=memory,
            flush=settings.snapshot is not None,
            allow_empty=allow_empty,
        )
        master = stack.enter_context(closing(open_snapshot(root)))
        notes += source.notes
    return Inputs(stream, master, rejected, notes + stream.notes)


def assign_types(
    source: FileSource, keys: Sequence[str], other: pa.Schema, partners: Sequence[str]
) -> None:
    """Give a type to each column that has no value in the file: a join column gets the type of its
    partner in the other input, any other column is a string."""
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
) -> None:
    """Check that the join columns exist and can be compared. Raises ConfigError otherwise.

    pairs: (left column, right column); sides: the inputs' names; flags: those with which the user
    can give types to their columns.
    """
    try:
        resolve_keys(left, right, pairs, sides=sides)
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
    floating, a decimal if both are floating, otherwise string. "": the type stays."""
    if pa.types.is_floating(left) and pa.types.is_integer(right):
        return "int64", ""
    if pa.types.is_integer(left) and pa.types.is_floating(right):
        return "int64", "int64"
    kind = "decimal(18,2)" if pa.types.is_floating(left) else "string"
    return kind, kind
