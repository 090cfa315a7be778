"""The expectations. Each is a query over the warehouse that looks for wrong rows, with explanations
for people. This module has the expectations of the ledger and of the fact table. The expectations
of a single input, and of a pair of streams, are in other modules.

A query returns the wrong rows. All queries are set-based and use indexes: the primary keys of the
fact table, (load_id, load_row), and of the dimension, and the indexes of the staging tables. If the
fact table has no index on the ids, one staging table holds the facts by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    select,
)

from semistream.positions import Kind
from semistream.quality.scope import Scope
from semistream.reasons import Reason
from semistream.warehouse.load_ids import batch_of, drain_of, partition_of
from semistream.warehouse.records import unaccounted
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_inputs,
    load_rejections,
    unmatched,
)

LISTED_ROWS = 50
PARTS = {"batch": batch_of, "drain": drain_of, "partition": partition_of}  # of a load_id


@dataclass(frozen=True)
class Check:
    name: str
    title: str
    explanation: str
    query: Select | sa.CompoundSelect
    remedy: str = ""  # tells the reader what to do when the check fails
    cause: str = ""  # of the failure, in plain words, from ``remedies``
    of: str = ""  # the role or stream that it is about, of several
    warns: bool = False  # whether rows that are found are a warning, and no failure
    expected: str = ""  # the query's column that has what was expected, if it has one
    found: str = ""  # and what was found instead

    def about(self, of: str) -> Check:
        """Return the check as that of one role or stream of several; of: its name, "" if it is the
        only one."""
        return replace(self, name=f"{of}_{self.name}", of=of) if of else self

    def sql(self, dialect: sa.Dialect) -> str:
        """Return the query as text for ``sa.text``, with inline literals and without parameters."""
        # a dialect of paramstyle "format" would double every percent sign
        plain = type(dialect)(paramstyle="named")  # type: ignore[call-arg]
        return str(
            self.query.compile(dialect=plain, compile_kwargs={"literal_binds": True})
        ).replace(":", "\\:")


def ledger_checks(scope: Scope) -> Iterator[Check]:
    b, c = load_batches.c, load_commits.c
    sums = (
        select(b.batch, b.drain, func.count().label("n"), func.sum(b.rows_read).label("rows_read"))
        .where(scope.holds(load_batches))
        .group_by(b.batch, b.drain)
        .subquery("ledger")
    )
    same = and_(sums.c.batch == c.batch, sums.c.drain == c.drain)
    orphans = select(sums.c.batch, sums.c.drain, null(), sums.c.n).where(
        ~select(1).where(c.app == scope.app, same).correlate(sums).exists()
    )
    yield Check(
        "batch_partitions",
        "Every committed batch has all its partitions",
        "A batch is committed when each of its partitions has written its rows and its "
        "ledger row. A batch listed here has fewer or more ledger rows than it has "
        "partitions, or was passed over without ever being committed.",
        sa.union_all(
            select(
                c.batch,
                c.drain,
                c.partitions.label("partitions_expected"),
                func.coalesce(sums.c.n, 0).label("partitions_in_ledger"),
            )
            .select_from(load_commits.outerjoin(sums, same))
            .where(scope.holds(load_commits), func.coalesce(sums.c.n, 0) != c.partitions),
            orphans,
        ),
        expected="partitions_expected",
        found="partitions_in_ledger",
    )
    yield Check(
        "commit_rows",
        "Rows read by the partitions add up to the batch",
        "A batch notes how many rows it read from the source, each of its partitions how "
        "many it received. Rows lost or doubled between the two show here.",
        select(
            c.batch,
            c.drain,
            c.rows_read.label("rows_read_by_driver"),
            sums.c.rows_read.label("rows_read_by_partitions"),
        )
        .select_from(load_commits.join(sums, same))
        .where(scope.holds(load_commits), sums.c.rows_read != c.rows_read),
        expected="rows_read_by_driver",
        found="rows_read_by_partitions",
    )
    yield Check(
        "batch_arithmetic",
        "In every batch: waiting before + read + resolved = matched + unmatched + waiting",
        "Each stream tuple is matched, unmatched or still waiting in the join's memory; none may "
        "vanish and none may be counted twice. A load that joins unmatched tuples again counts "
        "them as resolved. The difference is what is not accounted for.",
        select(
            *load_of(load_batches),
            b.waiting_before,
            b.rows_read,
            b.resolved,
            b.matched,
            b.unmatched,
            b.waiting,
            unaccounted(b).label("difference"),
        ).where(scope.holds(load_batches), unaccounted(b) != 0),
        found="difference",
    )
    previous = func.lag(b.waiting).over(partition_by=b.partition, order_by=(b.batch, b.drain))
    before = (
        select(
            *load_of(load_batches),
            b.waiting_before,
            func.coalesce(previous, 0).label("waiting_after_previous_batch"),
        )
        .where(scope.until(load_batches))
        .subquery("carried")
    )
    yield Check(
        "waiting_carried",
        "What waited after one batch is taken up by the next",
        "Tuples that wait in the join are carried over in its saved state. A partition listed here "
        "began with another number of waiting tuples than the batch before it had left.",
        select(before).where(
            scope.after(before), before.c.waiting_before != before.c.waiting_after_previous_batch
        ),
        expected="waiting_after_previous_batch",
        found="waiting_before",
    )
    yield Check(
        "drained",
        "Nothing waits after a drain",
        "A drain (at a stop, and when all available input has been read) finishes every "
        "waiting tuple.",
        select(*load_of(load_batches), b.waiting).where(
            scope.holds(load_batches), b.drain == Kind.DRAIN, b.waiting != 0
        ),
        found="waiting",
    )
    yield total_arithmetic(scope)
    yield input_arithmetic(scope)


def total_arithmetic(scope: Scope) -> Check:
    b = load_batches.c
    at_end = and_(b.batch == scope.last[0], b.drain == scope.last[1])
    total = (
        select(
            func.sum(b.rows_read).label("rows_read"),
            func.sum(b.resolved).label("resolved"),
            func.sum(b.matched).label("matched"),
            func.sum(b.unmatched).label("unmatched"),
            func.sum(case((at_end, b.waiting), else_=0)).label("waiting"),
        )
        .where(scope.until(load_batches))
        .subquery("total")
    )
    t = total.c
    difference = t.rows_read + t.resolved - t.matched - t.unmatched - t.waiting
    return Check(
        "total_arithmetic",
        "In total: read + resolved = matched + unmatched + waiting",
        "The same over everything that this app ever loaded, from its first batch to the "
        "last one verified here. Less those resolved, the unmatched are the open ones: each tuple "
        "read is a fact, open in unmatched, or waiting.",
        select(total, difference.label("difference")).where(difference != 0),
        found="difference",
    )


def input_arithmetic(scope: Scope) -> Check:
    b, i = load_batches.c, load_inputs.c
    names = ("waiting_before", "rows_read", "resolved", "matched", "unmatched", "waiting")
    own = select(
        *load_of(load_inputs), i.role, *(i[n] for n in names), unaccounted(i).label("difference")
    ).where(scope.holds(load_inputs), unaccounted(i) != 0)
    # a further role reads the tuples that the role before it has passed on
    passed = case((and_(i.dimension != "", i.number > 0), i.rows_read), else_=0)
    own_part = {n: i[n] - passed if n in ("rows_read", "matched") else i[n] for n in names}
    sums = (
        select(i.load_id, *(func.sum(part).label(n) for n, part in own_part.items()))
        .group_by(i.load_id)
        .subquery("all_inputs")
    )
    differs = or_(sums.c.load_id.is_(None), *(sums.c[n] != b[n] for n in names))
    load = (
        select(*load_of(load_batches), literal("(all)"), *(b[n] for n in names), null())
        .select_from(load_batches.outerjoin(sums, sums.c.load_id == b.load_id))
        .where(scope.holds(load_batches), differs)
    )
    before = load_inputs.alias("before").c
    passed_on = func.coalesce(before.passed, before.matched)
    between = (
        select(*load_of(load_inputs), i.role, *(i[n] for n in names), i.rows_read - passed_on)
        .join(
            before.load_id.table, and_(before.load_id == i.load_id, before.number == i.number - 1)
        )
        .where(scope.holds(load_inputs), i.dimension != "", i.rows_read != passed_on)
    )
    return Check(
        "input_arithmetic",
        "Of each input: waiting before + read + resolved = matched + unmatched + waiting",
        "Each tuple of a stream is joined, finished without a match, or still held by the join, in "
        "memory or on disk; all inputs together are what the ledger says of the load (role "
        "(all)); and a role reads what the role before it has let pass. The difference is what is "
        "not accounted for.",
        sa.union_all(own, load, between),
        found="difference",
    )


def fact_rows(scope: Scope) -> Check:
    b = load_batches.c
    written = select(b.load_id, b.output_rows.label("rows_in_ledger")).where(
        scope.holds(load_batches), b.output_rows != 0
    )
    return Check(
        "fact_rows",
        f"{scope.fact_name} has exactly the rows that the ledger says",
        "Each partition of a batch notes how many rows it wrote. Fewer rows now means that rows "
        "were deleted or lost, more means that they were written twice.",
        sa.union_all(*_both_ways(scope, scope.fact, sa.true(), written.subquery("ledger"), {})),
        expected="rows_in_ledger",
        found="rows_in_table",
    )


def unmatched_rows(scope: Scope) -> Check:
    b, r, u = load_batches.c, load_rejections.c, unmatched.c
    key: dict[str, ColumnElement] = {"reason": u.reason}
    if len(scope.roles) > 1:  # tuples that were not joined count as input of the first role
        i = load_inputs.c
        first = select(i.role).where(i.load_id == u.load_id, i.number == 0)
        key["role"] = func.coalesce(u.role, first.correlate(unmatched).scalar_subquery())
    columns = [r.load_id, *(r[name] for name in key)]
    ledger = (
        select(*columns, func.sum(r.tuples).label("rows_in_ledger"))
        .where(scope.holds(load_rejections))
        .group_by(*columns)
        .subquery("rejections")
    )
    by_reason = (
        select(func.coalesce(func.sum(ledger.c.rows_in_ledger), 0))
        .where(ledger.c.load_id == b.load_id)
        .correlate(load_batches)
        .scalar_subquery()
    )
    total = [literal("(all)") for _ in key]
    totals = select(*load_of(load_batches), *total, b.unmatched, by_reason).where(
        scope.holds(load_batches), b.unmatched != by_reason
    )
    return Check(
        "unmatched_rows",
        "Every unmatched tuple is kept, with its reason",
        "A tuple without master data, without a key or that cannot be parsed goes to the "
        "table unmatched. Its rows, by reason, must be those that the ledger counted "
        "(reason (all): the ledger's total against its own count by reason).",
        sa.union_all(*_both_ways(scope, unmatched, scope.kept(), ledger, key), totals),
        expected="rows_in_ledger",
        found="rows_in_table",
    )


def unparsable(scope: Scope) -> Check:
    limit = max(stream.spec.max_unparsable for stream in scope.streams)
    judged = map(_unparsable, scope.judged)
    return Check(
        "unparsable",
        f"No more than {limit:.4g} of the tuples could not be parsed",
        "A tuple that cannot be parsed has arrived, in unmatched, but its values have not. One "
        "that was mended and joined again does not count. Batches that are not proven yet are "
        "counted by themselves, too. The limit is the job's stream.max_unparsable.",
        sa.union_all(*(select(c).where(c.c.unparsable > limit * c.c.rows_read) for c in judged)),
        found="unparsable",
    )


def _unparsable(scope: Scope) -> sa.Subquery:
    """Return a query of (unparsable, rows_read) in the verified batches."""
    r = load_rejections.c
    read = (
        select(func.coalesce(func.sum(load_batches.c.rows_read), 0))
        .where(scope.holds(load_batches))
        .scalar_subquery()
    )
    broken = (
        select(func.coalesce(func.sum(r.tuples), 0))
        .where(scope.holds(load_rejections), r.reason == Reason.UNPARSABLE)
        .scalar_subquery()
    )
    corrected = (
        select(func.count())
        .select_from(unmatched)
        .where(
            scope.kept(),
            scope.holds(unmatched),
            unmatched.c.reason == Reason.UNPARSABLE,
            ~scope.is_open(unmatched),
        )
        .scalar_subquery()
    )
    columns = (broken - corrected).label("unparsable"), read.label("rows_read")
    return select(*columns).subquery("counted")


def same_rows(wrong: sa.Table, omitted: Iterable[str]) -> Check:
    """Return the check that the rows' checksums equal those of the ledger. wrong: the wrong rows of
    loads whose checksum differs; omitted: sentences about rows that ``wrong`` omits."""
    columns = [c for c in wrong.columns if c.name != "number"]
    return Check(
        "same_rows",
        "The rows are the very ones that were loaded",
        "Each load notes a checksum over all columns of its rows, which are all read "
        "again. Where it differs, the load is joined again from its source and its master "
        "data: old is what these say, new what the warehouse has. " + " ".join(omitted),
        select(*columns).order_by(wrong.c.number),
        expected="old",
        found="new",
    )


def table_files(damaged: sa.Table) -> Check:
    return Check(
        "table_files",
        "Every file of the sink is there, and whole",
        "The files that were committed are all read again. A file listed here is gone, "
        "has another size than was recorded, or cannot be read; what it had is missing below too. "
        "Restore it, or load what was lost under another app name.",
        select(damaged),
        found="finding",
    )


def no_duplicates(scope: Scope, sources: Sequence[sa.Table | None]) -> Check:
    """Return the check that a tuple, or a pair of tuples, occurs in the facts no more often than in
    its source. If a tuple may match several master rows, facts are counted per surrogate key.

    sources: the recounted ids of each stream; in a stream that was not recounted, each id is
    assumed to occur once.
    """
    f, many_rows = scope.by_id, [r.surrogate for r in scope.roles if not r.unique]
    key = [f.c[n] for n in (*scope.ids, *many_rows)]
    many = (
        select(
            *key,
            func.count().label("rows_in_warehouse"),
            batch_of(func.min(f.c.load_id)).label("first_batch"),
            batch_of(func.max(f.c.load_id)).label("last_batch"),
        )
        .where(*(f.c[n].is_not(None) for n in scope.ids), scope.recounted(f))
        .group_by(*key)
        .having(func.count() > 1)
        .subquery("many")
    )
    times: ColumnElement = literal(1)
    for stream, source in zip(scope.streams, sources, strict=True):
        if source is not None:
            same = and_(*(source.c[n] == many.c[of] for n, of in stream.ids.items()))
            times = times * select(func.count()).where(same).correlate(many).scalar_subquery()
    pair = len(scope.streams) > 1
    return Check(
        "no_pair_twice" if pair else "no_duplicates",
        f"No {'pair of tuples' if pair else 'stream tuple'} was loaded twice",
        f"It is identified by {listed(scope.ids)}"
        + (
            f"; it may match several master rows, but each of them ({listed(many_rows)}) only once."
            if many_rows
            else "."
        ),
        select(*many.c, times.label("rows_in_source")).where(many.c.rows_in_warehouse > times),
        expected="rows_in_source",
        found="rows_in_warehouse",
    )


def _both_ways(
    scope: Scope,
    table: sa.Table,
    mine: ColumnElement[bool],
    ledger: FromClause,
    further: Mapping[str, ColumnElement],
) -> tuple[Select, Select]:
    """Compare the ledger's counts of rows with the table's rows, by load and further columns.
    Return two queries: the rows of ``ledger`` whose count differs, and the counts of the table that
    are missing in ``ledger``.

    mine: the condition for the table's rows to count; further: by name of a further column of
    ``ledger``, its value in a row of the table.
    """
    key = [table.c.load_id, *further.values()]
    named = [column.label(name) for name, column in further.items()]
    counted = (
        select(table.c.load_id, *named, func.count().label("rows_in_table"))
        .where(scope.holds(table), mine)
        .group_by(*key)
        .subquery("counted")
    )
    same = and_(*(counted.c[k] == ledger.c[k] for k in ("load_id", *further)))
    found = func.coalesce(counted.c.rows_in_table, 0)
    return (
        select(
            *load_of(ledger),
            *(ledger.c[k] for k in further),
            ledger.c.rows_in_ledger,
            found.label("rows_in_table"),
        )
        .select_from(ledger.outerjoin(counted, same))
        .where(found != ledger.c.rows_in_ledger),
        select(
            *load_of(counted), *(counted.c[k] for k in further), literal(0), counted.c.rows_in_table
        )
        .select_from(counted.outerjoin(ledger, same))
        .where(ledger.c.load_id.is_(None)),
    )


def load_of(table: FromClause) -> list[ColumnElement]:
    """Return columns that show people a row's batch, drain and partition, computed from load_id."""
    return [
        table.c[name] if name in table.c else part(table.c.load_id).label(name)
        for name, part in PARTS.items()
    ]


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)
