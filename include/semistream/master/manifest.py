"""A version of the Arrow snapshot of R, which is an immutable directory: its manifest, and the
format of its files.

::

    <root>/<dimension>/<key>/CURRENT
        the current version's name, replaced atomically
    <root>/<dimension>/<key>/v000001/manifest.json
    <root>/<dimension>/<key>/v000001/bucket-00017.arrow
        Arrow IPC file: one record batch a page, rows in the order of their key codes
    <root>/<dimension>/<key>/v000001/bucket-00017.codes
        int64[rows] key codes
        int64[pages, 5] the zone map: first code, last code, bytes, checksum of the page, checksum
            of its codes
        int64 the zone map's checksum
        int64[columns, pages] checksums of the columns of each page

The codes are separate from the payload, so that a partition's codes are one read, whatever the
payload's width. Checksums are XXH3. All data is verified when it is read: whole pages by the page's
checksum, single columns by the column's checksum.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from semistream.durable import checked, read_parsed, write_checked
from semistream.errors import StateError
from semistream.keys import JoinKeys, master_keys
from semistream.master.published import ANEW, MANIFEST

ZONE = 5  # words of a page in the zone map


@dataclass(frozen=True)
class BucketInfo:
    """The content of one bucket's files. ``null_keys``: the number of rows that were left out
    because their key is null."""

    bucket: int
    rows: int
    bytes: int
    unique: bool
    null_keys: int


@dataclass(frozen=True)
class Manifest:
    """The description of one version of a snapshot."""

    name: str
    version: str
    schema: pa.Schema
    key_columns: tuple[str, ...]
    tuple_count: int
    tuple_bytes: float  # payload and code, on disk
    null_keys: int  # master tuples without a key, left out
    unique: bool
    bucket_count: int
    page_tuples: int
    source: dict[str, Any]
    created: str  # UTC, ISO 8601
    buckets: tuple[BucketInfo, ...]
    # normal forms of key columns, see ``column_format``
    formats: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def keys(self) -> JoinKeys:
        return master_keys(self.schema, list(self.key_columns))

    def write(self, directory: Path, *, flush: bool = True) -> None:
        keys = self.keys
        values = asdict(self) | {
            "schema": encode_schema(self.schema),
            "exact": keys.exact,
            "key_types": [str(t) for t in keys.types],
        }
        write_checked(directory / MANIFEST, values, flush=flush)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of a snapshot. Raises StateError when the directory holds no snapshot,
        or a damaged one."""
        manifest = read_parsed(directory / MANIFEST, ANEW, _parsed)
        if manifest is None:
            raise StateError(f"{directory} holds no snapshot: there is no {MANIFEST}. {ANEW}")
        return manifest


@lru_cache(maxsize=16)  # the planning of a load reads each manifest some thirty times
def _parsed(data: bytes) -> Manifest:
    """Return the manifest in a file's content. Raises the errors of ``checked``."""
    values = checked(data)
    del values["exact"], values["key_types"]
    return Manifest(
        **values
        | {
            "schema": decode_schema(values["schema"]),
            "key_columns": tuple(values["key_columns"]),
            "buckets": tuple(BucketInfo(**b) for b in values["buckets"]),
        }
    )


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def bucket_file(directory: Path, bucket: int, suffix: str) -> Path:
    return directory / f"bucket-{bucket:05d}.{suffix}"


def signed(checksum: int) -> int:
    """Return an unsigned 64-bit checksum as a signed int64."""
    return checksum - (1 << 64) if checksum >= 1 << 63 else checksum


def column_checksum(column: pa.Array) -> int:
    """Return the checksum of a column, in the form in which the column is read from a file."""
    total = len(column) + (column.null_count << 32)
    for buffer in column.buffers():
        if buffer is not None:
            total = xxh3_64_intdigest(buffer, total)
    return signed(total)
