"""The publication of a master file as a snapshot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from semistream.ahead import ahead
from semistream.column_format import key_forms
from semistream.errors import ConfigError
from semistream.files.source import FileSource
from semistream.joins.output import NULL_KEY, UNPARSABLE
from semistream.master.bucket_writer import BUCKETS
from semistream.master.manifest import Manifest
from semistream.master.publish import MEMORY, publish_snapshot
from semistream.progress import Progress, silent


def publish_file(
    path: Path,
    on: list[str],
    root: Path,
    source: FileSource,
    progress: Progress = silent,
    name: str = "",
    memory: int = MEMORY,
    flush: bool = True,
    bucket_count: int = BUCKETS,
    allow_empty: bool = False,
) -> tuple[Manifest, dict[str, int]]:
    """Publish a snapshot of a master file under ``root``. Return its manifest, and the numbers of
    rows left out by reason.

    name: the master relation's name, by default the file's name up to its first dot; memory, flush,
    bucket_count: see ``publish_snapshot``. If no row of the file has a key, ConfigError is raised
    unless ``allow_empty``; the current version then stays.
    """
    rejected: Counter[str] = Counter()

    def batches() -> Iterator[pa.RecordBatch]:
        empty = not allow_empty
        for chunk in chunks:
            rejected[UNPARSABLE] += len(chunk.rejected)
            progress("reading the master data", source.bytes_done, source.bytes_total)
            empty = empty and not _has_key(chunk.rows, on)
            yield chunk.rows
        if empty:
            raise no_rows("master", str(path))

    name = name or re.sub(r"\W+", "_", path.name.split(".")[0]) or "master"
    with closing(ahead(source.chunks())) as chunks:
        manifest = publish_snapshot(
            batches(),
            source.schema,
            root,
            name,
            on,
            source={"path": str(path)},
            bucket_count=bucket_count,
            memory=memory,
            flush=flush,
            formats=key_forms(on, source.reading.formats),
        )
    rejected[NULL_KEY] = manifest.null_keys
    return manifest, {k: n for k, n in rejected.items() if n}


def no_rows(parameter: str, where: str) -> ConfigError:
    """Return the error for master data in which no row has a key. parameter: the setting that names
    the data; where: the setting's value."""
    return ConfigError(
        parameter,
        "must have a row with a key: nothing would match",
        where,
        "Check what it holds. Where it may be empty: --allow-empty.",
    )


def _has_key(rows: pa.RecordBatch, on: list[str]) -> bool:
    """Return whether some row has a value in each join column."""
    keyed = [rows.column(name).is_valid() for name in on]
    return bool(pc.any(reduce(pc.and_, keyed)).as_py())
