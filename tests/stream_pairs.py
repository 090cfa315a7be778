"""A small load of two streams, orders and their lines, in files of their own; and what the
warehouse must hold afterwards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from loads import AnyLoad, delta_facts, same
from semistream.job import StreamStreamJob
from semistream.paths import Paths
from semistream.streaming.settings import StreamStreamSettings

ORDERS = pa.schema([("id", pa.int64()), ("order_no", pa.string()), ("customer", pa.int64())])
LINES = pa.schema([("line", pa.int64()), ("order_no", pa.string()), ("amount", pa.float64())])
TOTALS = {"n": "count", "pairs": "count(line)", "paid": "sum(amount)", "most": "max(amount)"}
COLUMNS = ("id", "order_no", "customer", "line", "right_order_no", "amount")


class Pair(AnyLoad):
    """Two streams that are joined on order_no, many-to-many. Some tuples have no partner, some no
    key."""

    script, sink = "stream_stream_join.py", "sql"

    def __init__(self, home: Path, warehouse_url: str, join_type: str = "inner", seed: int = 1):
        self.paths = Paths(home=home, warehouse_url=warehouse_url)
        self.random, self.join_type = np.random.default_rng(seed), join_type
        self.rows: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
        streams = {}
        for side, key in (("left", "id"), ("right", "line")):
            (home / side).mkdir(parents=True)
            streams[side] = {"format": "parquet", "path": str(home / side), "id": [key]}
        self.job = StreamStreamJob.load(
            {
                "name": "orders",
                **streams,
                "on": "order_no",
                "join_type": join_type,
                "fact_table": "fact_orders",
            }
        )

    def change(self, **sides: dict[str, Any]) -> None:
        """Settings of a side of the job."""
        self.job = StreamStreamJob.load(
            self.job.model_dump()
            | {
                side: getattr(self.job, side).model_dump() | values
                for side, values in sides.items()
            }
        )

    def tuples(self, side: str, rows: int, keys: np.ndarray | None = None) -> pa.Table:
        """The next tuples of a side; they are remembered."""
        first = len(self.rows[side])
        if keys is None:
            keys = self.random.integers(0, 400, rows) + (200 if side == "right" else 0)
        names = [None if k % 101 == 100 else f"o{k}" for k in keys.tolist()]
        if side == "left":
            new = [{"id": first + i, "order_no": n, "customer": i % 7} for i, n in enumerate(names)]
        else:
            new = [{"line": first + i, "order_no": n, "amount": i / 8} for i, n in enumerate(names)]
        self.rows[side] += new
        return pa.Table.from_pylist(new, ORDERS if side == "left" else LINES)

    def add(self, left: int = 0, right: int = 0) -> None:
        """One more file of a side, or of both."""
        for side, rows in (("left", left), ("right", right)):
            if rows:
                self.put(side, self.tuples(side, rows))

    def put(self, side: str, table: pa.Table) -> None:
        self.put_file(self.paths.home / side, table)

    def put_csv(self, side: str, table: pa.Table, more: str = "") -> None:
        """The same as CSV, with more lines."""
        beside = self.paths.home / "next.csv"
        csv.write_csv(table, beside)
        with open(beside, "a") as file:
            file.write(more)
        self.appear(self.paths.home / side, beside)

    def settings(self, **values: Any) -> StreamStreamSettings:
        return StreamStreamSettings.load(
            {
                "job": "orders",
                "partitions": 2,
                "memory": "400KB",
                "max_files": 1,
                "sink": self.sink,
                **values,
            }
        )

    def expected(self) -> tuple[Counter, Counter]:
        """(joined rows, unmatched tuples with their side and reason), where both streams have
        ended."""
        right: dict[str, list[dict[str, Any]]] = {}
        for tuple_ in self.rows["right"]:
            right.setdefault(tuple_["order_no"], []).append(tuple_)
        keys = {side: {t["order_no"] for t in rows} - {None} for side, rows in self.rows.items()}
        joined, unmatched = Counter(), Counter()
        for tuple_ in self.rows["left"]:
            if tuple_["order_no"] is not None:
                joined.update(
                    (*tuple_.values(), *other.values())
                    for other in right.get(tuple_["order_no"], ())
                )
        for side, other, outer in (
            ("left", "right", ("left", "full")),
            ("right", "left", ("right", "full")),
        ):
            for tuple_ in self.rows[side]:
                if tuple_["order_no"] not in keys[other]:
                    reason = "null_key" if tuple_["order_no"] is None else "no_partner"
                    unmatched[(side, reason, *tuple_.values())] += 1
                    if self.join_type in outer:
                        nulls = (None,) * 3
                        joined[
                            (*tuple_.values(), *nulls)
                            if side == "left"
                            else (*nulls, *tuple_.values())
                        ] += 1
        return joined, unmatched

    def closed(self) -> Counter:
        """The rows of keys that are final, where the job has TOTALS."""
        return Counter(self.query("SELECT order_no, n, pairs, paid, most FROM fact_orders_closed"))

    def expected_closed(self, keys: Collection[str] | None = None) -> Counter:
        """They, where these keys are final, or all."""
        rows: dict[str, list[float | None]] = {}
        for row, times in self.expected()[0].items():
            if row[1] is not None and (keys is None or row[1] in keys):
                rows.setdefault(row[1], []).extend([row[5]] * times)
        amounts = {key: [a for a in of if a is not None] for key, of in rows.items()}
        return Counter(
            (key, len(rows[key]), len(of), sum(of) if of else None, max(of, default=None))
            for key, of in amounts.items()
        )

    def facts(self) -> Counter:
        if self.sink != "sql":
            return delta_facts(self.sink, COLUMNS)
        return Counter(self.query(f"SELECT {', '.join(COLUMNS)} FROM fact_orders"))

    def unmatched(self) -> Counter:
        ids = {"left": "id", "right": "line"}
        rows = self.query("SELECT side, reason, stream_id, tuple FROM unmatched")
        assert all(i == str(json.loads(t)[ids[side]]) for side, _, i, t in rows)
        return Counter((side, reason, *json.loads(t).values()) for side, reason, _, t in rows)

    def check(self, ended: bool = True) -> None:
        """All joined rows are there, and the ledger adds up; where both streams have ended, all
        unmatched tuples too."""
        joined, unmatched = self.expected()
        if ended:
            same(self.facts(), joined)
            same(self.unmatched(), unmatched)
        self.check_ledger(ended)

    def check_ledger(self, ended: bool = True) -> None:
        names = "waiting_before, rows_read, matched, unmatched, waiting"
        loads = self.query(f"SELECT load_id, batch, drain, {names} FROM load_batches")
        inputs = self.query(f"SELECT load_id, role, {names} FROM load_inputs")
        rejected = self.query(
            "SELECT load_id, role, sum(tuples) FROM load_rejections GROUP BY load_id, role"
        )
        read, of_loads = Counter(), {load: Counter() for load, *_ in loads}
        for load, role, before, rows, matched, unmatched, waiting in inputs:
            assert before + rows == matched + unmatched + waiting
            read[role] += rows
            of_loads[load].update(
                before=before, rows=rows, matched=matched, unmatched=unmatched, waiting=waiting
            )
        for load, _, _, *counts in loads:
            assert [
                of_loads[load][name]
                for name in ("before", "rows", "matched", "unmatched", "waiting")
            ] == counts
        assert {(load, role): int(n) for load, role, n in rejected} == {
            (load, role): unmatched for load, role, *_, unmatched, _ in inputs if unmatched
        }
        assert read == Counter({side: len(rows) for side, rows in self.rows.items()})
        newest = max(loads)[1:3]
        assert not ended or sum(load[-1] for load in loads if load[1:3] == newest) == 0
