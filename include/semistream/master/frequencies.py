"""The frequency of each key in R."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semistream.master.manifest import Manifest
from semistream.master.snapshot import SnapshotRelation


def key_frequencies(directory: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (key codes int64[k] in ascending order, number of tuples of each, int64[k]) for each
    bucket of a snapshot. A code is in one bucket only. Raises StateError for a damaged snapshot."""
    for bucket in range(Manifest.read(directory).bucket_count):
        relation = SnapshotRelation(directory, buckets=[bucket])
        try:
            codes = [relation.read_codes(n) for n in range(relation.partition_count)]
        finally:
            relation.close()
        yield np.unique(np.concatenate([*codes, np.empty(0, np.int64)]), return_counts=True)
