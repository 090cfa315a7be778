"""The repetitions of an experiment, combined: the mean of each figure, and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.papers.model import FAILED
from benchmarks.verdicts import half_width

# figures whose intervals are plotted
INTERVALS = (
    "mu",
    "c_loop",
    "needed",
    "processing_time",
    "waiting_time",
    "entry_time",
    "removal_time",
)


def combined(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each point: the means over its repetitions, with half of their 95%
    intervals as X_interval (None for a single repetition). If a repetition failed, its row stands
    for the point."""
    points: dict[str, list[dict[str, Any]]] = {}
    for row in runs:
        points.setdefault(row["point"], []).append(row)
    return [_combined(rows) for rows in points.values()]


def _combined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        if row["state"] == FAILED:
            return row
    found = {k: _mean([r[k] for r in rows]) for k in rows[0] if k != "repetition"}
    wide = {f"{k}_interval": half_width([r[k] for r in rows]) for k in INTERVALS if k in rows[0]}
    return (
        found
        | {"repetitions": len(rows)}
        | {k: v if math.isfinite(v) else None for k, v in wide.items()}
    )


def _mean(values: list[Any]) -> Any:
    """Return the mean of the values; the first value if they are equal or no numbers; for booleans,
    whether all are true."""
    if isinstance(values[0], bool):
        return all(values)
    if isinstance(values[0], (int, float)) and any(v != values[0] for v in values):
        return float(np.mean(values))
    return values[0]
