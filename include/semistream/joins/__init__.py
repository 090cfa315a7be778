"""The semi-stream joins. ``REGISTRY`` lists them; ``sizing.open_join`` makes one.

One file an algorithm, in which its loop stands. What they share:

- ``contract``: what every join is to its caller; ``statistics``, ``state_file``, ``output``.
- ``stream_buffer``: tuples that have arrived; ``admission``: their way into H_S.
- ``stream_table``: H_S with Q, the stream tuples that wait, in three layouts.
- ``master_cache``: H_R with the switching buffer; ``stream_probing``: the phase that joins through
  it; ``frequency_detection``: one way to decide what is in it; ``selection``: the most frequent.
- ``key_filter``: what is remembered of R's keys, so that absent ones need not wait;
  ``non_swappable``: the part of X-HYBRIDJOIN's disk buffer that stays.
- ``scan_phase``, ``index_phase``: how a disk-probing phase reads R; ``disk_partition``: what it
  reads.
- ``arena``, ``tuple_store``, ``key_table``, ``stored_types``: memory, and what lies in it.

The registry is light; the rest, with Numba, is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from semistream.joins.registry import REGISTRY, Algorithm

if TYPE_CHECKING:
    from semistream.joins.contract import SemiStreamJoin
    from semistream.joins.output import JoinOutput
    from semistream.joins.state_file import JoinState

__all__ = ["REGISTRY", "Algorithm", "JoinOutput", "JoinState", "SemiStreamJoin"]

_MODULES = {"SemiStreamJoin": "contract", "JoinOutput": "output", "JoinState": "state_file"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
