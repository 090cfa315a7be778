"""Every semi-stream join by name: adding one is a file and an entry here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semistream.config import Settings
from semistream.errors import ConfigError, NotEnoughMemory

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.joins.base import JoinSpec, SemiStreamJoin
    from semistream.master import MasterRelation


@dataclass(frozen=True)
class Algorithm:
    """operator, settings: MODULE.Class of this package, imported when it is asked for; a form that lists names needs no Numba."""

    name: str
    title: str
    operator: str
    settings: str
    paper: str
    needs_index: bool = False  # reads the partition of a given key
    unique_keys: bool = False  # refuses a master with duplicate keys

    @property
    def make(self) -> type[SemiStreamJoin]:
        return _import(self.operator)

    @property
    def parameters(self) -> type[Settings]:
        return _import(self.settings)


def _import(name: str) -> Any:
    module, kind = name.split(".")
    return getattr(import_module(f"{__package__}.{module}"), kind)


REGISTRY: dict[str, Algorithm] = {a.name: a for a in (
    Algorithm("meshjoin", "MESHJOIN", "meshjoin.Meshjoin", "meshjoin.MeshjoinParameters",
              "Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: Meshing Streaming Updates with Persistent Data in an "
              "Active Data Warehouse (2008)"),
    Algorithm("rmeshjoin", "R-MESHJOIN", "rmeshjoin.Rmeshjoin", "rmeshjoin.RmeshjoinParameters",
              "Naeem, Dobbie, Weber, Alam: R-MESHJOIN for Near-Real-Time Data Warehousing (2010)"),
    Algorithm("cmeshjoin", "CMESHJOIN", "cmeshjoin.Cmeshjoin", "cmeshjoin.CmeshjoinParameters",
              "Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join, section 2.2"),
    Algorithm("ssj", "SSJ", "ssj.Ssj", "cmeshjoin.CmeshjoinParameters",
              "Naeem, Jamil: An Efficient Stream-based Join to Process End User Transactions in Real-Time Data Warehousing "
              "(2014)"),
    Algorithm("ssbj", "SSBJ", "ssbj.Ssbj", "ssbj.SsbjParameters",
              "Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join"),
    Algorithm("hybridjoin", "HYBRIDJOIN", "hybridjoin.Hybridjoin", "hybridjoin.HybridjoinParameters",
              "Naeem, Dobbie, Weber: HYBRIDJOIN for Near-Real-Time Data Warehousing (2011)", needs_index=True),
    Algorithm("x-hybridjoin", "X-HYBRIDJOIN", "xhybridjoin.XHybridjoin", "xhybridjoin.XHybridjoinParameters",
              "Naeem: Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing (2013), section 3", needs_index=True),
    Algorithm("tuned-x-hybridjoin", "Tuned X-HYBRIDJOIN", "xhybridjoin.XHybridjoin", "xhybridjoin.TunedXHybridjoinParameters",
              "Naeem: Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing (2013)", needs_index=True),
    Algorithm("sscj", "SSCJ", "sscj.Sscj", "sscj.SscjParameters",
              "Naeem, Weber, Dobbie, Lutteroth: SSCJ: A Semi-Stream Cache Join using a Front-Stage Cache Module (2013)",
              needs_index=True),
    Algorithm("ssij", "SSIJ", "ssij.Ssij", "ssij.SsijParameters",
              "Bornea, Deligiannakis, Kotidis, Vassalos: Semi-Streamed Index Join for Near-Real Time Execution of ETL "
              "Transformations (2011)", needs_index=True),
    Algorithm("elevatorjoin", "ELEVATORJOIN", "elevatorjoin.Elevatorjoin", "elevatorjoin.ElevatorjoinParameters", "our own",
              needs_index=True),
)}


def find_algorithm(name: str) -> Algorithm:
    """Raises ConfigError for an unknown name."""
    if name.lower() not in REGISTRY:
        near = difflib.get_close_matches(name.lower(), REGISTRY, 1)
        raise ConfigError("algorithm", f"must be one of {', '.join(REGISTRY)}", name,
                          f"Did you mean {near[0]!r}?" if near else "See the README.")
    return REGISTRY[name.lower()]


def open_join(algorithm: str, *, memory: int, stream: pa.Schema, master: MasterRelation, on: Sequence[tuple[str, str]],
              columns: Sequence[str] | None = None, join_type: str = "inner",
              parameters: dict[str, Any] | None = None) -> SemiStreamJoin:
    """A join operator of the named algorithm, holding at most ``memory`` bytes.

    stream: schema of the chunks that ``process`` will get; on: (stream column, master column) pairs; columns: master columns
    to add (None: all but the join columns). A master column whose name the stream has too is added as ``<master>_<column>``.
    Raises ConfigError for whatever cannot work, NotEnoughMemory with an amount that does; no stream needs more later.
    """
    from semistream.joins.base import JoinSpec
    from semistream.joins.parts import stored_schema
    from semistream.keys import resolve_keys

    entry = find_algorithm(algorithm)
    settings = entry.parameters.load(parameters or {})
    if join_type not in ("inner", "left"):
        raise ConfigError("join_type", "must be inner or left", join_type, "Choose one.")
    keys = resolve_keys(stream, master.schema, list(on))
    if set(keys.master) != set(master.keys.master):
        raise ConfigError("on", f"must join on the columns that {master.name} is organised by", list(keys.master),
                          f"They are: {', '.join(master.keys.master)}.")
    order = [keys.master.index(m) for m in master.keys.master]  # codes of a composite key depend on its order
    keys = resolve_keys(stream, master.schema, [(keys.stream[i], keys.master[i]) for i in order])
    added = tuple(c for c in master.schema.names if c not in keys.master) if columns is None else tuple(columns)
    for c in added:
        if c not in master.schema.names:
            raise ConfigError("columns", f"must be columns of {master.name}", c, f"It has: {', '.join(master.schema.names)}.")
    if entry.unique_keys and not master.unique:
        raise ConfigError("algorithm", "must allow duplicate master keys, which this master has", algorithm,
                          f"Choose one of {', '.join(a.name for a in REGISTRY.values() if not a.unique_keys)}.")
    if entry.needs_index and master.sequential:
        others = ", ".join(a.name for a in REGISTRY.values() if not a.needs_index)
        raise ConfigError("algorithm", f"must not need an index, which {master.name} does not have", algorithm,
                          f"Choose one of {others}, or join with a snapshot.")
    names = output_names(stream, master.name, added)
    spec = JoinSpec(entry.name, int(memory), stored_schema(stream), master, keys, added, names, join_type)
    try:
        return entry.make(spec, settings)
    except ConfigError as e:
        if e.parameter != "memory":
            raise
        remedy = "Give more memory" + (", or a smaller disk_tuples." if (parameters or {}).get("disk_tuples") else ".")
        raise NotEnoughMemory(_least_memory(entry, spec, settings), spec.memory, entry.name, remedy) from None


def _least_memory(entry: Algorithm, spec: JoinSpec, settings: Settings) -> int:
    """The smallest M that the operator can be opened with, found by opening it, to a part in a thousand."""
    def opens(memory: int) -> bool:
        try:
            entry.make(replace(spec, memory=memory), settings)
        except ConfigError:
            return False
        return True

    low, high = spec.memory, max(2 * spec.memory, 1024)
    while not opens(high):
        low, high = high, 2 * high
    while high - low > max(high // 1000, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if opens(middle) else (middle, high)
    return high


def output_names(stream: pa.Schema, master: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The names that master columns get beside the stream's. Raises ConfigError when two would be the same."""
    names = tuple(f"{master}_{c}" if c in stream.names else c for c in columns)
    doubled = [n for i, n in enumerate(names) if n in stream.names or n in names[:i]]
    if doubled:
        raise ConfigError("columns", "must have names that differ from the stream's", doubled[0], "Rename it, or leave it out.")
    return names
