"""Snapshots of an H_S by partition: whole snapshots, and snapshots of the changes since the
previous one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.arena import Arena
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stream_table.by_partition import ByPartition

MOST_CHANGES = 100  # snapshots of changes between two whole ones


class Snapshots:
    """A maker of snapshots of one H_S: occasionally a whole snapshot, otherwise the changes since
    the last one. It also restores snapshots into a new H_S."""

    def __init__(self, h_s: ByPartition):
        self.h_s = h_s
        self.count = 0  # snapshots since the last whole one, which is included
        # tuples saved as changes since then, and whatever else of the whole the caller adds
        self.changed = 0

    def whole(self) -> dict[str, pa.RecordBatchReader]:
        """Return all waiting tuples."""
        self.changed = 0
        if not self.h_s.opened:
            return {}
        self.count, tables = 1, self.h_s.tables()
        self.h_s.snap()
        return tables

    def changes(self, others: int = 0) -> dict[str, pa.Table | pa.RecordBatchReader] | None:
        """Return the tuples that entered since the last snapshot and still wait, and the partitions
        visited since then. Return None if a full snapshot is due, because the changes since the
        last full snapshot exceed the waiting tuples plus `others`. Each tuple is thus saved about
        twice, however many wait."""
        if not self.count or self.count > MOST_CHANGES:
            return None
        came = self.h_s.not_snapped
        changed = self.changed + int(came.sum())
        if changed > self.h_s.live + others:
            return None
        self.count, self.changed = self.count + 1, changed
        left = pa.table({"partition": np.flatnonzero(self.h_s.snapped < 0)})
        waiting = self.h_s.newest(came)
        self.h_s.snap()
        return {"left": left, "waiting": waiting}

    def values(self) -> dict[str, Any]:
        """Return the sizes of H_S, and the number of tuples that were saved as changes."""
        return self.h_s.values() | {"changed": self.changed}

    def restore(self, states: list[JoinState], arena: Arena, spec: JoinSpec) -> None:
        """Restore a whole snapshot and the changes after it into an opened H_S."""
        h_s = self.h_s
        self.count, self.changed = len(states), states[-1].values["changed"]
        for state in states:
            left = () if state.whole else state.tables["left"]["partition"].to_pylist()
            for partition in left:
                h_s.remove(partition)
            h_s.restore(state.tables["waiting"], state.values, spec)
            arena.reserve("H_S", h_s.size)
            h_s.snap()
