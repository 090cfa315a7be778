"""The ids of tuples that could not be parsed, read from their texts. The recounted source has these
ids, too. With them, an unparsable tuple can be distinguished from a missing one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from sqlalchemy import Column, select

from semistream.job import StreamSpec
from semistream.quality.recount import ids_of_file, with_stream_id
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Sources, Staging, Unparsable
from semistream.reasons import Reason
from semistream.streaming.replaying import header_of
from semistream.streaming.sources.contract import CannotRecount
from semistream.streaming.spool import TEXT
from semistream.warehouse.schema import unmatched
from semistream.warehouse.tables import arrow_schema
from semistream.warehouse.types import KeyString

ROWS = 10_000  # texts read at a time


def stage_unparsable(
    staging: Staging, scope: Scope, stream: Stream, sources: Sources
) -> Unparsable:
    """Stage the ids of the stream's unparsable tuples. sources: the recounted source."""
    table = staging.table(f"unparsable_{stream.name}", Column("stream_id", KeyString()))
    u, unknown = unmatched.c, 0
    nameless = select(u.tuple).where(
        scope.kept(stream),
        u.reason == Reason.UNPARSABLE,
        u.stream_id.is_(None),
        scope.recounted(unmatched),
        scope.is_open(unmatched),
    )
    with (
        TemporaryDirectory(prefix="semistream-") as directory,
        staging.engine.connect() as connection,
    ):
        texts = connection.execution_options(yield_per=ROWS).execute(nameless).scalars()
        for part in texts.partitions(ROWS):
            by_file = defaultdict[str, list[str]](list)
            for kept in map(json.loads, part):
                by_file[kept.get("file", "")].append(kept[TEXT])
            unknown += sum(
                _unread(staging, table, stream.spec, sources, file, piece, Path(directory))
                for file, raws in by_file.items()
                for piece in _pieces(raws)
            )
    staging.index(table, "stream_id")
    return Unparsable(table, unknown)


def with_lost(
    staging: Staging, found: Unparsable, missing: sa.Select, stream: Stream
) -> Unparsable:
    """Return the unparsable tuples, with the number of missing tuples that may be among those
    without a known id. Tuples that only wait are not counted as missing."""
    if not found.unknown:
        return found
    lost = max(staging.count(missing.subquery()) - stream.waiting, 0)
    if not 0 < lost <= found.unknown:
        return found
    staging.unseen.append(
        f"at most {lost:,} {stream.word}stream tuples are missing, as "
        f"{found.unknown:,} unparsable ones have no id that can be told"
    )
    return replace(found, lost=lost)


def _pieces(texts: list[str]) -> Iterator[list[str]]:
    """Yield the texts in groups. A text with an odd number of quotes is yielded alone, because a
    reader would take the next texts for a part of it."""
    yield [t for t in texts if t.count('"') % 2 == 0]
    yield from ([t] for t in texts if t.count('"') % 2)


def _unread(
    staging: Staging,
    table: sa.Table,
    stream: StreamSpec,
    sources: Sources,
    file: str,
    texts: list[str],
    directory: Path,
) -> int:
    """Stage the ids that the source's reader finds in a file made of these texts. Return the number
    of texts that the reader does not recognise as rows."""
    assert sources.ids is not None
    if not texts or not file:
        return len(texts)
    copy, schema = directory / "texts", arrow_schema(sources.ids)
    options = {k.lower(): v for k, v in stream.all_options().items()}
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    rows_read = found = 0
    with suppress(CannotRecount, OSError, LookupError):
        copy.write_bytes(
            b"\n".join(
                [
                    header_of(Path(file), stream.format, options),
                    *(t.encode(encoding, "replace") for t in texts),
                    b"",
                ]
            ).lstrip(b"\n")
        )
        for n, batch in ids_of_file(copy, stream, staging.engine):
            rows_read += n
            rows = with_stream_id(0, batch, len(stream.id), schema)
            staging.write(table, rows.select(["quality_id"]).rename_columns(["stream_id"]))
            found += rows.num_rows
    whole = rows_read == len(texts) and not texts[0].count('"') % 2
    return 0 if whole else len(texts) - min(found, len(texts))
