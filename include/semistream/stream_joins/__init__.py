"""The stream-stream joins: of two streams, in bounded memory."""

from semistream.stream_joins.base import StreamJoinOutput, StreamStreamJoin
from semistream.stream_joins.spec import LEFT, RIGHT, stream_join_spec
from semistream.stream_joins.xjoin import XJoin

__all__ = ["LEFT", "RIGHT", "StreamJoinOutput", "StreamStreamJoin", "XJoin", "stream_join_spec"]
