"""Deadlines of DAG runs at a time of day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk.definitions.deadline import BaseDeadlineReference


@dataclass
class TimeOfDay(BaseDeadlineReference):
    """A deadline at the next time of day, HH:MM in a time zone, after a run is created."""

    at: str = "00:00"
    timezone: str = "UTC"

    def _evaluate_with(self, *, session: Any, **_: Any) -> datetime:
        return next_time(self.at, self.timezone, datetime.now(UTC))

    def serialize_reference(self) -> dict[str, Any]:
        return super().serialize_reference() | {"at": self.at, "timezone": self.timezone}

    @classmethod
    def deserialize_reference(cls, reference_data: dict[str, Any]) -> TimeOfDay:
        return cls(reference_data["at"], reference_data["timezone"])


def next_time(at: str, timezone: str, now: datetime) -> datetime:
    """Return the next moment after ``now`` at which the time of day in a time zone is ``at``,
    HH:MM."""
    zone = ZoneInfo(timezone)
    local = now.astimezone(zone)
    today = datetime.combine(local.date(), time.fromisoformat(at), zone)
    later = datetime.combine(local.date() + timedelta(days=1), time.fromisoformat(at), zone)
    return (today if today > now else later).astimezone(UTC)
