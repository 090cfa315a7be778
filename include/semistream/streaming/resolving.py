"""A resolving load: tuples of ``unmatched`` are joined again.

The driver stages them in a file of the checkpoint, each with the key of its row. A load with a
separate position joins them, with operators in which no tuple waits before or after. If a tuple's
result has changed, for instance because it has a match now, the new result is written like that of
any load. In the same transaction the tuple's row in ``unmatched`` is marked as resolved by that
load. A tuple whose result has not changed stays in its row, and is not counted.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from sqlalchemy import ColumnElement, Connection, and_, or_

from semistream.ahead import ahead
from semistream.ddl import type_name
from semistream.durable import naming, sync
from semistream.errors import ConfigError
from semistream.files.convert import cast_cells
from semistream.gathering import Gathered, as_batch
from semistream.joins.hash_join import HashJoin
from semistream.joins.star import Star, execution_order
from semistream.master.manifest import bucket_file
from semistream.master.snapshot import SnapshotRelation, lacking
from semistream.reasons import Reason
from semistream.sizing.choice import SMALLEST
from semistream.sizing.plan import Plan
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.join_operator import Finished, Refused, SemiStreamOperator
from semistream.streaming.phases import timed
from semistream.streaming.spool import Spool
from semistream.streaming.task import Work, open_operator
from semistream.warehouse.records import InputCounts, LoadRecord
from semistream.warehouse.resolution import LATE, ORIGINS, all_open, with_keys
from semistream.warehouse.schema import unmatched

DIRECTORY = "again"  # of a checkpoint: the staged tuples
# columns of a staged tuple, before the tuple's own: the key of its row, why it is unmatched, and
# whether it differs from that row's tuple
STAGED = pa.schema(
    [*ORIGINS, ("reason", pa.string()), ("role", pa.string()), ("edited", pa.bool_())]
)
NUMBER = "row of unmatched"  # column of the tuples in the join: their number in the staged file
# of a disk partition, at most: larger ones save calls, smaller ones rows that no tuple needs
READ_TUPLES = 16_384
SORTED_BYTES = 8_000_000  # of staged tuples that are joined in the order of R


@dataclass(frozen=True)
class Again:
    """The input of a resolving load. file: name of the file of staged tuples; plan: the plan with
    which they are joined. Both are recorded before the load begins, so that each attempt does the
    same."""

    file: str
    plan: Plan[Any]


class Staging(AbstractContextManager["Staging"]):
    """A file, while it is written, of tuples that will be joined again. rows: its number of
    tuples."""

    def __init__(self, checkpoint: Path, stream: pa.Schema):
        """Begin a file for tuples of this schema."""
        self.directory, self.file, self.rows = (
            checkpoint / DIRECTORY,
            f"{uuid.uuid4().hex}.arrow",
            0,
        )
        self.stream = stream
        self.directory.mkdir(exist_ok=True)

    def __enter__(self) -> Staging:
        self._writer = pa.ipc.new_file(str(self.path), pa.schema([*STAGED, *self.stream]))
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._writer.close()
        if failed or not self.rows:
            self.path.unlink()
        else:
            sync(self.path)
            sync(self.directory)

    @property
    def path(self) -> Path:
        return self.directory / self.file

    def add(self, rows: pa.RecordBatch, tuples: pa.RecordBatch, edited: pa.Array) -> None:
        """Add tuples. rows: the row of ``unmatched`` of each, a batch with the columns of
        ``STAGED``; edited: bool[n], whether a user has changed each tuple."""
        keys = [*rows.select(STAGED.names[:-1]).columns, edited]
        with naming(str(self.path)):
            self._writer.write_batch(
                pa.RecordBatch.from_arrays(
                    [*keys, *tuples.columns], schema=pa.schema([*STAGED, *self.stream])
                )
            )
        self.rows += rows.num_rows


class Staged:
    """A file of tuples that are joined again, mapped into memory."""

    def __init__(self, path: Path):
        with naming(str(path)):
            self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        self.rows = sum(
            self._file.get_batch(i).num_rows for i in range(self._file.num_record_batches)
        )
        tuples = list(self._file.schema)[len(STAGED) :]
        self.schema = numbered(pa.schema(tuples))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the tuples, each with its number in the file, about SORTED_BYTES at a time."""
        first, gathered = 0, Gathered(self.schema)
        for i in range(self._file.num_record_batches):
            batch = self._file.get_batch(i)
            numbers = pa.array(np.arange(first, first + batch.num_rows))
            gathered.add(
                pa.RecordBatch.from_arrays(
                    [*batch.columns[len(STAGED) :], numbers], schema=self.schema
                )
            )
            first += batch.num_rows
            if gathered.size >= SORTED_BYTES:
                yield as_batch(gathered.take())
        if gathered.size:
            yield as_batch(gathered.take())

    def keys(self) -> pa.Table:
        """Return the columns named in ``STAGED``, in the order of the tuples."""
        batches = [
            pa.RecordBatch.from_arrays(
                self._file.get_batch(i).columns[: len(STAGED)], schema=STAGED
            )
            for i in range(self._file.num_record_batches)
        ]
        return pa.Table.from_batches(batches, STAGED)


def numbered(stream: pa.Schema) -> pa.Schema:
    """Return the schema in which a stream's tuples are joined again."""
    return pa.schema([*stream, (NUMBER, pa.int64())])


# ---- the join


def resolve(work: Work, file: str) -> list[LoadRecord]:
    """Join the staged tuples in this process and load the results that have changed. Return the
    records of all partitions. file: name of the file of staged tuples.

    A Spark job would only add to this: each of its tasks would read the same file. And no task can
    outlive the load, so that a load that has changed nothing can be taken back.
    """
    return [_resolve_partition(work, file, p) for p in range(work.plan.partitions)]


def _resolve_partition(work: Work, file: str, partition: int) -> LoadRecord:
    """Join one partition of the staged tuples and load the results that have changed, unless an
    earlier attempt did so. Return the record of the attempt that was first."""
    began = time.perf_counter()
    done = work.sink.loaded(work.app, work.batch, work.drain, partition)
    if done is not None:
        return done
    staged = Staged(Path(work.checkpoint) / DIRECTORY / file)
    operator = open_operator(work.plan, (staged.schema,), partition, work.sink)
    assert isinstance(operator, SemiStreamOperator)  # two streams resolve nothing
    operator.begin(began)
    placement = work.plan.placement(work.streams)
    at = len(work.streams[0])  # the position of the number among the columns
    joined_schema = operator.output_schema.remove(at)
    try:
        with Spool(
            joined_schema,
            work.streams,
            work.ids,
            work.sink.writer(joined_schema, work.app, work.batch, work.drain, partition),
            operator.first - 1,
        ) as spool:
            results = _Results(staged, spool, at)
            operator.star.joins = tuple(
                replace(each, missed=partial(results.miss, each.role))
                for each in operator.star.joins
            )
            for batch in staged.batches():
                mine = placement.only(partition, batch, batch.column(at).to_numpy())
                if mine.num_rows:
                    for output in operator.process(0, _in_order_of_r(mine, operator.star)):
                        results.write(output)
            for output in operator.drain():
                results.write(output)
            spool.resolve(results.origins())
            states = ("",) * len(work.plan.joins)  # nothing waits, and the next load begins anew
            record = operator.counted(work.load(partition), Refused(), states)
            record = work.sink.write(work.checked(_counted(record, results)), spool)
            return timed(record, 0.0, began)
    finally:
        operator.close()


def _in_order_of_r(tuples: pa.RecordBatch, star: Star) -> pa.RecordBatch:
    """Return tuples in the order of the disk partitions of R that may have their keys. So each of
    these partitions is read once, however few tuples H_S holds. Of several R, the first one counts
    that is not in memory."""
    for join in (each.join for each in star.joins):
        if not isinstance(join, HashJoin):
            codes, _ = join.spec.keys.stream_codes(tuples)
            first = join.master.partitions_of(codes)[:, 0]
            return tuples.take(pa.array(np.argsort(first, kind="stable")))
    return tuples


class _Results:
    """The results of a partition's tuples. same: by role and reason, the number of tuples whose
    result has not changed; same_missed: by role, how many of these tuples have no row in this role,
    which precedes the role in which they are unmatched."""

    def __init__(self, staged: Staged, spool: Spool, at: int):
        self.keys, self.spool, self.at = staged.keys(), spool, at
        self.other = np.zeros(staged.rows, bool)  # tuples with another result
        self.same: Counter[tuple[str | None, str]] = Counter()
        self.same_missed: Counter[str] = Counter()
        self._missed: dict[str, np.ndarray] = {}  # by role, the tuples without a row of it

    def miss(self, role: str, tuples: pa.RecordBatch) -> None:
        """Record tuples that have no row of a role's dimension, and may be passed on to the next
        role."""
        missed = self._missed.setdefault(role, np.zeros(len(self.other), bool))
        missed[tuples.column(self.at).to_numpy()] = True

    def write(self, output: Finished) -> None:
        """Write the results that differ from the former ones."""
        joined, lost = output.joined, output.unmatched
        if joined is not None and joined.num_rows:
            self.other[joined.column(self.at).to_numpy()] = True
            self.spool.write(joined.remove_column(self.at), None, inferred=output.inferred)
        if lost is None or not lost.num_rows:
            return
        numbers = lost.column(self.at)
        was = self.keys.take(numbers)
        same = pc.and_(
            pc.and_not(pc.equal(was["reason"], lost.column(lost.num_columns - 1)), was["edited"]),
            pc.equal(pc.fill_null(was["role"], ""), output.role or ""),
        ).combine_chunks()
        stay = lost.filter(same)
        if stay.num_rows:
            reasons = stay.column(lost.num_columns - 1).to_pylist()
            self.same.update((output.role, reason) for reason in reasons)
            at = stay.column(self.at).to_numpy()
            self.same_missed.update({r: int(of[at].sum()) for r, of in self._missed.items()})
        other = pc.invert(same)
        moved = lost.filter(other)
        if moved.num_rows:
            self.other[moved.column(self.at).to_numpy()] = True
            codes = None if output.codes is None else output.codes.filter(other)
            self.spool.write(None, moved.remove_column(self.at), role=output.role, codes=codes)

    def origins(self) -> pa.RecordBatch:
        """Return the keys of the rows whose tuples have a changed result."""
        rows = self.keys.select(ORIGINS.names).filter(pa.array(self.other)).combine_chunks()
        batches = rows.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], ORIGINS)


def _counted(record: LoadRecord, results: _Results) -> LoadRecord:
    """Return the record of a resolving load, without the tuples whose result has not changed. Such
    a tuple is also subtracted from the counts of the roles before the one in which it is unmatched.
    """
    same, inputs = results.same, list[InputCounts]()
    rest = same.total()
    for number, i in enumerate(record.inputs):
        mine = {
            reason: same[i.role, reason] + (same[None, reason] if number == 0 else 0)
            for reason in i.rejected
        }
        read, later = i.rows_read - rest, rest - sum(mine.values())
        inputs.append(
            replace(
                i,
                rows_read=read if number else 0,
                resolved=0 if number else read,
                matched=i.matched - later,
                # only a left join passes on tuples without a row, and has no unmatched ones
                missed=i.missed - results.same_missed[i.role] if i.missed else 0,
                passed=None if i.passed is None else i.passed - later,
                rejected={reason: n - mine[reason] for reason, n in i.rejected.items()},
            )
        )
        rest = later
    return replace(record, inputs=tuple(inputs), rows_read=0, resolved=inputs[0].resolved)


# ---- plan and staging


def plan_again(plan: Plan[RolePlan], stream: pa.Schema) -> Plan[RolePlan]:
    """Return the plan with which staged tuples are joined: by one operator that has all of R, with
    the memory of one partition. R is read through its index: only the disk partitions that may hold
    a key of the tuples, so that a few tuples do not cost a pass over R. A role that is held whole
    stays so. stream: the stream's schema. Raises NotEnoughMemory."""
    sample, joins = pa.RecordBatch.from_pylist([], numbered(stream)), list[RolePlan]()
    for number in execution_order([join.kind for join in plan.joins]):
        join = plan.joins[number]
        if joins:
            sample = joins[-1].joined(sample)
        one = replace(join, partitions=1, parts=1, owners=())
        joins.append(one if one.whole else _by_index(one, sample.schema))
    return Plan(tuple(joins))


def _by_index(join: RolePlan, stream: pa.Schema) -> RolePlan:
    """Return the plan of a join through R's index, with the largest disk partitions, of at most
    READ_TUPLES tuples, for which there is memory. Raises NotEnoughMemory."""
    tuples = READ_TUPLES
    while True:
        plan = replace(
            join,
            algorithm=SMALLEST,
            auto=False,
            parameters={"disk_tuples": tuples},
            chosen=(),
            reason=f"{SMALLEST}: it reads only what a tuple needs",
        )
        try:
            plan.check(stream)
            return plan
        except ConfigError:
            if tuples == 1:
                raise
            tuples //= 2


def stage_late(
    connection: Connection,
    number: int,
    roles: Sequence[tuple[str, str | None, str]],
    staging: Staging,
    *,
    alone: bool,
) -> None:
    """Stage the open tuples whose keys are new in a version of a role's dimension.

    number: the app's number; roles: (role, directory of the version whose keys were already looked
    up, None if that is unknown, directory of the new version); alone: whether the job has only one
    role.
    """
    for role, former, new in roles:
        where = lacks(role, alone=alone)
        found = (
            all_open(connection, number, where)
            if former is None
            else with_keys(connection, number, where, brought(Path(former), Path(new)))
        )
        for rows in ahead(found):
            _stage(rows, staging)


def lacks(role: str, *, alone: bool) -> ColumnElement[bool]:
    """Return the condition for rows of ``unmatched`` whose tuples have no row of a role's
    dimension. alone: whether the job has only this role."""
    u = unmatched.c
    mine = or_(u.role.is_(None), u.role == role) if alone else u.role == role
    return and_(u.reason == Reason.NO_MATCH, mine)


def _stage(rows: pa.RecordBatch, staging: Staging) -> None:
    """Stage the tuples of rows of ``unmatched`` that have no match, if they fit the schema."""
    tuples, wrong = typed_tuples(rows.column("tuple"), staging.stream)
    if wrong:
        keep = np.ones(rows.num_rows, bool)
        keep[list(wrong)] = False
        rows, tuples = rows.filter(pa.array(keep)), tuples.filter(pa.array(keep))
    if n := rows.num_rows:
        rows = rows.select(LATE.names).append_column("reason", pa.repeat(Reason.NO_MATCH, n))
        staging.add(rows, tuples, pa.repeat(False, n))


def brought(former: Path, new: Path) -> Iterator[np.ndarray]:
    """Yield the key codes, int64[n], sorted, that a new version of a snapshot has and the former
    one lacks, bucket by bucket. If the two cannot be compared, all codes are yielded."""
    with closing(SnapshotRelation(new)) as here, closing(_former(former, here)) as there:
        for bucket in here.buckets:
            if there is here:
                yield np.unique(here.bucket_codes(bucket))
                continue
            if _one_file(*(bucket_file(of, bucket, "codes") for of in (former, new))):
                continue
            codes = lacking(here.bucket_codes(bucket), there.bucket_codes(bucket))
            if len(codes):
                yield codes


def _former(former: Path, new: SnapshotRelation) -> SnapshotRelation:
    """Return the former version of a snapshot; the new one if the two cannot be compared."""
    if not former.is_dir():
        return new
    there = SnapshotRelation(former)
    if (there.manifest.bucket_count, there.keys) == (new.manifest.bucket_count, new.keys):
        return there
    there.close()
    return new


def _one_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)


def typed_tuples(
    texts: Sequence[str] | pa.StringArray, schema: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Convert the texts in ``unmatched`` to tuples. Return the tuples, and by position the reason
    why a tuple does not fit the schema's types. Values that do not fit are null."""
    columns, wrong = list[pa.Array](), dict[int, str]()
    found = _values(texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string()), schema)
    for field, values in zip(schema, found, strict=True):
        column, bad = _column(values, field.type)
        columns.append(column)
        for i in bad:
            value = values[i].as_py() if isinstance(values, pa.Array) else values[i]
            wrong.setdefault(i, f"{field.name}: {value!r} is not {type_name(field.type)}")
    return pa.RecordBatch.from_arrays(columns, schema=schema), wrong


def _values(texts: pa.StringArray, schema: pa.Schema) -> list[pa.Array | list[Any]]:
    """Return the values of each of the schema's columns in JSON texts. They are arrays of the
    column's type, or of strings where JSON has strings for the type; or Python's values if a text
    does not fit these types."""
    kinds = [(f.name, f.type if _is_of_json(f.type) else pa.string()) for f in schema]
    try:
        read = pa.json.read_json(
            pa.BufferReader(_together(texts) if len(texts) else b""),
            # one block: a row that is longer than two is refused
            pa.json.ReadOptions(use_threads=False, block_size=texts.nbytes + 1),
            pa.json.ParseOptions(pa.schema(kinds), unexpected_field_behavior="ignore"),
        )
        if read.num_rows == len(texts):
            return [column.combine_chunks() for column in read.columns]
    except pa.ArrowInvalid:
        pass
    rows = [json.loads(text) for text in texts.to_pylist()]
    return [[row.get(name) for row in rows] for name in schema.names]


def _together(texts: pa.StringArray) -> pa.Buffer:
    """Return the texts as one, without a copy. The parser needs no line break between objects."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    return data.slice(int(ends[0]), int(ends[1] - ends[0]))


def _is_of_json(kind: pa.DataType) -> bool:
    """Return whether the values of a type are no strings in the texts of ``unmatched``."""
    return (
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
    )


def _column(values: pa.Array | list[Any], kind: pa.DataType) -> tuple[pa.Array, Sequence[int]]:
    """Convert values of ``_values`` to a column. Return the column, and the positions of values
    that do not fit its type."""
    if isinstance(values, pa.Array):
        if values.type == kind:
            return values, ()
        if pa.types.is_temporal(kind):
            cast, bad = cast_cells(values, kind)
            return cast, bad.tolist()
        values = values.to_pylist()
    try:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.array([None if v is None else bytes.fromhex(v) for v in values], kind), ()
        if pa.types.is_decimal(kind):
            return pa.array([None if v is None else Decimal(str(v)) for v in values], kind), ()
        if not (pa.types.is_temporal(kind) or pa.types.is_dictionary(kind)):
            return pa.array(values, kind), ()
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        pass  # one by one, below, as texts
    texts = pa.array([None if v is None else _text(v) for v in values], pa.string())
    cast, bad = cast_cells(texts, kind)
    return cast, bad.tolist()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
