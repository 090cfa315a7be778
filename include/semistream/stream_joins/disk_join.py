"""The data of a disk join: the tuples of one hash bucket that the join holds, the blocks with which
they are joined, and the pairs that are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.joins.arena import mapped, release
from semistream.stream_joins import kernels
from semistream.stream_joins.disk import Block, RunBlock
from semistream.stream_joins.spec import LEFT


class Blocks:
    """Several blocks with consecutive row numbers. together: the largest number of rows of blocks
    on disk whose columns are gathered at once. Gathering from many small blocks separately is slow;
    gathering at once needs a temporary copy of the blocks."""

    def __init__(self, together: int):
        self._together, self._blocks, self._rows = together, list[Block](), 0
        # first blocks of the groups that are gathered at once, and rows of the last group
        self._parts, self._last = list[int](), together

    def add(self, block: Block) -> int:
        """Add a block, and return the number of its first row."""
        n, on_disk = len(block.code), isinstance(block, RunBlock)
        if on_disk and self._last + n <= self._together:
            self._last += n
        else:
            self._parts.append(len(self._blocks))
            self._last = n if on_disk else self._together
        self._blocks.append(block)
        block.number, self._rows = self._rows, self._rows + n
        return block.number

    def columns(self, numbers: np.ndarray) -> list[pa.Array]:
        """Return the columns of the rows with these numbers, int64[n], in any order."""
        order = np.argsort(numbers) if (numbers[1:] < numbers[:-1]).any() else None
        parts = [
            self._columns(blocks, rows)
            for blocks, rows in self._split(
                numbers if order is None else numbers[order], self._parts
            )
        ]
        columns = [c[0] if len(c) == 1 else pa.concat_arrays(c) for c in zip(*parts, strict=True)]
        if order is None:
            return columns
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        at = pa.array(back)
        return [c.take(at) for c in columns]

    def match(self, numbers: np.ndarray) -> None:
        """Mark the rows with these ascending numbers as having had a partner."""
        for blocks, rows in self._split(numbers, range(len(self._blocks))):
            blocks[0].match(rows)

    def _split(
        self, numbers: np.ndarray, parts: Sequence[int]
    ) -> Iterator[tuple[list[Block], np.ndarray]]:
        """Yield (blocks, row numbers) for each group of blocks that has some of the rows. The row
        numbers are ascending, and relative to the group. parts: the first block of each group."""
        ends = [*parts[1:], len(self._blocks)]
        at = np.searchsorted(numbers, [self._blocks[k].number for k in [*parts, -1]])
        at[-1] = len(numbers)
        for k, end, (a, b) in zip(parts, ends, pairwise(at), strict=True):
            if a < b:
                yield self._blocks[k:end], numbers[a:b] - self._blocks[k].number

    @staticmethod
    def _columns(blocks: Sequence[Block], rows: np.ndarray) -> list[pa.Array]:
        """Return the columns of rows in adjacent blocks. rows: int64[n], row numbers relative to
        the first of these blocks."""
        batches = [block.batch for block in blocks if isinstance(block, RunBlock)]
        if len(batches) < 2:
            return blocks[0].columns(rows)
        table = pa.Table.from_batches(batches).select(range(batches[0].num_columns - 2))
        return [c.chunk(0) for c in table.take(pa.array(rows)).columns]


class HeldTuples:
    """The tuples of a hash bucket that a disk join holds at the same time, indexed by a hash table
    (see ``kernels``). rows: the largest number of held tuples."""

    ROW = 8 + 32 + 1  # bytes: two chains, the tuple's fields, whether it had a partner

    def __init__(self, rows: int, most: int):
        """Reserve memory. rows: the largest number of held tuples at first; most: the largest
        number ever."""
        self.rows = rows
        self.heads, self.h64 = mapped(2 * most, np.int32), mapped(most, np.int64, 4)
        self.h32 = self.h64.view(np.int32)
        self._matched = mapped(most, np.uint8)
        self.count, self.newest = 0, -1

    @property
    def bytes(self) -> int:
        return self.rows * self.ROW

    def fill(self, blocks: Iterable[Block], together: int) -> Iterator[None]:
        """Hold the tuples of the blocks, as many at a time as fit. Yield after each portion, so
        that the caller can join it; then mark the tuples that found a partner. together: see
        `Blocks`."""
        self._start(together)
        for block in blocks:
            row = 0
            while row < len(block.code):
                if self.count == self.rows:
                    yield from self._full()
                    self._start(together)
                number = self._blocks.add(block)
                self.count, row = kernels.hold(
                    block.code,
                    block.ats,
                    block.flags,
                    block.dts,
                    row,
                    number,
                    self.h64[: self.rows],
                    self.h32,
                    self.count,
                )
                self.newest = max(self.newest, block.newest)
        if self.count:
            yield from self._full()

    def _start(self, together: int) -> None:
        self._blocks, self.count, self.newest = Blocks(together), 0, -1

    def _full(self) -> Iterator[None]:
        self._matched[: self.count] = 0
        kernels.chain(self.h64[: self.count], self.h32, self.heads[: 2 * self.count])
        yield
        self._blocks.match(self._numbers(np.flatnonzero(self._matched[: self.count])))

    def pairs(
        self,
        history: np.ndarray,
        block: Block,
        block_history: np.ndarray,
        done: int,
        number: int,
        *at: Any,
    ) -> tuple[int, int, int]:
        """Call ``kernels.leftover_pairs`` for the held tuples and a block."""
        return kernels.leftover_pairs(
            self.heads[: 2 * self.count],
            self.h64,
            self.h32,
            history,
            block.code,
            block.ats,
            block.flags,
            block.dts,
            block_history,
            done,
            number,
            *at,
        )

    def release(self) -> None:
        """Return the memory beyond `rows` tuples to the operating system."""
        release(self.heads, 2 * self.rows)
        for array in (self.h64, self._matched):
            release(array, self.rows)

    def _numbers(self, which: np.ndarray) -> np.ndarray:
        return self.h32[which, 6].astype(np.int64)

    def columns(self, which: np.ndarray) -> list[pa.Array]:
        """Return the columns of the held tuples with these numbers, int64[n]."""
        return self._blocks.columns(self._numbers(which))

    def match(self, which: np.ndarray) -> None:
        self._matched[which] = 1


class Leftover(NamedTuple):
    """Pairs that a disk join found, as row numbers of the left stream and of the right stream."""

    blocks: tuple[HeldTuples | Blocks, HeldTuples | Blocks]
    rows: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, side: int, held: HeldTuples, blocks: Blocks, pairs: np.ndarray) -> Leftover:
        """Return the pairs in the order (left, right). held: tuples of the side `side`; blocks:
        blocks of the other side; pairs: int64[2, n], the numbers of held tuples and of rows of the
        blocks."""
        if side == LEFT:
            return cls((held, blocks), (pairs[0], pairs[1]))
        return cls((blocks, held), (pairs[1], pairs[0]))
