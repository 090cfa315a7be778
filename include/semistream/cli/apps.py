"""The apps that have run, by the names of their checkpoints."""

from __future__ import annotations

from pathlib import Path

from semistream.errors import ConfigError
from semistream.pipeline import drivers


def unknown_app(name: str, checkpoints: Path) -> ConfigError:
    known = ", ".join(drivers.app_names(checkpoints)) or "none"
    return ConfigError(
        "app", f"must have run under {checkpoints}", name, f"Those that have: {known}."
    )
