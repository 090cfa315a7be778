"""``python -m semistream.streaming.precompile``: compile the kernels of joins and of loads into
Numba's cache, so that no later run waits for the compiler."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.files.precompile import precompile as precompile_joins
from semistream.joins import REGISTRY
from semistream.keys import resolve_keys
from semistream.master.snapshot import lacking
from semistream.partitioning import Axis, Placement
from semistream.sketches import SampledSketch
from semistream.warehouse.checksum import checksum
from semistream.warehouse.dialects import SYSTEMS, System


def call_kernels(system: System) -> None:
    """Call the kernels of a load that do not belong to a join. A process that calls them again
    waits neither for the compiler nor until they are loaded."""
    rows = pa.record_batch({"number": [1, 2], "text": ["text", None]})
    for name in rows.schema.names:
        axis = Axis(resolve_keys(rows.schema, rows.schema, [(name, name)]), np.arange(2), 2)
        Placement(rows.schema, (axis,), axis.parts).partitions(rows)
    checksum(pa.Table.from_batches([rows]))
    lacking(np.empty(0, np.int64), np.zeros(1, np.int64))
    sketch = SampledSketch()
    sketch.add(np.arange(10))
    sketch.sketch.skim()
    system.warm_up()


if __name__ == "__main__":
    precompile_joins(list(REGISTRY))
    call_kernels(SYSTEMS[0])  # SQLite, whose rows kernels read and write
