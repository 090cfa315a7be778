"""Selection of the most frequent join values. It works in portions, because arrays over all values
would be large compared with H_R."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

PORTION = 65_536  # join values that are examined, saved or restored at a time
DIGITS = 1 << 16
FEW = DIGITS // 8  # join values up to which sorting is faster than counting so many digits

# frequencies, tuples and bytes of a portion of join values, numbers[n] each
Numbers = Callable[[slice], tuple[np.ndarray, np.ndarray, np.ndarray]]


def slices(n: int) -> Iterator[slice]:
    """Yield slices that cover n join values, one portion in each slice."""
    return (slice(first, min(first + PORTION, n)) for first in range(0, n, PORTION))


def per_tuple(frequencies: np.ndarray, tuples: np.ndarray) -> np.ndarray:
    """Return the frequencies per master tuple, float64[n]. A join value without master tuples
    counts as having one."""
    return frequencies / np.maximum(tuples, 1)


def most_frequent(n: int, numbers_of: Numbers, tuples: int, size: float) -> np.ndarray:
    """Return which of n join values are chosen, bool[n]: those with the highest frequencies per
    tuple, as many as fit into `tuples` tuples and `size` bytes. Among equally frequent values the
    first ones are chosen. numbers_of: a function that returns the frequencies, tuples and bytes of
    a portion's values; it is called at most three times for each portion."""
    room, cut = np.array([[tuples], [size]], float), 0  # cut: the rank of the first without room
    if n <= FEW:
        rank, needs = _ranked(*numbers_of(slice(0, n)))
        order = np.argsort(-rank, kind="stable")
        kept = np.empty(n, bool)
        kept[order] = (np.cumsum(needs[:, order], axis=1) <= room).all(axis=0)
        return kept
    for shift in (16, 0):  # its upper and its lower digit
        need = np.zeros((2, DIGITS))
        for part in slices(n):
            rank, needs = _ranked(*numbers_of(part))
            mine = rank >> shift + 16 == cut
            for total, each in zip(need, needs, strict=True):
                total += np.bincount(rank[mine] >> shift & DIGITS - 1, each[mine], DIGITS)
        need = need[:, ::-1]  # the most frequent first
        ends = np.cumsum(need, axis=1)
        over = (ends > room).any(axis=0)
        if not over.any():
            return np.ones(n, bool)
        first = int(over.argmax())
        room -= ends[:, [first]] - need[:, [first]]
        cut = cut << 16 | DIGITS - 1 - first
    kept = np.empty(n, bool)
    for part in slices(n):
        rank, needs = _ranked(*numbers_of(part))
        kept[part], equal = rank > cut, rank == cut
        ends = np.cumsum(needs[:, equal], axis=1)
        kept[part][equal] = (ends <= room).all(axis=0)
        room -= needs[:, equal].sum(axis=1, keepdims=True)
    return kept


def _ranked(
    frequencies: np.ndarray, tuples: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (ranks, needs) of join values. ranks: int64[n], 32-bit numbers in the order of the
    frequencies per tuple; needs: int64[2, n], the tuples and the bytes of each value."""
    return (
        per_tuple(frequencies, tuples).astype(np.float32).view(np.uint32).astype(np.int64),
        np.array([tuples, size], np.int64),
    )
