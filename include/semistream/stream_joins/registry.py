"""The registry of stream-stream joins by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.stream_joins.base import StreamStreamJoin
from semistream.stream_joins.events import Component, Event, Monitor
from semistream.stream_joins.pjoin import PJoin
from semistream.stream_joins.spec import Within, stream_join_spec
from semistream.stream_joins.xjoin import XJoin

REGISTRY: dict[str, type[XJoin] | type[PJoin]] = {"xjoin": XJoin, "pjoin": PJoin}
THRESHOLDS = ("activation_threshold", "activation_seconds", "purge_threshold", "propagate_count",
              "propagate_seconds")
# modes of punctuation propagation (section 3.5)
MODES = {"propagate": ("push", "pull"), "index": ("lazy", "eager")}


def open_stream_join(algorithm: str, *, memory: int, left: pa.Schema, right: pa.Schema,
                     on: Sequence[tuple[str, str]], join_type: str = "inner",
                     within: Within | None = None,
                     parameters: Mapping[str, Any] | None = None) -> StreamStreamJoin:
    """Open a stream-stream join. memory: M, bytes; on: (left column, right column) pairs;
    parameters: thresholds of ``Monitor``, and MODES. Raises ConfigError for settings that cannot
    work."""
    if algorithm not in REGISTRY:
        raise ConfigError("algorithm", f"must be one of {', '.join(REGISTRY)}", algorithm,
                          "Choose one.")
    given = dict(parameters or {})
    if unknown := sorted(set(given) - {*THRESHOLDS, *MODES}):
        raise ConfigError("parameters", f"must be of {', '.join((*THRESHOLDS, *MODES))}",
                          unknown[0], "Leave it out.")
    modes = _modes(algorithm, given)
    kinds = {f.name: f.default for f in fields(Monitor)}
    for name, value in given.items():
        if (isinstance(value, bool)
                or not isinstance(value, (int, float) if isinstance(kinds[name], float) else int)
                or value < 0):
            raise ConfigError(name, "must be a number that is not negative", value, "Correct it.")
    if modes["propagate"] == "pull":
        given |= {"pull": True, "propagate_count": 0, "propagate_seconds": math.inf}
    spec = stream_join_spec(algorithm, memory, left, right, on, join_type, within)
    join = REGISTRY[algorithm](spec, Monitor(**given))
    if modes["index"] == "eager":
        join.registry.set(Event.NEW_PUNCT_READY, [Component.INDEX_BUILD])
    return join


def _modes(algorithm: str, given: dict[str, Any]) -> dict[str, str]:
    """Remove the modes from the parameters, and return them."""
    found = {name: given.pop(name) for name in MODES if name in given}
    for name, value in found.items():
        if value not in MODES[name]:
            raise ConfigError(name, f"must be {' or '.join(MODES[name])}", value, "Choose one.")
        if algorithm != "pjoin":
            raise ConfigError("algorithm", f"must be pjoin with {name}", algorithm,
                              "Leave it out.")
    pushed = [name for name in ("propagate_count", "propagate_seconds") if name in given]
    if found.get("propagate") == "pull" and pushed:
        raise ConfigError(pushed[0], "must be left out where propagation is pulled",
                          given[pushed[0]], "Leave it out, or give propagate push.")
    return {name: values[0] for name, values in MODES.items()} | found
