"""The registry of semi-stream joins by name. A new join needs a file and an entry here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from semistream.errors import ConfigError
from semistream.settings import Settings

if TYPE_CHECKING:
    from semistream.joins.contract import SemiStreamJoin


@dataclass(frozen=True)
class Entry:
    """An algorithm's entry in a registry. operator, settings: ``module.Class`` of the registry's
    package. The classes are imported on first use, so that a form that only lists names does not
    import Numba."""

    package: ClassVar[str]
    name: str
    title: str
    operator: str
    settings: str
    paper: str

    @property
    def parameters(self) -> type[Settings]:
        return self._imported(self.settings)

    def _imported(self, name: str) -> Any:
        module, kind = name.split(".")
        return getattr(import_module(f"{self.package}.{module}"), kind)


@dataclass(frozen=True)
class Algorithm(Entry):
    """The entry of a semi-stream join."""

    package = "semistream.joins"
    needs_index: bool = False  # whether the join reads the partition of a given key
    published: bool = True  # whether a paper describes the algorithm
    # the cache reaches its rate after one pass over R, and again when the keys drift; other caches
    # need many passes to fill
    warms_up_fast: bool = False

    @property
    def make(self) -> type[SemiStreamJoin]:
        return self._imported(self.operator)


REGISTRY: dict[str, Algorithm] = {
    a.name: a
    for a in (
        Algorithm(
            "meshjoin",
            "MESHJOIN",
            "meshjoin.Meshjoin",
            "scan_phase.ScanParameters",
            "Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell: "
            "Meshing Streaming Updates with Persistent Data in an Active Data Warehouse (2008)",
        ),
        Algorithm(
            "r-meshjoin",
            "R-MESHJOIN",
            "r_meshjoin.RMeshjoin",
            "r_meshjoin.RMeshjoinParameters",
            "Naeem, Dobbie, Weber, Alam: R-MESHJOIN for Near-Real-Time Data Warehousing (2010)",
        ),
        Algorithm(
            "cmeshjoin",
            "CMESHJOIN",
            "cmeshjoin.Cmeshjoin",
            "cmeshjoin.CmeshjoinParameters",
            "Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join, section 2.2",
        ),
        Algorithm(
            "ssj",
            "SSJ",
            "ssj.Ssj",
            "cmeshjoin.CmeshjoinParameters",
            "Naeem, Jamil: An Efficient Stream-based Join to Process End User Transactions in "
            "Real-Time Data Warehousing (2014)",
        ),
        Algorithm(
            "ssbj",
            "SSBJ",
            "ssbj.Ssbj",
            "ssbj.SsbjParameters",
            "Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join",
        ),
        Algorithm(
            "hybridjoin",
            "HYBRIDJOIN",
            "hybridjoin.Hybridjoin",
            "index_phase.IndexParameters",
            "Naeem, Dobbie, Weber: HYBRIDJOIN for Near-Real-Time Data Warehousing (2011)",
            needs_index=True,
        ),
        Algorithm(
            "x-hybridjoin",
            "X-HYBRIDJOIN",
            "x_hybridjoin.XHybridjoin",
            "x_hybridjoin.XHybridjoinParameters",
            "Naeem: Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing (2013), section 3",
            needs_index=True,
        ),
        Algorithm(
            "tuned-x-hybridjoin",
            "Tuned X-HYBRIDJOIN",
            "tuned_x_hybridjoin.TunedXHybridjoin",
            "tuned_x_hybridjoin.TunedXHybridjoinParameters",
            "Naeem: Tuned X-HYBRIDJOIN for Near-Real-Time Data Warehousing (2013)",
            needs_index=True,
        ),
        Algorithm(
            "sscj",
            "SSCJ",
            "sscj.Sscj",
            "sscj.SscjParameters",
            "Naeem, Weber, Dobbie, Lutteroth: SSCJ: "
            "A Semi-Stream Cache Join using a Front-Stage Cache Module (2013)",
            needs_index=True,
        ),
        Algorithm(
            "ssij",
            "SSIJ",
            "ssij.Ssij",
            "block_cache.BlockCacheParameters",
            "Bornea, Deligiannakis, Kotidis, Vassalos: Semi-Streamed Index "
            "Join for Near-Real Time Execution of ETL Transformations (2011)",
            needs_index=True,
        ),
        Algorithm(
            "partition-join",
            "Partition-based join",
            "partition_join.PartitionJoin",
            "block_cache.BlockCacheParameters",
            "Chakraborty, Singh: A Partition-based Approach to Support Streaming Updates over "
            "Persistent Data in an Active Data Warehouse (2009), by our own reading of what later "
            "papers say of it",
            needs_index=True,
        ),
        Algorithm(
            "elevatorjoin",
            "ELEVATORJOIN",
            "elevatorjoin.Elevatorjoin",
            "elevatorjoin.ElevatorjoinParameters",
            "our own",
            needs_index=True,
            published=False,
            warms_up_fast=True,
        ),
    )
}

# R whole in memory: no semi-stream join, and no choice where R is larger than M. In a star it is
# the join with a role whose R fits its share.
HASH_JOIN = Algorithm(
    "hash-join",
    "Hash join",
    "hash_join.HashJoin",
    "hash_join.HashJoinParameters",
    "Shapiro: Join Processing in Database Systems with Large Main Memories (1986)",
)


E = TypeVar("E", bound=Entry)


def find_algorithm(name: str) -> Algorithm:
    """Return the semi-stream join with this name, or the hash join. Raises ConfigError for an
    unknown name."""
    return find_entry(REGISTRY | {HASH_JOIN.name: HASH_JOIN}, name)


def find_entry(registry: Mapping[str, E], name: str) -> E:
    """Return a registry's entry with this name. Raises ConfigError for an unknown name."""
    if name.lower() not in registry:
        near = difflib.get_close_matches(name.lower(), registry, 1)
        raise ConfigError(
            "algorithm",
            f"must be one of {', '.join(registry)}",
            name,
            f"Did you mean {near[0]!r}?" if near else "See `semistream algorithms`.",
        )
    return registry[name.lower()]
