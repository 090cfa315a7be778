"""The plan with which an app joins: the plan that settings, job and dimensions require, and when it
changes. ``semi_stream_planning`` and ``stream_stream_planning`` have the planners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from semistream.sizing.plan import Plan
from semistream.sketches import SkimmedSketch
from semistream.streaming.waiting import WaitingBound


class Planner(Protocol):
    """The planner of an app.

    one_machine: whether all tasks run on the driver's machine; plan: the plan in use; chosen:
    whether the choices that the settings leave open were made from a sample of the stream, in this
    run or in the run that left tuples waiting.
    """

    settings: Any  # AppSettings
    job: Any  # AnyJob
    bound: WaitingBound
    one_machine: bool
    plan: Plan[Any]
    chosen: bool

    def check(self, streams: tuple[pa.Schema, ...] | None) -> None:
        """Check everything that can be checked without Spark. streams: None if the schemas are not
        known yet. Raises ConfigError."""

    def check_open(self, last: tuple[int, int] | None) -> None:
        """Raise ConfigError if nothing more can be loaded after the newest commit. last: its
        position, (batch, drain)."""

    def partitions(self, cores: int) -> int:
        """Return P, the number of partitions."""

    def ends(self, exhausted: bool) -> bool:
        """Return whether waiting tuples are finished at the end of a run. exhausted: whether the
        source has no more tuples."""

    def wanted(self, partitions: int) -> Plan[Any]:
        """Return the plan that the settings and the dimensions' current versions require. Raises
        ConfigError."""

    def without_sample(self, streams: tuple[pa.Schema, ...], partitions: int) -> Plan[Any]:
        """Return the wanted plan, in which open questions are decided without a sample of the
        stream. Raises ConfigError."""

    def change(
        self,
        sample: Callable[[], pa.RecordBatch],
        history: Callable[[], SkimmedSketch | None],
        partitions: int,
    ) -> Plan[Any] | None:
        """Return a new plan, which is opened once no tuple waits; None to continue with the present
        plan. sample: a function that returns some of the batch's tuples; history: a function that
        returns the sketch of former loads' keys. Raises ConfigError for a change that is not
        possible."""

    def open(self, plan: Plan[Any], streams: tuple[pa.Schema, ...]) -> tuple[pa.Schema, pa.Schema]:
        """Start using a plan. Return the joined rows' columns in two schemas: the columns of the
        (left) stream, and the other columns. Raises ConfigError if the plan does not fit."""


def split(joined: pa.Schema, first: int) -> tuple[pa.Schema, pa.Schema]:
    """Split a schema after its first columns. Return (the first columns, the other columns)."""
    return pa.schema(list(joined)[:first]), pa.schema(list(joined)[first:])
