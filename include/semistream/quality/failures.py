"""The table ``quality_failures``, with the wrong rows that verifications have found, for BI
tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, true

from semistream.positions import ordinal
from semistream.quality.checkpoint import CheckResult
from semistream.quality.checks import PARTS
from semistream.warehouse.load_ids import batch_of, key_of
from semistream.warehouse.schema import quality_failures, quality_runs

BATCH = ("batch", "source_batch", "first_batch")  # columns of checks' rows


def write_failures(
    connection: Connection,
    verification: int,
    results: Sequence[CheckResult],
    number: int,
    ids: Sequence[str],
) -> None:
    """Write the wrong rows of a verification within the connection's transaction. They replace the
    wrong rows that former verifications found in the same range.

    verification: id of the verification in ``quality_runs``; number: the app's number in its
    load_ids; ids: the fact table's id columns.
    """
    q, f = quality_runs.c, quality_failures.c
    run = connection.execute(select(quality_runs).where(q.id == verification)).one()
    covered = select(q.id).where(
        q.app == run.app,
        q.fact_table == run.fact_table,
        true()
        if run.from_batch is None
        else ordinal(q.from_batch, q.from_drain) >= ordinal(run.from_batch, run.from_drain),
        ordinal(q.to_batch, q.to_drain) <= ordinal(run.to_batch, run.to_drain),
    )
    connection.execute(delete(quality_failures).where(f.verification.in_(covered)))
    of_run = {
        "verification": verification,
        "app": run.app,
        "fact_table": run.fact_table,
        "found_at": run.started_at,
    }
    rows = [
        {**of_run, "number": n, **row}
        for n, row in enumerate(row for r in results for row in _rows(r, number, ids))
    ]
    if rows:
        connection.execute(insert(quality_failures), rows)


def _rows(result: CheckResult, number: int, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the wrong rows of a check that fails or warns."""
    if result.success and not result.warned:
        return
    of_check = {
        "expectation": result.name,
        "title": result.title,
        "action": "warn" if result.warned else "fail",
        "role": result.of or None,
        "rows_found": result.count,
        "remedy": result.remedy,
    }
    for row in result.rows or [{}]:
        at = [row.get(name) for name in PARTS]
        load = row.get("load_id", None if None in at else key_of(number, *at))
        yield {
            **of_check,
            "batch": next((row[name] for name in BATCH if name in row), None)
            if load is None
            else batch_of(load),
            "load_id": load,
            "stream_id": _id(row, ids),
            "column_name": row.get("column"),
            "expected": _text(row.get(result.expected)),
            "found": _text(row.get(result.found)),
            "detail": result.error or json.dumps(row, ensure_ascii=False),
        }


def _id(row: Mapping[str, Any], ids: Sequence[str]) -> str | None:
    """Return the stream id of a row, in the form of ``unmatched.stream_id``; None if the row has no
    id."""
    if "stream_id" in row:
        return _text(row["stream_id"])
    return "|".join(str(row[i]) for i in ids) if ids and set(ids) <= row.keys() else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
