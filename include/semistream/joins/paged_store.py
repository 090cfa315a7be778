"""Tuples in numbered slots, whose values of variable length lie in linked pages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.joins import tuple_store_kernels as kernels
from semistream.joins.arena import mapped
from semistream.joins.tuple_store import ADDRESS, MOST_HEAP, Column, TupleStore


class PagedStore(TupleStore):
    """The heap is cut into pages of 2**shift bytes; link has the page behind each, int32[pages], or
    -1. A value goes on in the page behind, where it does not fit into one. Who owns the pages links
    them: tuples that leave together leave no gaps when they have pages of their own.
    """

    def __init__(self, schema: pa.Schema, slots: int, most: int, shift: int):
        """most: bytes of all pages."""
        self.shift, self.page_bytes = shift, (1 << shift) + ADDRESS  # with its link
        pages = min(most // self.page_bytes, MOST_HEAP >> shift)
        super().__init__(schema, slots, pages << shift)
        self.link = mapped(pages if self.variable else 0, np.int32)

    def _put(self, column: Column, values: tuple[np.ndarray, ...], rows: np.ndarray,
             slots: np.ndarray, at: np.ndarray) -> np.ndarray:
        """at: int64[n], where the next value of each goes; it is moved on."""
        kernels.put_paged(*values, rows, column.starts, column.lengths, self.heap, self.link,
                          self.shift, slots, at)
        return at

    def _get(self, starts: np.ndarray, lengths: np.ndarray, offsets: np.ndarray,
             out: np.ndarray) -> None:
        kernels.get_paged(starts, lengths, self.heap, self.link, self.shift, offsets, out)

    def readdress(self, slots: np.ndarray, moved: np.ndarray) -> None:
        """Follow pages that were moved, to moved[page], int32[pages], in what these slots have."""
        for column in self.variable:
            kernels.readdress(column.starts, column.lengths, slots, moved, self.shift)
