"""Facts that come before their master data: they are facts at once, with an inferred member of the
dimension, which the master row fills in, in the dimension and in the facts, once."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loads import SmallLoad, same, verify
from semistream.job import Job
from semistream.provisioning.dimensions import provision
from semistream.provisioning.publishing import publish
from semistream.warehouse import connect
from semistream.workloads.jobs import JoinedDimension

PARTS = pa.schema([("code", pa.string()), ("name", pa.string()), ("price", pa.int32())])


class InferLoad(SmallLoad):
    """Sales of parts, of which the first ones are known; each provisioning brings some more."""

    def __init__(self, home, warehouse_url, **role):
        super().__init__(home, warehouse_url)
        self.file, self.known, self.keys = home / "parts.parquet", 0, {}
        self.job = Job.load(
            self.job.model_dump(exclude={"dimensions"})
            | {
                "master": {"name": "part", "path": str(self.file), "business_key": ["code"]},
                "on": {"sku": "code"},
                "columns": ["name", "price"],
                "late": "infer",
            }
            | role
        )

    def provide(self, parts, word="part"):
        """Provision the first parts, and publish them."""
        rows = [{"code": f"c{i}", "name": f"{word} {i}", "price": i % 97} for i in range(parts)]
        pq.write_table(pa.Table.from_pylist(rows, PARTS), self.file)
        self.known = parts
        self.provision()

    def provision(self, roles=None):
        engine = connect(self.places.warehouse_url)
        roles = self.job.roles if roles is None else roles
        provision(JoinedDimension(self.job.roles[0].dimension, roles, (("code",),)), engine)
        publish("part", ["code"], engine, self.places.snapshots)
        engine.dispose()

    def members(self):
        """Each part's surrogate key, which never changes, and whether it is inferred."""
        rows = self.query("SELECT code, part_sk, is_inferred FROM dim_part")
        keys = {code: sk for code, sk, _ in rows}
        assert len(keys) == len(rows) == len(set(keys.values()))
        assert self.keys.items() <= keys.items()
        self.keys = keys
        return {code for code, _, inferred in rows if inferred}

    def check(self, **columns):
        """Each tuple with a key is a fact, with the member of its part, and with the columns of a
        part that is known. columns: by fact column, what it is of a part."""
        columns = columns or {"name": lambda i: f"part {i}", "price": lambda i: i % 97}
        inferred = self.members()
        known = {f"c{i}": tuple(of(i) for of in columns.values()) for i in range(self.known)}
        sold = [t for t in self.stream if t["sku"] is not None]
        assert inferred == {t["sku"] for t in sold} - known.keys()
        nothing = (None,) * len(columns)
        wanted = Counter(
            (*t.values(), self.keys[t["sku"]], *known.get(t["sku"], nothing)) for t in sold
        )
        same(self.facts(), wanted)
        lost = self.query("SELECT reason, tuple FROM unmatched")
        without = Counter((t["id"], "null_key") for t in self.stream if t["sku"] is None)
        same(Counter((json.loads(t)["id"], reason) for reason, t in lost), without)

    def inferred(self):
        """How many facts are open, and how many are filled in."""
        return self.query("SELECT sum(version IS NULL), sum(version IS NOT NULL) FROM inferred")[0]

    def prove(self, **options):
        result = verify(self, **options)
        assert result.success, result.describe()
        return result


@pytest.fixture
def both(tmp_path, warehouse_url):
    """On each kind of database."""
    return InferLoad(tmp_path / "home", warehouse_url)


@pytest.fixture
def load(tmp_path):
    return InferLoad(tmp_path / "home", f"sqlite:///{tmp_path / 'warehouse.db'}")


def test_a_tuple_is_a_fact_at_once_and_its_member_is_filled_in(spark, both):
    both.provide(400)
    for rows in (900, 700):
        both.add_file(rows)
    first = both.run(spark)
    both.check()
    open_, filled = map(int, both.inferred())
    assert open_ == first["inferred"] > 0 and not filled
    both.prove()
    both.provide(2000)
    both.check_dimension = both.members()
    both.add_file(500)
    second = both.run(spark)
    both.check()
    assert 0 < second["filled"] < open_
    both.prove()
    both.provide(both.parts)
    last = both.run(spark)  # although no file is new
    both.check()
    assert last["filled"] > 0 and last["rows_read"] == 0
    assert sum(map(int, both.inferred())) == first["inferred"] + second["inferred"]
    both.prove()
    both.provide(both.parts)  # once more: nothing changes
    both.run(spark)
    both.check()
    both.prove(since_last=True)
