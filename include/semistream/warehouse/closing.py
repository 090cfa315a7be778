"""The totals of keys that have become final, in the table ``FACTS_closed``.

A propagated punctuation says that no later row has its keys. The load that propagates it also
writes, in the same transaction, one row of totals for each of these keys, computed from the present
fact table. So a key is closed exactly once, even after crashes, and keys that are still open take
no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    and_,
    func,
    literal,
    select,
    true,
    tuple_,
)

from semistream.errors import ConfigError
from semistream.job import AnyJob, StreamStreamJob, parse_total
from semistream.warehouse.dialects import System, table_options
from semistream.warehouse.load_ids import partition_of
from semistream.warehouse.schema import row_key
from semistream.warehouse.tables import index_name, index_options, quoted
from semistream.warehouse.types import ExactDecimal

AT_ONCE = 500  # keys in a statement


class Final(NamedTuple):
    """Keys of which no later row will come. constants: one row for each key; patterns: dicts in the
    form of ``stream_joins.punctuations``, over columns of the same names."""

    constants: pa.Table
    patterns: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class Closing:
    """The definition of a closed table. keys: columns of the fact table; totals: pairs of a column
    of the closed table and the aggregate that fills it."""

    keys: tuple[str, ...]
    totals: tuple[tuple[str, str], ...]

    def table(self, fact: Table) -> Table:
        """Return the closed table that belongs to a fact table. Raises ConfigError for totals that
        the table cannot have."""
        taken = {name.lower() for name in (*self.keys, "load_id", "load_row")}
        for name, _ in self.totals:
            if name.lower() in taken:
                raise ConfigError(
                    f"totals.{name}",
                    "must not be named as another column",
                    name,
                    f"{closed_name(fact.name)} has: {', '.join(sorted(taken))}.",
                )
            taken.add(name.lower())
        table = Table(
            closed_name(fact.name),
            MetaData(),
            *(Column(quoted(k), fact.c[k].type, nullable=False) for k in self.keys),
            *(Column(quoted(name), _type(fact, name, total)) for name, total in self.totals),
            *row_key(),
            **table_options(clustered=True),
        )
        columns = [table.c[k] for k in self.keys]
        Index(index_name(table.name, "key"), *columns, **index_options(columns))
        return table

    def check(self, fact: Table, system: System) -> None:
        """Raise ConfigError for totals of decimals if the database stores these as text and cannot
        add them up."""
        for name, total in self.totals:
            function, column = parse_total(total)
            kind = fact.c[column].type if column else None
            if (
                function != "count"
                and isinstance(kind, ExactDecimal)
                and system.decimal_is_text(kind.precision)
            ):
                raise ConfigError(
                    f"totals.{name}",
                    f"must be of decimals of fewer digits in {system.title}",
                    total,
                    "Declare fewer digits, or use MySQL.",
                )

    def sums(self, fact: Table) -> list[ColumnElement[Any]]:
        """Return the aggregates over a key's rows of the fact table, in the order of the totals."""
        found: list[ColumnElement[Any]] = []
        for name, total in self.totals:
            function, column = parse_total(total)
            value = getattr(func, function)(*([fact.c[column]] if column else []))
            scale = getattr(fact.c[column].type, "scale", None) if column else None
            if function == "sum" and scale is not None:  # of decimals: SQLite adds them as doubles
                value = func.round(value, scale)
            found.append(value.label(name))
        return found

    def close(
        self, connection: Connection, fact: Table, load: int, app: tuple[int, int], final: Final
    ) -> int:
        """Write the totals of keys that became final with a load, unless they have already been
        written. Return the number of these keys.

        load: the load's load_id; app: the least and the greatest load_id of its app.
        """
        closed, first = self.table(fact), 0
        keys = [fact.c[k] for k in self.keys]
        known = (
            select(literal(1))
            .where(
                *(closed.c[k] == fact.c[k] for k in self.keys), (closed.c.load_id + 0).between(*app)
            )
            .correlate(fact)
        )
        # all rows of a key are in one partition; `+ 0` avoids the primary key, see Scope.recounted
        mine = and_(
            (fact.c.load_id + 0).between(*app),
            partition_of(fact.c.load_id) == partition_of(load),
            ~known.exists(),
        )
        names = [*self.keys, *(name for name, _ in self.totals), "load_id", "load_row"]
        for these in self._conditions(fact, final):
            number = func.row_number().over(order_by=keys) - 1 + first
            rows = (
                select(*keys, *self.sums(fact), literal(load), number)
                .where(these, *(k.is_not(None) for k in keys), mine)
                .group_by(*keys)
            )
            # of an INSERT, only a few drivers keep the count unasked
            written = closed.insert().from_select(names, rows)
            counted = written.execution_options(preserve_rowcount=True)
            first += connection.execute(counted).rowcount
        return first

    def _conditions(self, fact: Table, final: Final) -> Iterator[ColumnElement[bool]]:
        keys = [fact.c[k] for k in self.keys]
        for batch in final.constants.to_batches(max_chunksize=AT_ONCE):
            rows = [tuple(row.values()) for row in batch.to_pylist()]
            yield (
                keys[0].in_([value for (value,) in rows])
                if len(keys) == 1
                else tuple_(*keys).in_(rows)
            )
        for plain in final.patterns:
            for part in _parts(plain):
                yield and_(true(), *(_matches(fact.c[k], p) for k, p in part.items()))


def closed_name(fact: str) -> str:
    """Return the name of the table that holds the totals of a fact table's keys."""
    return f"{fact}_closed"


def closing_of(job: AnyJob) -> Closing | None:
    """Return the definition of a job's closed table, or None if the job has no totals."""
    if not isinstance(job, StreamStreamJob) or not job.totals:
        return None
    return Closing(tuple(job.on), tuple(job.totals.items()))


def _type(fact: Table, name: str, total: str) -> Any:
    function, column = parse_total(total)
    if column is not None and column not in fact.c:
        raise ConfigError(
            f"totals.{name}",
            f"must be of a column of {fact.name}",
            column,
            f"It has: {', '.join(fact.c.keys())}.",
        )
    kind = Integer() if column is None else fact.c[column].type
    if function not in ("count", "sum"):
        return kind
    if function == "count" or isinstance(kind, Integer):
        return BigInteger()
    if isinstance(kind, ExactDecimal):
        return Numeric(38, kind.scale)
    if isinstance(kind, Double):
        return Double()
    raise ConfigError(
        f"totals.{name}",
        "must add up numbers",
        f"{column}: {kind}",
        "Choose count, min or max, or another column.",
    )


def _parts(plain: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a pattern into patterns with at most AT_ONCE values in each column."""
    for column, pattern in plain.items():
        match pattern:
            case {"in": values} if len(values) > AT_ONCE:
                for first in range(0, len(values), AT_ONCE):
                    yield from _parts(plain | {column: {"in": values[first : first + AT_ONCE]}})
                return
    yield plain


def _matches(column: ColumnElement[Any], pattern: Any) -> ColumnElement[bool]:
    match pattern:
        case {"in": values}:
            return column.in_(values)
        case {"range": [low, high]}:
            return and_(
                true() if low is None else column >= low, true() if high is None else column <= high
            )
        case _:
            return column == pattern
