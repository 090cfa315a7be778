"""The semi-stream joins. ``REGISTRY`` lists them; ``sizing.open_join`` opens one.

Each algorithm has a file of its own, which holds its loop. The shared parts are:

- ``contract``: the interface of every join; ``statistics``, ``state_file``, ``output``.
- ``stream_buffer``: tuples that have arrived; ``admission``: their way into H_S.
- ``stream_table``: H_S with Q, the stream tuples that wait, in three layouts.
- ``master_cache``: H_R with the switching buffer; ``stream_probing``: the phase that probes H_R;
  ``frequency_detection``: one way to decide which tuples H_R holds; ``selection``: the choice of
  the most frequent join values.
- ``key_filter``: a filter of R's keys, so that tuples with absent keys need not wait;
  ``non_swappable``: the resident part of X-HYBRIDJOIN's disk buffer.
- ``cost_balance``: ELEVATORJOIN's choice of the join values that H_R holds.
- ``scan_phase``, ``index_phase``: how a disk-probing phase reads R, and what all joins that read it
  so have in common; ``disk_partition``: the unit that they read.
- ``star``: several of them in one pass; ``hash_join``: the join with an R that fits into memory;
  ``whole_master``: that R, mapped by all processes of a machine.
- ``arena``, ``tuple_store``, ``key_table``, ``stored_types``: memory, and the data in it.

Importing the registry is cheap; the other modules, with Numba, are imported on first use.
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
