"""Proof that everything arrived: Great Expectations over the warehouse, and a report for people.

Great Expectations takes seconds to import, so it is imported only when ``verify`` runs.
"""

from semistream.quality.verification import VerificationFailed, verify

__all__ = ["VerificationFailed", "verify"]
