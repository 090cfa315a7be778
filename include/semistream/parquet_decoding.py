"""Parquet files, read a little at a time, even if their row groups are large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING

from semistream.durable import naming
from semistream.scratch import task_directory

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow.parquet import FileMetaData, ParquetFile

# bytes that are read at a time: of a column; of all columns of a file, about; least of a column
COLUMN_BUFFER, FILE_BUFFER, LEAST_BUFFER = 1_000_000, 4_000_000, 16_384
SAMPLED_ROWS = 256  # from which the width of a row group's rows is estimated
# A decoded page of each column is held, and its dictionary. With more columns than FEW_COLUMNS,
# about HELD_BYTES are read at a time at most. PAGE: bytes of a page, as most writers have it.
FEW_COLUMNS, HELD_BYTES, PAGE = 32, 8_000_000, 1_000_000


def open_parquet(path: str | Path) -> ParquetFile:
    """Open a Parquet file so that it is read a little at a time, even if its row groups are large.
    By default PyArrow reads whole row groups ahead, and keeps them until the file is closed."""
    from pyarrow.parquet import ParquetFile, read_metadata

    of = read_metadata(path)
    buffer = max(min(COLUMN_BUFFER, FILE_BUFFER // max(of.num_columns, 1)), LEAST_BUFFER)
    # times of Spark 2 and of Hive exceed the range of nanoseconds
    return ParquetFile(
        path, metadata=of, buffer_size=buffer, pre_buffer=False, coerce_int96_timestamp_unit="us"
    )


def parquet_batches(
    file: ParquetFile, columns: Sequence[str], rows: int, size: int, threads: bool = False
) -> Iterator[RecordBatch]:
    """Yield the columns of a file in batches of at most `rows` rows and about ``size`` bytes in
    memory. Values may take many times more bytes in memory than in the file, for instance those of
    a dictionary."""
    for groups in _row_groups(file.metadata, rows):
        together = _read_together(file.metadata, groups, columns)
        first = [
            next(file.iter_batches(SAMPLED_ROWS, groups, names, use_threads=False), None)
            for names in together
        ]
        sampled = [batch for batch in first if batch is not None and batch.num_rows]
        if not sampled:
            continue
        width = max(
            sum(batch.nbytes / batch.num_rows for batch in sampled),
            _stored_width(file.metadata, groups, columns),
        )
        step = max(min(rows, int(size / max(width, 1))), 1)
        del first, sampled
        parts = [file.iter_batches(step, groups, names, use_threads=threads) for names in together]
        yield from parts[0] if len(parts) == 1 else _side_by_side(parts)


def _read_together(
    of: FileMetaData, groups: Sequence[int], columns: Sequence[str]
) -> Sequence[Sequence[str]]:
    """Split the columns into parts that are read one after the other. If the columns are few or
    their pages are small, there is only one part."""
    if len(columns) <= FEW_COLUMNS:
        return [columns]
    held = dict.fromkeys(columns, 0)
    for group in map(of.row_group, groups):
        size = dict.fromkeys(columns, 0)
        for chunk in map(group.column, range(group.num_columns)):
            if (name := chunk.path_in_schema.partition(".")[0]) in size:
                first = (
                    chunk.dictionary_page_offset
                    if chunk.has_dictionary_page
                    else chunk.data_page_offset
                )
                packed = chunk.total_uncompressed_size / max(chunk.total_compressed_size, 1)
                dictionary = int(packed * (chunk.data_page_offset - first))
                size[name] += (
                    min(chunk.total_uncompressed_size, dictionary + PAGE)
                    + dictionary
                    + LEAST_BUFFER
                )
        held = {name: max(held[name], size[name]) for name in held}
    parts: list[list[str]] = [[]]
    total = 0
    for name, size_of in held.items():
        if parts[-1] and total + size_of > HELD_BYTES:
            parts.append([])
            total = 0
        parts[-1].append(name)
        total += size_of
    return parts


def _side_by_side(parts: Iterable[Iterator[RecordBatch]]) -> Iterator[RecordBatch]:
    """Yield batches of all columns from parts that have the same rows and different columns.

    The parts are read one after the other, each into an unnamed temporary file. The batches are
    mapped from these files, and the system loads their pages on access.
    """
    import pyarrow as pa

    directory = task_directory() or gettempdir()
    with ExitStack() as stack:
        readers = []
        for part in parts:
            file = stack.enter_context(TemporaryFile(dir=directory))
            writer = None
            for batch in part:
                with naming(Path(directory)):
                    writer = writer or pa.ipc.new_stream(file, batch.schema)
                    writer.write_batch(batch)
            if writer is not None:
                with naming(Path(directory)):
                    writer.close()
                    file.flush()
                readers.append(pa.ipc.open_stream(pa.memory_map(f"/proc/self/fd/{file.fileno()}")))
        batches: list[RecordBatch | None] = [None] * len(readers)
        # a batch of a part with dictionaries ends at a row group's end
        while batches := [batch for batch in map(_next, readers, batches) if batch is not None]:
            if len(batches) < len(readers):
                raise pa.ArrowInvalid("its columns are not of the same number of rows")
            rows = min(batch.num_rows for batch in batches)
            yield pa.RecordBatch.from_arrays(
                [column for batch in batches for column in batch.slice(0, rows).columns],
                schema=pa.schema([field for batch in batches for field in batch.schema]),
            )
            batches = [batch.slice(rows) for batch in batches]


def _next(part: Iterator[RecordBatch], left: RecordBatch | None) -> RecordBatch | None:
    """Return the rest of a part's batch, or the next batch that has rows; None after the last
    batch. left: the rest."""
    while left is None or not left.num_rows:
        if (left := next(part, None)) is None:
            break
    return left


def _row_groups(of: FileMetaData, rows: int) -> Iterator[list[int]]:
    """Yield lists of consecutive row groups. Small row groups are combined up to `rows` rows."""
    groups, count = list[int](), 0
    for group in range(of.num_row_groups):
        more = of.row_group(group).num_rows
        if groups and count + more > rows:
            yield groups
            groups, count = [], 0
        groups, count = [*groups, group], count + more
    if groups:
        yield groups


def _stored_width(of: FileMetaData, groups: Sequence[int], columns: Sequence[str]) -> float:
    """Return the mean decompressed bytes of a row, for these columns and row groups, according to
    the file's metadata."""
    wanted, size = set(columns), 0
    for group in map(of.row_group, groups):
        chunks = (group.column(i) for i in range(group.num_columns))
        size += sum(
            c.total_uncompressed_size
            for c in chunks
            if c.path_in_schema.partition(".")[0] in wanted
        )
    return size / max(sum(of.row_group(group).num_rows for group in groups), 1)
