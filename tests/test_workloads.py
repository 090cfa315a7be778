from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from semistream.ddl import parse_ddl
from semistream.errors import ConfigError
from semistream.files.opening import open_source
from semistream.job import Job
from semistream.paths import Paths
from semistream.provisioning import dimensions, publishing
from semistream.warehouse import connect
from semistream.workloads import ArrivalTimes, ZipfKeys, load_job, prepare, shipped
from semistream.workloads.jobs import SHIPPED, load_dimensions, load_stream_stream_job


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return Paths(home=home, warehouse_url=f"sqlite:///{home / 'warehouse.db'}")


@pytest.fixture(scope="module")
def data(paths):
    """(job, its stream, its dimensions by role) of each shipped job; TPC-DS at a hundredth of its
    scale."""
    out = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "TPCDS_SCALE", 0.01)
        for name in Job.shipped:
            job = load_job(name, paths)
            prepare(job, paths)
            masters = {role.name: pq.read_table(role.dimension.path) for role in job.roles}
            out[name] = job, pq.read_table(job.stream.path), masters
    return out


def misses(job, stream, masters) -> dict[str, tuple[int, int]]:
    """By role, the tuples whose key is not in the dimension, and those without a key."""
    out = {}
    for role in job.roles:
        keys = stream.select([*role.on])
        whole = keys.filter(reduce(pc.and_, (column.is_valid() for column in keys.columns)))
        known = masters[role.name].select([*role.on.values()])
        lacking = whole.join(known, [*role.on], [*role.on.values()], join_type="left anti")
        out[role.name] = lacking.num_rows, stream.num_rows - whole.num_rows
    return out


FLIGHTS_WITHOUT = {
    "plane": (50_094, 2_512),
    "carrier": (0, 0),
    "origin": (0, 0),
    "dest": (7_602, 0),
    "weather": (1_556, 0),
}
SALES_WITHOUT = {
    "item": (0, 0),
    "customer": (0, 5_298),
    "store": (0, 5_422),
    "promotion": (0, 5_303),
    "date": (0, 5_335),
    "time": (0, 5_372),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, rows, masters, without",
    [
        ("tpch", 150_000, [15_000], {"customer": (0, 0)}),
        ("nycflights13", 336_776, [3_322, 16, 1_458, 1_458, 26_115], FLIGHTS_WITHOUT),
        ("tpcds", 120_527, [2_000, 1_000, 2, 3, 73_049, 86_400], SALES_WITHOUT),
    ],
)
def test_the_shipped_data_are_what_is_known_of_them(data, name, rows, masters, without):
    job, stream, of_roles = data[name]
    assert stream.num_rows == rows and [t.num_rows for t in of_roles.values()] == masters
    assert misses(job, stream, of_roles) == without
    declared = parse_ddl(job.stream.columns)
    assert stream.schema.names == declared.names and stream.schema.types == declared.types
    ids = stream.select([*job.stream.id])
    assert ids.group_by(ids.column_names).aggregate([]).num_rows == rows
    assert not any(column.null_count for column in ids.columns)


@pytest.mark.parametrize("name", ["tpch", "nycflights13"])
def test_a_shipped_stream_comes_in_several_micro_batches(data, name):
    assert len(list(Path(data[name][0].stream.path).iterdir())) == 16


@pytest.mark.parametrize("name", Job.shipped)
def test_the_shipped_masters_are_provisioned_and_published(data, paths, name):
    masters = data[name][2]
    engine = connect(paths.warehouse_url)
    for joined in load_dimensions(name, paths):
        (of, role), key = (joined.dimension.name, joined.roles[0]), joined.keys[0]
        count = masters[role.name].num_rows
        result = dimensions.provision(joined, engine)
        assert (result.inserted, result.rejected) == (count, 0)
        manifest, new = publishing.publish(of, key, engine, paths.snapshots)
        assert new and manifest.tuple_count == count and manifest.unique
        assert dimensions.provision(joined, engine).unchanged == count
        assert not publishing.publish(of, key, engine, paths.snapshots)[1]
    engine.dispose()


@pytest.mark.slow
def test_the_shipped_job_of_two_streams(paths):
    """The orders come in the order of their dates, each once; the lines of one come together."""
    job = load_stream_stream_job("tpch_orders", paths)
    prepare(job, paths)
    orders, lines = (pq.read_table(stream.path) for stream in job.streams)
    assert (orders.num_rows, lines.num_rows) == (150_000, 600_572)
    for stream, table in zip(job.streams, (orders, lines), strict=True):
        declared = parse_ddl(stream.columns)
        assert table.schema.remove_metadata().equals(declared) or all(
            table.schema.field(f.name).type == f.type for f in declared
        )
    dates = orders["o_orderdate"].to_numpy()
    assert (dates[1:] >= dates[:-1]).all()
    assert pc.count_distinct(orders["o_orderkey"]).as_py() == orders.num_rows
    keys = lines["l_orderkey"].to_numpy()
    assert np.count_nonzero(np.diff(keys)) + 1 == len(np.unique(keys))
    with pytest.raises(ConfigError, match="stream_stream_join"):
        load_job("tpch_orders", paths)
    with pytest.raises(ConfigError, match="semi_stream_join"):
        load_stream_stream_job("tpch", paths)


def test_the_shipped_auctions_keep_their_promises(paths):
    """Each is opened once, and ends once: no bid comes behind its end."""
    job = load_stream_stream_job("auctions", paths)
    prepare(job, paths)
    auctions, bids = (pq.read_table(stream.path) for stream in job.streams)
    for stream, table in zip(job.streams, (auctions, bids), strict=True):
        assert table.schema.names == parse_ddl(stream.columns).names
    assert pc.count_distinct(auctions["auction"]).as_py() == auctions.num_rows == 15_000
    mark = bids["closed"].fill_null(False).to_numpy()
    assert np.count_nonzero(~mark) == 230_000
    last_bid = {a: i for i, a in enumerate(bids["auction"].to_pylist()) if not mark[i]}
    ends = {a: i for i, a in enumerate(bids["auction"].to_pylist()) if mark[i]}
    assert len(ends) == 15_000 and all(i < ends[a] for a, i in last_bid.items())


@pytest.mark.slow
def test_complete_data_are_kept_and_partial_ones_made_again(data, paths):
    job = data["nycflights13"][0]
    first = sorted(Path(job.stream.path).iterdir())[0]
    before = first.stat().st_mtime_ns
    prepare(job, paths)
    assert first.stat().st_mtime_ns == before
    first.unlink()
    (paths.data / "nycflights13" / ".complete").unlink()
    prepare(job, paths)
    assert first.exists()


def test_a_users_job_is_a_yaml_file(tmp_path, paths):
    (tmp_path / "sales.csv").write_text("sku\n")
    path = tmp_path / "job.yaml"
    text = (
        "name: sales\nstream: {format: csv, path: sales.csv}\nmaster: {name: product, path: "
        "products.csv}\non: sku\nfact_table: f\n"
    )
    path.write_text(text)
    job = load_job(path, paths)
    assert job.roles[0].on == {"sku": "sku"} and job.stream.path == str(tmp_path / "sales.csv")
    prepare(job, paths)  # a user's data are the user's
    for wrong, message in (
        (text.replace("name: product", "name: a-b"), "letters, digits"),
        (text + "colour: red\n", "colour"),
        (text.replace("path: products.csv", "path: p.csv, table: t"), "not both"),
        ("on: [", "readable YAML"),
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            load_job(path, paths)
    with pytest.raises(
        ConfigError, match="tpch, nycflights13, tpcds, tpch_orders, auctions or the path"
    ):
        load_job("nope", paths)


def test_a_job_has_one_dimension_however_its_file_is_named(tmp_path, monkeypatch):
    """It is declared beside the job, which is the home; the path climbs."""
    here, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for directory in (here / "dimensions", here / "sales", elsewhere):
        directory.mkdir(parents=True)
    (here / "dimensions" / "product.yaml").write_text("path: product.csv\nbusiness_key: sku\n")
    (here / "dimensions" / "product.csv").write_text("sku,name\na,Apple\n")
    (here / "sales.yaml").write_text(
        "name: sales\nstream: {format: csv, path: sales, columns: 'sku STRING'}\n"
        "dimensions: {product: {on: sku}}\nfact_table: fact_sales\n"
    )
    monkeypatch.chdir(elsewhere)
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    for home in (str(here), "../home"):
        monkeypatch.setenv("SEMISTREAM_HOME", home)
        for file in ("../home/sales.yaml", str(here / "sales.yaml")):
            job = load_job(file)
            assert job.stream.path == str(here / "sales")
            (joined,) = load_dimensions(file)
            assert joined.dimension.path == str(here / "dimensions" / "product.csv")
            dimensions.provision(joined, engine)
    engine.dispose()


def test_a_dimension_inside_a_job_is_provisioned_however_the_job_is_named(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "product.csv").write_text("sku,name\na,Apple\n")
    (tmp_path / "home" / "sales.yaml").write_text(
        "name: sales\nstream: {format: csv, path: sales, columns: 'sku STRING'}\n"
        "master: {name: product, path: product.csv}\non: sku\nfact_table: fact_sales\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    for file in (tmp_path / "home" / "sales.yaml", Path("../home/sales.yaml")):
        (joined,) = load_dimensions(file)
        assert dimensions.provision(joined, engine).read == 1
    engine.dispose()


def test_the_shipped_jobs_are_part_of_the_package():
    assert {f"{n}.yaml" for n in SHIPPED} == {
        p.name for p in Path(shipped.__file__).parent.glob("*.yaml")
    }


@pytest.mark.parametrize("exponent", [0, 0.3, 0.999999999, 1, 1.0000001, 1.5, 4])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_zipf_keys_have_their_probabilities(exponent, count):
    keys, rows = ZipfKeys(count, exponent, seed=5), 200_000
    drawn = keys.draw(0, rows)
    assert drawn.min() >= 1 and drawn.max() <= count
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    expected = weights / weights.sum() * rows
    seen = np.bincount(drawn, minlength=count + 1)[1:]
    likely = expected > 10
    chi2, freedom = ((seen - expected)[likely] ** 2 / expected[likely]).sum(), likely.sum()
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom) + 1


def test_zipf_keys_can_be_read_again_from_any_row():
    keys = ZipfKeys(10**8, 1.1, seed=9)
    whole = keys.draw(0, 1000)
    assert (np.concatenate([keys.draw(i, 10) for i in range(0, 1000, 10)]) == whole).all()
    assert (ZipfKeys(10**8, 1.1, seed=9).draw(500, 500) == whole[500:]).all()
    assert (ZipfKeys(10**8, 1.1, seed=10).draw(0, 1000) != whole).any()


@pytest.mark.parametrize("count", [1, 2, 7, 1000, 2**31 + 11])
def test_scattered_keys_are_the_ranks_renamed(count):
    plain = ZipfKeys(count, 1, seed=2).draw(0, 3000)
    scattered = ZipfKeys(count, 1, seed=2, scattered=True).draw(0, 3000)
    assert scattered.min() >= 1 and scattered.max() <= count
    pairs = set(zip(plain.tolist(), scattered.tolist(), strict=True))
    assert len(pairs) == len(set(plain.tolist())) == len(set(scattered.tolist()))


@pytest.mark.parametrize("count", [1000, 2**31 + 11])
def test_drifting_keys_have_their_ranks_dealt_out_anew(count):
    stays = ZipfKeys(count, 1, seed=2, scattered=True).draw(0, 9000)
    drifts = ZipfKeys(count, 1, seed=2, scattered=True, drift=3000)
    whole = drifts.draw(0, 9000)
    assert (np.concatenate([drifts.draw(i, 1000) for i in range(0, 9000, 1000)]) == whole).all()
    assert (whole[:3000] == stays[:3000]).all() and whole.min() >= 1 and whole.max() <= count
    hot = [
        set(np.unique(part)[np.argsort(np.unique(part, return_counts=True)[1])[-20:]].tolist())
        for part in np.split(whole, 3)
    ]
    assert not hot[0] & hot[1] and not hot[1] & hot[2] and not hot[0] & hot[2]
    # other keys, as often
    for old, new in zip(np.split(stays, 3), np.split(whole, 3), strict=True):
        assert (
            len(set(zip(old.tolist(), new.tolist(), strict=True)))
            == len(set(old.tolist()))
            == len(set(new.tolist()))
        )


@pytest.mark.parametrize("arguments", [(0, 1), (5, -1), (5, 100)])
def test_zipf_parameters_are_checked(arguments):
    with pytest.raises(ConfigError):
        ZipfKeys(*arguments)


def test_steady_arrivals_are_as_far_from_each_other():
    steady = ArrivalTimes(40.0, period=3.0)
    assert steady.of(0, 300) == pytest.approx(np.arange(1, 301) / 40)
    assert [steady.until(t) for t in (0.0, 0.01, 1.001, 7.51)] == [0, 0, 40, 300]


@pytest.mark.parametrize("b", [0.5, 0.6, 0.8])
def test_bursty_arrivals_are_self_similar(b):
    """By the b-model the squared shares of 2**n intervals sum up to (b**2 + (1 - b)**2)**n, at
    every scale; and no period has more tuples than another."""
    arrivals = ArrivalTimes(1e9, b, period=8.0, seed=3)
    for period in (0, 1, 5):
        for n in (1, 4, 8, 11):
            ends = [arrivals.until(8.0 * (period + i / 2**n)) for i in range(2**n + 1)]
            shares = np.diff(ends) / 8e9
            assert shares.sum() == pytest.approx(1, abs=1e-9)
            assert (shares**2).sum() == pytest.approx((b**2 + (1 - b) ** 2) ** n, rel=1e-3)


def test_bursty_arrivals_can_be_read_again_from_any_tuple():
    arrivals = ArrivalTimes(1000.0, 0.75, period=2.0, seed=9)
    whole = arrivals.of(0, 5000)  # two periods and a half
    assert (np.diff(whole) >= 0).all() and whole[0] > 0 and 4 < whole[-1] < 6
    assert (np.concatenate([arrivals.of(i, 500) for i in range(0, 5000, 500)]) == whole).all()
    counts = np.array([arrivals.until(t + 1e-9) for t in whole.tolist()])
    assert (counts >= np.arange(1, 5001)).all() and counts[-1] == 5000
    assert (counts == np.searchsorted(whole, whole + 1e-9, side="right")).mean() > 0.99
    assert (ArrivalTimes(1000.0, 0.75, period=2.0, seed=8).of(0, 5000) != whole).any()
    first, second = whole[:1999], whole[2000:3999] - 2.0
    assert np.abs(first - second).max() > 0.1  # periods differ


@pytest.mark.parametrize(
    "arguments", [(0.0,), (-1.0,), (5.0, 0.4), (5.0, 1.0), (5.0, 0.7, 0.0), (float("nan"),)]
)
def test_arrivals_parameters_are_checked(arguments):
    with pytest.raises(ConfigError):
        ArrivalTimes(*arguments)


@pytest.mark.parametrize("burstiness", ["0.5", "0.8"])
def test_a_zipf_stream_brings_what_has_arrived(burstiness, monkeypatch):
    """Also where a stream goes on: from the time at which its last tuple came."""
    from semistream.streaming.sources.zipf import ZipfReader

    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    options = {"rowspersecond": "1000", "burstiness": burstiness, "burstperiod": "4", "seed": "2"}
    arrivals = ArrivalTimes(1000.0, float(burstiness), 4.0, 2)
    reader, seen = ZipfReader(options), []
    for _ in range(9):
        seen.append(reader.newest(seen[-1] if seen else 0))
        now += 0.5
    assert seen == [arrivals.until(i / 2) for i in range(9)] and seen[8] == 4000
    later, last = ZipfReader(options), float(arrivals.of(seen[3] - 1, 1)[0])
    assert later.newest(seen[3]) - seen[3] in (-1, 0)
    now += 3.0
    assert abs(later.newest(seen[3]) - arrivals.until(last + 3.0)) <= 1
    steps = np.diff(seen)
    assert (steps.max() > 2 * steps.min()) == (burstiness == "0.8")


def test_ddl():
    assert parse_ddl(
        "id BIGINT, `a b` decimal( 10 , 2 ) NOT NULL,\n at TIMESTAMP, n: INT"
    ) == pa.schema(
        [
            ("id", pa.int64()),
            pa.field("a b", pa.decimal128(10, 2), False),
            ("at", pa.timestamp("us", "UTC")),
            ("n", pa.int32()),
        ]
    )
    for wrong in ("id", "id BIGINTS", "a STRUCT<b: INT>"):
        with pytest.raises(ConfigError, match="Spark's DDL"):
            parse_ddl(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "id BIGINT, `a``b` DECIMAL(10,2) NOT NULL COMMENT 'it\\'s, so', at TIMESTAMP, local "
        "timestamp_ntz, v VARCHAR(20)",
        "tags ARRAY<STRING>, at MAP<STRING, ARRAY<INT>>, one STRUCT<a: INT, `b c`: STRUCT<d: "
        "DECIMAL(12,3) COMMENT 'e'>>, b BINARY",
        "n:INT,m TINYINT,d DATE,f REAL,x dec, y numeric(5)",
    ],
)
def test_ddl_is_understood_as_spark_understands_it(spark, text):
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    found, wanted = from_arrow_schema(parse_ddl(text, nested=True)), StructType.fromDDL(text)
    plain = [
        (f.name, f.dataType.simpleString().replace("varchar(20)", "string"), f.nullable)
        for f in wanted
    ]
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in found] == plain


@pytest.mark.parametrize(
    "text",
    [
        "a ARRAY<>",
        "a MAP<INT>",
        "a STRUCT<b INT",
        "a INT b INT",
        "a DECIMAL(39,2)",
        "a INTERVAL DAY",
        "a,",
    ],
)
def test_what_is_no_ddl_is_refused(text):
    with pytest.raises(ConfigError, match="Spark's DDL"):
        parse_ddl(text, nested=True)


def test_files_of_a_directory_are_read_in_order_in_one_schema(tmp_path):
    (tmp_path / "b.csv").write_text("k,v\n3,x\n")
    (tmp_path / "a.csv").write_text('k,v\n1,"multi\nline"\n2,\n4,""\n')
    (tmp_path / "_SUCCESS").write_text("")
    assert [
        r for chunk in open_source("master", tmp_path).chunks() for r in chunk.rows.to_pylist()
    ] == [{"k": 1, "v": "multi\nline"}, {"k": 2, "v": None}, {"k": 4, "v": ""}, {"k": 3, "v": "x"}]
    with pytest.raises(ConfigError, match="csv, json or parquet"):
        open_source("master", tmp_path / "_SUCCESS")
