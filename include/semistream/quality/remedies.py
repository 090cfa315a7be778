"""The texts of the report about a failed check: its cause in plain words, and the remedy."""

from __future__ import annotations

from dataclasses import replace

from semistream.quality.checks import Check
from semistream.quality.scope import Scope
from semistream.streaming.sinks.registry import sink_kind

# The remedy by the name of a check, without that of a stream or role; default: {again}.
LEDGER = (
    "The ledger was changed, or is of another time than the tables: put a backup of all of "
    "them back; or {again}"
)
PUT_BACK = (
    "put back what was loaded, with its former time (cp -p); where only the time is another, "
    "`touch -d TIME PATH` with the time that source_files tells does"
)
ONE_FILE = "where the job has one stream, `semistream reset {app} --file PATH`, and load"
CHANGED = (
    f"A file of the source that has changed since it was loaded: {PUT_BACK}. Where it is right as "
    f"it is now: {ONE_FILE}."
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
            "lacking_rows",
            "resolved_rows",
            "resolved_once",
        ),
        LEDGER,
    ),
    **dict.fromkeys(("source_rows", "none_invented", "unmatched_once"), f"{CHANGED} Or {{again}}"),
    "none_missing": f"Where rows were lost since: {{again}} {CHANGED}",
    **dict.fromkeys(
        ("surrogate_keys", "enriched_columns", "sample_joined", "sample_unmatched"), MASTER
    ),
    "source_files": "A file that is in no batch: give it a new name, or touch it, and load. One "
    f"that was written since: {PUT_BACK}. What is new goes under another name. One that was "
    f"corrected in place: {ONE_FILE}. What cannot be looked at, such as a link that leads nowhere: "
    "mend or remove it, and verify again. Or {again}",
    "unparsable": "The column why of unmatched's tuples tells what is wrong with each: mend them, "
    "and `semistream replay {app} FILE`; or mend the job's columns, and `semistream replay {app} "
    "--job FILE`; or mend the source, and {again} Where so many are right, raise "
    "stream.max_unparsable in the job, and `semistream verify {app} --job FILE`.",
}

# The cause of a failure, likewise.
CAUSES = {
    "batch_partitions": "A part of a batch is not in the ledger, or is there twice.",
    "commit_rows": "Rows were lost or doubled between the driver and the partitions of a batch.",
    "batch_arithmetic": "The ledger's counts of a batch do not add up.",
    "waiting_carried": "Tuples that waited after one batch were not taken up by the next.",
    "drained": "Tuples still wait after a drain, which finishes all of them.",
    "total_arithmetic": "The ledger's counts of all batches do not add up.",
    "input_arithmetic": "The ledger's counts of a role or stream do not add up.",
    "lacking_rows": "The ledger's counts of tuples without a row{of} are not those of the facts.",
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
    "or deleted since, or have come into a file after it was loaded.",
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


def with_remedy(check: Check, scope: Scope) -> Check:
    """Return the check, completed with the cause of a failure and its remedy."""
    name = check.name.removeprefix(f"{check.of}_")
    words = {
        "again": sink_kind(scope.sink).put_back.format(app=scope.app, sink=scope.sink),
        "app": scope.app,
        "fact": scope.fact_name,
        "of": f" of {check.of}" if check.of else "",
    }
    remedy = check.remedy or REMEDIES.get(name, "{again}").format(**words)
    cause = CAUSES.get(name, "").format(**words)
    return replace(check, remedy=remedy[:1].upper() + remedy[1:], cause=cause)
