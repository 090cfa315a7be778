"""The warehouse in the form that a job's sinks need."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine

from semistream.job import AnyJob, Job
from semistream.warehouse.closing import Closing, closing_of
from semistream.warehouse.dialects import shared_engine
from semistream.warehouse.ledger import Ledger


@dataclass(frozen=True)
class Warehouse:
    """The warehouse with a job's ledger, unmatched tuples and fact table. It is pickled and sent to
    tasks; each process connects once.

    surrogates: the surrogate keys of the fact table, one for each role; empty for a join of two
    streams; retry: seconds for which operations on an unreachable database are retried; index_ids:
    whether the fact table has an index on the stream's id columns; closing: the closing of keys
    that have become final, if the job has totals; infers: whether facts of the job may have
    inferred members.
    """

    url: str = field(repr=False)
    fact: str
    surrogates: tuple[str, ...]
    retry: float
    index_ids: bool = False
    closing: Closing | None = None
    infers: bool = False

    @classmethod
    def of(cls, url: str, job: AnyJob, retry: float = 60.0) -> Warehouse:
        """Return the warehouse of a job."""
        roles = job.roles if isinstance(job, Job) else ()
        surrogates = tuple(role.surrogate_key for role in roles)
        infers = any(role.late == "infer" for role in roles)
        return cls(url, job.fact_table, surrogates, retry, job.index_ids, closing_of(job), infers)

    @property
    def engine(self) -> Engine:
        return shared_engine(self.url)

    def ledger(self, app: str) -> Ledger:
        return Ledger(self.engine, app, self.retry)
