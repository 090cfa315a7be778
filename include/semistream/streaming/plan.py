"""How a micro-batch is joined, and the durable note of which one is being worked on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semistream.config import AUTO
from semistream.cost_models import Costs
from semistream.durable import write_json
from semistream.errors import StateError
from semistream.joins import SemiStreamJoin, open_join
from semistream.keys import JoinKeys, bucket_expression, buckets, resolve_keys
from semistream.master import Manifest, SnapshotRelation
from semistream.warehouse.tables import surrogate_key

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Plan:
    """What all partitions of a batch have in common; a batch begun with a plan is finished with it."""

    algorithm: str
    memory: int  # bytes of one partition, M/P
    join_type: str
    parameters: dict[str, Any]
    on: tuple[tuple[str, str], ...]  # (stream column, master column)
    columns: tuple[str, ...] | None  # master columns to add; None: all but the join columns
    partitions: int  # P
    snapshot: str  # directory of the master's version
    surrogate_key: bool = True  # add it to the columns, where the master has one
    reason: str = ""  # why this algorithm
    auto: bool = False  # algorithm and parameters are, or are to be, the cost models' choice

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        on = tuple((s, m) for s, m in values["on"])
        return cls(**{**values, "on": on, "columns": None if values["columns"] is None else tuple(values["columns"])})

    def relation(self, partition: int) -> SnapshotRelation:
        """The buckets of R that a partition's operator owns."""
        count = Manifest.read(Path(self.snapshot)).bucket_count
        return SnapshotRelation(self.snapshot, buckets=[b for b in range(count) if b % self.partitions == partition])

    def open(self, stream: pa.Schema, partition: int) -> SemiStreamJoin:
        """The operator of one partition. Raises ConfigError for whatever cannot work."""
        relation = self.relation(partition)
        return open_join(self.algorithm, memory=self.memory, stream=stream, master=relation, on=self.on,
                         columns=self.added(relation), join_type=self.join_type, parameters=self.parameters)

    def added(self, relation: SnapshotRelation) -> tuple[str, ...] | None:
        """The master columns to add, its surrogate key among them; None: all but the join columns."""
        columns, sk = self.columns, surrogate_key(relation.name)
        if self.surrogate_key and columns is not None and sk in relation.schema.names and sk not in columns:
            columns = (sk, *columns)
        return columns

    def asked(self) -> Plan:
        """The plan before anything was chosen."""
        return replace(self, algorithm=AUTO, parameters={}, reason="") if self.auto else self

    def choose(self, sample: pa.RecordBatch, costs: Costs) -> Plan:
        """With the algorithm and parameters that the models find best for a sample of the stream, where that was asked for.

        It is that of the partition with most of the sample: the slowest, on which the others wait. Raises ConfigError when M is
        too small for every algorithm.
        """
        if not self.auto:
            return self
        from semistream.tuning import choose

        mine, tuples = self.busiest(sample)
        relation = self.relation(mine)
        try:
            choice = choose(tuples, relation, self.memory, self.on, self.added(relation), costs=costs)
        finally:
            relation.close()
        reason = (f"auto, by {sample.num_rows:,} stream tuples, {tuples.num_rows:,} of them in partition {mine} of "
                  f"{self.partitions}. {choice.reason}")
        return replace(self, algorithm=choice.algorithm, parameters=choice.parameters, reason=reason)

    def busiest(self, sample: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
        """The partition that most tuples of a sample belong to, and those."""
        of, count = self.stream_keys(sample.schema)
        codes, valid = of.stream_codes(sample)
        numbers = np.where(valid, buckets(codes, of.exact, count) % self.partitions, -1)
        most = int(np.bincount(numbers[valid], minlength=self.partitions).argmax())
        return most, sample.filter(pa.array(numbers == most))

    def stream_keys(self, stream: pa.Schema) -> tuple[JoinKeys, int]:
        """The join keys in the order that R is bucketed by, and the number of buckets."""
        manifest = Manifest.read(Path(self.snapshot))
        of_master = {m: s for s, m in self.on}
        return resolve_keys(stream, manifest.schema, [(of_master[m], m) for m in manifest.key_columns]), manifest.bucket_count

    def partition_expression(self, stream: pa.Schema) -> Column:
        """The partition that a stream tuple belongs to, as a Spark column expression."""
        of, count = self.stream_keys(stream)
        return bucket_expression(of.stream, of.types, count) % self.partitions


@dataclass(frozen=True)
class Progress:
    """``<checkpoint>/progress.json``: the batch, or drain, being worked on, or the latest one that was.

    It is written before any task starts. Whatever is noted here is finished, with this plan and from these states, before
    anything else is begun; so a task that outlives its driver does the same work as its successor, and the ledger keeps one.
    states: join state files after the batch before, by partition; none where nothing is taken over. files: of the micro-batch,
    which the tasks read themselves; none where Spark brings the tuples.
    """

    batch: int
    drain: int
    plan: Plan
    states: dict[int, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @classmethod
    def read(cls, checkpoint: Path) -> Progress | None:
        """Raises StateError when the note is damaged."""
        path = checkpoint / "progress.json"
        try:
            values = json.loads(path.read_text())
            return cls(values["batch"], values["drain"], Plan.from_json(values["plan"]),
                       {int(p): f for p, f in values["states"].items()}, tuple(values.get("files", ())))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as e:
            raise StateError(f"{path} is damaged: {e}. Restore it, or begin again with another app and checkpoint.") from None

    def write(self, checkpoint: Path) -> None:
        write_json(checkpoint / "progress.json", asdict(self))
