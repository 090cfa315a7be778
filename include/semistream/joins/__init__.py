"""The semi-stream joins. ``REGISTRY`` lists them; ``sizing.open_join`` makes one.

The registry is light; the rest, with Numba, is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from semistream.joins.registry import REGISTRY, Algorithm

if TYPE_CHECKING:
    from semistream.joins.base import JoinOutput, JoinState, JoinStatistics, SemiStreamJoin

__all__ = ["REGISTRY", "Algorithm", "JoinOutput", "JoinState", "JoinStatistics", "SemiStreamJoin"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from semistream.joins import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
