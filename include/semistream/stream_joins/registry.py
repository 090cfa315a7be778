"""The registry of stream-stream joins by name. A new join needs a file and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.joins.registry import Entry, find_entry
from semistream.settings import Settings
from semistream.stream_joins.base import StreamStreamJoin
from semistream.stream_joins.spec import StreamJoinSpec, Within, stream_join_spec


@dataclass(frozen=True)
class StreamJoinAlgorithm(Entry):
    """The entry of a stream-stream join."""

    package = "semistream.stream_joins"

    @property
    def make(self) -> Callable[[StreamJoinSpec, Settings], StreamStreamJoin]:
        return self._imported(self.operator)


REGISTRY: dict[str, StreamJoinAlgorithm] = {
    a.name: a
    for a in (
        StreamJoinAlgorithm(
            "xjoin",
            "XJoin",
            "xjoin.XJoin",
            "xjoin.XJoinParameters",
            "Urhan, Franklin: XJoin: A Reactively-Scheduled Pipelined Join Operator (2000)",
        ),
        StreamJoinAlgorithm(
            "pjoin",
            "PJoin",
            "pjoin.PJoin",
            "pjoin.PJoinParameters",
            "Ding, Mehta, Rundensteiner, Heineman: Joining Punctuated Streams (2004)",
        ),
    )
}


def open_stream_join(
    algorithm: str,
    *,
    memory: int,
    left: pa.Schema,
    right: pa.Schema,
    on: Sequence[tuple[str, str]],
    join_type: str = "inner",
    within: Within | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> StreamStreamJoin:
    """Open a stream-stream join. memory: M, bytes; on: (left column, right column) pairs;
    parameters: the algorithm's parameters. Raises ConfigError for settings that cannot work."""
    entry = find_entry(REGISTRY, algorithm)
    settings = entry.parameters.load(dict(parameters or {}))
    spec = stream_join_spec(entry.name, memory, left, right, on, join_type, within)
    return entry.make(spec, settings)
