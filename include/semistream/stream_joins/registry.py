"""Every stream-stream join by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.stream_joins.base import StreamStreamJoin
from semistream.stream_joins.events import Monitor
from semistream.stream_joins.pjoin import PJoin
from semistream.stream_joins.spec import Within, stream_join_spec
from semistream.stream_joins.xjoin import XJoin

REGISTRY: dict[str, type[XJoin] | type[PJoin]] = {"xjoin": XJoin, "pjoin": PJoin}
THRESHOLDS = ("activation_threshold", "activation_seconds", "purge_threshold", "propagate_count",
              "propagate_seconds")


def open_stream_join(algorithm: str, *, memory: int, left: pa.Schema, right: pa.Schema,
                     on: Sequence[tuple[str, str]], join_type: str = "inner",
                     within: Within | None = None,
                     parameters: Mapping[str, Any] | None = None) -> StreamStreamJoin:
    """memory: M, bytes; on: (left column, right column) pairs; parameters: thresholds of
    ``Monitor``. Raises ConfigError for whatever cannot work."""
    if algorithm not in REGISTRY:
        raise ConfigError("algorithm", f"must be one of {', '.join(REGISTRY)}", algorithm,
                          "Choose one.")
    given = dict(parameters or {})
    if unknown := sorted(set(given) - set(THRESHOLDS)):
        raise ConfigError("parameters", f"must be of {', '.join(THRESHOLDS)}", unknown[0],
                          "Leave it out.")
    kinds = {f.name: f.default for f in fields(Monitor)}
    for name, value in given.items():
        if (isinstance(value, bool)
                or not isinstance(value, (int, float) if isinstance(kinds[name], float) else int)
                or value < 0):
            raise ConfigError(name, "must be a number that is not negative", value, "Correct it.")
    spec = stream_join_spec(algorithm, memory, left, right, on, join_type, within)
    return REGISTRY[algorithm](spec, Monitor(**given))
