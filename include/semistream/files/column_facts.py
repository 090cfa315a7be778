"""Descriptions of the columns of some rows: types, examples, nulls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from semistream.ddl import type_name
from semistream.files.convert import readable
from semistream.files.source import Rejected

EXAMPLES, WIDTH = 3, 28  # examples of a column, and the most characters of each
FIRST = 1000  # values of which the examples are the first ones


@dataclass(frozen=True)
class ColumnFacts:
    """A description of a column of some rows. type: the type's name in Spark's DDL; nulls: the
    number of rows without a value; unparsable: the number of rows whose value does not fit the
    type; examples: some values as texts."""

    name: str
    type: str
    nulls: int
    unparsable: int
    examples: tuple[str, ...]


def column_facts(rows: pa.Table, rejected: Iterable[Rejected] = ()) -> tuple[ColumnFacts, ...]:
    """Describe the columns of rows. rejected: rows that could not be read; the reason of each
    begins with the column's name."""
    unfit = Counter(row.detail.partition(": ")[0] for row in rejected)
    return tuple(
        ColumnFacts(
            field.name,
            type_name(field.type),
            column.null_count,
            unfit[field.name],
            tuple(_as_text(value) for value in _first(column)),
        )
        for field, column in zip(rows.schema, rows.columns, strict=True)
    )


def _first(column: pa.ChunkedArray) -> list[object]:
    values = column.slice(0, FIRST).combine_chunks().drop_null()
    if pa.types.is_nested(values.type):
        return list(values[:EXAMPLES].to_pylist())
    return list(readable(pc.unique(values)[:EXAMPLES]).to_pylist()) if len(values) else []


def _as_text(value: object) -> str:
    text = re.sub(r"(:\d\d)\.0+(?=Z?$)", r"\1", str(value))  # a time without a fraction
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
