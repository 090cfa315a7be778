"""The prediction of a load's choices and rates by the cost models, from a sample of its stream and
from snapshots of its dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.cost_models import MODELS, Costs
from semistream.cost_models.bound import Demand, price
from semistream.job import Job
from semistream.joins.spec import join_spec
from semistream.pipeline.settings import CheckSettings
from semistream.settings import JoinSettings
from semistream.sizing.initial_plan import initial_plan
from semistream.sizing.role_plan import RolePlan
from semistream.sizing.search import predict
from semistream.sizing.star_plan import choose_plan
from semistream.sizing.workload import describe
from semistream.streaming.waiting import MOST_SHARE, pass_seconds
from semistream.warehouse.tables import fact_table


@dataclass(frozen=True)
class RolePrediction:
    """The cost models' choice and prediction for a role. memory: bytes of M; rate: the join's rate
    over all operators, tuples/s, None if R is held whole in memory; bytes_read: bytes of R read per
    second at the given rate, or at the highest one if none is given; busy: the share of the time in
    which the join works at the given rate; idle_bytes_read: the same as bytes_read where the disk
    is idle between micro-batches; least_wait: the smallest possible max_wait of a continuous load,
    seconds."""

    role: str
    algorithm: str
    sizes: Mapping[str, Any]
    memory: int
    rate: float | None = None
    bytes_read: float = 0.0
    busy: float | None = None
    idle_bytes_read: float = 0.0
    least_wait: float = 0.0


def predict_load(
    settings: CheckSettings,
    job: Job,
    versions: Sequence[Path],
    sample: pa.RecordBatch,
    partitions: int,
    costs: Costs,
) -> Iterator[RolePrediction]:
    """Yield the prediction of each role, as a load chooses its plan for its first micro-batch.
    versions: the snapshots of the roles' dimensions. Raises ConfigError for a load that would be
    refused."""
    given = JoinSettings.load({"memory": settings.memory, "join_type": settings.join_type})
    plan = initial_plan(given, job, versions, partitions, lambda _: None)
    demand = Demand(settings.max_wait, settings.rate) if settings.max_wait else None
    plan = choose_plan(plan, sample, costs, demand=demand, one_machine=True)
    stream = sample.schema
    for join in plan.joins:
        yield _prediction(join, sample, costs, demand)
        sample = join.joined(sample)
    added = pa.schema(list(sample.schema)[len(stream) :])
    keys = [role.surrogate_key for role in job.roles]
    fact_table(job.fact_table, stream, keys, added, job.stream.id)  # names must differ


def _prediction(
    join: RolePlan, stream: pa.RecordBatch, costs: Costs, demand: Demand | None
) -> RolePrediction:
    """Return the prediction for a role, whose stream is like these tuples."""
    partitions = join.partitions
    sizes = {k: v for k, v in join.parameters.items() if k != "sharers"}
    found = RolePrediction(join.role, join.algorithm, sizes, join.memory * partitions)
    with closing(join.relation(0)) as relation:
        added = join.added(stream.schema, relation)
        spec = join_spec("", 0, stream.schema, relation, join.on, added)
        whole = join.whole_reads(relation)
        if join.algorithm not in MODELS:
            return found
        model, work = MODELS[join.algorithm], describe(spec, stream)
        told = {name: float(sizes[name]) for name in model.sizes if sizes.get(name)}
        if len(told) < len(model.sizes):
            return found
        of = predict(join.algorithm, work, join.memory, costs, **told)
    wanted = (demand or Demand(math.inf, of.mu * partitions))._replace(
        share=1 / partitions, whole=whole
    )
    taken = price(of, work, costs, model.phase, wanted)
    operator = join.open(stream.schema, 0, costs, stream)
    with closing(operator.master):
        seconds = pass_seconds(operator, costs)
    return replace(
        found,
        rate=of.mu * partitions,
        bytes_read=taken.bytes_read,
        busy=taken.busy if demand else None,
        idle_bytes_read=taken.idle if demand else 0.0,
        least_wait=seconds / MOST_SHARE,
    )
