"""R-MESHJOIN, reduced Mesh Join.

M. A. Naeem, G. Dobbie, G. Weber, S. Alam: *R-MESHJOIN for Near-Real-Time Data Warehousing*, DOLAP 2010. Known here from what
later papers say of it: it "clarifies the dependencies among the components" of MESHJOIN and "introduces an additional degree of
freedom" (Naeem, Weber, Dobbie, Lutteroth: *SSCJ*, sections 2 and 5.2). The following reading is ours.

MESHJOIN has a chunk of Q per disk read. R-MESHJOIN frees the one from the other: a disk read fills a buffer of b tuples, which is
joined in q slices, and each slice admits a chunk and expires the oldest. Q has N q chunks.

    loop
        READ w stream tuples, append them to H_S and, as one chunk, to Q
        if the last slice of the disk buffer was joined:  READ the next b tuples of R, cyclically
        for each tuple r of the buffer's next slice (b / q tuples)
            OUTPUT r with each of its matches in H_S
        REMOVE the oldest chunk of Q from H_S: it has met all N q slices

q = 1 is MESHJOIN. Deviations: those of MESHJOIN.
"""

from __future__ import annotations

from pydantic import Field

from semistream.joins.meshjoin import Meshjoin, MeshjoinParameters
from semistream.joins.spec import JoinSpec


class RmeshjoinParameters(MeshjoinParameters):
    slices: int = Field(4, ge=1, description="q, slices in which a disk read is joined, each with its own chunk of stream tuples")


class Rmeshjoin(Meshjoin):
    """Many-to-many, needs no index. M = b v_R + w N q (v_ptr + f v_S)."""

    def __init__(self, spec: JoinSpec, parameters: RmeshjoinParameters):
        super().__init__(spec, parameters, parameters.slices)
