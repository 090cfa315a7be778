"""Durations as people write them, such as 90 s, 1.5 hours or 2 days, and for people."""

from __future__ import annotations

import re

UNITS = {  # s; also in the plural
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
}
SHORT = {
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
}
WRITTEN = re.compile(
    rf"(\d+(?:\.\d+)?) *(?:({'|'.join(UNITS)})s?|({'|'.join(SHORT)}))", re.IGNORECASE
)


def seconds_of(text: str) -> float | None:
    """Return the seconds that a number and a unit denote; None for any other text."""
    found = WRITTEN.fullmatch(text.strip())
    if found is None:
        return None
    number, unit, short = found.groups()
    return float(number) * UNITS[(unit or SHORT[short.lower()]).lower()]


def duration_text(seconds: float) -> str:
    """Format a duration for people, in a suitable unit: 90 s, 3 min, 2.5 h, 12 days."""
    sizes = (("days", 86_400), ("h", 3600), ("min", 60))
    unit, size = next((of for of in sizes if seconds >= 2 * of[1]), ("s", 1))
    number = seconds / size
    return f"{round(number, 1 if number < 10 else None):,g} {unit}"
