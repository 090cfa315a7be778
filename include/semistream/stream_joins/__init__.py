"""Joins of two streams in bounded memory."""

from semistream.stream_joins.base import Propagated, StreamJoinOutput, StreamStreamJoin
from semistream.stream_joins.events import Component, Event, Monitor, Registry
from semistream.stream_joins.pjoin import PJoin
from semistream.stream_joins.registry import REGISTRY, open_stream_join
from semistream.stream_joins.spec import LEFT, RIGHT, Within, stream_join_spec
from semistream.stream_joins.xjoin import XJoin

__all__ = [
    "LEFT",
    "REGISTRY",
    "RIGHT",
    "Component",
    "Event",
    "Monitor",
    "PJoin",
    "Propagated",
    "Registry",
    "StreamJoinOutput",
    "StreamStreamJoin",
    "Within",
    "XJoin",
    "open_stream_join",
    "stream_join_spec",
]
