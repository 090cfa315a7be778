"""CMESHJOIN's cost model.

Naeem, Weber, Lutteroth: *A Memory-Optimal Many-To-Many Semi-Stream Join* names the algorithm and
gives no model. It has SSJ's phases, so it has SSJ's equations and corrections (``ssj.py``), without
the partial chunk.
"""

from __future__ import annotations

from semistream.cost_models import ssj
from semistream.cost_models.costs import Costs, Prediction, Workload


def predict(
    work: Workload, m: float, costs: Costs, disk_tuples: float, cache_tuples: float
) -> Prediction:
    """Predict CMESHJOIN's performance. m: M, bytes; disk_tuples: b; cache_tuples: h_R."""
    return ssj.predict(work, m, costs, disk_tuples, cache_tuples, "cmeshjoin")
