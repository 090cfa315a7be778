"""Tuned X-HYBRIDJOIN.

M. A. Naeem: *Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, 2013, sections 4 and 5.

X-HYBRIDJOIN, with the same loop (`joins/x_hybridjoin.py`), where k pages of the swappable and l
pages of the non-swappable part of the disk buffer need not be equal: the model of section 5.2
chooses both where they are not given.

Deviations: those of X-HYBRIDJOIN. The tuning takes w from neither form of Eq. 6, as printed with p
(1 - p) or with the expected count p, but from the steady state in which the oldest tuple chooses
the partition (`cost_models/x_hybridjoin.py`); the experiment ``x-hybridjoin-eq6`` compares the
three.
"""

from __future__ import annotations

from pydantic import Field

from semistream.joins.spec import JoinSpec
from semistream.joins.x_hybridjoin import XHybridjoin, XHybridjoinParameters


class TunedXHybridjoinParameters(XHybridjoinParameters):
    disk_tuples: int = Field(0, ge=0, description="d_S, master tuples in the swappable part; 0: "
                                                  "chosen from M by the cost model")
    resident_tuples: int = Field(0, ge=0, description="d_N, master tuples in the non-swappable "
                                                      "part; 0: chosen from M likewise")


class TunedXHybridjoin(XHybridjoin):
    """Many-to-many, needs an index. M = (k + l) v_P + alpha [M - (k + l) v_P] + (1 - alpha)[M - (k
    + l) v_P], Eq. 1."""

    def __init__(self, spec: JoinSpec, parameters: TunedXHybridjoinParameters):
        super().__init__(spec, parameters, parameters.resident_tuples)
