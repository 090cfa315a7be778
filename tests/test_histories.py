"""Whole histories of a star, as they are drawn: files, versions, loads, replays and crashes. Each
tuple goes, from its first load to its facts, the way that plain loops give."""

import json
from collections import Counter, defaultdict
from datetime import date
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import faults
from loads import same
from semistream.errors import ConfigError
from semistream.job import Job
from semistream.positions import resolves
from semistream.reasons import Reason
from star_loads import BUSINESS_KEY, STREAM, WITH_UNKNOWN, ProvidedStar

# of each star's roles what differs from ``ROLES``
STARS = (
    {"part": {"late": "infer"}, "buyer": {"late": "resolve"}},
    {
        "part": {"late": "infer"},
        "buyer": {"late": "resolve"},
        "offer": {"join_type": "inner"},  # which are many
    },
    {"part": {"late": "reject"}, "buyer": {"late": "resolve"}, "seller": {"join_type": "left"}},
    {"part": {"late": "resolve"}, "buyer": {"late": "reject"}, "seller": {"late": "infer"}},
)
EDITS = (  # of tuples that are replayed
    {"sku": "c0", "buyer": 0, "seller": 0, "region": "r0"},  # keys that every version has
    {"sku": "nowhere", "buyer": -10},  # keys that none has
    {},
)


class Rejected(NamedTuple):
    """A row of ``unmatched``."""

    load_id: int
    load_row: int
    reason: str
    role: str
    resolved_by: int | None
    tuple: dict[str, Any]


class History(ProvidedStar):
    """A star, and what has happened to it."""

    def __init__(self, home, roles):
        url = f"sqlite:///{home / 'warehouse.db'}"
        super().__init__(home, url, (*roles,), parts=2000, persons=1000)
        job = self.job.model_dump()
        for name, role in job["dimensions"].items():
            role |= {"max_unmatched": 1.0} | roles[name]
        self.job = Job.load(job)
        self.known, self.newest = Counter(), {}  # by dimension: rows, version
        self.rows = {}  # by dimension and version, rows by key
        self.keys = {}  # by dimension and business key, the surrogate key
        self.edited = {}  # by id and load, the tuple as this load has joined it
        self.replayed = {None}  # loads that a replay may have begun
        self.loaded = 0  # tuples of files that a load has ended with
        self.died = ""  # "load" or "replay": the run that the next one is to finish

    # ---- what happens

    def bring(self, dimension, more):
        """A new version, with so many more rows, and with other names in those before."""
        self.known[dimension] += more
        prefix, count = f"version {len(self.rows)}", self.known[dimension]
        self.newest |= self.provide(prefix, **{dimension: count})
        by_key = self.rows[dimension, self.newest[dimension]] = defaultdict(list)
        key = next(role.key for role in self.job.roles if role.dimension.name == dimension)
        for row in self._rows(dimension, prefix)[:count]:
            by_key[tuple(row[column] for column in key)].append(row)

    def attempt(self, what, run, crash):
        """A load or a replay, which may die. Gives the loads that it has committed."""
        before, died = self.joins(), self.died
        with pytest.MonkeyPatch.context() as patch:
            if crash:
                faults.crash_at(patch, *crash)
            try:
                run()
                self.died = ""
            except OSError as e:
                assert crash and str(e) == "crash"
                self.died = died or what
            except ConfigError as e:  # what has died is finished by the load, not by a replay
                assert (what, died) == ("replay", "load")
                assert "finished what it has begun" in str(e)
        new = {load: joins for load, joins in self.joins().items() if load not in before}
        newest = {role.name: self.newest[role.dimension.name] for role in self.job.roles}
        assert died or all(joins == newest for joins in new.values())  # finished as it was begun
        if "replay" in (what, died):
            self.replayed |= {*new}
        return {*new}

    def load(self, spark, crash=None):
        self.attempt("load", partial(self.run, spark), crash)
        self.loaded = self.loaded if self.died else len(self.stream)

    def replay(self, crash=None, file=None):
        return self.attempt("replay", partial(super().replay, file), crash)

    def edit(self, crash):
        """Replay most of the open tuples, some with other keys; once more, as that may have
        died."""
        rows, edited = [], {}
        for row in self.rejected():
            if row.resolved_by is None and (which := row.tuple["id"] % 4) < len(EDITS):
                now = row.tuple | EDITS[which]
                rows.append({"load_id": row.load_id, "load_row": row.load_row} | now)
                edited |= {(row.load_id, row.load_row): now} if now != row.tuple else {}
        schema = pa.schema([("load_id", pa.int64()), ("load_row", pa.int32()), *STREAM])
        file = self.paths.home / "edited.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), file)
        new = self.replay(crash, file) | self.replay(None, file)
        by = {(row.load_id, row.load_row): row.resolved_by for row in self.rejected()}
        assert {by[key] for key in edited} <= new
        self.edited |= {(now["id"], by[key]): now for key, now in edited.items()}

    # ---- what came out

    def joins(self):
        """By load, the version of each role, in the order of the joins."""
        rows = self.query("SELECT load_id, role, version FROM load_inputs ORDER BY load_id, number")
        by_load = groupby(rows, lambda row: row[0])
        return {load: {role: version for _, role, version in of} for load, of in by_load}

    def rejected(self):
        """The rows of ``unmatched``, those of a tuple in the order of its loads."""
        rows = self.query(f"SELECT {', '.join(Rejected._fields)} FROM unmatched ORDER BY load_id")
        found = [Rejected(*row[:-1], json.loads(row[-1])) for row in rows]
        for row in found:
            row.tuple["day"] = date.fromisoformat(row.tuple["day"])
        return found

    def results(self):
        """By tuple: by load, its facts; by role, the version that has filled an inferred member
        in, or None."""
        facts, filled = defaultdict(lambda: defaultdict(Counter)), defaultdict(dict)
        day = self.columns.index("day")
        for *row, load in self.query(f"SELECT {', '.join(self.columns)}, load_id FROM fact_sales"):
            row[day] = date.fromisoformat(row[day])
            facts[row[0]][load][tuple(row)] += 1
        of_facts = "inferred JOIN fact_sales USING (load_id, load_row)"
        for number, role, version in self.query(f"SELECT id, role, version FROM {of_facts}"):
            assert filled[number].setdefault(role, version) == version
        return facts, filled

    def note_keys(self):
        """No row of a dimension ever gets another surrogate key."""
        found = {}
        for dimension in self.known:
            (key,) = BUSINESS_KEY[dimension]
            rows = self.query(f"SELECT {key}, {dimension}_sk FROM dim_{dimension}")
            found |= {(dimension, value): sk for value, sk in rows if sk}
            assert len(rows) == len({sk for _, sk in rows})
        assert self.keys.items() <= found.items()
        self.keys = found

    def match(self, tuple_, role, version=None):
        """The rows of a role's dimension, of the newest version or of another one."""
        dimension = role.dimension.name
        key = tuple(tuple_[column] for column in role.on)
        return self.rows[dimension, version or self.newest[dimension]].get(key, [])

    def outcome(self, tuple_, versions, filled):
        """The facts of a tuple, or the reason and the role for which it is unmatched. versions: by
        role, in the order of the joins; filled: by role, that of an inferred member."""
        facts = [tuple_]
        for name, version in versions.items():
            role, dimension = self.job.role(name), self.job.role(name).dimension.name
            has_null = None in [tuple_[column] for column in role.on]
            rows = self.match(tuple_, role, filled.get(name) or version)
            if not rows and role.late == "infer" and not has_null:
                rows = [{column: tuple_[of] for of, column in role.on.items()}]
            if not rows and role.join_type == "inner":
                return Reason.NULL_KEY if has_null else Reason.NO_MATCH, name
            unknown = 0 if dimension == WITH_UNKNOWN else None
            (key,) = BUSINESS_KEY[dimension]
            facts = [
                fact
                | {role.surrogate_key: self.keys.get((dimension, row.get(key)), unknown)}
                | {of: row.get(column) for column, of in role.columns.items()}
                for fact in facts
                for row in rows or [{}]
            ]
        return Counter(tuple(fact[column] for column in self.columns) for fact in facts)

    def check(self, after):
        """Each tuple has gone one way, which ends in facts or in an open row, and each result of it
        is that of plain loops. What is left open has no row in the newest versions, as far as
        ``after`` (load, replay or edit) joins it again."""
        self.note_keys()
        joins, rejected, (facts, filled) = self.joins(), self.rejected(), self.results()
        kinds, ways = dict(self.query("SELECT load_id, drain FROM load_batches")), defaultdict(list)
        for row in rejected:
            ways[row.tuple["id"]].append(row)
        assert facts.keys() | ways.keys() == {*range(self.loaded)}
        for number, tuple_ in enumerate(self.stream[: self.loaded]):
            way = [row.load_id for row in ways[number]] + [*facts[number]]
            ends = [] if facts[number] else [None]
            assert [row.resolved_by for row in ways[number]] == way[1:] + ends
            assert [resolves(kinds[load]) for load in way] == [n > 0 for n in range(len(way))]
            for row in ways[number]:
                role, result = self.job.role(row.role), (row.reason, row.role)
                tuple_ = self.edited.get((number, row.load_id), tuple_)
                assert row.tuple == tuple_
                assert self.outcome(tuple_, joins[row.load_id], {}) == result
                late = role.late == "resolve" and row.reason == Reason.NO_MATCH
                assert late or row.resolved_by in self.replayed
                if row.resolved_by is None and (after == "replay" or (late and after == "load")):
                    assert not self.match(tuple_, role)
            for load, found in facts[number].items():
                tuple_ = self.edited.get((number, load), tuple_)
                same(found, self.outcome(tuple_, joins[load], filled[number]))
                open_ = [role for role, version in filled[number].items() if version is None]
                assert not any(self.match(tuple_, self.job.role(role)) for role in open_)
        counts = "sum(rows_read), sum(resolved), sum(matched), sum(unmatched)"
        resolved = sum(row.resolved_by is not None for row in rejected)
        [totals] = self.query(f"SELECT {counts} FROM load_batches")
        assert totals == (
            self.loaded,
            resolved,
            len([*filter(None, facts.values())]),
            len(rejected),
        )


POINTS = [
    *faults.points("sql"),
    ("semistream.streaming.sinks.sql.SqlSink.write", "after"),  # in the driver: of resolving loads
    ("semistream.warehouse.inferred.Filling.fill", "after"),
]
STEPS = st.tuples(
    st.fixed_dictionaries({"part": st.integers(0, 300), "person": st.integers(0, 200)}),
    st.lists(st.integers(1, 100), max_size=2),  # tuples of new files
    st.sampled_from(["load", "replay", "edit"]),
    st.none() | st.tuples(st.sampled_from(POINTS), st.integers(1, 2)),
)


@settings(
    max_examples=8,
    derandomize=True,
    phases=[Phase.generate],  # to shrink a history takes many minutes
    report_multiple_bugs=False,
)
@given(roles=st.sampled_from(STARS), history=st.lists(STEPS, min_size=3, max_size=5))
def test_each_tuple_goes_the_way_that_plain_loops_give(spark, roles, history, tmp_path_factory):
    star = History(tmp_path_factory.mktemp("history"), roles)
    for dimension, rows in {"part": 100, "person": 100, "offer": 999}.items():
        if any(role.dimension.name == dimension for role in star.job.roles):
            star.bring(dimension, rows)
    star.add_file(100)
    star.load(spark)
    for more, files, what, crash in history:
        for dimension, rows in more.items():
            if rows:
                star.bring(dimension, rows)
        for rows in files:
            star.add_file(rows)
        crash = crash and (*crash[0], crash[1])
        if what == "load":
            star.load(spark, crash)
        elif what == "replay":
            star.replay(crash)
        else:
            if star.died:
                star.load(spark)
            star.edit(crash)
        if not star.died:
            star.check(what)
    star.load(spark)
    star.check("load")
    star.prove(seed=1)
