"""The contract between sources, tasks and the proof. It says how the tuples of a micro-batch come
to the tasks: as `Splits`, which tasks read themselves, or as `Records`, which Spark brings and
tasks decode. It also says how tuples are read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.streaming.sources.numbered import Numbered

RECOUNT_ROWS = 100_000  # tuples counted at a time
INFERRED = {b"types": b"inferred"}  # metadata of texts whose types a load infers, see `cast_cells`


class Split(Protocol):
    """A piece of a source that can be read separately, and more than once. It is pickled and sent
    to tasks.

    size: its approximate bytes; negative if unknown.
    """

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Split)


class SplitReader(ABC, Generic[S]):
    """The reader of a source's splits. It is pickled and sent to tasks. schema: schema of the
    tuples."""

    schema: pa.Schema

    @abstractmethod
    def read(self, splits: Sequence[S]) -> Iterator[Numbered]:
        """Read splits one after the other. Raises SemistreamError for a split that cannot be
        read."""

    def check(self, splits: Sequence[S]) -> None:
        """Raise ConfigError for a split that does not have the stream's columns."""

    def is_empty(self, split: S) -> bool:
        """Return whether a split certainly has no tuples."""
        return split.size == 0

    def count(self, splits: Sequence[S]) -> int:
        """Count the tuples of splits, unparsable ones included."""
        return sum(n.chunk.rows.num_rows + len(n.chunk.rejected) for n in self.read(splits))

    def replicated(self, splits: Sequence[S], tasks: int) -> bool:
        """Return whether it is cheaper if each of several tasks reads all splits and keeps the
        tuples of its partition than if the tasks exchange tuples."""
        return False


class Decoder(Protocol):
    """The decoder of the records that Spark brings. It is pickled and sent to tasks.

    schema: schema of the tuples; most_sampled: the largest number of records that is worth decoding
    for a sample.
    """

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def most_sampled(self) -> int: ...

    def decode(self, records: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
        """Decode records to tuples."""


@dataclass(frozen=True)
class Splits(Generic[S]):
    """A stream's tuples in a micro-batch, in splits that tasks read."""

    reader: SplitReader[S]
    splits: Sequence[S]

    def check(self) -> None:
        """Raise ConfigError for a split that does not have the stream's columns."""
        self.reader.check(self.splits)

    def is_empty(self) -> bool:
        """Return whether there are certainly no tuples."""
        return all(map(self.reader.is_empty, self.splits))

    def sample(self, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples batch by batch. A split is read only when it is reached. `most` is not
        used: the caller stops when it has enough tuples."""
        for numbered in self.reader.read(self.splits):
            yield numbered.chunk.rows

    def count(self) -> int:
        """Count the tuples, unparsable ones included."""
        return self.reader.count(self.splits)


@dataclass(frozen=True)
class Records:
    """A stream's tuples in a micro-batch, as records that Spark brings and tasks decode."""

    frame: DataFrame
    decoder: Decoder

    def check(self) -> None:
        """Do nothing, because records always have the columns of Spark's source."""

    def is_empty(self) -> bool:
        """Return False, because only Spark could find out."""
        return False

    def sample(self, most: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of at most `most` records."""
        table = self.frame.limit(min(most, self.decoder.most_sampled)).toArrow()
        for numbered in self.decoder.decode(iter(table.combine_chunks().to_batches())):
            yield numbered.chunk.rows

    def count(self) -> int:
        """Count the records."""
        return self.frame.count()


@dataclass(frozen=True)
class Part:
    """The part of a source that one micro-batch reads. start: the offset after which it begins,
    None for the source's beginning; end: its last offset, None if the source has had no data yet;
    files: the paths, for a source of files."""

    start: Any
    end: Any
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, offsets: dict[str, Any], files: Sequence[str] = ()) -> Part:
        """Return the part that a batch's ``load_commits.source_offsets`` describe."""
        start, end = (
            known[0] if known else None for known in (offsets.get("start"), offsets.get("offsets"))
        )
        return cls(start, end, tuple(files))


class CannotRecount(Exception):
    """A part of a source cannot be read again; the message says why."""


@dataclass(frozen=True)
class Recount:
    """A split that the proof reads again. read(columns): yields (number of rows, a batch of these
    columns with the rows in which they can be read); located(columns): the same for a source of
    files, but with the line of each row, int64[n], instead of the number of rows, as in
    ``files.source.Rejected``. Both raise CannotRecount."""

    label: str
    read: Callable[[tuple[str, ...]], Iterator[tuple[int, pa.RecordBatch]]]
    located: Callable[[tuple[str, ...]], Iterator[tuple[np.ndarray, pa.RecordBatch]]] | None = None
