"""The semi-stream joins. ``REGISTRY`` lists them; ``open_join`` makes one."""

from semistream.joins.base import JoinOutput, JoinState, JoinStatistics, SemiStreamJoin
from semistream.joins.registry import REGISTRY, Algorithm, open_join

__all__ = ["REGISTRY", "Algorithm", "JoinOutput", "JoinState", "JoinStatistics", "SemiStreamJoin", "open_join"]
