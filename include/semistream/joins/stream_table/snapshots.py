"""Snapshots of an H_S by partition: a whole one, and then what has changed since the one before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.arena import Arena
from semistream.joins.spec import JoinSpec
from semistream.joins.state_file import JoinState
from semistream.joins.stream_probing import PROBE_ROWS
from semistream.joins.stream_table.by_partition import ByPartition

MOST_CHANGES = 100  # snapshots that tell changes, between two whole ones


class Snapshots:
    """Takes them, and repeats them in a new H_S."""

    def __init__(self, h_s: ByPartition):
        self.h_s = h_s
        self.count = 0  # since and with the last whole one
        # tuples that they told since then, and what else the caller counts that is in the whole
        self.changed = 0

    def whole(self) -> dict[str, pa.RecordBatchReader]:
        """Return all that waits."""
        self.changed = 0
        if not self.h_s.opened:
            return {}
        self.count = 1
        return {"waiting": self._newest(self.h_s.waiting)}

    def changes(self, others: int = 0) -> dict[str, pa.Table | pa.RecordBatchReader] | None:
        """Return the tuples that came since the last snapshot and still wait, and the partitions
        that were visited. None: take the whole, which with so many others is less than the changes
        since the last one. So a tuple is kept twice, however many others wait."""
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
        """Return how H_S is laid out."""
        h_s, values = self.h_s, {"strings": self.h_s.strings, "changed": self.changed}
        if h_s.opened:
            values |= {"width": h_s.width, "blocks": h_s.blocks, "shift": h_s.store.shift,
                       "pages": h_s.page_count}
        return values

    def restore(self, states: list[JoinState], arena: Arena, spec: JoinSpec) -> None:
        """Repeat in an opened H_S a whole snapshot and those after it."""
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
        """The newest number[p] tuples of each partition p, int32[N], which the snapshot has from
        now on."""
        tuples = self.h_s.newest(number)
        self.h_s.snap()
        return tuples
