"""The completion of an app's facts when their inferred members get rows in a version of the
dimension that the app uses."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from semistream.provisioning.inferred import filling_of
from semistream.sizing.plan import Plan
from semistream.streaming.commit import Commits
from semistream.streaming.semi_stream_planning import SemiStreamPlanner
from semistream.warehouse.inferred import NotThatVersion, open_roles

log = logging.getLogger(__name__)


class FactFilling:
    """The completion of an app's facts. filled: the number of facts that this run has completed."""

    def __init__(self, planner: SemiStreamPlanner, commits: Commits):
        self.planner, self.commits, self.filled = planner, commits, 0
        self._done = dict[str, str]()  # by role, the version from which facts were filled in

    def fill(self, plan: Plan[Any] | None = None) -> int:
        """Fill in the columns of facts whose inferred members have rows in a plan's versions, once
        for each version. Return the number of these facts. plan: by default the planner's plan."""
        if self.commits.last is None:
            return 0
        ledger, engine = self.commits.ledger, self.commits.warehouse.engine
        before = self.filled
        roles = self.planner.job.dimensions
        for join in (plan or self.planner.plan).joins:
            if join.role not in roles or self._done.get(join.role) == join.snapshot:
                continue
            self.commits.wait_for_commit()  # its facts are filled in, too
            if join.role in ledger.run(partial(open_roles, number=ledger.number())):
                filling = filling_of(engine, self.planner.job, join)
                try:
                    facts = self.commits.sink.fill(filling, ledger)
                except NotThatVersion:  # the newer version is published soon, and used then
                    log.info("%s was provisioned since %s", join.role, join.version)
                    continue
                log.info("%d facts of %s were filled in from %s", facts, join.role, join.version)
                self.filled += facts
            self._done[join.role] = join.snapshot
        return self.filled - before
