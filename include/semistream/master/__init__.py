"""Master data: the relation R that a stream is joined with."""

from semistream.master.relation import MasterRelation

__all__ = ["MasterRelation"]
