"""The opening of an operator. The cost model chooses sizes that were left open (0 in the
parameters)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from semistream.cost_models import MODELS, TYPICAL, Costs
from semistream.errors import ConfigError, NotEnoughMemory, TooMuchMemory
from semistream.joins.contract import SemiStreamJoin
from semistream.joins.registry import Algorithm, find_algorithm
from semistream.joins.spec import Columns, JoinSpec, join_spec
from semistream.master.relation import MasterRelation
from semistream.settings import Settings
from semistream.sizing.search import tune
from semistream.sizing.workload import describe


def open_join(
    algorithm: str,
    *,
    memory: int,
    stream: pa.Schema,
    master: MasterRelation,
    on: Sequence[tuple[str, str]],
    columns: Columns = None,
    join_type: str = "inner",
    parameters: dict[str, Any] | None = None,
    costs: Costs = TYPICAL,
    sample: pa.RecordBatch | None = None,
    tuples: float = math.inf,
) -> SemiStreamJoin:
    """Open a join operator of the named algorithm, which holds at most ``memory`` bytes.

    The other arguments are those of ``join_spec``. parameters: the algorithm's parameters. The
    algorithm's cost model chooses a size that is 0 or missing, for the highest rate with the keys
    of a sample of the stream (without a sample, by Zipf's law) and for `tuples` tuples of the
    stream. If the operator does not fit M with this size, smaller sizes are tried. Raises
    ConfigError for arguments that cannot work, and NotEnoughMemory with an amount that suffices for
    any stream.
    """
    entry = find_algorithm(algorithm)
    given = entry.parameters.load(parameters or {})
    spec = join_spec(entry.name, memory, stream, master, on, columns, join_type)
    still_open = open_sizes(entry, given)
    for settings in _from_best_to_smallest(entry, spec, given, still_open, costs, sample, tuples):
        try:
            return entry.make(spec, settings)
        except TooMuchMemory:
            raise
        except ConfigError as e:
            refusal = e
    if refusal.parameter != "memory" and refusal.parameter not in still_open:
        raise refusal
    remedy = "Give more memory" + (
        ", or a smaller disk_tuples." if (parameters or {}).get("disk_tuples") else "."
    )
    raise NotEnoughMemory(
        _least_memory(entry, spec, given, still_open), spec.memory, entry.name, remedy
    ) from None


def open_sizes(entry: Algorithm, parameters: Settings) -> list[str]:
    """Return the names of the sizes that are still to be chosen."""
    sizes = MODELS[entry.name].sizes if entry.name in MODELS else {}
    return [
        n for n in sizes if getattr(parameters, n) == entry.parameters.model_fields[n].default == 0
    ]


def open_choices(entry: Algorithm, parameters: Settings) -> list[str]:
    """Return the names of the parameters, other than sizes, that the cost model chooses from a
    sample."""
    choices = MODELS[entry.name].chooses if entry.name in MODELS else ()
    return [n for n in choices if not getattr(parameters, n)]


def _from_best_to_smallest(
    entry: Algorithm,
    spec: JoinSpec,
    given: Settings,
    still_open: list[str],
    costs: Costs,
    sample: pa.RecordBatch | None,
    tuples: float,
) -> Iterator[Settings]:
    """Yield the requested settings with values for the open sizes: first the model's best values
    and its other choices, then half of these sizes and so on, and at last the smallest possible
    sizes."""
    chosen = open_choices(entry, given) if sample else []
    if still_open or chosen:
        fixed = {n: getattr(given, n) for n in MODELS[entry.name].sizes if n not in still_open}
        with suppress(ConfigError):  # the models know averages: their M may be too large
            best = tune(
                entry.name,
                describe(spec, sample, stream_tuples=tuples),
                spec.memory,
                costs,
                **fixed,
            ).parameters
            names = [n for n in (*still_open, *chosen) if n in best]
            yield given.model_copy(update={n: best[n] for n in names})
            sizes = {n: best[n] for n in still_open}
            while max(sizes.values(), default=0) > 1:
                yield given.model_copy(update=sizes)
                sizes = {n: max(size // 2, 1) for n, size in sizes.items()}
    yield from _smallest(spec, given, still_open)


def _smallest(spec: JoinSpec, given: Settings, still_open: list[str]) -> Iterator[Settings]:
    """Yield the requested settings with the smallest caches and each possible size of the disk
    buffer, because many small partitions may need more memory than a few large ones."""
    sizes = dict.fromkeys(still_open, 1)
    tuples, page = spec.master.tuple_count, spec.master.with_partition(1).partition_tuples
    while "disk_tuples" in sizes and tuples > page:
        yield given.model_copy(update=sizes | {"disk_tuples": tuples})
        tuples //= 2
    yield given.model_copy(update=sizes)


def _least_memory(entry: Algorithm, spec: JoinSpec, given: Settings, still_open: list[str]) -> int:
    """Return the smallest M with which the operator can be opened, exact to a thousandth. The
    function searches for it by opening the operator."""

    def opens(memory: int) -> bool:
        return any(
            _made(entry, replace(spec, memory=memory), s)
            for s in _smallest(spec, given, still_open)
        )

    low, high = spec.memory, max(2 * spec.memory, 1024)
    while not opens(high):
        low, high = high, 2 * high
    while high - low > max(high // 1000, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if opens(middle) else (middle, high)
    return high


def _made(entry: Algorithm, spec: JoinSpec, settings: Settings) -> bool:
    with suppress(ConfigError):
        entry.make(spec, settings)
        return True
    return False
