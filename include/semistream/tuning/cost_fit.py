"""The fit of a model to measured times: seconds = fixed + tuples * c(table size)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Fit(NamedTuple):
    """The costs that were fitted to the measured seconds, and the error of the fit."""

    fixed: float  # s per iteration
    flat: tuple[float, ...]  # s per tuple
    steep: tuple[tuple[float, ...], ...]  # s per tuple at each table size
    error: float  # median relative error


def fit(
    runs: Sequence[dict[str, float]],
    part: str,
    flat: Sequence[str],
    steep: Sequence[str],
    tables: Sequence[float],
) -> Fit:
    """Fit non-negative costs c to the seconds that a part took in each run: fixed + sum of c *
    tuples over `flat` + sum of c(table) * tuples over `steep`. A cost c(table) does not decrease
    with the size of the table.

    flat, steep: the names of tuple counts in the runs; tables: the sizes in ascending order.
    """
    from scipy.optimize import nnls

    y, place = (np.array([r[x] for r in runs]) for x in (part, "table"))
    y = np.maximum(y, 1e-9)
    columns = [np.ones(len(y)), *(np.array([r[x] for r in runs]) for x in flat)]
    # c(table) is a sum of non-negative growths
    columns += [np.where(place >= t, [r[x] for r in runs], 0.0) for x in steep for t in tables]
    a = np.stack(columns, axis=1) / y[:, None]
    x, _ = nnls(a, np.ones(len(y)))
    split, many = 1 + len(flat), len(tables)
    grown = []
    for i in range(split, len(x), many):
        c = np.cumsum(x[i : i + many])
        # cost hidden by the fixed cost of few tuples: take that of the next larger table
        c[c == 0] = c[np.argmax(c > 0)]
        grown.append(tuple(map(float, c)))
    return Fit(
        float(x[0]),
        tuple(map(float, x[1:split])),
        tuple(grown),
        float(np.median(np.abs(a @ x - 1))),
    )
