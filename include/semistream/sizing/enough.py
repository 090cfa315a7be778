"""An M that suffices, for the refusal of one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from semistream.errors import NotEnoughMemory

T = TypeVar("T")


def with_enough(choose: Callable[[int], T], memory: int, joins: int) -> T:
    """Return what ``choose`` returns for an M of ``memory`` bytes, of which several joins have
    shares.

    Raises NotEnoughMemory with an M for which ``choose`` does not raise it, at most twice as large
    as needed. It is found by trying: what a join lacks is known for its present share only, and the
    shares depend on M.
    """
    try:
        return choose(memory)
    except NotEnoughMemory as e:
        if joins == 1:
            raise
        refusal, least = e, e.least
    while True:
        try:
            choose(least)
        except NotEnoughMemory as e:
            least = max(2 * least, e.least)
        else:
            raise NotEnoughMemory(least, memory, refusal.what, refusal.remedy)
