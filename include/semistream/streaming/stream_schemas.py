"""The columns of an app's streams, according to its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from semistream.durable import read_checked
from semistream.master.manifest import decode_schema
from semistream.streaming.position import PROGRESS, RESTORE

SCHEMAS = "streams.json"  # file of a checkpoint: the columns of each stream, as Arrow schemas


def former_schema(checkpoint: Path, side: int) -> pa.Schema | None:
    """Return the schema of a stream at the time when the app's first batch began; None before that.
    A source that infers types keeps them, because later files might suggest others."""
    if not (checkpoint / PROGRESS).exists():
        return None
    known = read_checked(checkpoint / SCHEMAS, RESTORE)
    return None if known is None else decode_schema(known["streams"][side])
