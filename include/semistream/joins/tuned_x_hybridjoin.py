"""Tuned X-HYBRIDJOIN.

M. A. Naeem: *Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2013, sections 4 and 5.

X-HYBRIDJOIN with the same loop (`joins/x_hybridjoin.py`), in which k, the pages of the swappable
part of the disk buffer, and l, those of the non-swappable part, may differ. The model of section
5.2 chooses them if they are not given.

Deviations: those of X-HYBRIDJOIN. The tuning uses neither form of Eq. 6 for w, as printed with p (1
- p) or with the expected count p. It uses the steady state in which the oldest tuple chooses the
partition (`cost_models/x_hybridjoin.py`). The experiment ``x-hybridjoin-eq6`` compares the three.
"""

from __future__ import annotations

from pydantic import Field

from semistream.joins.spec import JoinSpec
from semistream.joins.x_hybridjoin import XHybridjoin, XHybridjoinParameters


class TunedXHybridjoinParameters(XHybridjoinParameters):
    """The parameters of Tuned X-HYBRIDJOIN."""

    disk_tuples: int = Field(
        0,
        ge=0,
        description="d_S, master tuples in the swappable part; 0: chosen from M by the cost model",
    )
    resident_tuples: int = Field(
        0,
        ge=0,
        description="d_N, master tuples in the non-swappable part; 0: chosen from M likewise",
    )


class TunedXHybridjoin(XHybridjoin):
    """The operator of Tuned X-HYBRIDJOIN: many-to-many, with an index. M = (k + l) v_P + alpha [M -
    (k + l) v_P] + (1 - alpha)[M - (k + l) v_P], Eq. 1."""

    def __init__(self, spec: JoinSpec, parameters: TunedXHybridjoinParameters):
        super().__init__(spec, parameters, parameters.resident_tuples)
