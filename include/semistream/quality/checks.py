"""The expectations: each is a query over the warehouse that looks for wrong rows, with words for
people.

A query returns the offending rows. All queries are set-based and use indexes: the primary keys of
the fact table, (load_id, load_row), and of the dimension, and the indexes of the staging tables.
One staging table has the facts by their ids if the fact table has no index on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import and_, case, func, literal, null, or_, select
from sqlalchemy.sql import ColumnElement, FromClause, Select

from semistream.quality.scope import Scope
from semistream.quality.staging import Older, Sample, Sources, Unparsable, drawn_facts
from semistream.warehouse.load_ids import batch_of, drain_of, partition_of
from semistream.warehouse.schema import load_batches, load_commits, unmatched

ROWS_SHOWN = 50


@dataclass(frozen=True)
class Check:
    name: str
    title: str
    explanation: str
    query: Select | sa.CompoundSelect
    remedy: str = ""  # tells the reader what to do when the check fails

    def sql(self, dialect: sa.Dialect) -> str:
        """Return the query as text for ``sa.text``: literals inline, no parameters."""
        make: Any = type(dialect)
        # a dialect of paramstyle "format" would double every percent sign
        plain = make(paramstyle="named")
        return str(self.query.compile(dialect=plain,
                                      compile_kwargs={"literal_binds": True})).replace(":", "\\:")


def all_checks(scope: Scope, rejected: sa.Table, same: Check, damaged: sa.Table | None,
               files: sa.Table | None, join_sizes: sa.Table | None,
               sources: Sources | None, unparsable_ids: Unparsable | None,
               older: Older | None, sample: Sample | None) -> Iterator[Check]:
    """Yield the checks that are possible. Without recounted sources, the checks that need them are
    omitted."""
    ids = None if sources is None else sources.ids
    yield from ledger_checks(scope)
    yield fact_rows(scope)
    yield unmatched_rows(scope, rejected)
    yield unparsable(scope, rejected)
    yield same
    if join_sizes is not None:
        yield expected_rows(scope, join_sizes)
    if damaged is not None:
        yield table_files(damaged)
    if files is not None:
        yield source_files(files)
    if sources is not None:
        yield source_rows(scope, sources.counts)
    if ids is not None:
        yield no_duplicates(scope, ids)
        if unparsable_ids is not None:
            yield none_missing(scope, missing(scope, ids, unparsable_ids.ids), unparsable_ids.lost)
        yield none_invented(scope, ids)
        yield unmatched_once(scope, ids)
    yield surrogate_keys(scope)
    if scope.added and (scope.comparable or older is not None):
        yield enriched_columns(scope, older)
    if sample is not None:
        yield sample_joined(scope, sample)
        yield sample_unmatched(scope, sample)


def with_remedy(check: Check, scope: Scope) -> Check:
    """Return the check together with a remedy for its failure."""
    if check.remedy:
        return check
    name = check.name.removeprefix("left_").removeprefix("right_")
    remedy = REMEDIES.get(name, "{again}").format(again=_load_again(scope), app=scope.app,
                                                  fact=scope.fact_name)
    return replace(check, remedy=remedy[0].upper() + remedy[1:])


def _load_again(scope: Scope) -> str:
    if scope.sink != "sql":
        return ("restore the Delta table, and the ledger, to a version of the same time, or load "
                "into a new table under another --app name.")
    return (f"put the rows back from a backup of the warehouse; or, while the source has all that "
            f"was loaded, `semistream reset {scope.app}`, and load again.")


# The remedy by the name of a check, without "left_" or "right_"; default: {again}.
LEDGER = ("The ledger was changed, or is of another time than the tables: put a backup of all of "
          "them back; or {again}")
SOURCE = ("The source is not what was loaded: put its files back as they were, and verify again. "
          "Where they are right as they are now: {again}")
MASTER = ("Where {fact} was changed: {again} Where the dimension table was changed by hand, "
          "`semistream provision JOB` puts it right; then verify again.")
REMEDIES = {
    **dict.fromkeys(("batch_partitions", "commit_rows", "batch_arithmetic", "waiting_carried",
                     "drained", "total_arithmetic", "side_arithmetic"), LEDGER),
    **dict.fromkeys(("source_rows", "none_invented", "unmatched_once"), SOURCE),
    **dict.fromkeys(("surrogate_keys", "enriched_columns", "sample_joined", "sample_unmatched"),
                    MASTER),
    "source_files": "A file that is in no batch: give it a new name, or touch it, and load. One "
                    "that was written since: put back what was loaded, and what is new under "
                    "another name. Or {again}",
    "unparsable": "The column why of unmatched's tuples tells what is wrong with each: mend the "
                  "source or the job's columns, and {again} Where so many are right, raise "
                  "stream.max_unparsable in the job, and `semistream verify {app} --job FILE`.",
}


def ledger_checks(scope: Scope) -> Iterator[Check]:
    b, c = load_batches.c, load_commits.c
    sums = select(b.batch, b.drain, func.count().label("n"),
                  func.sum(b.rows_read).label("rows_read")) \
        .where(scope.holds(load_batches)).group_by(b.batch, b.drain).subquery("ledger")
    same = and_(sums.c.batch == c.batch, sums.c.drain == c.drain)
    orphans = select(sums.c.batch, sums.c.drain, null(), sums.c.n) \
        .where(~select(1).where(c.app == scope.app, same).correlate(sums).exists())
    yield Check("batch_partitions", "Every committed batch has all its partitions",
                "A batch is committed when each of its partitions has written its rows and its "
                "ledger row. A batch listed here has fewer or more ledger rows than it has "
                "partitions, or was passed over without ever being committed.",
                sa.union_all(select(c.batch, c.drain, c.partitions.label("partitions_expected"),
                                    func.coalesce(sums.c.n, 0).label("partitions_in_ledger"))
                             .select_from(load_commits.outerjoin(sums, same))
                             .where(scope.holds(load_commits),
                                    func.coalesce(sums.c.n, 0) != c.partitions), orphans))
    yield Check("commit_rows", "Rows read by the partitions add up to the batch",
                "A batch notes how many rows it read from the source, each of its partitions how "
                "many it received. Rows lost or doubled between the two show here.",
                select(c.batch, c.drain, c.rows_read.label("rows_read_by_driver"),
                       sums.c.rows_read.label("rows_read_by_partitions"))
                .select_from(load_commits.join(sums, same))
                .where(scope.holds(load_commits), sums.c.rows_read != c.rows_read))
    left_over = b.waiting_before + b.rows_read - b.matched - b.unmatched - b.waiting
    yield Check(
        "batch_arithmetic", "In every batch: waiting before + read = matched + unmatched + waiting",
        "Each stream tuple is matched, unmatched or still waiting in the join's memory; none may "
        "vanish and none may be counted twice. The difference is what is not accounted for.",
        select(*load_of(load_batches), b.waiting_before, b.rows_read, b.matched, b.unmatched,
               b.waiting, left_over.label("difference"))
        .where(scope.holds(load_batches), left_over != 0))
    previous = func.lag(b.waiting).over(partition_by=b.partition, order_by=(b.batch, b.drain))
    before = select(*load_of(load_batches), b.waiting_before,
                    func.coalesce(previous, 0).label("waiting_after_previous_batch")) \
        .where(scope.until(load_batches)).subquery("carried")
    yield Check(
        "waiting_carried", "What waited after one batch is taken up by the next",
        "Tuples that wait in the join are carried over in its saved state. A partition listed here "
        "began with another number of waiting tuples than the batch before it had left.",
        select(before).where(scope.after(before),
                             before.c.waiting_before != before.c.waiting_after_previous_batch))
    yield Check("drained", "Nothing waits after a drain",
                "A drain (at a stop, and when all available input has been read) finishes every "
                "waiting tuple.", select(*load_of(load_batches), b.waiting)
                .where(scope.holds(load_batches), b.drain == 1, b.waiting != 0))
    yield total_arithmetic(scope)


def total_arithmetic(scope: Scope) -> Check:
    b = load_batches.c
    at_end = and_(b.batch == scope.last[0], b.drain == scope.last[1])
    total = select(func.sum(b.rows_read).label("rows_read"), func.sum(b.matched).label("matched"),
                   func.sum(b.unmatched).label("unmatched"),
                   func.sum(case((at_end, b.waiting), else_=0)).label("waiting")) \
        .where(scope.until(load_batches)).subquery("total")
    difference = total.c.rows_read - total.c.matched - total.c.unmatched - total.c.waiting
    return Check("total_arithmetic", "In total: read = matched + unmatched + waiting",
                 "The same over everything that this app ever loaded, from its first batch to the "
                 "last one verified here.",
                 select(total, difference.label("difference")).where(difference != 0))


def fact_rows(scope: Scope) -> Check:
    b = load_batches.c
    counted = _counted(scope, scope.fact, "facts")
    return Check(
        "fact_rows", f"{scope.fact_name} has exactly the rows that the ledger says",
        "Each partition of a batch notes how many rows it wrote. Fewer rows now means that rows "
        "were deleted or lost, more means that they were written twice.",
        sa.union_all(*_both_ways(counted, select(b.load_id, b.output_rows.label("rows_in_ledger"))
                                 .where(scope.holds(load_batches), b.output_rows != 0)
                                 .subquery("ledger"))))


def unmatched_rows(scope: Scope, rejected: sa.Table) -> Check:
    counted = _counted(scope, unmatched, "kept", unmatched.c.reason)
    return Check("unmatched_rows", "Every unmatched tuple is kept, with its reason",
                 "A tuple without master data, without a key or that cannot be parsed goes to the "
                 "table unmatched. Its rows, by reason, must be those that the ledger counted "
                 "(reason (all): the ledger's total against its own count by reason).",
                 sa.union_all(*_both_ways(counted, rejected.select().subquery("ledger"), "reason"),
                              _reasons_add_up(scope, rejected)))


def unparsable(scope: Scope, rejected: sa.Table) -> Check:
    read = select(func.coalesce(func.sum(load_batches.c.rows_read),
                                0)).where(scope.holds(load_batches)).scalar_subquery()
    broken = select(func.coalesce(func.sum(rejected.c.rows_in_ledger),
                                  0)).where(rejected.c.reason == "unparsable")
    counted = select(broken.scalar_subquery().label("unparsable"),
                     read.label("rows_read")).subquery("counted")
    return Check(
        "unparsable", f"No more than {scope.max_unparsable:.4g} of the tuples could not be parsed",
        "A tuple that cannot be parsed has arrived, in unmatched, but its values have not. The "
        "limit is the job's stream.max_unparsable.",
        select(counted).where(counted.c.unparsable > scope.max_unparsable * counted.c.rows_read))


def same_rows(wrong: sa.Table, told: Iterable[str] = ()) -> Check:
    """Return the check that the rows' checksums are those of the ledger.

    wrong: the rows of loads whose checksum differs; told: sentences about what ``wrong`` omits. A
    load of a version that kept no checksums has null in the ledger and is not compared.
    """
    columns = [c for c in wrong.columns if c.name != "number"]
    return Check("same_rows", "The rows are the very ones that were loaded",
                 "Each load notes a checksum over all columns of its rows, which are all read "
                 "again. Where it differs, the load is joined again from its source and its master "
                 "data: old is what these say, new what the warehouse has. "
                 + " ".join(told), select(*columns).order_by(wrong.c.number))


def expected_rows(scope: Scope, sizes: sa.Table) -> Check:
    s = sizes.c
    return Check(
        "expected_rows", "As many rows were loaded as keys of stream and master data tell",
        "Each load keeps a sketch of the keys that it read, made before the join. From these and "
        "the keys of the master data's snapshot the rows of the join are estimated, with a bound "
        "that fails in less than one of a million cases. It is wide where keys are many and skewed "
        "(see the columns estimate and bound): this finds large losses only, but such that the "
        "load's own counting would not tell.",
        select(sizes).where(or_(s.rows_loaded < s.at_least, s.rows_loaded > s.at_most)))


def table_files(damaged: sa.Table) -> Check:
    return Check("table_files", "Every file of the sink is there, and whole",
                 "The table's log names its files with their sizes. A file listed here is gone, "
                 "has another size or cannot be read; what it had is missing below too. "
                 "Restore it, or load what the table lost under another app name.", select(damaged))


def source_files(files: sa.Table, side: str = "") -> Check:
    """Return the check of a source's files. side: "left" or "right" of two streams, else empty."""
    return Check(f"{side}_source_files" if side else "source_files",
                 f"Every file of the {f'{side} ' if side else ''}source is in a batch, and as it "
                 "was loaded",
                 "The ledger names each file with its size and time. A file listed here was "
                 "there when the source was read and is in no batch, or it was written after its "
                 "batch was loaded: complete files are to be renamed into the stream's directory. "
                 "What could not be looked at may be, or hide, such a file: mend or remove it.",
                 select(files))


def _reasons_add_up(scope: Scope, rejected: sa.Table) -> Select:
    b, r = load_batches.c, rejected.c
    by_reason = select(func.coalesce(func.sum(r.rows_in_ledger), 0)).where(r.load_id == b.load_id) \
        .correlate(load_batches).scalar_subquery()
    return select(*load_of(load_batches), literal("(all)"), b.unmatched,
                  by_reason).where(scope.holds(load_batches), b.unmatched != by_reason)


def source_rows(scope: Scope, counts: sa.Table) -> Check:
    s, c = counts.c, load_commits.c
    return Check("source_rows", "The source has as many rows as were read",
                 "The files (or table) that each batch was read from are opened again, without "
                 "Spark, and counted.",
                 select(s.batch, s.source, s.rows_in_source, c.rows_read).select_from(counts.join(
                     load_commits, and_(c.app == scope.app, c.batch == s.batch, c.drain == 0)))
                 .where(s.rows_in_source != c.rows_read))


def no_duplicates(scope: Scope, source_ids: sa.Table) -> Check:
    """Return the check that the facts have an id no more often than the source. Where a tuple may
    match several master rows, facts are counted per id and surrogate key."""
    f, s = scope.by_id, source_ids.c
    key = [f.c[i] for i in scope.ids] + ([] if scope.unique else [f.c[scope.surrogate]])
    many = select(*key, func.count().label("rows_in_warehouse"),
                  batch_of(func.min(f.c.load_id)).label("first_batch"),
                  batch_of(func.max(f.c.load_id)).label("last_batch")) \
        .where(*_identified(scope, f), scope.recounted(f)) \
        .group_by(*key).having(func.count() > 1).subquery("many")
    times = select(func.count()).where(*(s[i] == many.c[i]
                                         for i in scope.ids)).correlate(many).scalar_subquery()
    return Check("no_duplicates", "No stream tuple was loaded twice",
                 f"A stream tuple is identified by {_listed(scope.ids)}"
                 + ("." if scope.unique else "; it may match several master rows, "
                                             f"but each of them ({scope.surrogate}) only once."),
                 select(*many.c, times.label("rows_in_source"))
                 .where(many.c.rows_in_warehouse > times))


def _identified(scope: Scope, table: FromClause) -> list[ColumnElement[bool]]:
    """Return the conditions that a row has an id. A tuple without one is counted, but cannot be
    recognised as missing or duplicated."""
    return [table.c[i].is_not(None) for i in scope.ids]


def missing(scope: Scope, source_ids: sa.Table, unparsable: sa.Table) -> Select:
    """Select the ids of the source that have not arrived. unparsable: the ids found in the texts of
    tuples that could not be parsed."""
    s, f, u, n = source_ids.c, scope.by_id, unmatched.c, unparsable.c
    loaded = and_(*(f.c[i] == s[i] for i in scope.ids), scope.recounted(f))
    kept = and_(u.fact_table == scope.fact_name, u.stream_id == s.quality_id,
                scope.recounted(unmatched))
    # Outer joins: for NOT EXISTS, MariaDB would copy everything that was loaded to a table on disk
    # instead of using the indexes.
    return select(s.quality_batch.label("source_batch"), *(s[i] for i in scope.ids)) \
        .select_from(source_ids.outerjoin(f, loaded).outerjoin(unmatched, kept)
                     .outerjoin(unparsable, n.stream_id == s.quality_id)).where(
            f.c.load_id.is_(None), u.load_id.is_(None), n.stream_id.is_(None))


def none_missing(scope: Scope, absent: Select, lost: int) -> Check:
    """Return the check that no tuple of the source is missing. absent: see ``missing``; lost: how
    many of these may be unparsable tuples whose text does not show the id."""
    allowed = (f" {scope.waiting:,} tuples wait in the join after the last batch and are still "
               "missing." if scope.waiting else "")
    if scope.waiting or lost:
        found = absent.cte("missing")
        how_many = select(func.count()).select_from(found).scalar_subquery()
        absent = select(*found.c).where(how_many != scope.waiting + lost)
    return Check("none_missing", arrived("", lost),
                 f"Every {_listed(scope.ids)} of the source is in {scope.fact_name} or in "
                 f"unmatched.{allowed}{unsure(lost)}", absent)


def arrived(side: str, lost: int) -> str:
    """Return the title of the check for missing tuples. side: "left" or "right" of two streams,
    else empty."""
    if not side:
        return (f"All stream tuples but at most {lost:,} have arrived" if lost
                else "Every stream tuple has arrived")
    return (f"All tuples of the {side} stream but at most {lost:,} have arrived" if lost
            else f"Every tuple of the {side} stream has arrived")


def unsure(lost: int) -> str:
    return (f" {lost:,} that are in neither may be among those that could not be parsed, and whose "
            "text does not tell the id." if lost else "")


def none_invented(scope: Scope, source_ids: sa.Table) -> Check:
    f, s = scope.fact, source_ids.c
    return Check("none_invented", "Every loaded row comes from the source",
                 f"A row of {scope.fact_name} whose {_listed(scope.ids)} the source does not have "
                 "was changed, or put there by another.",
                 select(*(f.c[i] for i in scope.ids), *load_of(f))
                 .select_from(f.outerjoin(source_ids, and_(*(s[i] == f.c[i] for i in scope.ids))))
                 .where(scope.holds(f), *_identified(scope, f), s.quality_batch.is_(None)))


def unmatched_once(scope: Scope, source_ids: sa.Table) -> Check:
    s, f, u = source_ids.c, scope.by_id, unmatched.c
    mine = and_(u.fact_table == scope.fact_name, u.stream_id.is_not(None), u.reason != "unparsable",
                scope.holds(unmatched))
    kept = select(u.stream_id, func.count().label("rows_in_unmatched"),
                  batch_of(func.min(u.load_id)).label("first_batch"),
                  batch_of(func.max(u.load_id)).label("last_batch")).where(mine).group_by(
                      u.stream_id).subquery("kept")
    same = s.quality_id == kept.c.stream_id
    times = select(func.count()).where(same).correlate(kept).scalar_subquery()
    matched = and_(*(f.c[i] == s[i] for i in scope.ids), scope.recounted(f),
                   f.c[scope.surrogate].is_not(None))
    loaded = case((select(1).select_from(source_ids.join(f, matched)).where(same)
                   .correlate(kept).exists(), 1), else_=0)
    return Check(
        "unmatched_once", "Every unmatched tuple comes from the source, and from there only once",
        f"A tuple in unmatched whose {_listed(scope.ids)} the source does not have, or has less "
        f"often than unmatched and {scope.fact_name} together, was changed on its way or put aside "
        f"twice.",
        select(*kept.c, loaded.label(f"in_{scope.fact_name}"), times.label("rows_in_source"))
        .where(kept.c.rows_in_unmatched + loaded > times))


def surrogate_keys(scope: Scope) -> Check:
    """Return the check of the facts' surrogate keys. It also compares those join columns that are
    in the dimension's business key, because these never change for a surrogate key."""
    f, d = scope.fact, scope.dimension
    fk, pk = f.c[scope.surrogate], d.c[scope.surrogate]
    absent: ColumnElement[bool] = pk.is_(None)
    if scope.left:
        there = select(1).where(*(d.c[m] == f.c[s] for s, m in scope.on.items())).correlate(f)
        absent = or_(and_(fk.is_not(None), pk.is_(None)),
                     and_(fk.is_(None), scope.is_current(f), sa.exists(there)))
    pairs = [(s, m) for s, m in scope.on.items() if m in scope.business_key and s in f.c]
    other = or_(*(f.c[s] != d.c[m] for s, m in pairs)) if pairs else sa.false()
    shown = [d.c[m].label(f"{d.name}_{m}") for _, m in pairs]
    return Check("surrogate_keys", "Every surrogate key is in its dimension and is the right one",
                 f"{scope.surrogate} of each fact names a row of {d.name}"
                 + (f", and that row has the fact's own {_listed(scope.on)}." if pairs else ".")
                 + (" A tuple without one (left join) has no master data." if scope.left else ""),
                 select(*_ids(scope, f), *load_of(f), fk, *(f.c[s] for s, _ in pairs), *shown)
                 .select_from(f.outerjoin(d, fk == pk))
                 .where(scope.holds(f), or_(absent, and_(pk.is_not(None), other))))


def enriched_columns(scope: Scope, older: Older | None) -> Check:
    """Return the check that compares facts with the dimension, or with the master rows of the
    version that they were loaded with."""
    f, d = scope.fact, scope.dimension
    queries = [] if not scope.comparable else [
        _enriched(scope, d).select_from(f.join(d, f.c[scope.surrogate] == d.c[scope.surrogate]))
        .where(scope.holds(f), scope.is_current(f), _differs(scope, d))]
    if older is not None:
        o, m = older.facts, older.master
        own = and_(m.c.quality_version == o.c.quality_version,
                   m.c[scope.surrogate] == o.c[scope.surrogate])
        queries.append(
            _enriched(scope, m).select_from(
                o.join(f, and_(f.c.load_id == o.c.load_id, f.c.load_row == o.c.load_row))
                .outerjoin(m, own)).where(_differs(scope, m)))
    return Check("enriched_columns", "Enriched columns are what the master data says",
                 f"Compared for every fact, with {d.name}, or with the version of the master data "
                 f"that it was loaded with where that is another: {_listed(scope.added)}.",
                 sa.union_all(*queries) if len(queries) > 1 else queries[0])


def _differs(scope: Scope, master: FromClause) -> ColumnElement[bool]:
    return or_(master.c[scope.surrogate].is_(None), *(
        scope.fact.c[a].is_distinct_from(master.c[m]) for a, m in scope.added.items()))


def _enriched(scope: Scope, master: FromClause) -> Select:
    """Select the first column of a fact that differs from its master row."""
    f = scope.fact
    pairs = [(f.c[a], master.c[m]) for a, m in scope.added.items()]
    differ = [a.is_distinct_from(m) for a, m in pairs]
    values: dict[str, list[ColumnElement[str]]] = {
        "column": [literal(str(a.name), sa.String) for a, _ in pairs],
        "loaded": [sa.cast(a, sa.String(255)) for a, _ in pairs],
        "in_dimension": [sa.cast(m, sa.String(255)) for _, m in pairs]}
    shown = [case(*zip(differ, each, strict=True)).label(what) for what, each in values.items()]
    return select(*_ids(scope, f), *load_of(f), f.c[scope.surrogate], *shown)


def sample_joined(scope: Scope, sample: Sample) -> Check:
    """Return the check that compares sampled facts with the master rows of their version. Staging
    has these, from the dimension or from a snapshot."""
    f, s, m = scope.fact, sample.facts, sample.master
    same_row = and_(m.c.quality_version == s.c.quality_version,
                    m.c[scope.surrogate] == f.c[scope.surrogate],
                    *(f.c[a] == m.c[b] for a, b in scope.on.items()))
    absent = m.c[scope.surrogate].is_(None)
    pairs = [(f.c[a], m.c[b]) for a, b in scope.added.items()]

    def first_that_differs(what: str) -> ColumnElement:
        def show(a: ColumnElement, b: ColumnElement) -> ColumnElement:
            return (literal(str(a.name), sa.String) if what == "column"
                    else sa.cast(a if what == "loaded" else b, sa.String(255)))

        missing = (literal("(no such master row)") if what == "column"
                   else sa.cast(null(), sa.String(255)))
        return case((absent, missing),
                    *((a.is_distinct_from(b), show(a, b)) for a, b in pairs)).label(what)

    differ = select(*_ids(scope, f), *load_of(f), f.c[scope.surrogate], *(f.c[a] for a in scope.on),
                    s.c.quality_version.label("master_version"),
                    *map(first_that_differs, ("column", "loaded", "joined_again"))) \
        .select_from(f.join(s, drawn_facts(scope, sample)).outerjoin(m, same_row)) \
        .where(f.c[scope.surrogate].is_not(None) if scope.left else sa.true(),
               or_(absent, *(a.is_distinct_from(b) for a, b in pairs))).distinct()
    return Check("sample_joined", "A sample of facts, joined again by the database, is the same",
                 f"{sample.fact_count:,} facts drawn at random (seed {sample.seed}) are joined by "
                 "the database with the master data of the version that they were loaded with, "
                 "and compared column by column.",
                 differ if scope.unique else sa.union_all(differ, _matches_lost(scope, sample)))


def _matches_lost(scope: Scope, sample: Sample) -> Select:
    """Select the master rows that a sampled stream tuple matches but was not joined with, where a
    tuple may match several."""
    f, s, m, g = scope.fact, sample.facts, sample.master, scope.by_id.alias("other")
    joined = select(1).where(*(g.c[i] == s.c[i] for i in scope.ids), scope.recounted(g),
                             g.c[scope.surrogate] == m.c[scope.surrogate])
    rows = s.join(f, drawn_facts(scope, sample)).join(
        m, and_(m.c.quality_version == s.c.quality_version,
                *(f.c[a] == m.c[b] for a, b in scope.on.items())))
    return select(*_ids(scope, f), *load_of(f), m.c[scope.surrogate], *(f.c[a] for a in scope.on),
                  s.c.quality_version, literal("(match not loaded)"), null(), null()) \
        .select_from(rows).where(~sa.exists(joined.correlate(s, m))).distinct()


def sample_unmatched(scope: Scope, sample: Sample) -> Check:
    s, m = sample.unmatched, sample.master
    return Check("sample_unmatched",
                 "A sample of unmatched tuples, joined again by the database, has no match",
                 f"{sample.unmatched_count:,} tuples that were put aside for lack of master data, "
                 f"drawn at random (seed {sample.seed}). One listed here does have master data.",
                 select(s.c.quality_id.label("stream_id"),
                        *load_of(s), *(s.c[f"key_{i}"].label(k) for i, k in enumerate(scope.on)),
                        s.c.quality_version.label("master_version"), m.c[scope.surrogate])
                 .select_from(s.join(m, and_(m.c.quality_version == s.c.quality_version,
                                             *(s.c[f"key_{i}"] == m.c[k]
                                               for i, k in enumerate(scope.on.values()))))))


def _counted(scope: Scope, table: sa.Table, name: str, *further: ColumnElement) -> FromClause:
    conditions = [scope.holds(table)] + ([table.c.fact_table == scope.fact_name]
                                         if table is unmatched else [])
    key = [table.c.load_id, *further]
    return select(*key, func.count().label("rows_in_table")).where(*conditions).group_by(
        *key).subquery(name)


def _both_ways(counted: FromClause, ledger: FromClause, *further: str) -> tuple[Select, Select]:
    """Compare counts by load and further columns: select the rows of `ledger` whose count differs
    in `counted`, and the rows of `counted` that `ledger` does not have."""
    same = and_(*(counted.c[k] == ledger.c[k] for k in ("load_id", *further)))
    found = func.coalesce(counted.c.rows_in_table, 0)
    return (select(*load_of(ledger), *(ledger.c[k] for k in further), ledger.c.rows_in_ledger,
                   found.label("rows_in_table"))
            .select_from(ledger.outerjoin(counted, same)).where(found != ledger.c.rows_in_ledger),
            select(*load_of(counted), *(counted.c[k] for k in further), literal(0),
                   counted.c.rows_in_table)
            .select_from(counted.outerjoin(ledger, same)).where(ledger.c.load_id.is_(None)))


def load_of(table: FromClause) -> list[ColumnElement]:
    """Return the batch, drain and partition of a row's load_id, for people."""
    parts = {"batch": batch_of, "drain": drain_of, "partition": partition_of}
    return [table.c[name] if name in table.c else part(table.c.load_id).label(name)
            for name, part in parts.items()]


def _ids(scope: Scope, table: FromClause) -> list[ColumnElement]:
    return [table.c[i] for i in scope.ids]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
