"""The registry of sinks. A new sink is a module in this package, and an entry in ``SINKS`` before
``DeltaSink``, which accepts every setting.

``Sink.stored`` returns the rows that a sink has stored, for the proof.
"""

from __future__ import annotations

from pathlib import Path

from semistream.errors import ConfigError
from semistream.job import Role
from semistream.settings import JoinType
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sinks.delta import DeltaSink
from semistream.streaming.sinks.sql import SqlSink
from semistream.streaming.sinks.warehouse import Warehouse

SINKS: list[type[Sink]] = [SqlSink, DeltaSink]  # the first one that accepts the setting is taken


def sink_kind(setting: str) -> type[Sink]:
    """Return the kind of sink that a setting names: ``sql``, a directory, a URI …"""
    return next(kind for kind in SINKS if kind.accepts(setting))


def check_late(role: Role, join_type: JoinType, sink: str) -> None:
    """Raise ConfigError if the setting ``late`` of a role cannot work: tuples to be resolved would
    already be facts, or the facts of inferred members could not be filled in. join_type: of a role
    without one; sink: the setting's value."""
    role.check_late(join_type)
    if role.late == "infer" and not sink_kind(sink).in_warehouse:
        raise ConfigError(
            f"dimensions.{role.name}.late",
            "must be reject or resolve where the sink is not sql, as the columns of facts are "
            "filled in when the master data come, which is done in the warehouse only",
            role.late,
            "Load into the warehouse's tables (sink: sql), or let late be resolve.",
        )


def open_sink(setting: str, warehouse: Warehouse, checkpoint: Path = Path()) -> Sink:
    """Return the sink that a setting names. checkpoint: the app's checkpoint; not needed to read
    stored rows. Raises ConfigError if the job has totals, and the sink does not compute them."""
    sink = sink_kind(setting).open(setting, warehouse, checkpoint)
    if warehouse.closing is not None and sink.closing is None:
        raise ConfigError(
            "sink",
            "must be sql where a job has totals, which are computed in "
            "the transaction that loads their rows",
            setting,
            "Load into the warehouse, or leave totals out.",
        )
    return sink
