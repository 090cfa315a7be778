"""The sizes of a star: which roles hold R whole in memory, the order of execution, and the split of
M.

Roles whose R is held whole come last, because no tuple waits there. Among the others, roles that
add the narrowest columns come first, so that tuples are small while they wait. For a split of M,
the cost of the chain is the sum over the roles of

    (tuples that reach the role, of each stream tuple) / (service rate of its join with its share)

and its rate is the reciprocal. The split with the lowest cost is found by dynamic programming over
multiples of M / PARTS, for each choice of the roles held whole. The service rates are those of the
cost models (`sizing/search.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from semistream.cost_models import TYPICAL, Costs, Workload
from semistream.errors import ConfigError
from semistream.joins.registry import HASH_JOIN
from semistream.joins.spec import JoinSpec, join_spec
from semistream.joins.whole_master import column_bytes, whole_bytes
from semistream.master.relation import MasterRelation
from semistream.settings import AUTO
from semistream.sizing.choice import SMALLEST
from semistream.sizing.search import EVEN, tune
from semistream.sizing.workload import describe

SMALL = 4_000_000  # bytes of an R that is read in some milliseconds
PARTS = 32  # shares are multiples of M / PARTS
LEVELS = 7  # sizes of memory for which a role's rate is predicted; between them it is interpolated
LEAST_SHARE = 1 / 256  # of M, the smallest of these
GAIN = 0.1  # a running load keeps its split unless the chain gets this much faster
MOST_SUBSETS = 64  # choices of whole roles that are compared
# the actual bytes of an R held whole, over the estimate; and bytes of each of its arrays' heads
WHOLE_SLACK, HEAD = 1.02, 1024
# the join whose model is used to split M while the algorithms are open: the one that the models
# most often find fastest; where it does not fit, the one that needs the least memory
TYPICAL_JOIN = "elevatorjoin"
SAMPLED = 20_000  # stream tuples that are looked at


@dataclass(frozen=True, eq=False)
class StarRole:
    """A role of a star. master: the part of R that an operator has; columns: dimension columns to
    add, with their names in the output; many: whether a tuple may have several rows of the
    dimension."""

    name: str
    master: MasterRelation
    on: tuple[tuple[str, str], ...]
    columns: Mapping[str, str]
    join_type: str = "inner"
    many: bool = False


@dataclass(frozen=True)
class RoleShare:
    """A role's part of M, in bytes. whole: whether R is held whole in memory, by the hash join."""

    role: str
    memory: int
    whole: bool = False


@dataclass(frozen=True)
class StarSizes:
    """The sizes of a star. shares: the roles' parts of M in the order of execution; reason: an
    explanation in one line; seconds: the predicted seconds of a stream tuple in all joins, 0 if
    every R is held whole, inf if unknown."""

    shares: tuple[RoleShare, ...]
    reason: str = ""
    seconds: float = math.inf


def is_small(size: float, memory: int) -> bool:
    """Return whether an R of `size` bytes is kept in M without asking the cost models, because that
    would take longer than to read R."""
    return size <= min(SMALL, memory // 16)


def size_star(
    roles: Sequence[StarRole],
    sample: pa.RecordBatch,
    memory: int,
    costs: Costs = TYPICAL,
    *,
    algorithm: str = AUTO,
    tuples: float = math.inf,
    sharers: int = 1,
    waiting: Collection[str] = (),
    former: Sequence[RoleShare] = (),
    described: Described | None = None,
) -> StarSizes:
    """Return the sizes of a star in `memory` bytes.

    sample: stream tuples; tuples: the number of the stream's tuples in this run, if known;
    algorithm: the algorithm of roles that are not held whole; unless it is auto, only the hash join
    holds R whole; sharers: operators of this machine that share an R held whole; each operator has
    `memory` bytes; waiting: roles that must not be held whole; former: the shares in use, which are
    kept unless others make the chain faster by GAIN; described: what earlier calls have found out
    about roles, with the same M and costs.
    """
    described = {} if described is None else described
    chain = _Chain(
        roles, sample.slice(0, SAMPLED), memory, costs, algorithm, tuples, sharers, described
    )
    if algorithm not in (AUTO, HASH_JOIN.name):
        waiting = list(chain.members)
    if not waiting and (shares := chain.all_whole()) is not None:
        together = sum(member.whole for member in chain.members.values())
        of = f"about {together:,} of M = {memory:,} bytes"
        order = ", ".join(share.role for share in shares)
        reason = (
            f"all dimensions are held whole, in {of}, in the order {order}"
            if len(shares) > 1
            else f"all of R takes {of}"
        )
        return StarSizes(shares, reason, 0.0)
    even = chain.even()
    if algorithm == HASH_JOIN.name:
        return StarSizes(even, chain.reason(even) + ", an even split")
    splits = [even, *filter(None, map(chain.split, chain.choices(waiting)))]
    seconds = [chain.seconds(shares) for shares in splits]
    least = min(seconds)
    if math.isinf(least):
        return StarSizes(even, chain.reason(even) + ", an even split, as M is too little to choose")
    # of choices of about equal cost, one in which no tuple waits without need
    best, least = max(
        ((split, s) for split, s in zip(splits, seconds, strict=True) if s <= (1 + EVEN) * least),
        key=lambda found: (sum(share.whole for share in found[0]), -found[1]),
    )
    if former and chain.fits(former) and not {s.role for s in former if s.whole} & set(waiting):
        gain = chain.seconds(former) / least - 1
        if gain <= GAIN:
            return StarSizes(
                tuple(former),
                f"{chain.reason(former)}, kept, as another split would gain {max(gain, 0):.0%}",
                (1 + gain) * least,
            )
    gain = chain.seconds(even) / least
    return StarSizes(
        best,
        chain.reason(best)
        + ", the fastest by the cost models"
        + (f", {gain:.1f} times the rate of an even split" if math.isfinite(gain) else ""),
        least,
    )


def widened(
    sample: pa.RecordBatch, master: MasterRelation, columns: Mapping[str, str]
) -> pa.RecordBatch:
    """Return stream tuples with the columns that a join adds, filled from some tuples of R: a
    sample of the next join's stream."""
    fields = [master.schema.field(c).with_name(name) for c, name in columns.items()]
    schema = pa.schema([*sample.schema, *fields])
    rows = master.read(0, list(columns)) if columns and master.tuple_count else None
    added = (
        rows.take(pa.array(np.arange(sample.num_rows) % rows.num_rows)).columns
        if rows is not None
        else [pa.nulls(sample.num_rows, field.type) for field in fields]
    )
    return pa.RecordBatch.from_arrays([*sample.columns, *added], schema=schema)


class _Member:
    """A role in a chain. carried: a sample of its join's stream, which are stream tuples with the
    columns of the previous roles."""

    def __init__(self, role: StarRole, carried: pa.RecordBatch, chain: _Chain):
        self.role, self.carried, self.chain = role, carried, chain
        self.spec = _spec(role, carried)

    @cached_property
    def whole(self) -> int:
        """The bytes that each operator needs for its share of an R held whole."""
        arrays = len(self.spec.fetched) + 3
        return math.ceil(
            (WHOLE_SLACK * whole_bytes(self.spec) + arrays * HEAD) / self.chain.sharers
        )

    @cached_property
    def work(self) -> Workload:
        return describe(self.spec, self.carried, stream_tuples=self.chain.tuples)

    @cached_property
    def passed(self) -> float:
        """The average number of tuples that go on to the next join for each incoming tuple."""
        if self.role.join_type == "left" and not self.role.many:
            return 1.0
        keys = [self.carried.column(c) for c in self.spec.keys.stream]
        known = np.ones(self.carried.num_rows, bool)
        for key in keys:
            known &= key.is_valid().to_numpy(zero_copy_only=False)
        present = float(known.mean() if len(known) else 1.0) * (1 - self.work.frequencies.absent)
        rows = present * (self.work.fan_out if self.role.many else 1.0)
        return rows + (1 - present if self.role.join_type == "left" else 0.0)

    @cached_property
    def in_memory(self) -> float:
        """The seconds per tuple in the hash join, which equal those of a tuple in an H_R with all
        of R."""
        s = self.work.symbols(self.chain.costs, 1, 1, self.work.master_tuples)
        return s.c_r + s.c_n + s.c_s

    @cached_property
    def _levels(self) -> np.ndarray:
        """The logarithms of some sizes of memory, ascending."""
        return np.log(np.geomspace(LEAST_SHARE, 1.0, LEVELS) * self.chain.memory)

    @cached_property
    def _known(self) -> dict[int, float]:
        """By level, the logarithm of the seconds per tuple with its memory, as far as asked for."""
        return {}

    def _at(self, level: int) -> float:
        if level not in self._known:
            self._known[level] = np.log(self._tuned(float(np.exp(self._levels[level]))))
        return self._known[level]

    def _tuned(self, memory: float) -> float:
        algorithm = self.chain.algorithm
        for name in (TYPICAL_JOIN, SMALLEST) if algorithm == AUTO else (algorithm,):
            with suppress(ConfigError):  # it does not fit
                rate = tune(name, self.work, memory, self.chain.costs).rate
                if rate > 0:
                    return 1 / rate
        return math.inf

    def seconds(self, memory: np.ndarray) -> np.ndarray:
        """Return the predicted seconds per tuple in a join with these sizes of memory, float64[n].
        memory: bytes, float64[n]."""
        sizes = np.log(memory)
        first, last = np.searchsorted(self._levels, [sizes.min(), sizes.max()])
        around = range(max(first - 1, 0), min(last + 1, LEVELS))
        levels, seconds = self._levels[around], np.array([self._at(level) for level in around])
        fits = np.isfinite(seconds)
        if not fits.any():
            return np.full(len(memory), math.inf)
        found = np.exp(np.interp(sizes, levels[fits], seconds[fits]))
        return np.where(sizes < levels[fits][0] - 1e-9, math.inf, found)


Described = dict[StarRole, _Member]  # the members that several chains have in common


def _spec(role: StarRole, stream: pa.RecordBatch) -> JoinSpec:
    """Return the specification of a role's join. Raises ConfigError that names the role, for
    settings that cannot work."""
    try:
        return join_spec(
            "", 0, stream.schema, role.master, list(role.on), dict(role.columns), role.join_type
        )
    except ConfigError as e:
        place = f"dimensions.{role.name}.{e.parameter}"
        raise ConfigError(place, e.constraint, e.value, e.remedy) from None


class _Chain:
    """The roles of a star, and the data for computing its cost. members: the roles by name, in the
    order of the payload's width."""

    def __init__(
        self,
        roles: Sequence[StarRole],
        sample: pa.RecordBatch,
        memory: int,
        costs: Costs,
        algorithm: str,
        tuples: float,
        sharers: int,
        described: Described,
    ):
        self.memory, self.costs, self.algorithm = memory, costs, algorithm
        self.tuples, self.sharers = tuples, sharers
        self.members: dict[str, _Member] = {}
        for role in sorted(roles, key=lambda role: _payload(role, sample)):
            if role not in described:
                described[role] = _Member(role, sample, self)
            self.members[role.name] = described[role]
            sample = widened(sample, role.master, role.columns)

    def order(self, whole: Collection[str] = ()) -> list[str]:
        """Return the names of the roles in the order of execution. Roles that let tuples wait come
        first. Roles held whole follow, inner ones before others, so that tuples leave early. Roles
        with ``many`` come last, as ``joins.star`` requires."""

        def place(name: str) -> tuple[bool, bool, bool, bool]:
            role = self.members[name].role
            left = role.join_type == "left"
            return role.many, role.many and left, name in whole, name in whole and left

        return sorted(self.members, key=place)

    def choices(self, waiting: Collection[str]) -> Iterator[frozenset[str]]:
        """Yield the sets of roles that can be held whole within M. If there are too many sets, only
        roles with the smallest R are considered. A set is left out if one of the other roles would
        take no more bytes as a whole than the smallest share with which its tuples can wait."""
        names = [
            name
            for name, member in self.members.items()
            if name not in waiting and member.whole <= self.memory
        ]
        names.sort(key=lambda name: self.members[name].whole)
        sets: Iterator[Sequence[str]]
        if 2 ** len(names) <= MOST_SUBSETS:
            sets = itertools.chain.from_iterable(
                itertools.combinations(names, count) for count in range(len(names) + 1)
            )
        else:
            sets = (names[:count] for count in range(len(names) + 1))
        for some in sets:
            free = self.memory - sum(self.members[name].whole for name in some)
            others = (self.members[name].whole for name in names if name not in some)
            if free >= 0 and all(PARTS * size > free for size in others):
                yield frozenset(some)

    def even(self) -> tuple[RoleShare, ...]:
        """Return the shares of an even split in which no role is held whole."""
        each = self.memory // len(self.members)
        return tuple(RoleShare(name, each) for name in self.order())

    def all_whole(self) -> tuple[RoleShare, ...] | None:
        """Return the shares if every role is held whole; None if M is too small."""
        sizes = {name: self.members[name].whole for name in self.order(self.members)}
        free = (self.memory - sum(sizes.values())) // len(sizes)
        return (
            tuple(RoleShare(name, size + free, True) for name, size in sizes.items())
            if free >= 0
            else None
        )

    def split(self, whole: Collection[str]) -> tuple[RoleShare, ...] | None:
        """Return the shares with the lowest cost among those that hold R of exactly these roles
        whole; None if M is too small."""
        order = self.order(whole)
        free = self.memory - sum(self.members[name].whole for name in whole)
        waits = [name for name in order if name not in whole]
        units = np.arange(1, PARTS + 1)
        if free < PARTS or not 0 < len(waits) <= PARTS:
            return None
        reached = self._reached(order)
        least = np.full(PARTS + 1, math.inf)  # cost of the roles so far with so many parts
        least[0], taken = 0.0, []
        for name in waits:
            cost = reached[name] * self.members[name].seconds(units * free / PARTS)
            # [parts in all, parts of this role]
            before = np.full((PARTS + 1, PARTS), math.inf)
            for parts in units:
                before[parts:, parts - 1] = least[: PARTS + 1 - parts] + cost[parts - 1]
            taken.append(before.argmin(axis=1) + 1)
            least = before.min(axis=1)
        if math.isinf(least[PARTS]):
            return None
        left, parts_of = PARTS, dict[str, int]()
        for name, parts in zip(reversed(waits), reversed(taken), strict=True):
            parts_of[name] = int(parts[left])
            left -= parts_of[name]
        return tuple(
            RoleShare(name, self.members[name].whole, True)
            if name in whole
            else RoleShare(name, free * parts_of[name] // PARTS)
            for name in order
        )

    def seconds(self, shares: Sequence[RoleShare]) -> float:
        """Return the predicted seconds of a stream tuple in all joins."""
        reached = self._reached([share.role for share in shares])
        total = 0.0
        for share in shares:
            member = self.members[share.role]
            each = (
                member.in_memory
                if share.whole
                else float(member.seconds(np.array([max(share.memory, 1)]))[0])
            )
            total += reached[share.role] * each
        return total

    def _reached(self, order: Sequence[str]) -> dict[str, float]:
        """Return the average number of tuples that reach each role, for each stream tuple."""
        reached, now = {}, 1.0
        for name in order:
            reached[name] = now
            now *= self.members[name].passed
        return reached

    def fits(self, shares: Sequence[RoleShare]) -> bool:
        """Return whether shares belong to these roles, and are within M."""
        return (
            {share.role for share in shares} == set(self.members)
            and sum(share.memory for share in shares) <= self.memory
            and all(
                self.members[share.role].whole <= share.memory for share in shares if share.whole
            )
        )

    def reason(self, shares: Sequence[RoleShare]) -> str:
        """Return a clause that says how M is split."""
        return f"of M = {self.memory:,} bytes " + ", then ".join(
            f"{share.role} {'held whole in' if share.whole else 'with'} {share.memory:,} bytes"
            for share in shares
        )


def _payload(role: StarRole, sample: pa.RecordBatch) -> float:
    """Return the bytes that a role adds to a tuple."""
    return column_bytes(_spec(role, sample), role.columns)
