"""What every layout of H_S is to the parts that use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError
from semistream.joins.output import OUTPUT_BYTES
from semistream.joins.spec import JoinSpec
from semistream.joins.stream_buffer import StreamBuffer, StreamLayout
from semistream.joins.tuple_store import rows_in

NO_LIMIT = 2**62
SAVED_ROWS = 65_536  # tuples that are copied for a state at a time


class Found(NamedTuple):
    """What of H_S has the key codes of a partition's tuples."""

    # int32[n], a tuple with each code, from which links lead to the others; -1: none
    first: np.ndarray
    counts: np.ndarray  # int32[n], the tuples with each code
    total: int  # all together


class Ages(NamedTuple):
    """Seconds since the arrival of tuples: of the oldest one, and the mean of the others."""

    oldest: float = 0.0
    others: float = 0.0

    @classmethod
    def of(cls, oldest: float, total: float, tuples: int) -> Ages:
        """total: of so many tuples, the oldest included."""
        return cls(oldest, (total - oldest) / (tuples - 1) if tuples > 1 else oldest)


class StreamTable(ABC):
    """H_S and Q. A waiting tuple is known by its slot, an integer.

    Beside this, each layout has ``find``, which gives `Found`; ``pairs``, the (rows of R, slots) of
    what was found, in portions of bounded size; and ``remove``, which gives `output.Removed`. What
    they find and remove differs.
    """

    opened = False
    strings = 0.0  # bytes of strings to expect of a tuple
    size = 0  # bytes that it has

    def __init__(self, layout: StreamLayout):
        self.layout = layout

    @property
    @abstractmethod
    def live(self) -> int:
        """Tuples that wait."""

    @abstractmethod
    def open(self, strings: float, most: int) -> None:
        """Make it, for at most so many bytes, with `strings` bytes of strings expected of a
        tuple."""

    @abstractmethod
    def resize(self, size: int) -> int:
        """Have so many bytes from now on. Returns the bytes that it has: fewer than allowed where
        it has no use for more, more while more waits."""

    @abstractmethod
    def fits(self, sizes: np.ndarray, most: int) -> int:
        """How many of the coming tuples, with these bytes of strings each, int64[n], can enter now,
        at most `most`."""

    @abstractmethod
    def append(self, buffer: StreamBuffer, count: int) -> int:
        """Add the first `count` tuples of the buffer, which `fits` has let in. Returns how many
        there was room for."""

    @abstractmethod
    def ages(self) -> Ages:
        """How long what waits has waited."""

    @abstractmethod
    def age_by(self, ages: Ages) -> None:
        """What waits came out of a saved state: it has waited so long."""

    @abstractmethod
    def get(self, tuples: np.ndarray) -> list[pa.Array]:
        """All columns of the stream of the tuples in these slots, int64[n]."""

    def admit(self, buffer: StreamBuffer, most: int = NO_LIMIT) -> int:
        """Let in the first tuples of the buffer, as many as fit and at most `most`. Returns how
        many: none of them, when it is empty and the first one is too long."""
        count = self.fits(buffer.sizes, most)
        return self.append(buffer, count) if count > 0 else 0

    def saved(self, slots: np.ndarray | Iterable[np.ndarray],
              matched: Callable[[np.ndarray], np.ndarray] | None = None) -> pa.RecordBatchReader:
        """The tuples in these slots, int64[n], or in portions of such, for a state: to be read
        before the table changes, a portion at a time. matched: gives a further column, bool[n]."""
        fields = [(f"s{i}", f.type) for i, f in enumerate(self.layout.schema)]
        most = min(SAVED_ROWS, rows_in(self.layout.schema, OUTPUT_BYTES, self.strings))
        portions = (part[first:first + most]
                    for part in ([slots] if isinstance(slots, np.ndarray) else slots)
                    for first in range(0, len(part), most))
        schema = pa.schema([*fields, *([("matched", pa.bool_())] if matched else ())])

        def batches() -> Iterator[pa.RecordBatch]:
            for slots in portions:
                columns = self.get(slots)
                if matched:
                    columns = [*columns, pa.array(matched(slots))]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def admit_saved(self, batch: pa.RecordBatch, spec: JoinSpec, by_index: bool = True) -> None:
        """Let tuples of a saved state in again. by_index: with their spans of R. Raises ConfigError
        when they do not fit."""
        codes, _ = spec.keys.stream_codes(batch)
        buffer = StreamBuffer(self.layout, batch, codes)
        if by_index:
            buffer.look_up(spec.master)
        if self.admit(buffer) < len(codes):
            raise ConfigError("memory", f"must hold the tuples that wait, more than {self.live:,}",
                              spec.memory, "Give as much memory as before, or drain first.")
