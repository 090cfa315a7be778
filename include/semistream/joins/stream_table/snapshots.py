"""Snapshots of an H_S by partition: a whole one, then the changes since the one before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.arena import Arena
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stream_probing import PROBE_ROWS
from semistream.joins.stream_table.by_partition import ByPartition

MOST_CHANGES = 100  # snapshots of changes between two whole ones


class Snapshots:
    """The snapshots of one H_S, which can be restored into a new one."""

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
        self.count = 1
        return {"waiting": self._newest(self.h_s.waiting)}

    def changes(self, others: int = 0) -> dict[str, pa.Table | pa.RecordBatchReader] | None:
        """Return the tuples that came since the last snapshot and still wait, and the partitions
        that were visited. Return None if a whole snapshot is needed: when the changes since the
        last one exceed the waiting tuples and `others`. So a tuple is saved about twice, however
        many tuples wait."""
        if not self.count or self.count > MOST_CHANGES:
            return None
        came = self.h_s.not_snapped
        changed = self.changed + int(came.sum())
        if changed > self.h_s.live + others:
            return None
        self.count, self.changed = self.count + 1, changed
        left = pa.table({"partition": np.flatnonzero(self.h_s.snapped < 0)})
        return {"left": left, "waiting": self._newest(came)}

    def values(self) -> dict[str, Any]:
        """Return the layout of H_S."""
        h_s, values = self.h_s, {"strings": self.h_s.strings, "changed": self.changed}
        if h_s.opened:
            values |= {"width": h_s.width, "blocks": h_s.blocks, "shift": h_s.store.shift,
                       "pages": h_s.page_count}
        return values

    def restore(self, states: list[JoinState], arena: Arena, spec: JoinSpec) -> None:
        """Restore a whole snapshot and the changes after it into an opened H_S."""
        h_s = self.h_s
        self.count, self.changed = len(states), states[-1].values["changed"]
        for state in states:
            left = () if state.whole else state.tables["left"]["partition"].to_pylist()
            for partition in left:
                h_s.remove(partition)
            arena.reserve("H_S", h_s.divide(state.values["blocks"], state.values["pages"]))
            for part in state.tables["waiting"].to_batches(max_chunksize=PROBE_ROWS):
                h_s.admit_saved(pa.RecordBatch.from_arrays(part.columns, schema=spec.stream), spec)
            h_s.snap()

    def _newest(self, number: np.ndarray) -> pa.RecordBatchReader:
        """Return the newest number[p] tuples of each partition p, int32[N]. They count as saved
        from now on."""
        tuples = self.h_s.newest(number)
        self.h_s.snap()
        return tuples
