"""The tables that every warehouse has. ``tables.py`` creates dimension and fact tables from a job's
schemas.

A load is a partition of a batch. Everything that it writes has its ``load_id`` (see ``load_ids``).
Rows of facts and of ``unmatched`` also have their number in the load, ``load_row``; both columns
together are the primary key of these tables. ``load_batches`` has one row per load, written in the
same transaction as the load's rows. The first attempt that commits this row has loaded that
partition of that batch, and a second attempt finds the row and writes nothing. ``load_inputs`` has
the counts of each of the load's inputs, ``load_rejections`` the same counts by reason. A row of
``load_commits`` says that all partitions of a batch are loaded.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Double,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from semistream.warehouse.dialects import table_options
from semistream.warehouse.types import KeyString, LongString, big_integer

metadata = MetaData()
NAME = KeyString()


def row_key() -> list[Column]:
    """Return the primary key columns of rows that loads write. InnoDB, and SQLite without row ids,
    store the rows in the order of this key."""
    return [
        Column("load_id", BigInteger, primary_key=True, autoincrement=False),
        # the row's number in its load, from 0
        Column("load_row", Integer, primary_key=True, autoincrement=False),
    ]


def _resolved() -> Column:
    """Return the column with the number of tuples that a load has taken from ``unmatched``."""
    return Column("resolved", BigInteger, nullable=False, server_default="0")


# one row, which identifies this warehouse, see identity.py
identity = Table(
    "warehouse_identity",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),  # 1
    Column("uuid", NAME, nullable=False),
)

# one row for each app that has loaded into this warehouse
load_apps = Table(
    "load_apps",
    metadata,
    # the app's number in its load_ids; never assigned twice
    Column("number", big_integer(), primary_key=True, autoincrement=True),
    Column("app", NAME, nullable=False, unique=True),
    Column("checkpoint", Text),  # its directory; null until its first load has begun
    Column("resets", Integer),  # how often batches were taken out, see taking_out.py; null: never
    **table_options(numbered=True),
)

# the ledger: one row for each load, a partition of a batch
load_batches = Table(
    "load_batches",
    metadata,
    Column("load_id", big_integer(), primary_key=True, autoincrement=False),
    Column("app", NAME, nullable=False),
    Column("batch", BigInteger, nullable=False),
    # 1: the rows that were finished by draining after that micro-batch; from 2 on: those of
    # resolving loads, see positions.Kind
    Column("drain", Integer, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("algorithm", NAME, nullable=False),
    Column("reason", Text),  # why `auto` chose that algorithm
    Column("waiting_before", BigInteger, nullable=False),
    Column("rows_read", BigInteger, nullable=False),
    _resolved(),
    Column("matched", BigInteger, nullable=False),
    Column("unmatched", BigInteger, nullable=False),
    Column("waiting", BigInteger, nullable=False),
    Column("output_rows", BigInteger, nullable=False),
    Column("cache_hits", BigInteger, nullable=False),
    Column("disk_tuples_read", BigInteger, nullable=False),
    Column("bytes_read", BigInteger, nullable=False),
    Column("r_cycles", Float, nullable=False),
    Column("service_rate", Float, nullable=False),  # stream tuples per second inside the operator
    Column("seconds", Float, nullable=False),  # inside the operator
    # seconds that the finished tuples waited since the start of the batch in which they arrived,
    # median and maximum; null: no tuple was finished
    Column("wait_median", Float),
    Column("wait_longest", Float),
    Column("memory_budget", BigInteger, nullable=False),  # M of this partition, bytes
    Column("memory_peak", BigInteger, nullable=False),  # bytes
    # the most anonymous memory that the worker's process had so far
    Column("resident_peak", BigInteger),
    Column("memory", Text, nullable=False),  # JSON: bytes by component
    # JSON: by column, how many numbers of the facts are stored as null because the database cannot
    # represent them: NaN, in MySQL also the infinities; null: none
    Column("nulled", Text),
    # the number of keys whose totals the load wrote, see closing.py; null: the job has no totals
    Column("closed", BigInteger),
    # checksum of the rows in the fact table, see checksum.py
    Column("facts_checksum", BigInteger, nullable=False),
    Column("unmatched_checksum", BigInteger, nullable=False),  # of the rows in unmatched
    Column("key_sketch", LargeBinary),  # see sketches/sampled.py; null: none was kept
    Column("committed_at", DateTime, nullable=False),  # UTC
    Index("ix_load_batches_load", "app", "batch", "drain", "partition", unique=True),
)

# one row for each input of a load: a role of a dimension, or one of two streams
load_inputs = Table(
    "load_inputs",
    metadata,
    Column("load_id", BigInteger, primary_key=True, autoincrement=False),
    Column("role", NAME, primary_key=True),  # "left" and "right" of two streams
    Column("number", Integer, nullable=False),  # of the input, in the order of the join
    Column("dimension", NAME, nullable=False),  # empty: a stream
    Column("version", NAME, nullable=False),  # of the dimension's master data; empty: a stream
    Column("waiting_before", BigInteger, nullable=False),
    Column("rows_read", BigInteger, nullable=False),
    _resolved(),
    Column("matched", BigInteger, nullable=False),
    Column("unmatched", BigInteger, nullable=False),
    Column("waiting", BigInteger, nullable=False),
    Column("on_disk", BigInteger, nullable=False),  # a part of waiting
    Column("cache_hits", BigInteger, nullable=False),
    Column("bytes_read", BigInteger, nullable=False),
    Column("state_file", Text, nullable=False),  # the join state after the load
    # if there are several roles: the matched tuples that a left join has passed on without a row of
    # the dimension, and the rows that the next role reads (null: one for each matched tuple)
    Column("missed", BigInteger, nullable=False, server_default="0"),
    Column("passed", BigInteger),
    # rows of the fact table that name an inferred member of the dimension, see inferred.py
    Column("inferred", BigInteger, nullable=False, server_default="0"),
    # if there are several roles: rows of the fact table that a left join has left without a row of
    # the dimension
    Column("lacking", BigInteger, nullable=False, server_default="0"),
)

# the unmatched tuples of load_inputs by reason; a reason without tuples has no row
load_rejections = Table(
    "load_rejections",
    metadata,
    Column("load_id", BigInteger, primary_key=True, autoincrement=False),
    Column("role", NAME, primary_key=True),
    Column("reason", String(40), primary_key=True),
    Column("tuples", BigInteger, nullable=False),
)

# one row for each batch all of whose partitions are loaded
load_commits = Table(
    "load_commits",
    metadata,
    Column("app", NAME, primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("drain", Integer, primary_key=True, autoincrement=False),
    # JSON: the job that was loaded (job.Job), its source as it was read
    Column("job", Text, nullable=False),
    Column("fact_table", NAME, nullable=False),
    Column("sink", NAME, nullable=False),  # the setting, see ``sinks.registry``
    Column("partitions", Integer, nullable=False),
    Column("source_offsets", Text, nullable=False),  # JSON, see ledger.py
    # s since 1970: every file that the source had by then is in this batch or an earlier one;
    # null: unknown
    Column("source_listed", Double),
    Column("rows_read", BigInteger, nullable=False),
    Column("committed_at", DateTime, nullable=False),  # UTC
    Column("run_started", Double),  # s since 1970: when the run began; null: unknown
    Column("phases", Text),  # JSON: s by phase, see streaming/phases.py; null: unknown
)

# the source's files that each batch has read
load_files = Table(
    "load_files",
    metadata,
    Column("app", NAME, primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),  # of the file, in its batch
    Column("path", LongString(), nullable=False),  # plain, or a URI where it is not local
    Column("size", BigInteger, nullable=False),  # bytes when the batch began; -1: not known
    Column("modified", BigInteger, nullable=False),  # ns since 1970, then; -1: not known
)

# one row for each stream tuple that became no fact, also after it was joined again
unmatched = Table(
    "unmatched",
    metadata,
    *row_key(),
    Column("fact_table", NAME, nullable=False),
    Column("reason", String(40), nullable=False),
    Column("side", String(5)),  # "left" or "right" of two streams; null: there is one
    # the role whose dimension has no row for the tuple; null: the job has one role, or the tuple
    # was not joined in any role
    Column("role", NAME),
    Column("stream_id", KeyString()),  # see ids.py
    # code of the key for which the role's dimension has no row, see keys.py; null: the tuple has no
    # key, or was stored by a release that did not store codes
    Column("key_code", BigInteger),
    # the load in which the tuple was joined again, and which has stored the result, as facts or in
    # this table; null: the tuple is open
    Column("resolved_by", BigInteger),
    Column("tuple", LongString(), nullable=False),  # the whole stream tuple as JSON
    Index("ix_unmatched_stream", "fact_table", "stream_id"),
    Index("ix_unmatched_key", "key_code"),
    **table_options(clustered=True),
)

# one row for each role in which a fact has an inferred member, or had one
inferred = Table(
    "inferred",
    metadata,
    *row_key(),  # of the fact
    Column("role", NAME, primary_key=True),
    Column("fact_table", NAME, nullable=False),
    Column("member", BigInteger, nullable=False),  # its surrogate key in the dimension
    # the version of the master data from which the fact's columns were filled in, and when, UTC;
    # null: the columns are null, as no version had a row for the member yet
    Column("version", NAME),
    Column("filled_at", DateTime),
    Index("ix_inferred_open", "role", "version", "member"),
    **table_options(clustered=True),
)

# of two streams: patterns that no later row of the fact table matches
propagated = Table(
    "propagated",
    metadata,
    *row_key(),
    Column("fact_table", NAME, nullable=False),
    Column("side", String(5), nullable=False),
    # JSON, {column: pattern}: after this load no row whose join columns, on this side, match is
    # loaded
    Column("pattern", LongString(), nullable=False),
    **table_options(clustered=True),
)

# one row for each dimension that was provisioned
masters = Table(
    "masters",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("table_name", NAME, nullable=False),  # its dimension table
    Column("arrow_schema", Text, nullable=False),  # of the dimension table: Arrow IPC, base64
    Column("business_key", Text, nullable=False),  # JSON: column names
    # when a provisioning changed a row last, ns since 1970
    Column("changes", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("provisioned_at", DateTime, nullable=False),  # UTC
)

# one row for each provisioning that has changed a dimension's rows
master_changes = Table(
    "master_changes",
    metadata,
    Column("master", NAME, primary_key=True),
    # when, as in masters
    Column("changes", BigInteger, primary_key=True, autoincrement=False),
    Column("inserted", BigInteger, nullable=False),  # rows of the dimension table
    Column("updated", BigInteger, nullable=False),  # likewise
    Column("rejected", BigInteger, nullable=False),  # rows of the source that were left out
)

# the rows of a dimension's source that were rejected
rejected_master = Table(
    "rejected_master",
    metadata,
    Column("id", big_integer(), primary_key=True),
    Column("master", NAME, nullable=False),
    Column("reason", String(40), nullable=False),  # null_key, long_key, duplicate_key or unparsable
    Column("detail", Text),
    Column("tuple", LongString(), nullable=False),  # the whole master tuple as JSON, or its line
    # UTC; the rows of the latest provisioning only are kept
    Column("rejected_at", DateTime, nullable=False),
    Index("ix_rejected_master", "master"),
)

# one row for each point that a tuning sweep has measured
tuning_runs = Table(
    "tuning_runs",
    metadata,
    Column("sweep", NAME, primary_key=True),
    Column("point", Integer, primary_key=True, autoincrement=False),
    Column("job", Text, nullable=False),  # as the user named it; empty: the user's own sample
    Column("algorithm", NAME, nullable=False),
    Column("memory", BigInteger, nullable=False),  # M of all partitions, bytes
    Column("partitions", Integer, nullable=False),
    Column("parameters", Text, nullable=False),  # JSON
    # stream tuples per second of all partitions; 0: no setting fits M
    Column("predicted_rate", Float, nullable=False),
    Column("rate", Float),  # the same, measured
    Column("cache_share", Float),
    Column("memory_peak", BigInteger),  # bytes
    Column("rows_read", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),  # of the whole app
    Column("state", String(20), nullable=False),  # measured or failed
    Column("error", Text, nullable=False),
    # whether the cost model finds these sizes the best of the algorithm
    Column("best", Integer, nullable=False),
    Column("recommended", Integer, nullable=False),  # whether it is the best of its budget
    Column("recorded_at", DateTime, nullable=False),  # UTC
)

# one row for each verification
quality_runs = Table(
    "quality_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("app", NAME, nullable=False),
    Column("fact_table", NAME, nullable=False),
    Column("started_at", DateTime, nullable=False),  # UTC
    Column("seconds", Float, nullable=False),
    # the verified batches begin after this one; null: they begin with the first
    Column("from_batch", BigInteger),
    # if not 0, they begin after its drain, or after that resolving load
    Column("from_drain", Integer),
    Column("to_batch", BigInteger, nullable=False),
    # whether the drain of to_batch was verified too, and up to which resolving load
    Column("to_drain", Integer, nullable=False),
    Column("success", Integer, nullable=False, server_default="0"),
    Column("expectations", Integer, nullable=False),
    Column("failed", Text, nullable=False),  # JSON: the names of the expectations that failed
    # JSON: texts that say what could not be checked of these batches
    Column("unseen", Text, nullable=False),
    # likewise of the source and the checkpoint as they were then, which the next verification looks
    # at again; null: they are in unseen
    Column("passing", Text),
    # how many facts of the app had been filled in when it began, which changes former loads
    Column("filled", BigInteger),
    # 1: batches of the range were taken out since, and it no longer counts
    Column("outdated", Integer),
    Column("report", Text, nullable=False),  # path of its Data Docs page
)

# findings of verifications that no later verification has looked at again: one row for each row
# that a check has named, or one for a check that could not name any
quality_failures = Table(
    "quality_failures",
    metadata,
    Column("verification", Integer, primary_key=True, autoincrement=False),  # quality_runs.id
    Column("number", Integer, primary_key=True, autoincrement=False),  # in the verification
    Column("app", NAME, nullable=False),
    Column("fact_table", NAME, nullable=False),
    Column("found_at", DateTime, nullable=False),  # UTC; when the verification began
    Column("expectation", NAME, nullable=False),  # the check
    Column("title", Text, nullable=False),  # what the check expects
    Column("action", String(4), nullable=False),  # fail or warn
    Column("role", NAME),  # the role, or one of two streams; null: the only one, or none
    Column("batch", BigInteger),
    Column("load_id", BigInteger),
    Column("stream_id", LongString()),  # see ids.py; null: the row has none, or none was named
    Column("column_name", NAME),
    Column("expected", LongString()),
    Column("found", LongString()),
    Column("detail", LongString(), nullable=False),  # JSON: the whole row; or why there is none
    # how many rows the check has found, of which the first are here
    Column("rows_found", BigInteger, nullable=False),
    Column("remedy", Text, nullable=False),
    Index("ix_quality_failures_app", "app"),
)

# the tables in which loads write rows, of which each has their load_id, besides the fact tables
OF_LOADS = (unmatched, inferred, propagated, load_rejections, load_inputs, load_batches)
