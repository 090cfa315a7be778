"""The loads of an app, one after the other, and their usual values.

Here a load consists of everything that was read between two moments at which no tuple waited: a run
of the app, which ends with a drain, or a part of a run that continues. The share without master
data in a single micro-batch would say little, because its tuples without master data wait longest,
and are finished in a later micro-batch. Loads that join unmatched tuples again, and batches that
were taken out, are skipped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import NamedTuple, Self

from sqlalchemy import Connection, Row, func, select

from semistream.joins.waits import Waits
from semistream.positions import START, Position, resolves
from semistream.reasons import Reason
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import batch_of, drain_of, first_load, last_load
from semistream.warehouse.schema import load_batches, load_commits, load_inputs, load_rejections

BEFORE = 10  # loads with which a share is compared
RISE = 0.2  # by which the share must exceed the share of these loads
LEAST = 100  # tuples of a load whose share is compared; that of fewer varies by chance
LEARNED_FROM = 5  # least loads for which a deviation is meaningful
DEVIATIONS = 3.0  # distance from the median, in deviations, within which values are usual
NORMAL = 1.4826  # standard deviations in a median absolute deviation, of a normal distribution
COMMITS = 1000  # the newest commits, whose loads are looked at
# why a tuple has no row of a dimension, or no partner in the other stream
MISSING = (Reason.NO_MATCH, Reason.NULL_KEY, Reason.NO_PARTNER)


@dataclass
class Load:
    """A load: its first and last commit, the time of the last commit (UTC), the number of tuples
    that it has read and that still wait, the median wait of each commit's tuples for their master
    data, and the longest wait of a tuple (seconds). By input: the number of finished tuples,
    without those that were refused before the join, and of tuples that have no row of the dimension
    or no partner. A tuple with an inferred member of the dimension has no row."""

    first: Position
    last: Position
    ended_at: datetime
    read: int = 0
    waiting: int = 0
    waits: Waits = field(default_factory=Waits)
    wait_longest: float | None = None
    finished: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)

    @property
    def batches(self) -> str:
        first, last = self.first[0], self.last[0]
        return f"batch {first}" if first == last else f"batches {first} to {last}"

    @property
    def wait_median(self) -> float:
        """The median wait in seconds, estimated from the median of each commit."""
        return self.waits.median(self.waits.total())

    def missing_share(self, of: str) -> float:
        """Return the share of an input's finished tuples that have no row of the dimension or no
        partner."""
        return self.missing[of] / self.finished[of] if self.finished[of] else 0.0


class Band(NamedTuple):
    """The usual range of a value: its median in earlier loads, and the distance from the median
    within which values are usual."""

    median: float
    distance: float
    loads: int

    @classmethod
    def learn(cls, values: Sequence[float], least: float = 0.0) -> Self:
        """Compute the usual range from at least one value. The distance is ``DEVIATIONS``
        deviations, but at least ``least``. If there are fewer values than ``LEARNED_FROM``, it is
        ``least``."""
        middle = median(values)
        deviation = NORMAL * median(abs(value - middle) for value in values)
        enough = len(values) >= LEARNED_FROM
        return cls(middle, max(least, DEVIATIONS * deviation * enough), len(values))

    @property
    def low(self) -> float:
        return self.median - self.distance

    @property
    def high(self) -> float:
        return self.median + self.distance


class Rise(NamedTuple):
    """A load in which a larger share of tuples has no row of a dimension than in the previous
    loads. usual: the median of their shares; loads: their number."""

    role: str
    load: Load
    usual: float
    loads: int

    def __str__(self) -> str:
        loads = (
            "the load before" if self.loads == 1 else f"the median of the {self.loads} loads before"
        )
        return (
            f"{self.load.missing_share(self.role):.1%} of the {self.load.finished[self.role]:,} "
            f"tuples of {self.load.batches} have no row of {self.role}, against "
            f"{self.usual:.1%}, {loads}"
        )


def newest_rise(
    connection: Connection, app: str, role: str, after: Position | None, until: Position
) -> Rise | None:
    """Return the newest load after a position (None: of all loads) in which the share of tuples
    without a row exceeds the median of up to ``BEFORE`` previous loads by more than ``RISE``,
    however much these differ. Return None if there is none."""
    loads = [of for of in read_loads(connection, app, until) if of.finished[role] >= LEAST]
    for n in range(len(loads) - 1, 0, -1):
        if after is not None and loads[n].last <= after:
            break
        before = [of.missing_share(role) for of in loads[max(n - BEFORE, 0) : n]]
        usual = median(before)
        if loads[n].missing_share(role) > usual + RISE:
            return Rise(role, loads[n], usual, len(before))
    return None


def usual_weekday(loads: Sequence[Load], of: Load) -> list[Load]:
    """Return the earlier loads that ended on the same weekday as a load. If there are too few of
    them, on too few days, return all earlier loads."""
    same = [e for e in loads if e.ended_at.weekday() == of.ended_at.weekday()]
    days = {e.ended_at.date() for e in same} - {of.ended_at.date()}
    return same if len(days) >= LEARNED_FROM else list(loads)


def read_loads(connection: Connection, app: str, until: Position) -> list[Load]:
    """Return the loads of the newest ``COMMITS`` commits up to a position, in order. Tuples of the
    last one may still wait."""
    number, c = app_number(connection, app), load_commits.c
    commits = connection.execute(
        select(
            c.batch,
            c.drain,
            c.committed_at,
            c.source_offsets.like('%"taken_out"%').label("taken_out"),
        )
        .where(c.app == app)
        .order_by(c.batch.desc(), c.drain.desc())
        .limit(COMMITS + 1)
    ).all()[::-1]
    begins_anew = len(commits) <= COMMITS
    mine = [row for row in commits[not begins_anew :] if (row.batch, row.drain) <= until]
    if not mine:
        return []
    begin = START if begins_anew else (commits[0].batch, commits[0].drain)
    counted = _counts(connection, first_load(number, begin), last_load(number, until))
    loads = _cut(mine, counted)
    # of the first load a part is unknown, unless nothing came before
    return loads if begins_anew else loads[1:]


@dataclass
class _Counts:
    read: int = 0
    done: int = 0  # tuples that the join has finished
    waiting: int = 0
    wait_median: float | None = None
    wait_longest: float | None = None
    tuples_of_facts: float = 1.0  # tuples for each fact; fewer than 1 if a role has many rows
    # by input: read, without tuples that were refused before the join; waiting; missing
    of: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def _counts(connection: Connection, first: int, last: int) -> dict[Position, _Counts]:
    """Return the counts of the commits whose loads have a key in this range."""
    b, i, r, out = load_batches.c, load_inputs.c, load_rejections.c, defaultdict(_Counts)
    sums = [func.sum(n) for n in (b.rows_read, b.unmatched, b.waiting, b.matched, b.output_rows)]
    waits = func.max(b.wait_median), func.max(b.wait_longest)
    rows = connection.execute(
        select(b.batch, b.drain, *waits, *sums)
        .where(b.load_id.between(first, last))
        .group_by(b.batch, b.drain)
    )
    for batch, drain, middle, longest, read, unmatched, waiting, matched, facts in rows:
        of_facts = int(matched) / int(facts) if facts else 1.0
        done = int(matched) + int(unmatched)
        out[batch, drain] = _Counts(int(read), done, int(waiting), middle, longest, of_facts)
    at = batch_of(r.load_id), drain_of(r.load_id)
    missing, refused = Counter[tuple[int, int, str]](), Counter[tuple[int, int, str]]()
    for batch, drain, role, reason, tuples in connection.execute(
        select(*at, r.role, r.reason, func.sum(r.tuples))
        .where(r.load_id.between(first, last))
        .group_by(*at, r.role, r.reason)
    ):
        of = missing if reason in MISSING else refused
        of[int(batch), int(drain), role] += int(tuples)
    at = batch_of(i.load_id), drain_of(i.load_id)
    sums = [func.sum(n) for n in (i.rows_read, i.waiting, i.missed, i.inferred)]
    for batch, drain, role, read, waiting, missed, inferred in connection.execute(
        select(*at, i.role, *sums).where(i.load_id.between(first, last)).group_by(*at, i.role)
    ):
        key = int(batch), int(drain)
        lacking = missing[*key, role] + int(missed)
        lacking += round(int(inferred) * out[key].tuples_of_facts)
        out[key].of[role] = int(read) - refused[*key, role], int(waiting), lacking
    return out


def _cut(commits: Sequence[Row], counted: dict[Position, _Counts]) -> list[Load]:
    """Divide commits, in order, into loads."""
    loads, open_ = list[Load](), dict[str, int]()
    waiting = 0
    for commit in commits:
        at = (commit.batch, commit.drain)
        counts = counted.get(at, _Counts())
        if not waiting and (resolves(commit.drain) or commit.taken_out):
            continue
        if not waiting:
            loads.append(Load(at, at, commit.committed_at))
        load, waiting = loads[-1], counts.waiting
        load.last, load.ended_at = at, commit.committed_at
        load.read += counts.read
        load.waiting = waiting
        load.waits.note(counts.wait_median or 0.0, counts.done)
        load.wait_longest = max(
            (w for w in (load.wait_longest, counts.wait_longest) if w is not None), default=None
        )
        open_ = {}
        for role, (read, waits, missing) in counts.of.items():
            load.finished[role] += read
            load.missing[role] += missing
            open_[role] = waits
    if waiting and loads:
        loads[-1].finished.subtract(open_)
    return loads
