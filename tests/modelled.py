"""The workload of most of the cost models' tests."""

from __future__ import annotations

from semistream.cost_models import Frequencies, Workload


def workload(skew=1.0, r_t=1_000_000, **changes):
    sizes = {
        "master_tuples": r_t,
        "disk_tuple_bytes": 120,
        "stream_tuple_bytes": 34,
        "indexed_tuple_bytes": 58,
        "elevator_tuple_bytes": 22,
        "cached_tuple_bytes": 109,
        "cached_key_bytes": 26,
        "resident_tuple_bytes": 117,
        "frequencies": Frequencies.zipf(r_t, skew),
        "page_tuples": 1024,
    }
    return Workload(**sizes | changes)
