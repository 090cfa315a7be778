"""The Arrow snapshot of R: an immutable directory per version, read back with explicit reads.

::

    <root>/<master>/CURRENT
        the current version's name, replaced atomically
    <root>/<master>/v000001/manifest.json
    <root>/<master>/v000001/bucket-00017.arrow
        Arrow IPC file: one record batch a page, rows in the order of their key codes
    <root>/<master>/v000001/bucket-00017.codes
        int64[rows] key codes
        int64[pages, 5] the zone map: first code, last code, bytes, checksum of the page, checksum
            of its codes
        int64 the zone map's checksum
        int64[columns, pages] checksums of the columns of each page

The codes lie apart from the payload so that a partition's codes are one read, whatever the
payload's width. Checksums are XXH3; what is read is compared with them: whole pages with the
page's, single columns with their own.
"""

from __future__ import annotations

import base64
import copy
import io
import itertools
import math
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from semistream.compiled import njit
from semistream.durable import naming, read_checked, write_checked
from semistream.errors import ConfigError, StateError
from semistream.keys import JoinKeys, buckets, master_keys
from semistream.published import ANEW, CURRENT, MANIFEST, current_version

# divisible by the usual numbers of partitions; 64 runs are few enough to write at the same time
BUCKETS = 64
# The least that a disk buffer can be: 120 KB of 116-byte tuples. Measured, all columns, cached: 5,
# 10, 15, 16, 24 M tuples/s at 256, 512, 1024, 2048, 4096 tuples a page.
PAGE_TUPLES, MOST_PAGE_TUPLES = 1024, 8192
# of wider rows, a page has fewer, so that a small memory still has some pages
PAGE_BYTES, LEAST_PAGE_TUPLES = 131_072, 64
SMALL_PAGES = 16  # that a small R has at least
PAGES = 4000  # a larger R has larger pages, so that it has at least so many
PARTITION_TUPLES = 8192
SECTOR = 4096  # what direct reads are aligned to
MAGIC_BYTES = 8  # "ARROW1" and padding, at the start of an Arrow file
ZONE = 5  # words of a page in the zone map


@dataclass(frozen=True)
class BucketInfo:
    """What one bucket's files hold; ``null_keys`` rows were left out of them."""

    bucket: int
    rows: int
    bytes: int
    unique: bool
    null_keys: int


@dataclass(frozen=True)
class Manifest:
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
        values = asdict(self) | {"schema": encode_schema(self.schema), "exact": keys.exact,
                                 "key_types": [str(t) for t in keys.types]}
        write_checked(directory / MANIFEST, values, flush=flush)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Raises StateError when there is no snapshot in the directory, or a damaged one."""
        values = read_checked(directory / MANIFEST, ANEW)
        if values is None:
            raise StateError(f"{directory} holds no snapshot: there is no {MANIFEST}. {ANEW}")
        del values["exact"], values["key_types"]
        return cls(**values | {"schema": decode_schema(values["schema"]),
                               "key_columns": tuple(values["key_columns"]),
                               "buckets": tuple(BucketInfo(**b) for b in values["buckets"])})


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def bucket_file(directory: Path, bucket: int, suffix: str) -> Path:
    return directory / f"bucket-{bucket:05d}.{suffix}"


def choose_page_tuples(rows: int, row_bytes: float) -> int:
    """Tuples of a page for an R of so many, of so many bytes each: a power of two."""
    usual = min(PAGE_TUPLES,
                max(min(_power(PAGE_BYTES / max(row_bytes, 1.0)), _power(rows / SMALL_PAGES)),
                    LEAST_PAGE_TUPLES))
    return min(max(_power(rows / PAGES), usual), MOST_PAGE_TUPLES)


def _power(number: float) -> int:
    """The largest power of two that is not above it, from 1."""
    return 2 ** int(math.log2(max(number, 1.0)))


class BucketWriter:
    """Writes one bucket from rows that come in the order of their key codes. Its files appear
    whole, when it closes.

    Holds one page, and 40 bytes and 8 a column for each page written. A second writer of the bucket
    (a retried task) replaces the first one's files. flush: whether they are then on disk, too.
    """

    def __init__(self, directory: Path, bucket: int, schema: pa.Schema, keys: JoinKeys,
                 page_tuples: int = PAGE_TUPLES, flush: bool = True):
        self.directory, self.bucket, self.schema, self.keys = directory, bucket, schema, keys
        self.page_tuples, self.flush = page_tuples, flush
        self._root = directory.parent  # in an error: the directory itself goes with it
        attempt = uuid.uuid4().hex
        self._paths = {s: directory / f".bucket-{bucket:05d}.{attempt}.{s}"
                       for s in ("arrow", "codes")}
        self._sink = open(self._paths["arrow"], "wb")  # noqa: SIM115
        self._payload = pa.ipc.new_file(self._sink, schema)
        self._codes = open(self._paths["codes"], "wb")  # noqa: SIM115
        self._held: list[tuple[np.ndarray, pa.RecordBatch]] = []
        self._held_rows = 0
        self._pages: list[tuple[int, ...]] = []
        self._columns: list[list[int]] = []  # checksums of each page's
        self._rows = self._null_keys = 0
        self._unique, self._last_code = True, None
        self._run: set[tuple[Any, ...]] = set()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises StateError when their key codes go down."""
        key_codes, valid = self.keys.master_codes(batch)
        if not valid.all():
            self._null_keys += int((~valid).sum())
            batch, key_codes = batch.filter(pa.array(valid)), key_codes[valid]
        if not len(key_codes):
            return
        if (self._last_code is not None
            and key_codes[0] < self._last_code) or (key_codes[1:] < key_codes[:-1]).any():
            raise StateError(
                f"bucket {self.bucket}: rows must come in the order of their key codes")
        self._watch_duplicates(batch, key_codes)
        self._last_code = key_codes[-1]
        self._held.append((key_codes, batch))
        self._held_rows += len(key_codes)
        if self._held_rows >= self.page_tuples:
            with naming(self._root):
                self._write_pages(self.page_tuples)

    def close(self) -> BucketInfo:
        """Write what is held and put the files into place."""
        with naming(self._root):
            return self._close()

    def _close(self) -> BucketInfo:
        if self._held_rows:
            self._write_pages(1)
        self._payload.close()
        zones = np.array(self._pages, np.int64).tobytes()
        self._codes.write(zones
                          + _signed(xxh3_64_intdigest(zones)).to_bytes(8, "little", signed=True))
        self._codes.write(np.ascontiguousarray(np.array(self._columns, np.int64).T).tobytes())
        size = 0
        for file, suffix in ((self._sink, "arrow"), (self._codes, "codes")):
            file.flush()
            size += file.tell()
            if self.flush:
                os.fsync(file.fileno())
            file.close()
            os.replace(self._paths[suffix], bucket_file(self.directory, self.bucket, suffix))
        return BucketInfo(self.bucket, self._rows, size, self._unique, self._null_keys)

    def _write_pages(self, least: int) -> None:
        """Write whole pages while at least ``least`` rows are held."""
        table = pa.Table.from_batches([b for _, b in self._held], self.schema).combine_chunks()
        key_codes = np.concatenate([c for c, _ in self._held])
        start = 0
        while len(key_codes) - start >= least:
            n = min(self.page_tuples, len(key_codes) - start)
            before = self._sink.tell()
            [page] = table.slice(start, n).to_batches()
            self._payload.write_batch(page)
            written = page.serialize()  # as it is in the file
            sums = [_signed(xxh3_64_intdigest(data))
                    for data in (written, key_codes[start:start + n].tobytes())]
            self._pages.append((int(key_codes[start]), int(key_codes[start + n - 1]),
                                self._sink.tell() - before + 8 * n, *sums))
            self._columns.append([_column_checksum(c)
                                  for c in pa.ipc.read_record_batch(written, self.schema).columns])
            start += n
        self._codes.write(key_codes[:start].tobytes())
        self._rows += start
        rest = table.slice(start).to_batches()
        self._held = [(key_codes[start:], rest[0])] if rest else []
        self._held_rows = len(key_codes) - start

    def _watch_duplicates(self, batch: pa.RecordBatch, key_codes: np.ndarray) -> None:
        """Two rows with one code are one key twice, or two hashed keys that collide."""
        if not self._unique:
            return
        same = np.empty(len(key_codes), bool)
        same[0] = self._last_code is not None and key_codes[0] == self._last_code
        same[1:] = key_codes[1:] == key_codes[:-1]
        if self.keys.exact:
            self._unique = not same.any()
            return
        # _run: the keys of the latest code; only codes that come again are looked at row by row
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


def _signed(checksum: int) -> int:
    return checksum - (1 << 64) if checksum >= 1 << 63 else checksum


def _column_checksum(column: pa.Array) -> int:
    """Of a column as it is read from a file."""
    total = len(column) + (column.null_count << 32)
    for buffer in column.buffers():
        if buffer is not None:
            total = xxh3_64_intdigest(buffer, total)
    return _signed(total)


class SnapshotRelation:
    """A ``MasterRelation`` over a version's directory, or over some of its buckets.

    partition_tuples: how many tuples a partition should have; it becomes the largest number that
    whole pages give, at least one page's. buckets: those that are read, default all; R_t and v_R
    are theirs. direct: read past the system's page cache (O_DIRECT), for an R that is much larger
    than the machine's memory, and for measurements; one partition is then read ahead.
    """

    _reading: ThreadPoolExecutor | None
    _ahead: dict[tuple[int, str, int, int], Future[pa.Buffer]]  # what is being read, by request

    def __init__(self, directory: str | Path, partition_tuples: int = PARTITION_TUPLES,
                 buckets: Sequence[int] | None = None, direct: bool = False):
        self.directory, self.direct, self.buffers = Path(directory), direct, 2 if direct else 1
        self.manifest = Manifest.read(self.directory)
        self.name, self.version = self.manifest.name, self.manifest.version
        self.keys, self.schema = self.manifest.keys, self.manifest.schema
        infos = {b.bucket: b for b in self.manifest.buckets}
        self.buckets = tuple(b for b in (range(self.manifest.bucket_count) if buckets is None
                                         else buckets) if infos[b].rows)
        owned = [infos[b] for b in self.buckets]
        self.tuple_count = sum(b.rows for b in owned)
        self.tuple_bytes = (sum(b.bytes for b in owned) / self.tuple_count if self.tuple_count
                            else self.manifest.tuple_bytes)
        self.unique = all(b.unique for b in owned)
        self._read_zones(owned)
        self._open_handles()
        self._cut(partition_tuples)

    def with_partition(self, tuples: int) -> SnapshotRelation:
        """The same R in partitions of about that many tuples."""
        other = copy.copy(self)
        other._open_handles()
        other._cut(tuples)
        return other

    def read_codes(self, partition: int) -> np.ndarray:
        """Key codes of a partition's tuples, int64[n], not to be written to: kernels are compiled
        for what is read, and for nothing else."""
        parts = [self._codes_of(segment) for segment in self._segments(partition)]
        self.bytes_read += sum(p.nbytes for p in parts)
        codes = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])
        codes.flags.writeable = False
        return codes

    def read(self, partition: int, columns: Sequence[str]) -> pa.RecordBatch:
        """The named columns of a partition's tuples, in the order of ``read_codes``."""
        pages = self.pages(partition, columns)
        return pa.concat_batches(pages) if len(pages) > 1 else pages[0]

    def pages(self, partition: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """The same page by page, at least one."""
        columns, few = self._asked(tuple(columns))
        if not columns:
            rows = sum(self._page_rows[self._cuts[partition]:self._cuts[partition + 1]])
            return [pa.RecordBatch.from_struct_array(pa.array([{}] * int(rows), pa.struct([])))]
        pages = [page for segment in self._segments(partition)
                 for page in (self._some_columns(*segment, columns) if few
                              else self._all_columns(*segment, columns))]
        return pages or [
            pa.RecordBatch.from_pylist([], pa.schema([self.schema.field(c) for c in columns]))]

    def prefetch(self, partitions: Sequence[int], columns: Sequence[str]) -> None:
        """Where reads are direct, read these in the background; else the system reads ahead by
        itself."""
        if not self.direct:
            return
        columns, few = self._asked(tuple(columns))
        suffixes = ("codes",) if not columns or few else ("codes", "arrow")
        if self._reading is None:
            self._reading = ThreadPoolExecutor(1)
        wanted = [self._request(s, x) for p in partitions[:self.buffers] for x in suffixes
                  for s in self._segments(p)]
        self._ahead = {r: self._ahead.get(r) or self._reading.submit(self._read, *r)
                       for r in wanted}

    def _asked(self, columns: tuple[str, ...]) -> tuple[list[str], bool]:
        """The columns, each once, and whether they are so few that reading them one by one is less
        than reading whole pages."""
        def width(names: Sequence[str]) -> int:
            types = [self.schema.field(n).type for n in names]
            return sum(max(t.bit_width // 8, 1) if is_fixed(t) else 16 for t in types)

        if columns not in self._widths:
            wrong = [c for c in columns if c not in self.schema.names]
            if wrong:
                raise ConfigError("columns", "must name columns of the master data", wrong[0],
                                  f"It has: {', '.join(self.schema.names)}.")
            once = list(dict.fromkeys(columns))
            self._widths[columns] = once, 3 * width(once) < width(self.schema.names)
        return self._widths[columns]

    def _all_columns(self, bucket: int, first: int, last: int,
                     columns: list[str]) -> list[pa.RecordBatch]:
        """Neighbouring pages with one read; the columns are views of what was read."""
        data = self._pread(*self._request((bucket, first, last), "arrow"))
        self.bytes_read += data.size
        at = self._offsets[bucket][first:last + 1] - self._offsets[bucket][first]
        self._compare(data, at.tolist(), self._page_sums, bucket, first, "arrow")
        pages = (pa.ipc.read_record_batch(pa.ipc.read_message(data.slice(int(a), int(b - a))),
                                          self.schema) for a, b in itertools.pairwise(at))
        return [page.select(columns) for page in pages]

    def _some_columns(self, bucket: int, first: int, last: int,
                      columns: list[str]) -> list[pa.RecordBatch]:
        reader, sums = self._reader(bucket, tuple(columns))
        try:
            pages = [reader.get_batch(i).select(columns) for i in range(first, last)]
        except (pa.ArrowException, OSError) as e:
            raise self._damaged(bucket, "arrow", f"pages {first} to {last - 1}", str(e)) from None
        wanted = sums[:, first:last].T.tolist()
        for i, page in enumerate(pages):
            if list(map(_column_checksum, page.columns)) != wanted[i]:
                sums_file = bucket_file(self.directory, self.buckets[bucket], "codes")
                raise self._damaged(bucket, "arrow",
                                    f"page {first + i}, or {sums_file} at its checksums")
        self.bytes_read += sum(p.nbytes for p in pages)
        return pages

    def partitions_of(self, codes: np.ndarray) -> np.ndarray:
        """The partitions that may hold each key code, int32[n, 2] as (first, last + 1); from
        memory."""
        bucket = buckets(codes, self.keys.exact, self.manifest.bucket_count)
        return _find(codes, self._owned[bucket], self._bucket_pages, self._first, self._last,
                     self._page_partition)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open."""
        return {k: v for k, v in self.__dict__.items()
                if k not in ("_files", "_readers", "_reading", "_ahead", "_widths")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._open_handles()
        self.__dict__ |= values

    def close(self) -> None:
        if self._reading is not None:
            self._reading.shutdown()
        for file in (*self._files.values(), *(f for _, f, _ in self._readers.values())):
            file.close()
        self._open_handles()

    # ---- pages and partitions

    def _read_zones(self, owned: list[BucketInfo]) -> None:
        p = self.manifest.page_tuples
        zones, rows, pages = [], [], [0]
        for b in owned:
            count = -(-b.rows // p)
            path = bucket_file(self.directory, b.bucket, "codes")
            try:
                with open(path, "rb") as f:
                    f.seek(8 * b.rows)
                    data = f.read(8 * (ZONE * count + 1))
            except OSError as e:
                raise StateError(f"{path} cannot be read: {e.strerror}. {ANEW}") from None
            zone = np.frombuffer(data[:len(data) // 8 * 8], np.int64)
            if (len(zone) <= ZONE * count
                    or _signed(xxh3_64_intdigest(zone[:-1].tobytes())) != zone[-1]):
                raise StateError(
                    f"{path} is damaged at its zone map, or of an earlier version. {ANEW}")
            zones.append(zone[:-1].reshape(count, ZONE))
            rows += [p] * (count - 1) + [b.rows - p * (count - 1)]
            pages.append(pages[-1] + count)
        zone = np.concatenate(zones) if zones else np.empty((0, ZONE), np.int64)
        self._first, self._last, self._page_bytes, self._page_sums, self._codes_sums = (
            np.ascontiguousarray(zone[:, i]) for i in range(ZONE))
        self._page_rows = np.array(rows, np.int64)
        self._bucket_pages, self._bucket_rows = np.array(pages, np.int64), [b.rows for b in owned]
        # of the pages in the Arrow files, all buckets' in a row
        ends = np.cumsum(self._page_bytes - 8 * self._page_rows)
        head = _head_bytes(self.schema)  # counted with a file's first page
        self._offsets = []
        for first, last in itertools.pairwise(pages):
            before = ends[first - 1] if first else 0
            self._offsets.append(np.concatenate([[head], ends[first:last] - before]))
        # bucket -> place among the owned ones
        self._owned = np.full(self.manifest.bucket_count, -1, np.int32)
        self._owned[list(self.buckets)] = np.arange(len(owned), dtype=np.int32)

    def _cut(self, partition_tuples: int) -> None:
        """Pages to partitions: as many pages in a row as have at most that many tuples."""
        if partition_tuples < 1:
            raise ConfigError("partition_tuples", "must be at least 1", partition_tuples,
                              "It is d, the tuples read per iteration.")
        ends = np.concatenate([[0], np.cumsum(self._page_rows)])
        cuts = [0]
        while cuts[-1] < len(self._page_rows):
            cut = int(np.searchsorted(ends, ends[cuts[-1]] + partition_tuples, "right")) - 1
            cuts.append(max(cut, cuts[-1] + 1))
        self._cuts = cuts if len(cuts) > 1 else [0, 0]  # an empty R has one empty partition
        self.partition_count = len(self._cuts) - 1
        edges = np.array(self._cuts)
        self._starts = self._bucket_pages.tolist()
        self._cut_buckets = (np.searchsorted(self._bucket_pages, edges, "right") - 1).tolist()
        self._page_partition = np.repeat(np.arange(self.partition_count, dtype=np.int32),
                                         np.diff(edges))
        self.partition_tuples = int(np.diff(ends[edges]).max())
        most = int(np.diff(np.concatenate([[0], np.cumsum(self._page_bytes)])[edges]).max())
        self.partition_bytes = self.buffers * most

    def _segments(self, partition: int) -> Iterator[tuple[int, int, int]]:
        """(place of the bucket, first page in it, last + 1) of the buckets that a partition runs
        over."""
        page, end = self._cuts[partition], self._cuts[partition + 1]
        bucket = self._cut_buckets[partition]
        while page < end:
            start, stop = self._starts[bucket], min(end, self._starts[bucket + 1])
            yield bucket, page - start, stop - start
            page, bucket = stop, bucket + 1

    # ---- files

    def _open_handles(self) -> None:
        # file objects: they close themselves with the relation
        self._files: dict[tuple[int, str], io.FileIO] = {}
        self._readers: dict[tuple[int, tuple[str, ...]],
                            tuple[pa.RecordBatchFileReader, pa.OSFile, np.ndarray]] = {}
        self._reading, self._ahead = None, {}
        self._widths: dict[tuple[str, ...], tuple[list[str], bool]] = {}
        self.bytes_read = 0

    def _request(self, segment: tuple[int, int, int], suffix: str) -> tuple[int, str, int, int]:
        """What `_pread` is asked for a segment's codes, or its pages."""
        bucket, first, last = segment
        if suffix == "codes":
            start = first * self.manifest.page_tuples
            end = min(last * self.manifest.page_tuples, self._bucket_rows[bucket])
            return self.buckets[bucket], suffix, 8 * (end - start), 8 * start
        offsets = self._offsets[bucket]
        return self.buckets[bucket], suffix, int(offsets[last]
                                                 - offsets[first]), int(offsets[first])

    def _pread(self, bucket: int, suffix: str, length: int, offset: int) -> pa.Buffer:
        """So many bytes of a bucket's file; those that were read ahead, if they are."""
        ahead = self._ahead.pop((bucket, suffix, length, offset), None)
        return ahead.result() if ahead else self._read(bucket, suffix, length, offset)

    def _read(self, bucket: int, suffix: str, length: int, offset: int) -> pa.Buffer:
        if (bucket, suffix) not in self._files:
            path = bucket_file(self.directory, bucket, suffix)
            try:
                self._files[bucket, suffix] = io.FileIO(
                    path, opener=_open_direct if self.direct else None)
            except OSError as e:
                raise StateError(f"{path} cannot be opened: {e.strerror}. {ANEW}") from None
        before = offset % SECTOR if self.direct else 0
        whole = -(-(before + length) // SECTOR) * SECTOR if self.direct else length
        data = pa.allocate_buffer(whole + (SECTOR if self.direct else 0))
        skip = -data.address % SECTOR if self.direct else 0
        read = os.preadv(self._files[bucket, suffix].fileno(),
                         [memoryview(data)[skip:skip + whole]], offset - before)
        if read < before + length:
            path = bucket_file(self.directory, bucket, suffix)
            raise StateError(f"{path} is damaged: it ends too early. {ANEW}")
        return data.slice(skip + before, length)

    def _codes_of(self, segment: tuple[int, int, int]) -> np.ndarray:
        bucket, first, _ = segment
        codes = np.frombuffer(self._pread(*self._request(segment, "codes")), np.int64)
        at = [*range(0, codes.nbytes, 8 * self.manifest.page_tuples), codes.nbytes]
        self._compare(codes, at, self._codes_sums, bucket, first, "codes")
        return codes

    def _compare(self, data: Any, at: list[int], sums: np.ndarray, bucket: int, first: int,
                 suffix: str) -> None:
        """Raises StateError where bytes at[i] to at[i + 1] are not what was written of page first +
        i."""
        view, place = memoryview(data).cast("B"), self._starts[bucket] + first
        for i, wanted in enumerate(sums[place:place + len(at) - 1].tolist()):
            if _signed(xxh3_64_intdigest(view[at[i]:at[i + 1]])) != wanted:
                raise self._damaged(bucket, suffix, f"page {first + i}")

    def _damaged(self, bucket: int, suffix: str, where: str, why: str = "") -> StateError:
        path = bucket_file(self.directory, self.buckets[bucket], suffix)
        return StateError(f"{path} is damaged at {where}{f' ({why})' if why else ''}. {ANEW}")

    def _reader(self, bucket: int,
                columns: tuple[str, ...]) -> tuple[pa.RecordBatchFileReader, np.ndarray]:
        """A reader that reads these columns' bytes only, and their checksums, int64[columns,
        pages]."""
        key = (bucket, columns)
        if key not in self._readers:
            file = pa.OSFile(str(bucket_file(self.directory, self.buckets[bucket], "arrow")))
            fields = sorted(self.schema.get_field_index(c) for c in columns)
            options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
            try:
                reader = pa.ipc.open_file(file, options=options)
            except (pa.ArrowException, OSError) as e:
                raise self._damaged(bucket, "arrow", "its beginning or end", str(e)) from None
            self._readers[key] = reader, file, self._column_sums(bucket, columns)
        reader, _, sums = self._readers[key]
        return reader, sums

    def _column_sums(self, bucket: int, columns: tuple[str, ...]) -> np.ndarray:
        pages = int(self._bucket_pages[bucket + 1] - self._bucket_pages[bucket])
        start = 8 * (self._bucket_rows[bucket] + ZONE * pages + 1)
        out = np.empty((len(columns), pages), np.int64)
        for i, name in enumerate(columns):
            at = start + 8 * pages * self.schema.get_field_index(name)
            out[i] = np.frombuffer(self._read(self.buckets[bucket], "codes", 8 * pages, at),
                                   np.int64)
        return out


def _open_direct(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_DIRECT)


def _head_bytes(schema: pa.Schema) -> int:
    """Where the first record batch of an Arrow file with this schema begins."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema))
    file = pa.BufferReader(sink.getvalue())
    file.seek(MAGIC_BYTES)
    pa.ipc.read_message(file)
    return file.tell()


def is_fixed(kind: pa.DataType) -> bool:
    try:
        return kind.bit_width > 0
    except ValueError:
        return False


@njit(cache=True)
def _find(codes, place, bucket_pages, first, last, page_partition):
    """Partition ranges int32[n, 2] of key codes by binary search in the zone map of each one's
    bucket. place: of each code's bucket among those that are here, or -1.

    in      codes int64[n], place int32[n], bucket_pages int64[buckets + 1], first int64[pages],
            last int64[pages], page_partition int32[pages]
    """
    out = np.zeros((len(codes), 2), np.int32)
    for i in range(len(codes)):
        if place[i] < 0:
            continue
        low, end, code = bucket_pages[place[i]], bucket_pages[place[i] + 1], codes[i]
        high = end
        while low < high:
            middle = (low + high) // 2
            if last[middle] < code:
                low = middle + 1
            else:
                high = middle
        if low == end or first[low] > code:
            continue
        stop = low
        while stop + 1 < end and first[stop + 1] <= code:
            stop += 1
        out[i, 0], out[i, 1] = page_partition[low], page_partition[stop] + 1
    return out


def open_snapshot(root: str | Path, partition_tuples: int = PARTITION_TUPLES,
                  buckets: Sequence[int] | None = None, direct: bool = False) -> SnapshotRelation:
    """The current version of the master data under ``<root>`` = snapshots/<master>. Raises
    ConfigError where there is none."""
    version = current_version(root)
    if version is None or not (Path(root) / version / MANIFEST).exists():
        raise ConfigError("snapshot", "must have been published",
                          str(Path(root) / (version or CURRENT)),
                          "Run `semistream snapshot`, or the DAG provision_master_data, first.")
    return SnapshotRelation(Path(root) / version, partition_tuples, buckets, direct)
