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

from semistream.job import SIDES
from semistream.positions import Kind
from semistream.quality.scope import Scope
from semistream.reasons import Reason
from semistream.streaming.sinks.registry import sink_kind
from semistream.warehouse.load_ids import batch_of, drain_of, partition_of
from semistream.warehouse.records import unaccounted
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_inputs,
    load_rejections,
    unmatched,
)

ROWS_SHOWN = 50
PARTS = {"batch": batch_of, "drain": drain_of, "partition": partition_of}  # of a load_id


@dataclass(frozen=True)
class Check:
    name: str
    title: str
    explanation: str
    query: Select | sa.CompoundSelect
    remedy: str = ""  # tells the reader what to do when the check fails
    cause: str = ""  # of the failure, in plain words
    of: str = ""  # the role or stream that the check is about, if there are several
    warns: bool = False  # whether found rows are a warning, not a failure

    def sql(self, dialect: sa.Dialect) -> str:
        """Return the query as text for ``sa.text``, with inline literals and without parameters."""
        # a dialect of paramstyle "format" would double every percent sign
        plain = type(dialect)(paramstyle="named")  # type: ignore[call-arg]
        return str(
            self.query.compile(dialect=plain, compile_kwargs={"literal_binds": True})
        ).replace(":", "\\:")


def with_remedy(check: Check, scope: Scope) -> Check:
    """Return the check, completed with the cause of a failure and its remedy."""
    of, name = input_of(check.name, [*SIDES, *(role.name for role in scope.roles)])
    words = {
        "again": sink_kind(scope.sink).put_back.format(app=scope.app, sink=scope.sink),
        "app": scope.app,
        "fact": scope.fact_name,
        "of": f" of {of}" if of else "",
    }
    remedy = check.remedy or REMEDIES.get(name, "{again}").format(**words)
    cause = check.cause or CAUSES.get(name, "").format(**words)
    return replace(check, remedy=remedy[:1].upper() + remedy[1:], cause=cause, of=of)


def input_of(check: str, inputs: Iterable[str]) -> tuple[str, str]:
    """Split the name of a check into the role or stream that it concerns, and the rest of the name.
    The role is "" if the check concerns no input or the only one."""
    return next(
        (
            (of, rest)
            for of in inputs
            if check.startswith(f"{of}_") and (rest := check.removeprefix(f"{of}_")) in CAUSES
        ),
        ("", check),
    )


# The remedy by the name of a check, without that of a stream or role; default: {again}.
LEDGER = (
    "The ledger was changed, or is of another time than the tables: put a backup of all of "
    "them back; or {again}"
)
SOURCE = (
    "The source is not what was loaded: put its files back as they were, and verify again. "
    "Where they are right as they are now: {again}"
)
MASTER = (
    "Where {fact} was changed: {again} Where the dimension table was changed by hand, "
    "`semistream provision JOB` puts it right; then verify again."
)
REMEDIES = {
    **dict.fromkeys(
        (
            "batch_partitions",
            "commit_rows",
            "batch_arithmetic",
            "waiting_carried",
            "drained",
            "total_arithmetic",
            "input_arithmetic",
            "resolved_rows",
            "resolved_once",
        ),
        LEDGER,
    ),
    **dict.fromkeys(("source_rows", "none_invented", "unmatched_once"), SOURCE),
    **dict.fromkeys(
        ("surrogate_keys", "enriched_columns", "sample_joined", "sample_unmatched"), MASTER
    ),
    "source_files": "A file that is in no batch: give it a new name, or touch it, and load. One "
    "that was written since: put back what was loaded, and what is new under "
    "another name. Or {again}",
    "unparsable": "The column why of unmatched's tuples tells what is wrong with each: mend them, "
    "and `semistream replay {app} FILE`; or mend the job's columns, and `semistream replay {app} "
    "--job FILE`; or mend the source, and {again} Where so many are right, raise "
    "stream.max_unparsable in the job, and `semistream verify {app} --job FILE`.",
}

# The cause of each check's failure, by the same names.
CAUSES = {
    "batch_partitions": "A part of a batch is not in the ledger, or is there twice.",
    "commit_rows": "Rows were lost or doubled between the driver and the partitions of a batch.",
    "batch_arithmetic": "The ledger's counts of a batch do not add up.",
    "waiting_carried": "Tuples that waited after one batch were not taken up by the next.",
    "drained": "Tuples still wait after a drain, which finishes all of them.",
    "total_arithmetic": "The ledger's counts of all batches do not add up.",
    "input_arithmetic": "The ledger's counts of a role or stream do not add up.",
    "fact_rows": "{fact} has fewer or more rows than were written: some were deleted or added "
    "since.",
    "unmatched_rows": "The table unmatched has fewer or more rows than were written: some were "
    "deleted or added since.",
    "unparsable": "More tuples than the limit allows could not be read as the job's columns.",
    "resolved_rows": "Tuples that were joined again are not counted as often as they are marked.",
    "resolved_once": "A tuple that was joined again is not in the one load that its row names.",
    "same_rows": "Rows are not what was loaded: they were changed, deleted or added since.",
    "table_files": "A file of the sink is gone or damaged.",
    "source_files": "The source has a file that was not loaded, or one that has changed since.",
    "source_rows": "The source has fewer or more rows now than were read from it.",
    "unique_ids": "The source has the same id more than once, as where a file is there twice.",
    "none_missing": "Tuples of the source are neither in {fact} nor in unmatched: they were lost, "
    "or deleted since.",
    "none_invented": "{fact} has rows whose ids the source does not have: they were changed, or "
    "put there by another.",
    "unmatched_once": "The table unmatched has tuples that the source does not have, or that are "
    "facts, too.",
    "no_duplicates": "The same stream tuple is in {fact} more than once.",
    "no_pair_twice": "The same pair of tuples is in {fact} more than once.",
    "unmatched_share": "Too many tuples have no row{of}: the master data are not those that are "
    "meant, lack rows, or write their keys otherwise.",
    "open_age": "Tuples have had no row{of} for longer than is allowed.",
    "expected_rows": "Many fewer or more rows were loaded than the keys of stream and master data "
    "tell.",
    "surrogate_keys": "Facts name a row{of} that is not in the dimension, or is not theirs.",
    "enriched_columns": "Columns that were copied from the dimension{of} have other values than "
    "it.",
    "sample_joined": "Facts of the sample are not what the master data{of} say.",
    "sample_unmatched": "Tuples were put aside although the master data{of} have a row for them.",
    "sample_pairs": "Pairs of the sample are not what the database joins{of}.",
    "equal_keys": "{fact} has rows whose two tuples do not have the same key.",
    "closed_totals": "Totals of a key are not those of its rows.",
    "closed_once": "Totals of a key are there more than once.",
    "closed_rows": "There are fewer or more totals than were written.",
    "closed_all": "Keys that are final have no totals.",
    "ledger_is_newest": "An older backup of the warehouse was put back, or a load was cut short.",
    "fact_table": "{fact} cannot be read.",
    "known_loads": "There are rows of a load that the ledger does not have.",
    "volume": "A load has read fewer or more rows than is usual or allowed.",
    "match_rate": "Fewer tuples of a load have a match{of} than is usual or allowed.",
    "freshness": "Nothing was loaded for longer than is usual or allowed.",
}


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
    )
    yield Check(
        "drained",
        "Nothing waits after a drain",
        "A drain (at a stop, and when all available input has been read) finishes every "
        "waiting tuple.",
        select(*load_of(load_batches), b.waiting).where(
            scope.holds(load_batches), b.drain == Kind.DRAIN, b.waiting != 0
        ),
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
    )


def unparsable(scope: Scope) -> Check:
    limit = max(stream.spec.max_unparsable for stream in scope.streams)
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
    counted = select((broken - corrected).label("unparsable"), read.label("rows_read")).subquery(
        "counted"
    )
    return Check(
        "unparsable",
        f"No more than {limit:.4g} of the tuples could not be parsed",
        "A tuple that cannot be parsed has arrived, in unmatched, but its values have not. One "
        "that was mended and joined again does not count. The limit is the job's "
        "stream.max_unparsable.",
        select(counted).where(counted.c.unparsable > limit * counted.c.rows_read),
    )


def same_rows(wrong: sa.Table, told: Iterable[str] = ()) -> Check:
    """Return the check that the rows' checksums equal those of the ledger. wrong: the wrong rows of
    loads whose checksum differs; told: sentences about rows that ``wrong`` omits."""
    columns = [c for c in wrong.columns if c.name != "number"]
    return Check(
        "same_rows",
        "The rows are the very ones that were loaded",
        "Each load notes a checksum over all columns of its rows, which are all read "
        "again. Where it differs, the load is joined again from its source and its master "
        "data: old is what these say, new what the warehouse has. " + " ".join(told),
        select(*columns).order_by(wrong.c.number),
    )


def table_files(damaged: sa.Table) -> Check:
    return Check(
        "table_files",
        "Every file of the sink is there, and whole",
        "The files that were committed are all read again. A file listed here is gone, "
        "has another size than was recorded, or cannot be read; what it had is missing below too. "
        "Restore it, or load what was lost under another app name.",
        select(damaged),
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
