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
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Connection, Row, and_, or_

from semistream.ddl import type_name
from semistream.durable import naming, sync
from semistream.files.convert import cast_cells
from semistream.master.manifest import Manifest, bucket_file
from semistream.master.snapshot import SnapshotRelation
from semistream.reasons import Reason
from semistream.sizing.plan import Plan
from semistream.streaming.join_operator import Finished, Refused, SemiStreamOperator
from semistream.streaming.spool import Spool
from semistream.warehouse.records import InputCounts, LoadRecord
from semistream.warehouse.resolution import ORIGINS, all_open, with_keys
from semistream.warehouse.schema import unmatched

if TYPE_CHECKING:
    from semistream.streaming.task import Work

DIRECTORY = "again"  # of a checkpoint: the staged tuples
# columns of a staged tuple, before the tuple's own: the key of its row, why it is unmatched, and
# whether it differs from that row's tuple
STAGED = pa.schema(
    [*ORIGINS, ("reason", pa.string()), ("role", pa.string()), ("edited", pa.bool_())]
)
NUMBER = "row of unmatched"  # column of the tuples in the join: their number in the staged file


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

    def add(self, rows: Sequence[Row[Any]], tuples: pa.RecordBatch, edited: Sequence[bool]) -> None:
        """Add tuples, each with its row of ``unmatched``. edited: whether a user has changed each
        tuple."""
        columns = [[row[name] for row in _mappings(rows)] for name in STAGED.names[:-1]]
        keys = [
            pa.array(values, field.type)
            for values, field in zip([*columns, edited], STAGED, strict=True)
        ]
        with naming(str(self.path)):
            self._writer.write_batch(
                pa.RecordBatch.from_arrays(
                    [*keys, *tuples.columns], schema=pa.schema([*STAGED, *self.stream])
                )
            )
        self.rows += len(rows)

    def sample(self, most: int) -> pa.RecordBatch:
        """Return the first tuples of the file, in the form in which they are joined."""
        staged, rows = Staged(self.path), list[pa.RecordBatch]()
        for batch in staged.batches():
            rows.append(batch)
            most -= batch.num_rows
            if most <= 0:
                break
        return pa.concat_batches(rows)


def _mappings(rows: Sequence[Row[Any]]) -> Iterator[Any]:
    return (row._mapping for row in rows)


class Staged:
    """A file of tuples that are joined again, mapped into memory."""

    def __init__(self, path: Path):
        with naming(str(path)):
            self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        self.rows = sum(
            self._file.get_batch(i).num_rows for i in range(self._file.num_record_batches)
        )
        tuples = list(self._file.schema)[len(STAGED) :]
        self.schema = pa.schema([*tuples, (NUMBER, pa.int64())])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the tuples, each with its number in the file."""
        first = 0
        for i in range(self._file.num_record_batches):
            batch = self._file.get_batch(i)
            numbers = pa.array(np.arange(first, first + batch.num_rows))
            yield pa.RecordBatch.from_arrays(
                [*batch.columns[len(STAGED) :], numbers], schema=self.schema
            )
            first += batch.num_rows

    def keys(self) -> pa.Table:
        """Return the columns named in ``STAGED``, in the order of the tuples."""
        batches = [
            pa.RecordBatch.from_arrays(
                self._file.get_batch(i).columns[: len(STAGED)], schema=STAGED
            )
            for i in range(self._file.num_record_batches)
        ]
        return pa.Table.from_batches(batches, STAGED)


# ---- in a task


def resolve_partition(work: Work, operator_of: Any, partition: int) -> LoadRecord:
    """Join one partition of the staged tuples and load the results that have changed. Return the
    record of the attempt that was first. operator_of: a function that opens an operator, given the
    plan, the streams, the partition and the sink."""
    assert work.again is not None
    staged = Staged(Path(work.checkpoint) / DIRECTORY / work.again)
    operator = operator_of(work.plan, (staged.schema,), partition, work.sink)
    operator.begin(time.perf_counter())
    before, placement = operator.count(), work.plan.placement(work.streams)
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
            if isinstance(operator, SemiStreamOperator):
                operator.star.joins = tuple(
                    replace(each, missed=partial(results.miss, each.role))
                    for each in operator.star.joins
                )
            for batch in staged.batches():
                tuples = batch.select(work.streams[0].names)
                of = placement.partitions(tuples, batch.column(NUMBER).to_numpy())
                mine = batch.filter(pa.array(of == partition))
                if mine.num_rows:
                    for output in operator.process(0, mine):
                        results.write(output)
            for output in operator.drain():
                results.write(output)
            spool.resolve(results.origins())
            states = work.states.get(partition) or ("",) * len(work.plan.joins)
            record = operator.counted(work.load(partition), before, Refused(), states)
            return work.sink.write(work.checked(_counted(record, results)), spool)
    finally:
        operator.close()


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


# ---- in the driver


def plan_again(plan: Plan[Any], sample: pa.RecordBatch, costs: Any) -> Plan[Any]:
    """Return the plan with which staged tuples are joined. Algorithm and sizes are those that the
    cost models find best for these tuples, with the same memory and number of partitions."""
    joins = (
        replace(join, algorithm="auto", auto=True, parameters={}, chosen=(), owners=())
        for join in plan.joins
    )
    return Plan(tuple(joins)).choose(sample, costs)


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
        if former is None:
            rows = all_open(connection, number, lacks(role, alone=alone))
            for some in rows:
                _stage(some, staging)
            continue
        for codes in brought(Path(former), Path(new)):
            for some in with_keys(connection, number, lacks(role, alone=alone), codes.tolist()):
                _stage(some, staging)


def lacks(role: str, *, alone: bool) -> ColumnElement[bool]:
    """Return the condition for rows of ``unmatched`` whose tuples have no row of a role's
    dimension. alone: whether the job has only this role."""
    u = unmatched.c
    mine = or_(u.role.is_(None), u.role == role) if alone else u.role == role
    return and_(u.reason == Reason.NO_MATCH, mine)


def _stage(rows: Sequence[Row[Any]], staging: Staging) -> None:
    if not rows:
        return
    tuples, wrong = typed_tuples([row._mapping["tuple"] for row in rows], staging.stream)
    if wrong:
        keep = np.ones(len(rows), bool)
        keep[list(wrong)] = False
        tuples = tuples.filter(pa.array(keep))
        rows = [row for row, kept in zip(rows, keep, strict=True) if kept]
    if rows:
        staging.add(rows, tuples, [False] * len(rows))


def brought(former: Path, new: Path) -> Iterator[np.ndarray]:
    """Yield the key codes, int64[n], sorted, that a new version of a snapshot has and the former
    one lacks, bucket by bucket. If the two cannot be compared, all codes are yielded."""
    here = Manifest.read(new)
    there = Manifest.read(former) if former.is_dir() else None
    same = there is not None and (there.bucket_count, there.keys) == (here.bucket_count, here.keys)
    for bucket in range(here.bucket_count):
        if same and _one_file(*(bucket_file(of, bucket, "codes") for of in (former, new))):
            continue
        codes = np.unique(_codes(new, bucket))
        if same and len(codes):
            known = np.unique(_codes(former, bucket))
            at = np.minimum(np.searchsorted(known, codes), max(len(known) - 1, 0))
            codes = codes[known[at] != codes] if len(known) else codes
        if len(codes):
            yield codes


def _one_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)


def _codes(snapshot: Path, bucket: int) -> np.ndarray:
    """Return the key codes of a bucket, int64[rows]."""
    relation = SnapshotRelation(snapshot, buckets=[bucket])
    try:
        parts = [relation.read_codes(n) for n in range(relation.partition_count)]
        return np.concatenate([*parts, np.empty(0, np.int64)])
    finally:
        relation.close()


def typed_tuples(texts: Sequence[str], schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Convert the texts in ``unmatched`` to tuples. Return the tuples, and by position the reason
    why a tuple does not fit the schema's types. Values that do not fit are null."""
    rows, columns = [json.loads(text) for text in texts], []
    wrong: dict[int, str] = {}
    for field in schema:
        values = [row.get(field.name) for row in rows]
        column, bad = _column(values, field.type)
        columns.append(column)
        for i in bad:
            wrong.setdefault(i, f"{field.name}: {values[i]!r} is not {type_name(field.type)}")
    return pa.RecordBatch.from_arrays(columns, schema=schema), wrong


def _column(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, Sequence[int]]:
    """Convert JSON values to a column. Return the column, and the positions of values that do not
    fit its type."""
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
