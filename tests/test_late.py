"""Late master data: tuples of ``unmatched`` whose keys a new version of the dimension brings are
joined again and become facts, each of them once."""

import json
from collections import Counter
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import faults
import oracle
from loads import COLUMNS, MASTER, ON, SmallLoad, same, verify
from semistream.errors import ConfigError, StateError
from semistream.master.publish import publish_snapshot
from semistream.reasons import Reason
from semistream.streaming.resolving import brought, typed_tuples
from semistream.streaming.spool import unmatched_rows
from semistream.warehouse.resolution import ORIGINS, mark_resolved
from semistream.warehouse.schema import unmatched


class LateLoad(SmallLoad):
    """A small load whose parts come late: each version brings some more."""

    def __init__(self, home, warehouse_url, late="resolve", **settings):
        super().__init__(home, warehouse_url)
        self.job = self.job_of(self.job.stream.model_dump(), late=late)
        self.sink = settings

    def publish_first(self, parts):
        """A new version, of the first parts; their values do not change."""
        self.master = [
            {"part_sk": i + 1, "code": f"c{i}", "name": f"part {i}", "price": i % 97}
            for i in range(parts)
        ]
        table = pa.Table.from_pylist(self.master, MASTER)
        root = self.places.snapshots / "part" / "code"
        publish_snapshot(table.to_batches(), MASTER, root, "part", ["code"])

    def open(self):
        """The open tuples by reason, as the oracle gives them."""
        rows = self.query("SELECT reason, tuple FROM unmatched WHERE resolved_by IS NULL")
        return Counter((*json.loads(t).values(), reason) for reason, t in rows)

    def check(self, join_type="inner"):
        """Facts and open tuples are the oracle's of the newest version; each resolved row names a
        load that counted it."""
        joined, lost = self.expected(join_type)
        same(self.facts(), joined)
        same(self.open(), lost)
        read, resolved, matched, rejected = (
            int(n)
            for n in self.query(
                "SELECT sum(rows_read), sum(resolved), sum(matched), sum(unmatched) "
                "FROM load_batches"
            )[0]
        )
        assert read == len(self.stream) and read + resolved == matched + rejected
        marked = "SELECT resolved_by, count(*) FROM unmatched WHERE resolved_by IS NOT NULL"
        counted = "SELECT load_id, resolved FROM load_batches WHERE resolved > 0"
        assert dict(self.query(f"{marked} GROUP BY resolved_by")) == dict(self.query(counted))


def versions(load, first, second):
    """The directories of two versions that have so many parts each."""
    load.publish_first(first)
    load.publish_first(second)
    root = load.places.snapshots / "part" / "code"
    return root / "v000001", root / "v000002"


@pytest.fixture
def late(tmp_path):
    return LateLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")


def test_what_a_version_has_brought_is_the_difference_of_its_codes(late):
    one, two = versions(late, 1000, 1300)
    codes = np.sort(np.concatenate(list(brought(one, two))))
    assert len(codes) == 300 and len(np.unique(codes)) == 300
    assert not list(brought(two, two)) and not list(brought(two, one))
    every = np.sort(np.concatenate(list(brought(one.parent / "v000009", two))))
    assert len(every) == 1300 and set(codes) < set(every)


def test_tuples_are_read_again_as_they_were_kept():
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("text", pa.string()),
            ("truth", pa.bool_()),
            ("amount", pa.decimal128(12, 3)),
            ("share", pa.float64()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("clock", pa.time64("us")),
            ("raw", pa.binary()),
        ]
    )
    values = [
        2**60,
        'a "quoted" é',
        False,
        Decimal("-12.340"),
        0.1,
        date(2024, 2, 29),
        datetime(2024, 2, 29, 1, 2, 3, 45, UTC),
        datetime(1, 1, 1),
        time(23, 59, 59, 999),
        b"\x00\xff",
    ]
    rows = [dict(zip(schema.names, values, strict=True)), dict.fromkeys(schema.names)]
    tuples = pa.RecordBatch.from_pylist(rows, schema)
    kept = unmatched_rows(tuples, pa.repeat(Reason.NO_MATCH, 2), ("n",))
    again, wrong = typed_tuples(kept["tuple"].to_pylist(), schema)
    assert again.equals(tuples) and not wrong
    other, wrong = typed_tuples(['{"n": "seven", "day": "soon"}', '{"n": 7}'], schema)
    assert list(wrong) == [0] and other["n"].to_pylist() == [None, 7]
