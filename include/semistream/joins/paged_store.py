"""Tuples in numbered slots, whose values of variable length lie in linked pages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.joins import tuple_store_kernels as kernels
from semistream.joins.arena import mapped
from semistream.joins.tuple_store import ADDRESS, MOST_HEAP, Column, TupleStore


class PagedStore(TupleStore):
    """A tuple store whose heap is cut into pages of 2**shift bytes. link: int32[pages], the next
    page of each page, or -1. A value that does not fit into one page continues in the next one. The
    caller links the pages. If tuples that leave together have separate pages, they leave no gaps.
    """

    def __init__(self, schema: pa.Schema, slots: int, most: int, shift: int):
        """Reserve memory. most: total bytes of all pages."""
        self.shift, self.page_bytes = shift, (1 << shift) + ADDRESS  # with its link
        pages = min(most // self.page_bytes, MOST_HEAP >> shift)
        super().__init__(schema, slots, pages << shift)
        self.link = mapped(pages if self.variable else 0, np.int32)

    def _put(
        self,
        column: Column,
        values: tuple[np.ndarray, ...],
        rows: np.ndarray,
        slots: np.ndarray,
        at: np.ndarray,
    ) -> np.ndarray:
        """Copy the values of a column into pages, those of rows[i] to address at[i]. at: int64[n].
        Return the addresses after the copied values."""
        kernels.put_paged(
            *values,
            rows,
            column.starts,
            column.lengths,
            self.heap,
            self.link,
            self.shift,
            slots,
            at,
        )
        return at

    def _get(
        self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray, out: np.ndarray
    ) -> None:
        kernels.get_paged(starts, lengths, self.heap, self.link, self.shift, offsets, out)

    def readdress(self, slots: np.ndarray, moved: np.ndarray) -> None:
        """Update the addresses in these slots after pages were moved. moved: int32[pages], the new
        number of each page."""
        for column in self.variable:
            kernels.readdress(column.starts, column.lengths, slots, moved, self.shift)
