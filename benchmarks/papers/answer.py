"""The checksum of an answer: equal for every correct join of the same tuples, in whatever order its
rows come out."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.joins.output import JoinOutput
from semistream.warehouse.checksum import checksum


@dataclass
class Answer:
    """The numbers of rows of an answer, and the checksum of all rows."""

    joined: int = 0
    unmatched: int = 0
    total: int = 0

    def add(self, step: JoinOutput) -> None:
        self.joined += step.joined.num_rows
        self.unmatched += step.unmatched.num_rows
        for batch in step:
            if batch.num_rows:
                self.total = (self.total + checksum(batch)) % 2**64

    @property
    def checksum(self) -> str:
        return f"{self.total:016x}"
