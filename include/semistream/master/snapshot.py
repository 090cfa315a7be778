"""The Arrow snapshot of R, read with explicit read calls. `master/manifest.py` describes its
files."""

from __future__ import annotations

import copy
import io
import itertools
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from semistream.compiled import filled, njit, read_only
from semistream.errors import ConfigError, StateError, check_name
from semistream.keys import buckets
from semistream.master.manifest import (
    ZONE,
    BucketInfo,
    Manifest,
    bucket_file,
    column_checksum,
    signed,
)
from semistream.master.published import ANEW, CURRENT, MANIFEST, current_version
from semistream.master.relation import MasterRelation

PARTITION_TUPLES = 8192
SECTOR = 4096  # alignment of direct reads
MAGIC_BYTES = 8  # "ARROW1" and padding, at the start of an Arrow file


class SnapshotRelation(MasterRelation):
    """R in a version's directory, or in some of its buckets.

    partition_tuples: the desired tuples of a partition, rounded down to whole pages, at least one
    page. buckets: the buckets to read, by default all; R_t and v_R count these only. direct:
    whether to bypass the system's page cache (O_DIRECT), for an R that is much larger than the
    machine's memory, and for measurements; one partition is then read ahead.
    """

    _reading: ThreadPoolExecutor | None
    _ahead: dict[tuple[int, str, int, int], Future[pa.Buffer]]  # reads in progress, by request

    def __init__(
        self,
        directory: str | Path,
        partition_tuples: int = PARTITION_TUPLES,
        buckets: Sequence[int] | None = None,
        direct: bool = False,
    ):
        self._open_handles()
        self.directory, self.direct, self.buffers = Path(directory), direct, 2 if direct else 1
        self.manifest = Manifest.read(self.directory)
        self.name, self.version = self.manifest.name, self.manifest.version
        self.keys, self.schema = self.manifest.keys, self.manifest.schema
        infos = {b.bucket: b for b in self.manifest.buckets}
        self.buckets = tuple(
            b
            for b in (range(self.manifest.bucket_count) if buckets is None else buckets)
            if infos[b].rows
        )
        owned = [infos[b] for b in self.buckets]
        self.tuple_count = sum(b.rows for b in owned)
        self.tuple_bytes = (
            sum(b.bytes for b in owned) / self.tuple_count
            if self.tuple_count
            else self.manifest.tuple_bytes
        )
        self.unique = all(b.unique for b in owned)
        self._read_zones(owned)
        self._cut(partition_tuples)

    def with_partition(self, tuples: int) -> SnapshotRelation:
        other = copy.copy(self)
        other._open_handles()
        other._cut(tuples)
        return other

    def read_codes(self, partition: int) -> np.ndarray:
        """Return the key codes of a partition's tuples, int64[n], read-only."""
        parts = [self._codes_of(segment) for segment in self._segments(partition)]
        self.bytes_read += sum(p.nbytes for p in parts)
        codes = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])
        return read_only(codes)

    def bucket_codes(self, bucket: int) -> np.ndarray:
        """Return the key codes of all tuples in a bucket, in ascending order, int64[n]."""
        index = int(self._owned[bucket])
        codes = np.empty(0, np.int64)
        if index >= 0:
            codes = self._codes_of((index, 0, self._starts[index + 1] - self._starts[index]))
        self.bytes_read += codes.nbytes
        return codes

    def pages(self, partition: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Return the same columns as ``read``, page by page. There is at least one page."""
        columns, few = self._columns_to_read(tuple(columns))
        if not columns:
            rows = sum(self._page_rows[self._cuts[partition] : self._cuts[partition + 1]])
            return [pa.RecordBatch.from_struct_array(pa.array([{}] * int(rows), pa.struct([])))]
        pages = [
            page
            for segment in self._segments(partition)
            for page in (
                self._some_columns(*segment, columns)
                if few
                else self._all_columns(*segment, columns)
            )
        ]
        return pages or [
            pa.RecordBatch.from_pylist([], pa.schema([self.schema.field(c) for c in columns]))
        ]

    def prefetch(self, partitions: Sequence[int], columns: Sequence[str]) -> None:
        """Read these partitions in the background if reads are direct. Otherwise the system reads
        ahead by itself."""
        if not self.direct:
            return
        columns, few = self._columns_to_read(tuple(columns))
        suffixes = ("codes",) if not columns or few else ("codes", "arrow")
        if self._reading is None:
            self._reading = ThreadPoolExecutor(1)
        wanted = [
            self._request(s, x)
            for p in partitions[: self.buffers]
            for x in suffixes
            for s in self._segments(p)
        ]
        self._ahead = {
            r: self._ahead.get(r) or self._reading.submit(self._read, *r) for r in wanted
        }

    def _columns_to_read(self, columns: tuple[str, ...]) -> tuple[list[str], bool]:
        """Return the distinct columns, and whether they are narrow enough that reading them
        separately is faster than reading whole pages."""

        def width(names: Sequence[str]) -> int:
            types = [self.schema.field(n).type for n in names]
            return sum(max(t.bit_width // 8, 1) if is_fixed(t) else 16 for t in types)

        if columns not in self._widths:
            for name in columns:
                check_name(
                    "columns", "must name columns of the master data", name, self.schema.names
                )
            once = list(dict.fromkeys(columns))
            self._widths[columns] = once, 3 * width(once) < width(self.schema.names)
        return self._widths[columns]

    def _all_columns(
        self, bucket: int, first: int, last: int, columns: list[str]
    ) -> list[pa.RecordBatch]:
        """Read adjacent pages with one read. The columns are views of the bytes read."""
        data = self._pread(*self._request((bucket, first, last), "arrow"))
        self.bytes_read += data.size
        at = self._offsets[bucket][first : last + 1] - self._offsets[bucket][first]
        self._compare(data, at.tolist(), self._page_sums, bucket, first, "arrow")
        pages = (
            pa.ipc.read_record_batch(
                pa.ipc.read_message(data.slice(int(a), int(b - a))), self.schema
            )
            for a, b in itertools.pairwise(at)
        )
        return [page.select(columns) for page in pages]

    def _some_columns(
        self, bucket: int, first: int, last: int, columns: list[str]
    ) -> list[pa.RecordBatch]:
        """Read columns of adjacent pages separately, and compare each column with its checksum.
        Raises StateError if one is damaged."""
        reader, sums = self._reader(bucket, tuple(columns))
        try:
            pages = [reader.get_batch(i).select(columns) for i in range(first, last)]
        except (pa.ArrowException, OSError) as e:
            raise self._damaged(bucket, "arrow", f"pages {first} to {last - 1}", str(e)) from None
        wanted = sums[:, first:last].T.tolist()
        for i, page in enumerate(pages):
            if list(map(column_checksum, page.columns)) != wanted[i]:
                sums_file = bucket_file(self.directory, self.buckets[bucket], "codes")
                raise self._damaged(
                    bucket, "arrow", f"page {first + i}, or {sums_file} at its checksums"
                )
        self.bytes_read += sum(p.nbytes for p in pages)
        return pages

    def partitions_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the partitions that may hold each key code, int32[n, 2] as (first, last + 1). No
        file is read."""
        bucket = buckets(codes, self.keys.exact, self.manifest.bucket_count)
        return filled(
            _find,
            (len(codes), 2),
            np.int32,
            codes,
            self._owned[bucket],
            self._bucket_pages,
            self._first,
            self._last,
            self._page_partition,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open files, readers and threads."""
        return {
            k: v
            for k, v in self.__dict__.items()
            if k not in ("_files", "_readers", "_reading", "_ahead", "_widths")
        }

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._open_handles()
        self.__dict__ |= values

    def close(self) -> None:
        if self._reading is not None:
            self._reading.shutdown()
        for file in (*self._files.values(), *(f for _, f, _ in self._readers.values())):
            file.close()
        self._open_handles()

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()

    # ---- pages and partitions

    def _read_zones(self, owned: list[BucketInfo]) -> None:
        """Read the zone maps of these buckets, and compute the position of each page. Raises
        StateError if a zone map is damaged or missing."""
        p = self.manifest.page_tuples
        zones, rows, pages = [], [], [0]
        for b in owned:
            count = -(-b.rows // p)
            zones.append(self._read_zone(b, count))
            rows += [p] * (count - 1) + [b.rows - p * (count - 1)]
            pages.append(pages[-1] + count)
        zone = np.frombuffer(b"".join(zones), np.int64).reshape(-1, ZONE)
        self._first, self._last, self._page_bytes, self._page_sums, self._codes_sums = (
            np.ascontiguousarray(zone[:, i]) for i in range(ZONE)
        )
        self._page_rows = np.array(rows, np.int64)
        self._bucket_pages, self._bucket_rows = np.array(pages, np.int64), [b.rows for b in owned]
        # ends of the pages in the Arrow files, over all buckets in a row
        ends = np.append(0, np.cumsum(self._page_bytes - 8 * self._page_rows))
        head = _head_bytes(self.schema)  # counted with a file's first page
        self._offsets = []
        for first, last in itertools.pairwise(pages):
            offsets = ends[first : last + 1] - ends[first]
            offsets[0] = head
            self._offsets.append(offsets)
        # bucket -> index among the owned buckets
        self._owned = np.full(self.manifest.bucket_count, -1, np.int32)
        self._owned[list(self.buckets)] = np.arange(len(owned), dtype=np.int32)

    def _read_zone(self, bucket: BucketInfo, pages: int) -> bytes:
        """Return the zone map of a bucket, int64[pages, ZONE], as bytes. Raises StateError."""
        path, size = bucket_file(self.directory, bucket.bucket, "codes"), 8 * ZONE * pages
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                data = os.pread(file, size + 8, 8 * bucket.rows)
            finally:
                os.close(file)
        except OSError as e:
            raise StateError(f"{path} cannot be read: {e.strerror}. {ANEW}") from None
        zone, checksum = data[:size], data[size:]
        if xxh3_64_intdigest(zone).to_bytes(8, "little") != checksum:
            raise StateError(f"{path} is damaged at its zone map, or of an earlier version. {ANEW}")
        return zone

    def _cut(self, partition_tuples: int) -> None:
        """Group consecutive pages into partitions of at most `partition_tuples` tuples."""
        if partition_tuples < 1:
            raise ConfigError(
                "partition_tuples",
                "must be at least 1",
                partition_tuples,
                "It is d, the tuples read per iteration.",
            )
        ends = np.concatenate([[0], np.cumsum(self._page_rows)])
        known, cuts = ends.tolist(), [0]  # for single numbers, a list is faster
        while cuts[-1] < len(self._page_rows):
            cut = bisect_right(known, known[cuts[-1]] + partition_tuples) - 1
            cuts.append(max(cut, cuts[-1] + 1))
        self._cuts = cuts if len(cuts) > 1 else [0, 0]  # an empty R has one empty partition
        self.partition_count = len(self._cuts) - 1
        edges = np.array(self._cuts)
        self._starts = self._bucket_pages.tolist()
        self._cut_buckets = (np.searchsorted(self._bucket_pages, edges, "right") - 1).tolist()
        self._page_partition = np.repeat(
            np.arange(self.partition_count, dtype=np.int32), np.diff(edges)
        )
        self.partition_tuples = int(np.diff(ends[edges]).max())
        most = int(np.diff(np.concatenate([[0], np.cumsum(self._page_bytes)])[edges]).max())
        self.partition_bytes = self.buffers * most

    def _segments(self, partition: int) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the bucket, first page in it, last page + 1) for each bucket that a
        partition covers."""
        page, end = self._cuts[partition], self._cuts[partition + 1]
        bucket = self._cut_buckets[partition]
        while page < end:
            start, stop = self._starts[bucket], min(end, self._starts[bucket + 1])
            yield bucket, page - start, stop - start
            page, bucket = stop, bucket + 1

    # ---- files

    def _open_handles(self) -> None:
        self._files: dict[tuple[int, str], io.FileIO] = {}
        self._readers: dict[
            tuple[int, tuple[str, ...]], tuple[pa.RecordBatchFileReader, pa.OSFile, np.ndarray]
        ] = {}
        self._reading, self._ahead = None, {}
        self._widths: dict[tuple[str, ...], tuple[list[str], bool]] = {}
        self.bytes_read = 0

    def _request(self, segment: tuple[int, int, int], suffix: str) -> tuple[int, str, int, int]:
        """Return the arguments of `_pread` for a segment's codes, or for its pages."""
        bucket, first, last = segment
        if suffix == "codes":
            start = first * self.manifest.page_tuples
            end = min(last * self.manifest.page_tuples, self._bucket_rows[bucket])
            return self.buckets[bucket], suffix, 8 * (end - start), 8 * start
        offsets = self._offsets[bucket]
        return (
            self.buckets[bucket],
            suffix,
            int(offsets[last] - offsets[first]),
            int(offsets[first]),
        )

    def _pread(self, bucket: int, suffix: str, length: int, offset: int) -> pa.Buffer:
        """Return bytes of a bucket's file. Bytes that were read ahead are used if possible."""
        ahead = self._ahead.pop((bucket, suffix, length, offset), None)
        return ahead.result() if ahead else self._read(bucket, suffix, length, offset)

    def _read(self, bucket: int, suffix: str, length: int, offset: int) -> pa.Buffer:
        """Read bytes of a bucket's file. The page cache is bypassed if reads are direct. suffix:
        codes or arrow. Raises StateError if the file lacks these bytes."""
        if (bucket, suffix) not in self._files:
            path = bucket_file(self.directory, bucket, suffix)
            try:
                self._files[bucket, suffix] = io.FileIO(
                    path, opener=lambda p, flags: os.open(p, flags | os.O_DIRECT * self.direct)
                )
            except OSError as e:
                raise StateError(f"{path} cannot be opened: {e.strerror}. {ANEW}") from None
        before = offset % SECTOR if self.direct else 0
        whole = -(-(before + length) // SECTOR) * SECTOR if self.direct else length
        data = pa.allocate_buffer(whole + (SECTOR if self.direct else 0))
        skip = -data.address % SECTOR if self.direct else 0
        read = os.preadv(
            self._files[bucket, suffix].fileno(),
            [memoryview(data)[skip : skip + whole]],
            offset - before,
        )
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

    def _compare(
        self, data: Any, at: list[int], sums: np.ndarray, bucket: int, first: int, suffix: str
    ) -> None:
        """Compare data with the pages' checksums. Raises StateError if the bytes from at[i] to at[i
        + 1] differ from the original page first + i."""
        view, place = memoryview(data).cast("B"), self._starts[bucket] + first
        for i, wanted in enumerate(sums[place : place + len(at) - 1].tolist()):
            if signed(xxh3_64_intdigest(view[at[i] : at[i + 1]])) != wanted:
                raise self._damaged(bucket, suffix, f"page {first + i}")

    def _damaged(self, bucket: int, suffix: str, where: str, why: str = "") -> StateError:
        path = bucket_file(self.directory, self.buckets[bucket], suffix)
        return StateError(f"{path} is damaged at {where}{f' ({why})' if why else ''}. {ANEW}")

    def _reader(
        self, bucket: int, columns: tuple[str, ...]
    ) -> tuple[pa.RecordBatchFileReader, np.ndarray]:
        """Return a reader that reads only these columns' bytes, and the columns' checksums,
        int64[columns, pages]."""
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
            out[i] = np.frombuffer(
                self._read(self.buckets[bucket], "codes", 8 * pages, at), np.int64
            )
        return out


def _head_bytes(schema: pa.Schema) -> int:
    """Return the offset of the first record batch in an Arrow file with this schema."""
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
def _find(codes, place, bucket_pages, first, last, page_partition, out):
    """Write the partition ranges of key codes, by binary search in the zone map of each code's
    bucket. place: index of each code's bucket among the buckets read, -1 if the bucket is not read.

    in      codes int64[n], place int32[n], bucket_pages int64[buckets + 1], first int64[pages],
            last int64[pages], page_partition int32[pages]
    out     out int32[n, 2]
    """
    for i in range(len(codes)):
        out[i, 0] = out[i, 1] = 0
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


def lacking(codes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the different ones of some key codes that are not among the known ones, int64[n]. Both
    are in ascending order."""
    found = np.empty(len(codes), np.int64)
    return found[: _lacking(read_only(codes), read_only(known), found)]


@njit(cache=True)
def _lacking(codes, known, out):
    """Merge two lists of key codes in ascending order. Write the different codes of the first that
    the second lacks, and return their number.

    in      codes int64[n], known int64[m]
    out     out int64[n]
    """
    count = at = 0
    for i in range(len(codes)):
        if i > 0 and codes[i] == codes[i - 1]:
            continue
        while at < len(known) and known[at] < codes[i]:
            at += 1
        if at == len(known) or known[at] != codes[i]:
            out[count] = codes[i]
            count += 1
    return count


def open_snapshot(
    root: str | Path,
    partition_tuples: int = PARTITION_TUPLES,
    buckets: Sequence[int] | None = None,
    direct: bool = False,
) -> SnapshotRelation:
    """Open the current version of the master data under ``<root>`` = snapshots/<dimension>/<key>.
    Raises ConfigError if there is none."""
    version = current_version(root)
    if version is None or not (Path(root) / version / MANIFEST).exists():
        raise ConfigError(
            "snapshot",
            "must have been published",
            str(Path(root) / (version or CURRENT)),
            "Run `semistream snapshot`, or the DAG provision_master_data, first.",
        )
    return SnapshotRelation(Path(root) / version, partition_tuples, buckets, direct)
