"""Ended loads that a user dismissed from the page. A dismissed load is hidden until it runs
again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from semistream.durable import write_json

TIMES = TypeAdapter(dict[str, datetime])
_mutex = threading.Lock()


def read_dismissed(checkpoints: Path) -> Mapping[str, datetime]:
    """Return by app the last sign of life (UTC) that each dismissed app had when it was dismissed.
    The result is empty if no app was dismissed, or if the file is damaged."""
    try:
        return TIMES.validate_json(_file(checkpoints).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def dismiss(checkpoints: Path, app: str, at: datetime | None) -> None:
    """Dismiss an app. at: the app's last sign of life, UTC; None to show the app again."""
    with _mutex:
        dismissed = {**read_dismissed(checkpoints)}
        dismissed.pop(app, None)
        if at is not None:
            dismissed[app] = at
        checkpoints.mkdir(parents=True, exist_ok=True)
        write_json(_file(checkpoints), TIMES.dump_python(dismissed, mode="json"))


def _file(checkpoints: Path) -> Path:
    return checkpoints / ".dismissed.json"
