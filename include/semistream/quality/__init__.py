"""Proof that everything arrived: Great Expectations over the warehouse, and a report that a person
can read.

Great Expectations takes seconds to import: it is, only when ``verify`` runs.
"""

from semistream.quality.verification import VerificationFailed, verify

__all__ = ["VerificationFailed", "verify"]
