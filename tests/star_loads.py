"""A small load of several roles: sales of parts, between a buyer and a seller, with the offers of
their region and day."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import loads
import oracle
from loads import SmallLoad, same
from semistream.job import Job
from semistream.joins.star import RoleKind, execution_order
from semistream.master.publish import publish_snapshot
from semistream.master.published import snapshot_root
from semistream.provisioning.dimensions import insert_unknown, provision
from semistream.provisioning.publishing import publish
from semistream.quality.verification import VerificationResult
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.progress import Progress
from semistream.streaming.settings import LoadSettings
from semistream.warehouse import connect
from semistream.warehouse.bulk import bulk_insert
from semistream.warehouse.tables import dimension_table, ensure
from semistream.workloads.jobs import JoinedDimension

STREAM = pa.schema(
    [
        ("id", pa.int64()),
        ("sku", pa.string()),
        ("buyer", pa.int64()),
        ("seller", pa.int64()),
        ("region", pa.string()),
        ("day", pa.date32()),
    ]
)
DIMENSIONS = {
    "part": pa.schema(
        [
            ("part_sk", pa.int64()),
            ("code", pa.string()),
            ("name", pa.string()),
            ("price", pa.int32()),
        ]
    ),
    "person": pa.schema([("person_sk", pa.int64()), ("no", pa.int64()), ("name", pa.string())]),
    "offer": pa.schema(
        [
            ("offer_sk", pa.int64()),
            ("number", pa.int64()),
            ("region", pa.string()),
            ("day", pa.date32()),
            ("percent", pa.int32()),
        ]
    ),
}
WITH_UNKNOWN = "person"  # the dimension with an unknown member
BUSINESS_KEY = {"part": ["code"], "person": ["no"], "offer": ["number"]}
# role -> (dimension, on, dimension column -> fact column, join type, whether it is many)
ROLES: dict[str, tuple[str, dict[str, str], dict[str, str], str, bool]] = {
    "offer": ("offer", {"region": "region", "day": "day"}, {"percent": "percent"}, "left", True),
    "part": ("part", {"sku": "code"}, {"name": "name", "price": "price"}, "inner", False),
    "buyer": ("person", {"buyer": "no"}, {"name": "buyer_name"}, "inner", False),
    "seller": ("person", {"seller": "no"}, {"name": "seller_name"}, "left", False),
}
REGIONS, DAYS, FIRST = 7, 20, date(2026, 3, 1)


class StarLoad(SmallLoad):
    """roles: those of ``ROLES`` that the job has, in this order; persons: rows of that
    dimension."""

    versioned = ("name", "buyer_name", "seller_name")

    def __init__(
        self,
        home: Path,
        warehouse_url: str,
        roles: tuple[str, ...] = tuple(ROLES),
        parts: int = 3000,
        seed: int = 1,
        persons: int = 900,
    ):
        super().__init__(home, warehouse_url, parts, seed)
        self.persons = persons
        self.roles, self.masters = roles, dict[str, list[dict[str, Any]]]()
        self.columns = [
            *STREAM.names,
            *(f"{role}_sk" for role in roles),
            *(c for role in roles for c in ROLES[role][2].values()),
        ]
        self.job = Job.load(
            {
                "name": "sales",
                "stream": {"format": "parquet", "path": str(self.stream_directory), "id": ["id"]},
                "dimensions": {
                    role: {
                        "dimension": {
                            "name": dimension,
                            "business_key": BUSINESS_KEY[dimension],
                            "unknown_member": dimension == WITH_UNKNOWN,
                        },
                        "on": on,
                        "columns": columns,
                        "join_type": join_type,
                        "many": many,
                    }
                    for role, (dimension, on, columns, join_type, many) in ROLES.items()
                    if role in roles
                },
                "fact_table": "fact_sales",
            }
        )

    def _rows(self, dimension: str, prefix: str) -> list[dict[str, Any]]:
        if dimension == "part":
            return self.first_parts(self.parts, prefix)
        if dimension == "person":
            return [
                {"person_sk": i + 1, "no": 10 * i, "name": f"{prefix} no. {i}"}
                for i in range(self.persons)
            ]
        # three offers in every third region and day, none in the next ones
        paths = [(r, d) for r in range(REGIONS) for d in range(DAYS) if (r + d) % 3 != 1]
        offers = [place for place in paths for _ in range(3 if sum(place) % 3 == 0 else 1)]
        return [
            {
                "offer_sk": i + 1,
                "number": i,
                "region": f"r{region}",
                "day": FIRST + timedelta(day),
                "percent": i % 40,
            }
            for i, (region, day) in enumerate(offers)
        ]

    def publish(self, prefix: str = "part", dimensions: tuple[str, ...] = ()) -> None:
        """A new version of these dimensions, or of all; by each of their keys."""
        of = {
            dimension: list(on.values())
            for role, (dimension, on, *_) in ROLES.items()
            if role in self.roles
        }
        for dimension in dimensions or of:
            rows = self.masters[dimension] = self._rows(dimension, prefix)
            table = pa.Table.from_pylist(rows, DIMENSIONS[dimension])
            root = snapshot_root(self.paths.snapshots, dimension, of[dimension])
            publish_snapshot(table.to_batches(), table.schema, root, dimension, of[dimension])

    def provision_beside(self) -> None:
        """The dimension tables of the snapshots that were published without them."""
        engine = connect(self.paths.warehouse_url)
        for name, rows in self.masters.items():
            schema = DIMENSIONS[name]
            joined = [list(on.values()) for of, on, *_ in ROLES.values() if of == name]
            table = ensure(
                engine,
                dimension_table(
                    name,
                    pa.schema(list(schema)[1:]),
                    BUSINESS_KEY[name],
                    joined[:1],
                    unknown_member=name == WITH_UNKNOWN,
                ),
            )
            with engine.begin() as connection:
                connection.execute(table.delete())
                bulk_insert(connection, table, pa.Table.from_pylist(rows, schema))
                if name == WITH_UNKNOWN:
                    insert_unknown(connection, table, BUSINESS_KEY[name])
        engine.dispose()

    def sales(self, rows: int) -> pa.Table:
        first, random = len(self.stream), self.random
        parts = random.zipf(1.3, rows) % int(self.parts * 1.1)
        buyers, sellers = random.integers(0, self.persons + 20, (2, rows)) * 10
        regions, days = random.integers(0, REGIONS, rows), random.integers(0, DAYS, rows)
        tuples = [
            {
                "id": first + i,
                "sku": None if k % 101 == 100 else f"c{k}",
                "buyer": None if buyer % 490 == 480 else buyer,
                "seller": None if seller % 310 == 300 else seller,
                "region": None if i % 37 == 0 else f"r{region}",
                "day": FIRST + timedelta(day),
            }
            for i, (k, buyer, seller, region, day) in enumerate(
                zip(
                    parts.tolist(),
                    buyers.tolist(),
                    sellers.tolist(),
                    regions.tolist(),
                    days.tolist(),
                    strict=True,
                )
            )
        ]
        self.stream += tuples
        return pa.Table.from_pylist(tuples, STREAM)

    def settings(self, **values: Any) -> LoadSettings:
        return super().settings(**{"memory": "700KB", "parameters": {"disk_tuples": 64}} | values)

    # ---- what came out

    def expected(self, join_type: str = "inner") -> tuple[Counter, Counter]:
        """The facts, and the unmatched tuples with reason and role."""
        tuples, unmatched = self.stream, Counter()
        names = list(STREAM.names)
        for role in self.order():
            dimension, on, columns, join_type, _ = ROLES[role]
            surrogate = f"{dimension}_sk"
            master = self.masters[dimension]
            joined, lost = oracle.join(
                tuples, master, list(on.items()), (surrogate, *columns), join_type
            )
            if join_type == "inner":
                for row, times in lost.items():
                    unmatched[(*row[: len(STREAM)], row[-1], role)] += times
            names += [f"{role}_sk", *columns.values()]
            tuples = [dict(zip(names, row, strict=True)) for row in joined.elements()]
            if dimension == WITH_UNKNOWN:
                tuples = [t | {f"{role}_sk": t[f"{role}_sk"] or 0} for t in tuples]
        return Counter(tuple(t[c] for c in self.columns) for t in tuples), unmatched

    def order(self) -> list[str]:
        """The roles in the order in which they were joined, by the ledger."""
        rows = self.query("SELECT DISTINCT number, role FROM load_inputs ORDER BY number")
        order = [role for _, role in rows]
        assert sorted(order) == sorted(self.roles)
        kinds = [RoleKind(role, ROLES[role][3] == "inner", ROLES[role][4]) for role in order]
        assert execution_order(kinds) == list(range(len(order)))
        return order

    def facts(self) -> Counter:
        at = self.columns.index("day")
        # SQLite gives a date as text
        return Counter(
            (*row[:at], date.fromisoformat(f"{row[at]}"), *row[at + 1 :])
            for row in super().facts().elements()
        )

    def unmatched(self) -> Counter:
        rows = self.query("SELECT reason, role, tuple FROM unmatched")
        tuples = [(reason, role, json.loads(text)) for reason, role, text in rows]
        return Counter(
            (*(t | {"day": date.fromisoformat(t["day"])}).values(), reason, role)
            for reason, role, t in tuples
        )

    def check(self, join_type: str = "inner") -> None:
        joined, unmatched = self.expected()
        same(self.facts(), joined)
        same(self.unmatched(), unmatched)
        self.check_ledger()

    def check_ledger(self, rows: int | None = None) -> None:
        super().check_ledger(rows)
        broken = self.query(
            "SELECT * FROM load_inputs WHERE waiting_before + rows_read <> "
            "matched + unmatched + waiting"
        )
        assert broken == []
        # what each role has read, what went on, and what left or was without a row
        tuples, names = self.stream, list(STREAM.names)
        for role in self.order():
            dimension, on, columns, join_type, _ = ROLES[role]
            joined, lost = oracle.join(
                tuples,
                self.masters[dimension],
                list(on.items()),
                (f"{dimension}_sk", *columns),
                join_type,
            )
            counts = self.query(
                "SELECT sum(rows_read), sum(matched), sum(unmatched), sum(missed), sum(passed) "
                f"FROM load_inputs WHERE role = '{role}'"
            )
            missing, read = lost.total(), len(tuples)
            rejected, missed = (missing, 0) if join_type == "inner" else (0, missing)
            wanted = (read, read - rejected, rejected, missed, joined.total())
            assert tuple(map(int, counts[0])) == wanted, role
            names += [f"{role}_sk", *columns.values()]
            tuples = [dict(zip(names, row, strict=True)) for row in joined.elements()]


class ProvidedStar(StarLoad):
    """A star whose dimensions are provisioned from files. Each provisioning brings some more."""

    def __init__(
        self, home: Path, warehouse_url: str, roles: tuple[str, ...] = tuple(ROLES), **sizes: int
    ):
        super().__init__(home, warehouse_url, roles, **sizes)
        job = self.job.model_dump()
        for role in job["dimensions"].values():
            role["dimension"]["path"] = str(home / f"{role['dimension']['name']}.parquet")
        self.job = Job.load(job)

    def provide(self, prefix: str = "late", **known: int | None) -> dict[str, str]:
        """Provision dimensions, of which so many rows are known (None: all), and publish them.
        Gives their versions."""
        engine, versions = connect(self.paths.warehouse_url), {}
        for name, count in known.items():
            roles = tuple(role for role in self.job.roles if role.dimension.name == name)
            rows, schema = self._rows(name, prefix)[:count], pa.schema(list(DIMENSIONS[name])[1:])
            table = pa.Table.from_pylist([{k: r[k] for k in schema.names} for r in rows], schema)
            pq.write_table(table, self.paths.home / f"{name}.parquet")
            provision(JoinedDimension(roles[0].dimension, roles, (roles[0].key,)), engine)
            manifest, _ = publish(name, roles[0].key, engine, self.paths.snapshots)
            versions[name] = manifest.version
        engine.dispose()
        return versions


class SplitStar(StarLoad):
    """Sales in four partitions, with parts and persons that are larger than the memory of one: both
    dimensions are split."""

    def __init__(self, home: Path, warehouse_url: str, roles: tuple[str, ...] = ("part", "buyer")):
        super().__init__(home, warehouse_url, roles, persons=3000)

    def settings(self, **values: Any) -> LoadSettings:
        return super().settings(**{"memory": "300KB", "partitions": 4} | values)

    def shares(self) -> dict[str, int]:
        """The shares of the plan in use."""
        progress = Progress.read(self.checkpoint, RolePlan)
        assert progress is not None
        return progress.plan.shares

    def check_ledger(self, rows: int | None = None) -> None:
        super().check_ledger(rows)
        assert self.shares() == {"part": 2, "buyer": 2}


def split_star(place: Path, warehouse_url: str) -> SplitStar:
    """A small load that is split by the keys of two roles, its dimensions published."""
    load = SplitStar(place / "home", warehouse_url)
    load.publish()
    load.provision_beside()
    return load


def star_load(place: Path, warehouse_url: str, roles: tuple[str, ...] = tuple(ROLES)) -> StarLoad:
    """A small load of several roles with a home in this directory, its dimensions published."""
    load = StarLoad(place / "home", warehouse_url, roles)
    load.publish()
    load.provision_beside()
    return load


def verify(load: StarLoad, **options: Any) -> VerificationResult:
    """Prove what was loaded, the dimensions provisioned."""
    load.provision_beside()
    return loads.verify(load, seed=1, **options)
