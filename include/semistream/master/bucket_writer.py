"""The writer of a snapshot's bucket files, page by page."""

from __future__ import annotations

import math
import os
import uuid
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from semistream.durable import naming
from semistream.errors import StateError
from semistream.keys import JoinKeys
from semistream.master.manifest import BucketInfo, bucket_file, column_checksum, signed

# divisible by the usual numbers of partitions; few enough to write 64 runs at the same time
BUCKETS = 64
BUCKET_BYTES = 1_000_000  # bytes of a file of R for a bucket, where a single operator reads R
# The least that a disk buffer can be: 120 KB of 116-byte tuples. Measured, all columns, cached: 5,
# 10, 15, 16, 24 M tuples/s at 256, 512, 1024, 2048, 4096 tuples a page.
PAGE_TUPLES, MOST_PAGE_TUPLES = 1024, 8192
# a page has fewer wide rows, so that a small memory still holds several pages
PAGE_BYTES, LEAST_PAGE_TUPLES = 131_072, 64
SMALL_PAGES = 16  # least pages of a small R
PAGES = 4000  # a larger R gets larger pages, but keeps at least this many
WRITTEN_BYTES = 262_144  # of pages that are written to a file at a time: Arrow writes each buffer


def choose_buckets(size: int) -> int:
    """Return the number of buckets for an R that a single operator reads, from a file of `size`
    bytes. Each bucket has two files, which take time, and a single operator needs no buckets."""
    return min(_power(size / BUCKET_BYTES), BUCKETS)


def choose_page_tuples(rows: int, row_bytes: float, buckets: int = BUCKETS) -> int:
    """Return the number of tuples of a page, a power of two, for an R of `rows` rows of `row_bytes`
    bytes. In fewer buckets than usual, a page has no more tuples than a usual bucket."""
    usual = min(
        PAGE_TUPLES,
        max(
            min(_power(PAGE_BYTES / max(row_bytes, 1.0)), _power(rows / SMALL_PAGES)),
            LEAST_PAGE_TUPLES,
        ),
    )
    found = min(max(_power(rows / PAGES), usual), MOST_PAGE_TUPLES)
    return found if buckets >= BUCKETS else min(found, _power(rows / BUCKETS))


def _power(number: float) -> int:
    """Return the largest power of two, at least 1, that does not exceed the number."""
    return 2 ** int(math.log2(max(number, 1.0)))


class BucketWriter(AbstractContextManager["BucketWriter"]):
    """A writer of one bucket, from rows in the order of their key codes. The complete files appear
    when the writer is closed. If the context is left without closing the writer, no file is left
    behind.

    The writer holds one page, and for each written page 40 bytes plus 8 per column. A second writer
    of the same bucket (a retried task) replaces the files of the first. flush: whether closing also
    flushes the files to disk.
    """

    def __init__(
        self,
        directory: Path,
        bucket: int,
        schema: pa.Schema,
        keys: JoinKeys,
        page_tuples: int = PAGE_TUPLES,
        flush: bool = True,
    ):
        self.directory, self.bucket, self.schema, self.keys = directory, bucket, schema, keys
        self.page_tuples, self.flush = page_tuples, flush
        self._root = directory.parent  # named in errors; `directory` goes
        attempt = uuid.uuid4().hex
        self._paths = {
            s: directory / f".bucket-{bucket:05d}.{attempt}.{s}" for s in ("arrow", "codes")
        }
        self._file = open(self._paths["arrow"], "wb")  # noqa: SIM115
        self._sink = pa.BufferedOutputStream(pa.PythonFile(self._file, "w"), WRITTEN_BYTES)
        self._payload = pa.ipc.new_file(self._sink, schema)
        self._codes = open(self._paths["codes"], "wb")  # noqa: SIM115
        self._held: list[tuple[np.ndarray, pa.RecordBatch]] = []
        self._held_rows = 0
        self._pages: list[tuple[int, ...]] = []
        self._columns: list[list[int]] = []  # checksums of each page's columns
        self._rows = self._null_keys = 0
        self._unique, self._last_code = True, None
        self._run: set[tuple[Any, ...]] = set()

    def __exit__(self, *_: object) -> None:
        for file in (self._sink, self._file, self._codes):
            with suppress(OSError):  # for instance a full disk, which is already being reported
                file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises StateError when their key codes are not in ascending order."""
        key_codes, valid = self.keys.master_codes(batch)
        if not valid.all():
            self._null_keys += int((~valid).sum())
            batch, key_codes = batch.filter(pa.array(valid)), key_codes[valid]
        if not len(key_codes):
            return
        if (self._last_code is not None and key_codes[0] < self._last_code) or (
            key_codes[1:] < key_codes[:-1]
        ).any():
            raise StateError(
                f"bucket {self.bucket}: rows must come in the order of their key codes"
            )
        self._watch_duplicates(batch, key_codes)
        self._last_code = key_codes[-1]
        self._held.append((key_codes, batch))
        self._held_rows += len(key_codes)
        if self._held_rows >= self.page_tuples:
            with naming(self._root):
                self._write_pages(self.page_tuples)

    def close(self) -> BucketInfo:
        """Write the remaining rows and the zone map, and rename both files to their final names."""
        with naming(self._root):
            if self._held_rows:
                self._write_pages(1)
            self._payload.close()
            zones = np.array(self._pages, np.int64).tobytes()
            self._codes.write(
                zones + signed(xxh3_64_intdigest(zones)).to_bytes(8, "little", signed=True)
            )
            self._codes.write(np.ascontiguousarray(np.array(self._columns, np.int64).T).tobytes())
            size = 0
            for file, handle, suffix in (
                (self._sink, self._file, "arrow"),
                (self._codes, self._codes, "codes"),
            ):
                file.flush()
                handle.flush()
                size += file.tell()
                if self.flush:
                    os.fsync(handle.fileno())
                file.close()
                os.replace(self._paths[suffix], bucket_file(self.directory, self.bucket, suffix))
        return BucketInfo(self.bucket, self._rows, size, self._unique, self._null_keys)

    def _write_pages(self, least: int) -> None:
        """Write whole pages until fewer than ``least`` rows are buffered."""
        table = pa.Table.from_batches([b for _, b in self._held], self.schema).combine_chunks()
        key_codes = np.concatenate([c for c, _ in self._held])
        start = 0
        while len(key_codes) - start >= least:
            n = min(self.page_tuples, len(key_codes) - start)
            before = self._sink.tell()
            [page] = table.slice(start, n).to_batches()
            self._payload.write_batch(page)
            written = page.serialize()  # as it is in the file
            sums = [
                signed(xxh3_64_intdigest(data))
                for data in (written, key_codes[start : start + n].tobytes())
            ]
            self._pages.append(
                (
                    int(key_codes[start]),
                    int(key_codes[start + n - 1]),
                    self._sink.tell() - before + 8 * n,
                    *sums,
                )
            )
            self._columns.append(
                [column_checksum(c) for c in pa.ipc.read_record_batch(written, self.schema).columns]
            )
            start += n
        self._codes.write(key_codes[:start].tobytes())
        self._rows += start
        rest = table.slice(start).to_batches()
        self._held = [(key_codes[start:], rest[0])] if rest else []
        self._held_rows = len(key_codes) - start

    def _watch_duplicates(self, batch: pa.RecordBatch, key_codes: np.ndarray) -> None:
        """Look for duplicate keys. If two rows have the same code, either their keys are equal, or
        their hashed keys collide."""
        if not self._unique:
            return
        same = np.empty(len(key_codes), bool)
        same[0] = self._last_code is not None and key_codes[0] == self._last_code
        same[1:] = key_codes[1:] == key_codes[:-1]
        if self.keys.exact:
            self._unique = not same.any()
            return
        # _run: the keys of the latest code; only repeated codes are compared row by row
        for i in np.flatnonzero(same).tolist():
            if i and not same[i - 1]:
                self._run = {self._key(batch, i - 1)}
            key = self._key(batch, i)
            if key in self._run:
                self._unique = False
                return
            self._run.add(key)
        if not same[-1]:
            self._run = {self._key(batch, len(key_codes) - 1)}

    def _key(self, batch: pa.RecordBatch, row: int) -> tuple[Any, ...]:
        return tuple(batch.column(c)[row].as_py() for c in self.keys.master)
