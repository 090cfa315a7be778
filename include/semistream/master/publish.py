"""Publication of a new version of a master snapshot, within a given memory, for an R of any
size."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.durable import naming, sync
from semistream.errors import ConfigError, StateError
from semistream.keys import buckets, master_keys
from semistream.master.bucket_writer import BUCKETS, BucketWriter, choose_page_tuples
from semistream.master.manifest import BucketInfo, Manifest
from semistream.master.published import MANIFEST, current_version, set_current
from semistream.master.runs import Runs, read_run
from semistream.resident import give_back

KEEP = 3  # versions that are kept, in addition to the pinned ones
GATHERED = 8_000_000  # bytes of rows that are split by bucket at a time
ORDER_BYTES = 32  # bytes per row while sorting: its code and its index, twice
MEMORY, LEAST_MEMORY = 256_000_000, 16_000_000  # bytes that publishing may take


class Publication:
    """A version that is being written, in a directory that is invisible until ``commit``; a context
    manager.

    For each master only one publication runs at a time; another one waits. If the context is left
    without a commit, or the process dies, the current version stays unchanged.
    """

    def __init__(
        self,
        root: str | Path,
        name: str,
        schema: pa.Schema,
        key_columns: Sequence[str],
        *,
        source: dict[str, Any] | None = None,
        bucket_count: int = BUCKETS,
        page_tuples: int = 0,
        keep: int = KEEP,
        flush: bool = True,
        formats: Mapping[str, dict[str, Any]] | None = None,
    ):
        """Begin a publication. formats: normal forms of key columns, as in the manifest; flush:
        whether the version must be on disk before it becomes current."""
        if bucket_count < 1 or page_tuples < 0:
            raise ConfigError(
                "bucket_count, page_tuples",
                "must be positive",
                (bucket_count, page_tuples),
                "Leave them out.",
            )
        self.root, self.name, self.schema = Path(root), name, schema.remove_metadata()
        self.source, self.formats = source or {}, dict(formats or {})
        self.key_columns, self.bucket_count = tuple(key_columns), bucket_count
        self.page_tuples, self.keep, self.flush = page_tuples, keep, flush
        self.keys = master_keys(schema, list(key_columns))
        self.directory = self.root / f".publishing-{uuid.uuid4().hex}"

    def __enter__(self) -> Publication:
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # we hold the lock, so the processes that made these have died
        for left_over in self.root.glob(".publishing-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        self.directory.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

    def writer(self, bucket: int) -> BucketWriter:
        return BucketWriter(
            self.directory, bucket, self.schema, self.keys, self.page_tuples, self.flush
        )

    def commit(self, infos: Sequence[BucketInfo], null_keys: int = 0) -> Manifest:
        """Make this version the current one. Buckets without rows may be missing from `infos`.
        ``null_keys``: the number of rows that the caller has left out."""
        infos = sorted(infos, key=lambda b: b.bucket)
        known = {b.bucket for b in infos}
        if len(known) != len(infos):
            raise StateError(f"a bucket was written twice: {sorted(b.bucket for b in infos)}")
        infos += [BucketInfo(b, 0, 0, True, 0) for b in range(self.bucket_count) if b not in known]
        rows = sum(b.rows for b in infos)
        version = self._next_version()
        manifest = Manifest(
            name=self.name,
            version=version,
            schema=self.schema,
            key_columns=self.key_columns,
            tuple_count=rows,
            tuple_bytes=sum(b.bytes for b in infos) / rows if rows else 0.0,
            null_keys=null_keys + sum(b.null_keys for b in infos),
            unique=all(b.unique for b in infos),
            bucket_count=self.bucket_count,
            page_tuples=self.page_tuples,
            source=self.source,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            buckets=tuple(infos),
            formats=self.formats,
        )
        manifest.write(self.directory, flush=self.flush)
        os.rename(self.directory, self.root / version)
        if self.flush:
            sync(self.root)
        set_current(self.root, version, flush=self.flush)
        self._forget_old_versions()
        return manifest

    def _next_version(self) -> str:
        """Return a version name that was never used. Names of removed versions are not used again,
        because a load may still refer to them."""
        names = [p.name for p in self.root.glob("v[0-9]*")] + list(self._pinned())
        with contextlib.suppress(StateError):  # a damaged file; the other names suffice
            names.append(current_version(self.root) or "")
        numbers = [int(name[1:]) for name in names if name[1:].isdigit()]
        return f"v{max(numbers, default=0) + 1:06d}"

    def _pinned(self) -> set[str]:
        return {
            p.read_text().strip()
            for p in (self.root / "pins").glob("*")
            if not p.name.startswith(".")
        }

    def _forget_old_versions(self) -> None:
        """Delete all but the newest versions. Versions that an app still holds are kept."""
        versions = sorted(p for p in self.root.glob("v[0-9]*") if p.is_dir())
        pinned = self._pinned()
        for old in versions[: -self.keep]:
            if old.name not in pinned:
                shutil.rmtree(old, ignore_errors=True)


def current_manifest(root: str | Path) -> Manifest | None:
    """Return the manifest of the current version under ``<root>`` = snapshots/<dimension>/<key>.
    Return None before the first version. Return None also for a damaged manifest, so that a new
    version is published."""
    try:
        version = current_version(root)
        return (
            Manifest.read(Path(root) / version)
            if version and (Path(root) / version / MANIFEST).exists()
            else None
        )
    except StateError:
        return None


def publish_snapshot(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    root: str | Path,
    name: str,
    key_columns: Sequence[str],
    *,
    source: dict[str, Any] | None = None,
    bucket_count: int = BUCKETS,
    page_tuples: int = 0,
    keep: int = KEEP,
    memory: int = MEMORY,
    progress: Callable[[int], None] | None = None,
    flush: bool = True,
    formats: Mapping[str, dict[str, Any]] | None = None,
) -> Manifest:
    """Write the rows as a new version under ``<root>`` = snapshots/<dimension>/<key>, and make it
    the current one.

    Rows without a key are left out and counted. page_tuples: the smallest number of tuples that a
    join reads at once; 0 chooses it by |R| and the tuples' width. memory: bytes for this function
    in addition to the memory that the process already uses; rows that fit into it are written once,
    other rows twice. progress: a function that is called with the number of rows of each step; each
    row counts twice (split, sort). flush, formats: see ``Publication``. Raises ConfigError for key
    columns that cannot be a key.
    """
    progress = progress or (lambda rows: None)
    with (
        Publication(
            root,
            name,
            schema,
            key_columns,
            source=source,
            bucket_count=bucket_count,
            page_tuples=page_tuples,
            keep=keep,
            flush=flush,
            formats=formats,
        ) as publication,
        Runs(publication.directory, publication.schema, memory, bucket_count) as runs,
    ):
        rows, null_keys, size = _split(publication, batches, runs, memory, progress)
        give_back()
        publication.page_tuples = page_tuples or choose_page_tuples(
            rows, size / max(rows, 1), bucket_count
        )
        infos = []
        for some in (runs.in_memory, runs.in_files):  # buckets in memory first, to make room
            at_a_time = _at_a_time(runs, memory, ORDER_BYTES * rows / max(size, 1))
            with ThreadPoolExecutor(at_a_time, "sorting") as threads:
                try:
                    for info in threads.map(partial(_sort, publication, runs, memory), some):
                        infos.append(info)
                        progress(info.rows)
                finally:
                    threads.shutdown(cancel_futures=True)
            give_back()
        return publication.commit(infos, null_keys)


def _split(
    publication: Publication,
    batches: Iterable[pa.RecordBatch],
    runs: Runs,
    memory: int,
    progress: Callable[[int], None],
) -> tuple[int, int, int]:
    """Distribute rows to the runs of their buckets. Return (rows, rows without a key, bytes)."""
    rows = null_keys = size = 0
    for batch in _gather(batches, publication.schema, min(memory // 8, GATHERED)):
        key_codes, valid = publication.keys.master_codes(batch)
        bucket = buckets(key_codes, publication.keys.exact, publication.bucket_count)
        bucket[~valid] = publication.bucket_count
        rows, null_keys = rows + batch.num_rows, null_keys + int((~valid).sum())
        size = size + batch.nbytes
        order = np.argsort(
            bucket.astype(np.int16) if publication.bucket_count < 2**15 else bucket, kind="stable"
        )
        edges = np.searchsorted(bucket[order], np.arange(publication.bucket_count + 1))
        runs.add(batch, order, edges)
        progress(batch.num_rows)
        del batch  # free it before the next batch is made
    runs.end()
    return rows, null_keys, size


def _gather(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int
) -> Iterator[pa.RecordBatch]:
    """Combine small batches and split large ones. The resulting batches have about `most` / 2 to
    `most` bytes, and the snapshot's schema."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        batch = batch.cast(schema) if batch.schema != schema else batch
        pieces = -(-batch.nbytes // most) or 1
        step = -(-batch.num_rows // pieces) or 1
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            held.append(piece)
            size += piece.nbytes
            if size >= most // 2:
                yield _together(held)
                size = 0
    if held:
        yield _together(held)


def _at_a_time(runs: Runs, memory: int, order: float) -> int:
    """Return the number of buckets that are sorted in parallel, which depends on the cores and the
    memory.

    order: bytes of order information per byte of rows, during the sort.
    """
    room = int((memory - runs.held) / max((2 + order) * runs.largest, 1))
    return max(min(len(os.sched_getaffinity(0)), room), 1)


def _sort(publication: Publication, runs: Runs, memory: int, bucket: int) -> BucketInfo:
    """Write a bucket from its rows."""
    with publication.writer(bucket) as writer:
        _sort_into(writer, publication, runs, memory)
        return writer.close()


def _sort_into(writer: BucketWriter, publication: Publication, runs: Runs, memory: int) -> None:
    """Write the rows of a writer's bucket. Rows that fit into memory are sorted at once; otherwise
    sorted pieces are merged."""
    bucket, size = writer.bucket, runs.size(writer.bucket)
    if size <= memory // 4:
        for rows in runs.take(bucket):
            writer.write(_by_code(publication, _together(rows)))
        return
    pieces = list[Path]()
    with naming(publication.root):
        for number, rows in enumerate(runs.take(bucket, memory // 8)):
            piece = _by_code(publication, _together(rows))
            pieces.append(publication.directory / f"piece-{bucket:05d}-{number}")
            # all pieces' blocks together take a quarter
            block = max(piece.num_rows * (memory // 4) // size, 1)
            with (
                pa.OSFile(str(pieces[-1]), "wb") as sink,
                pa.ipc.new_stream(sink, publication.schema) as stream,
            ):
                for start in range(0, piece.num_rows, block):
                    stream.write_batch(piece.slice(start, block))
    for rows in _merge(publication, [read_run(piece, 1) for piece in pieces]):
        writer.write(rows)
    for path in pieces:
        path.unlink()


def _together(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Combine the batches of a list into one, and clear the list."""
    whole = held[0] if len(held) == 1 else pa.concat_batches(held)
    held.clear()
    return whole


def _by_code(publication: Publication, rows: pa.RecordBatch) -> pa.RecordBatch:
    key_codes, _ = publication.keys.master_codes(rows)
    return rows.take(pa.array(np.argsort(key_codes, kind="stable")))


def _merge(
    publication: Publication, pieces: Sequence[Iterator[list[pa.RecordBatch]]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted pieces in the order of their key codes. Only one block of each piece
    is in memory."""
    blocks: dict[int, tuple[np.ndarray, pa.RecordBatch]] = {}
    waiting = list(range(len(pieces)))  # pieces that need their next block
    while True:
        for i in waiting:
            for (block,) in pieces[i]:
                blocks[i] = publication.keys.master_codes(block)[0], block
                break
        if not blocks:
            return
        # later blocks have no lower codes
        border = min(key_codes[-1] for key_codes, _ in blocks.values())
        parts, waiting = [], []
        for i, (key_codes, block) in list(blocks.items()):
            count = int(np.searchsorted(key_codes, border, side="right"))
            parts.append(block.slice(0, count))
            blocks[i] = key_codes[count:], block.slice(count)
            if count == len(key_codes):
                del blocks[i]
                waiting.append(i)
        yield _by_code(publication, pa.concat_batches(parts))
