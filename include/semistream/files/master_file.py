"""The publication of a master file as a snapshot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from semistream.ahead import ahead
from semistream.column_format import key_forms
from semistream.files.source import FileSource
from semistream.joins.output import NULL_KEY, UNPARSABLE
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
) -> tuple[Manifest, dict[str, int]]:
    """Publish a snapshot of a master file under ``root``. Return its manifest, and the numbers of
    rows left out by reason.

    name: of the master relation, by default the file's name up to its first dot; memory, flush: as
    for ``publish_snapshot``.
    """
    rejected: Counter[str] = Counter()

    def batches() -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            rejected[UNPARSABLE] += len(chunk.rejected)
            progress("reading the master data", source.bytes_done, source.bytes_total)
            yield chunk.rows

    name = name or re.sub(r"\W+", "_", path.name.split(".")[0]) or "master"
    with closing(ahead(source.chunks())) as chunks:
        manifest = publish_snapshot(
            batches(),
            source.schema,
            root,
            name,
            on,
            source={"path": str(path)},
            memory=memory,
            flush=flush,
            formats=key_forms(on, source.reading.formats),
        )
    rejected[NULL_KEY] = manifest.null_keys
    return manifest, {k: n for k, n in rejected.items() if n}
