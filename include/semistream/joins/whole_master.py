"""R whole in memory: its key codes with a hash table, and the columns that a join fetches.

For a snapshot, these arrays are built once per machine. They lie in files in the version's
directory, which every process maps read-only, so that all operators on the machine share one copy
in memory::

    <version>/whole/keys.arrow      int64[k], the distinct key codes
    <version>/whole/table.arrow     int64[m], the hash table over them (``key_table``)
    <version>/whole/firsts.arrow    int64[k + 1], where each key's tuples begin
    <version>/whole/column-3.arrow  a column of R, ordered like the keys

Each file is an Arrow stream of one batch, and its XXH3 checksum. A damaged file is rebuilt, because
all its content can be read from R.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from semistream.compiled import read_only
from semistream.durable import replacing
from semistream.errors import ConfigError
from semistream.joins.disk_partition import expand
from semistream.joins.key_table import TABLE_BYTES, build, find, table_size
from semistream.joins.output import Pairs, portions
from semistream.joins.spec import JoinSpec
from semistream.joins.stored_types import as_stored, is_variable, stored_type
from semistream.master.relation import MasterRelation
from semistream.master.snapshot import SnapshotRelation, is_fixed

KEY = 8 + TABLE_BYTES  # bytes of a key
CHECKSUM = 8  # bytes at a file's end
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
# an array of texts addresses its values by 32 bits, as does the hash table
MOST = 2**31 - 1


def whole_bytes(spec: JoinSpec) -> float:
    """Estimate the bytes of R whole in memory: the key and the fetched columns of each tuple."""
    master = spec.master  # perhaps only some buckets of it
    rows = (
        master.manifest.tuple_count if isinstance(master, SnapshotRelation) else master.tuple_count
    )
    return rows * (KEY + column_bytes(spec, spec.fetched))


def column_bytes(spec: JoinSpec, columns: Collection[str]) -> float:
    """Estimate the bytes of these columns in a tuple. R's texts are assumed to be of equal average
    length in all text columns."""
    schema = spec.master.schema
    texts = [f.name for f in schema if is_variable(stored_type(f.name, f.type))]
    # v_R on disk, without key codes, numbers, the offsets of strings, and the heads of pages
    fixed = 8 + sum(map(_width, schema.types)) + _head_bytes(spec.master)
    length = max(spec.master.tuple_bytes - fixed, 0.0)
    return sum(
        _width(schema.field(c).type) + (length / len(texts) if c in texts else 0.0) for c in columns
    )


def _head_bytes(master: MasterRelation) -> float:
    """Return the bytes of page headers on disk, per tuple."""
    if not isinstance(master, SnapshotRelation) or not master.tuple_count:
        return 0.0
    head = pa.RecordBatch.from_pylist([], master.schema).serialize().size
    return master.with_partition(1).partition_count * head / master.tuple_count


def _fixed_bytes(spec: JoinSpec) -> float:
    """Return the bytes of a tuple's fetched columns, without the texts themselves."""
    return sum(map(_width, spec.fetched_schema.types))


def _width(kind: pa.DataType) -> float:
    return kind.bit_width / 8 if is_fixed(kind) else 4.0


class WholeMaster:
    """R whole in memory.

    keys: int64[k], distinct; firsts: int64[k + 1], None if no key has two tuples; columns: the
    columns in ``spec.fetched``; size: total bytes.
    """

    firsts: np.ndarray | None = None

    def __init__(self, spec: JoinSpec, most: int):
        """Map the files of R, and build missing ones. most: the bytes that R may take. Raises
        ConfigError when R needs more."""
        self._spec, self._most, self.size = spec, most, 0
        relation = spec.master
        if isinstance(relation, SnapshotRelation):  # all buckets, even if the join owns only some
            relation = SnapshotRelation(relation.directory)
        self._take(0, relation.tuple_count * _fixed_bytes(spec))  # before anything is read
        try:
            codes = _Codes(relation)
            self.keys = self._array(relation, "keys", lambda: codes.distinct)
            if len(self.keys) < relation.tuple_count:
                self.firsts = self._array(relation, "firsts", lambda: codes.firsts)
            self._table = self._array(relation, "table", lambda: _table(self.keys))
            self.columns = [
                self._held(
                    relation,
                    f"column-{relation.schema.get_field_index(name)}",
                    partial(_column, relation, field, codes),
                )
                for name, field in zip(spec.fetched, spec.fetched_schema, strict=True)
            ]
        finally:
            if relation is not spec.master:
                relation.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return WholeMaster, (self._spec, self._most)  # another process maps the same files

    def find(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (firsts int64[n], counts int64[n]): the first tuple of each key code, and the
        number of its tuples, which is 0 if R lacks the code."""
        at = np.empty(len(codes), np.int32)
        find(read_only(codes), self._table, self.keys, at)
        known = at >= 0
        if self.firsts is None:
            return at.astype(np.int64), known.astype(np.int64)
        first = np.where(known, self.firsts[at], 0)
        return first, np.where(known, self.firsts[at + 1] - first, 0)

    def pairs(self, firsts: np.ndarray, counts: np.ndarray) -> Pairs:
        """Yield (rows, tuples of R) in portions. Each row has counts[row] tuples from firsts[row]
        on."""
        if self.firsts is None:
            rows = np.flatnonzero(counts)
            yield rows, firsts[rows]
            return
        for first, last, _ in portions(counts):
            rows, nth = expand(counts[first:last])
            rows += first
            yield rows, firsts[rows] + nth

    def take(self, tuples: np.ndarray) -> list[pa.Array]:
        """Return the columns of these tuples, int64[n]."""
        rows = pa.array(tuples)
        return [column.take(rows) for column in self.columns]

    def _array(
        self, relation: MasterRelation, name: str, make: Callable[[], np.ndarray]
    ) -> np.ndarray:
        held = self._held(relation, name, lambda: pa.array(make()))
        array = np.frombuffer(held.buffers()[1], np.int64, len(held)) if len(held) else _NONE
        return read_only(array)

    def _held(self, relation: MasterRelation, name: str, make: Callable[[], pa.Array]) -> pa.Array:
        """Return an array of R. The array is mapped from its file, which is written first if it is
        missing. For an R without a directory, the array is built in memory. make: a function that
        builds the array."""
        if not isinstance(relation, SnapshotRelation):
            array = make()
            self._take(array.nbytes)
            return array
        path = relation.directory / "whole" / f"{name}.arrow"
        if (found := _map(path)) is None:
            try:
                with _alone(path.parent):
                    if (found := _map(path)) is None:  # no other process has written it either
                        array = make()
                        self._take(0, array.nbytes)
                        _write(path, array)
                        found = _map(path)
            except OSError as e:
                if e.errno not in NOT_WRITABLE:
                    raise
                array = make()  # a snapshot that this user may only read
                found = array, array.nbytes
        assert found is not None
        array, size = found
        self._take(size)
        return array

    def _take(self, size: int, more: float = 0.0) -> None:
        """Add `size` to the bytes that R takes. Raises ConfigError if R would exceed its memory.
        more: further bytes that R will need."""
        self.size += size
        if self.size + more > self._most:
            raise ConfigError(
                "memory",
                f"must hold {self._spec.master.name} whole, more than "
                f"{int(self.size + more) - 1:,} bytes",
                self._most,
                "Give more memory, or another algorithm.",
            )


_NONE = np.empty(0, np.int64)


class _Codes:
    """R's key codes, which are read on first use.

    distinct: int64[k], in the order of their occurrence; firsts: int64[k + 1]; order: int64[n], the
    order in which tuples of the same code are adjacent, None if they already are.
    """

    def __init__(self, relation: MasterRelation):
        self._relation, self._read = relation, False
        self._distinct, self._firsts = _NONE, np.zeros(1, np.int64)
        self._order: np.ndarray | None = None

    @property
    def distinct(self) -> np.ndarray:
        self._fill()
        return self._distinct

    @property
    def firsts(self) -> np.ndarray:
        self._fill()
        return self._firsts

    @property
    def order(self) -> np.ndarray | None:
        # a snapshot has its tuples in the order of their codes
        if not isinstance(self._relation, SnapshotRelation):
            self._fill()
        return self._order

    def _fill(self) -> None:
        relation = self._relation
        if self._read or not relation.tuple_count:
            return
        self._read = True
        codes = np.concatenate([relation.read_codes(n) for n in range(relation.partition_count)])
        if not isinstance(relation, SnapshotRelation):
            self._order = np.argsort(codes, kind="stable")
            codes = codes[self._order]
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
        self._distinct, self._firsts = codes[starts], np.append(starts, len(codes))


def _table(keys: np.ndarray) -> np.ndarray:
    table = np.empty(table_size(len(keys)), np.int64)
    build(table, keys)
    return table


def _column(relation: MasterRelation, field: pa.Field, codes: _Codes) -> pa.Array:
    """Read a column of R, in the order of the codes. Raises ConfigError for texts that are too long
    for one array."""
    schema = pa.schema([field])
    pages = [
        as_stored(page, schema).column(0)
        for number in range(relation.partition_count)
        for page in relation.pages(number, [field.name])
    ]
    if sum(page.nbytes for page in pages) > MOST:
        raise ConfigError(
            "algorithm",
            f"must not hold {relation.name} whole: {field.name} has more than {MOST:,} bytes",
            "hash-join",
            "Choose another algorithm, or auto.",
        )
    column = pa.concat_arrays(pages) if pages else pa.array([], field.type)
    return column if codes.order is None else column.take(pa.array(codes.order))


def _write(path: Path, array: pa.Array) -> None:
    batch = pa.record_batch([array], names=["values"])
    with replacing(path, "w+b", flush=False) as file:
        with pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            checksum = xxh3_64_intdigest(data)
        file.write(checksum.to_bytes(CHECKSUM, "little"))


def _map(path: Path) -> tuple[pa.Array, int] | None:
    """Return the array in a file, mapped read-only, and its size in bytes; None if the file is
    missing or damaged."""
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return None
    view = memoryview(data)[:-CHECKSUM]
    if xxh3_64_intdigest(view).to_bytes(CHECKSUM, "little") != data[-CHECKSUM:]:
        return None
    batch = pa.ipc.open_stream(pa.py_buffer(view)).read_next_batch()
    return batch.column(0), len(data)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Create a directory, and keep other processes from writing to it inside the block."""
    directory.mkdir(exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
