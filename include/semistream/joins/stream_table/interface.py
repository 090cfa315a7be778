"""The interface of every layout of H_S."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins.output import OUTPUT_BYTES
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.tuple_store import TupleStore, rows_in

NO_LIMIT = 2**62
SAVED_ROWS = 65_536  # tuples copied for a state at a time


class Found(NamedTuple):
    """The waiting tuples that have the key codes of a partition's tuples."""

    # int32[n], for each code a tuple that has it and is linked to the others; -1: none
    first: np.ndarray
    counts: np.ndarray  # int32[n], the tuples with each code
    total: int  # the sum of counts


class Ages(NamedTuple):
    """The seconds that waiting tuples have waited: the oldest one, and the others on average."""

    oldest: float = 0.0
    others: float = 0.0

    @classmethod
    def of(cls, oldest: float, total: float, tuples: int) -> Ages:
        """Return the ages of waiting tuples. total: the sum of the ages of all `tuples` tuples, the
        oldest included."""
        return cls(oldest, (total - oldest) / (tuples - 1) if tuples > 1 else oldest)


class StreamTable(ABC):
    """H_S and Q. A waiting tuple is identified by its slot, an integer.

    Each layout also has ``find``, which returns `Found`; ``pairs``, which yields the (rows of R,
    slots) of found tuples in portions of bounded size; and ``remove``, which returns
    `output.Removed`. Their arguments differ by layout.
    """

    key: np.ndarray  # int64[slots], the key code of each waiting tuple
    store: TupleStore  # their held columns, by slot
    opened = False
    strings = 0.0  # expected bytes of strings in a tuple
    size = 0  # bytes of the table

    def __init__(self, layout: StreamLayout):
        self.layout = layout

    @property
    @abstractmethod
    def live(self) -> int:
        """Number of waiting tuples."""

    @abstractmethod
    def open(self, strings: float, most: int) -> None:
        """Reserve memory for the table, at most `most` bytes. strings: expected bytes of strings in
        a tuple."""

    @abstractmethod
    def resize(self, size: int) -> int:
        """Change the table's size to `size` bytes. Return the size afterwards, which is less if
        more bytes would be useless, and more while waiting tuples need more."""

    @abstractmethod
    def fits(self, sizes: np.ndarray, most: int) -> int:
        """Return how many of the next tuples can enter now, at most `most`. sizes: int64[n], bytes
        of each tuple's strings."""

    @abstractmethod
    def append(self, buffer: StreamBuffer, count: int) -> int:
        """Add the first `count` tuples of the buffer, which `fits` has allowed. Return how many
        fitted."""

    @abstractmethod
    def ages(self) -> Ages:
        """Return the ages of the waiting tuples."""

    @abstractmethod
    def age_by(self, ages: Ages) -> None:
        """Move the arrival times of waiting tuples into the past by these ages, because the tuples
        were restored from a state and had already waited for this time."""

    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        """Return all stream columns of the tuples in these slots, int64[n]."""
        return self.layout.columns(self.key[tuples], self.store.get(tuples))

    @abstractmethod
    def tables(self) -> dict[str, pa.RecordBatchReader]:
        """Return the waiting tuples as the table ``waiting``; no table if H_S is not open."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the values that ``restore`` needs in addition to the tuples, as JSON values. The
        key ``strings`` is always present."""

    @abstractmethod
    def restore(self, waiting: pa.Table, values: dict[str, Any], spec: JoinSpec) -> None:
        """Restore waiting tuples. The table must be open. Raises ConfigError when they do not
        fit."""

    def drained(self) -> None:  # noqa: B027 - most layouts have nothing left
        """Record that the join is drained, so that no tuple waits any more."""

    def admit(self, buffer: StreamBuffer, most: int = NO_LIMIT) -> int:
        """Move the first tuples of the buffer into H_S, as many as fit and at most `most`. Return
        their number. The number is 0 if the first tuple does not even fit into an empty H_S."""
        count = self.fits(buffer.sizes, most)
        return self.append(buffer, count) if count > 0 else 0

    def saved(
        self,
        slots: np.ndarray | Iterable[np.ndarray],
        matched: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> pa.RecordBatchReader:
        """Return the tuples in these slots, int64[n] or portions of such arrays, for saving. The
        reader yields a portion at a time, and must be read before the table changes. matched: a
        function that returns a further column, bool[n]."""
        fields = [(f"s{i}", f.type) for i, f in enumerate(self.layout.schema)]
        most = min(SAVED_ROWS, rows_in(self.layout.schema, OUTPUT_BYTES, self.strings))
        portions = (
            part[first : first + most]
            for part in ([slots] if isinstance(slots, np.ndarray) else slots)
            for first in range(0, len(part), most)
        )
        schema = pa.schema([*fields, *([("matched", pa.bool_())] if matched else ())])

        def batches() -> Iterator[pa.RecordBatch]:
            for portion in portions:
                columns = self.get(portion)
                if matched:
                    columns = [*columns, pa.array(matched(portion))]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def admit_saved(self, batch: pa.RecordBatch, spec: JoinSpec, by_index: bool = True) -> None:
        """Add tuples of a saved state again. by_index: whether to look up their spans in R's index.
        Raises ConfigError when the tuples do not fit."""
        codes, _ = spec.keys.stream_codes(batch)
        buffer = StreamBuffer(self.layout, batch, codes)
        if by_index:
            buffer.look_up(spec.master)
        if self.admit(buffer) < len(codes):
            raise ConfigError(
                "memory",
                f"must hold the tuples that wait, more than {self.live:,}",
                spec.memory,
                "Give as much memory as before, or drain first.",
            )
