import datetime as dt
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    Table,
    event,
    func,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from semistream.errors import ConfigError
from semistream.warehouse import bulk, connect, create_all, dialects, tables
from semistream.warehouse.checksum import as_stored, checksum, row_hashes, signed
from semistream.warehouse.dialects import SYSTEMS, mysql, sqlite
from semistream.warehouse.dialects.sqlite import HANDLE
from semistream.warehouse.schema import metadata

ROWS = [
    {
        "k": "a",
        "i": 1,
        "s": "tab\there",
        "f": 1.5,
        "b": True,
        "d": dt.date(2024, 2, 29),
        "t": dt.datetime(2024, 1, 2, 3, 4, 5, 678901),
        "m": Decimal("12345.67"),
        "w": Decimal("12345678901234567890.12"),
        "y": b"\x00\xff'\\",
        "c": dt.time(1, 2, 3, 4),
    },
    {
        "k": "A",
        "i": -(2**63),
        "s": "~0 ~N ~ back\\slash \\N \n 'quote' \"",
        "f": -1e300,
        "b": False,
        "d": dt.date(1970, 1, 1),
        "t": dt.datetime(1970, 1, 1),
        "m": Decimal("-0.01"),
        "w": Decimal("-0.01"),
        "y": b"",
        "c": dt.time(23, 59, 59, 999999),
    },
    {
        "k": "a ",
        "i": 2**63 - 1,
        "s": "",
        "f": 0.1,
        "b": None,
        "d": None,
        "t": None,
        "m": None,
        "w": None,
        "y": None,
        "c": None,
    },
    {
        "k": "ü€😀",
        "i": None,
        "s": None,
        "f": None,
        "b": None,
        "d": None,
        "t": None,
        "m": None,
        "w": None,
        "y": b"x",
        "c": None,
    },
]
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("m", pa.decimal128(10, 2)),
        ("w", pa.decimal128(30, 2)),
        ("y", pa.binary()),
        ("c", pa.time64("us")),
    ]
)


@pytest.fixture(autouse=True)
def few_rows_as_many_are(monkeypatch):
    monkeypatch.setattr(sqlite, "FEW_ROWS", 0)


@pytest.fixture
def dimension(warehouse):
    return tables.ensure(warehouse, tables.dimension_table("m", SCHEMA, ["k"]))


@pytest.mark.parametrize("fast", [True, False])
def test_every_type_comes_back_as_it_went_in(warehouse, dimension, fast):
    with warehouse.begin() as connection:
        if not fast:
            warehouse.__dict__["_semistream"] = {"local_infile": False}
            connection.info[HANDLE] = None
        assert bulk.bulk_insert(connection, dimension, pa.Table.from_pylist(ROWS, SCHEMA)) == len(
            ROWS
        )
    query = select(*[dimension.c[n] for n in SCHEMA.names]).order_by(dimension.c.m_sk)
    with warehouse.connect() as connection:
        assert [r for b in bulk.fetch(connection, query, SCHEMA, 3) for r in b.to_pylist()] == ROWS
        assert [dict(r._mapping)["w"] for r in connection.execute(query)] == [r["w"] for r in ROWS]
        # an equality on a string is exact: 'a', 'A' and 'a ' are three keys
        assert connection.scalar(select(func.count()).where(dimension.c.k == "a")) == 1


def test_sqlite_stores_what_executemany_would(tmp_path):
    """Also of slices, several chunks, nulls only and types that the warehouse's schemas have not:
    the same values in the same storage classes."""
    words = ["", "a", None, "ü€😀", "nul \0 within", "x" * 1000, "12", "1.50"]
    n = 1003  # no multiple of a statement's rows
    rng = np.random.default_rng(1)
    floats = rng.standard_normal(n) * 10.0 ** rng.integers(-300, 300, n)
    floats[:4] = 0.0, -0.0, np.inf, np.nan
    absent = rng.random(n) < 0.2
    text = pa.array([words[i % len(words)] for i in range(n)])
    integers = pa.array(rng.integers(-(2**63), 2**63 - 1, n), mask=absent)
    blobs = pa.array([None if w is None else w.encode() for w in text.to_pylist()])
    rows = pa.table(
        {
            "text": text,
            "large": text.cast(pa.large_string()),
            "view": text.cast(pa.string_view()),
            "word": text.dictionary_encode(),
            "blob": blobs,
            "large_blob": blobs.cast(pa.large_binary()),
            "fixed": pa.array([b"12345678"] * n, pa.binary(8)),
            "big": integers,
            "small": pa.array(np.arange(n) % 200, pa.uint8()),
            "bit": pa.array(absent, mask=np.roll(absent, 1)),
            "double": pa.array(floats, mask=absent),
            "float": pa.array(rng.random(n, np.float32)),
            "half": pa.array(rng.random(n).astype(np.float16)),
            "nothing": pa.nulls(n),
            "no_text": pa.nulls(n, pa.string()),
            "at": pa.array(rng.integers(0, 2**50, n), pa.timestamp("us", "UTC")),
            "day": pa.array(rng.integers(0, 20000, n).astype(np.int32), pa.date32()),
            "clock": pa.array(rng.integers(0, 86_400_000_000, n), pa.time64("us")),
            "amount": pa.array(
                [
                    None if a else Decimal(int(v)).scaleb(-2)
                    for a, v in zip(absent, rng.integers(-(10**14), 10**14, n), strict=True)
                ],
                pa.decimal128(15, 2),
            ),
        }
    )
    rows = pa.concat_tables([rows.slice(0, 0), rows.slice(5, 300), rows.slice(300)])
    engine = connect(f"sqlite:///{tmp_path / 'types.db'}")
    kinds = {
        "text": "TEXT",
        "big": "BIGINT",
        "double": "DOUBLE",
        "amount": "NUMERIC(15, 2)",
        "at": "DATETIME",
        "word": "VARCHAR(20)",
    }
    found = []
    with engine.begin() as connection:
        assert connection.info[HANDLE], "SQLite's functions are not found"
        for name in ("bound", "executed"):
            columns = ", ".join(f"[{c}] {kinds.get(c, '')}" for c in rows.column_names)
            connection.exec_driver_sql(f"CREATE TABLE {name} ({columns})")
            assert bulk.bulk_insert(connection, Table(name, MetaData()), rows) == rows.num_rows
            shown = ", ".join(f"quote([{c}]), typeof([{c}])" for c in rows.column_names)
            found.append(connection.exec_driver_sql(f"SELECT {shown} FROM {name}").all())
            connection.info[HANDLE] = None
    engine.dispose()
    assert found[0] == found[1] and len(found[0]) == rows.num_rows


@pytest.mark.parametrize("text_bytes", [1, 700, 4_000_000])
def test_sqlite_s_values_are_read_as_its_module_reads_them(tmp_path, monkeypatch, text_bytes):
    """Whatever a column's storage classes are, however many texts a batch has room for."""
    from semistream.warehouse.dialects import sqlite_rows

    monkeypatch.setattr(sqlite_rows, "TEXT_BYTES", text_bytes)
    engine = connect(f"sqlite:///{tmp_path / 'mixed.db'}")
    values = {
        "i": [1, None, -(2**63), 2**63 - 1],
        "d": [1, 2.5, None, -3.75],
        "n": [None] * 4,
        "big": [2**53, 0.5, 1, -(2**53)],
        "wide": [2**53 + 1, 0.5, 1, -(2**63)],
        "s": ["", "ü€😀", "x" * 900, None],
        "b": [b"", b"\x00\xff", None, b"y" * 900],
        "all": [1, "1", b"1", None],
        "f": [0.5, -0.0, 1e300, None],
        "day": ["2024-02-29", None, "1970-01-01", "2100-12-31"],
        "bit": [1, 0, None, 1],
    }
    kinds = {
        "i": pa.int64(),
        "d": pa.decimal128(12, 2),
        "n": pa.string(),
        "big": pa.float64(),
        "wide": pa.string(),
        "s": pa.string(),
        "b": pa.binary(),
        "all": pa.string(),
        "f": pa.float64(),
        "day": pa.date32(),
        "bit": pa.bool_(),
    }
    table = Table("t", MetaData(), *(Column(name) for name in values))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE t ([{'], ['.join(values)}])")
        connection.exec_driver_sql(
            f"INSERT INTO t VALUES ({', '.join('?' * len(values))})",
            list(zip(*values.values(), strict=True)) * 26,
        )

        def read(names):
            schema = pa.schema([(name, kinds[name]) for name in names])
            query = select(*(table.c[name] for name in names))
            return pa.Table.from_batches(bulk.fetch(connection, query, schema, 10), schema)

        fit = [name for name in values if name not in ("all", "wide")]
        found, handle = read(fit), connection.info[HANDLE]
        for name in ("all", "wide"):
            parts = [
                c.to_pylist() if isinstance(c, pa.Array) else c
                for (c,) in sqlite_rows.read(handle, f"SELECT [{name}] FROM t", 10)
            ]
            assert [v for part in parts for v in part] == values[name] * 26
        kinds["i"] = pa.timestamp("us")  # 1 is no time
        for known in (handle, None):
            connection.info[HANDLE] = known
            for name, kind in (("all", "string"), ("i", "timestamp")):
                with pytest.raises(pa.ArrowInvalid, match=rf"t\.{name} has a value .* not {kind}"):
                    read([name])
        kinds["i"] = pa.int64()
        assert found.equals(read(fit)) and found.num_rows == 104
        connection.info[HANDLE] = handle
        with pytest.raises(OperationalError, match="no such column: none"):
            read_none = select(literal_column("none")).select_from(table)
            list(bulk.fetch(connection, read_none, pa.schema([("none", pa.int64())])))
    engine.dispose()


def test_each_thread_s_rows_go_to_its_own_file(tmp_path):
    """Handles are told when connections open; here many do at a time."""

    def load(number: int) -> list[tuple[int, int]]:
        engine = connect(f"sqlite:///{tmp_path / str(number)}.db")
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (n)")
            bulk.bulk_insert(connection, Table("t", MetaData()), pa.table({"n": [number] * 5000}))
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT count(*), sum(n) FROM t").one()
        engine.dispose()
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(load, range(32))) == [(5000, 5000 * n) for n in range(32)]


def test_the_checksum_is_of_what_the_database_gives_back(warehouse):
    """Of every type, with numbers that take all their digits, and none."""
    rng = np.random.default_rng(1)
    numbers = np.concatenate(
        [
            rng.standard_normal(500) * 10.0 ** rng.integers(-300, 300, 500),
            [0.0, -0.0, np.inf, np.nan],
        ]
    )
    more = pa.table(
        {
            "k": [f"n{i}" for i in range(len(numbers))],
            "f": pa.array(numbers),
            "g": pa.array(numbers[:500].tolist() + [1.5, None, None, 0.1]).cast(
                pa.float32(), safe=False
            ),
            "u": pa.array(np.arange(len(numbers)) % 200, pa.uint8()),
        }
    )
    rows = pa.concat_tables([pa.Table.from_pylist(ROWS, SCHEMA), more], promote_options="default")
    table = tables.ensure(warehouse, tables.dimension_table("m", rows.schema, ["k"]))
    with warehouse.begin() as connection:
        bulk.bulk_insert(connection, table, rows)
    found = tables.arrow_schema(tables.existing_table(warehouse, table.name))
    found = pa.schema([f for f in found if f.name in rows.schema.names])
    with warehouse.connect() as connection:
        batches = list(bulk.fetch(connection, select(*[table.c[n] for n in found.names]), found))
    stored = as_stored(rows, warehouse)
    assert checksum(stored) == signed(sum(map(checksum, batches)))
    assert len(set(row_hashes(stored).tolist())) == len(rows)
    assert checksum(stored) != checksum(stored.slice(1)) and checksum(rows.slice(0, 0)) == 0


def test_a_rollback_takes_everything_back(warehouse, dimension):
    with pytest.raises(ZeroDivisionError), warehouse.begin() as connection:
        bulk.bulk_insert(connection, dimension, pa.Table.from_pylist(ROWS, SCHEMA))
        raise ZeroDivisionError
    with warehouse.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(dimension)) == 0


def test_duplicates_and_bent_values_are_errors_not_warnings(warehouse, dimension):
    twice = pa.Table.from_pylist([ROWS[0], ROWS[0]], SCHEMA)
    with pytest.raises((bulk.BulkError, IntegrityError)), warehouse.begin() as connection:
        bulk.bulk_insert(connection, dimension, twice)
    with warehouse.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(dimension)) == 0


def test_rows_that_cannot_be_made_or_are_not_wanted_load_nothing(warehouse, dimension, monkeypatch):
    """Neither waits for the other: many rows are still to be made, or to be taken in."""
    many = pa.table(
        {"k": pa.array([str(i) for i in range(100_000)]), "s": pa.repeat("text" * 50, 100_000)}
    )
    with pytest.raises(DBAPIError), warehouse.begin() as connection:
        bulk.bulk_insert(connection, dimension, many.rename_columns(["k", "no such column"]))

    def fails(column):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), warehouse.begin() as connection:
        made = iter([lambda c: c] * 6)  # the first 60,000 rows
        for system in SYSTEMS:
            module = sys.modules[type(system).__module__]
            monkeypatch.setattr(module, "plain", lambda column: next(made, fails)(column))  # noqa: PLW0108
        bulk.bulk_insert(connection, dimension, many)
    with warehouse.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(dimension)) == 0


def test_replace_keeps_the_last(warehouse, dimension):
    with warehouse.begin() as connection:
        bulk.bulk_insert(
            connection,
            dimension,
            pa.Table.from_pylist([ROWS[0], ROWS[0] | {"s": "new"}], SCHEMA),
            replace=True,
        )
        assert connection.execute(select(dimension.c.s)).all() == [("new",)]


def test_a_table_that_does_not_fit_is_refused(warehouse, dimension):
    with pytest.raises(ConfigError, match="must be a column of type int"):
        tables.ensure(
            warehouse, tables.dimension_table("m", SCHEMA.set(2, pa.field("s", pa.int32())), ["k"])
        )
    with pytest.raises(ConfigError, match="'extra' must be a column of the table dim_m"):
        tables.ensure(
            warehouse,
            tables.dimension_table("m", SCHEMA.append(pa.field("extra", pa.int32())), ["k"]),
        )


def test_fact_tables(warehouse):
    stream = pa.schema([("id", pa.int64()), ("k", pa.string())])
    fact = tables.ensure(
        warehouse,
        tables.fact_table(
            "f", stream, ["m_sk"], pa.schema([("m_k", pa.string()), ("m_sk", pa.int64())]), ["id"]
        ),
    )
    assert [c.name for c in fact.columns] == ["id", "k", "m_sk", "m_k", "load_id", "load_row"]
    tables.ensure(
        warehouse,
        tables.fact_table("f", stream, ["m_sk"], pa.schema([("m_k", pa.string())]), ["id"]),
    )
    reflected = tables.arrow_schema(tables.existing_table(warehouse, "f"))
    assert reflected.field("id").type == pa.int64() and reflected.field("k").type == pa.string()
    for schema, message in (
        (stream.append(pa.field("Load_ID", pa.int64())), "Load_ID"),
        (stream.append(pa.field("K", pa.int64())), "K"),
    ):
        with pytest.raises(ConfigError, match=message):
            tables.fact_table("f", schema, ["m_sk"], pa.schema([]), ["id"])
    with pytest.raises(ConfigError, match="stream.id"):
        tables.fact_table("f", stream, ["m_sk"], pa.schema([]), ["nope"])


@pytest.mark.parametrize("what", ["CREATE TABLE f ", "CREATE TABLE load_apps", "CREATE INDEX ix_f"])
def test_apps_that_start_at_the_same_time_make_the_same_tables(warehouse_url, what):
    """One of them makes a table, or its index, just before the other does."""
    first, second = connect(warehouse_url), connect(warehouse_url)

    def make(engine):
        create_all(engine)
        tables.ensure(
            engine,
            tables.fact_table(
                "f",
                pa.schema([("id", pa.int64())]),
                ["m_sk"],
                pa.schema([]),
                ["id"],
                index_ids=True,
            ),
        )

    def meanwhile(_connection, _cursor, statement, *_):
        if what in statement.replace("`", "") and not overtaken:
            overtaken.append(statement)
            # of the same statement, as other tables are not made yet
            with first.begin() as connection:
                connection.exec_driver_sql(statement)

    overtaken = []
    event.listen(second, "before_cursor_execute", meanwhile)
    make(second)
    assert overtaken
    make(first)
    make(second)
    assert "ix_f_id" in {index["name"] for index in inspect(first).get_indexes("f")}
    for engine in (first, second):
        engine.dispose()


def test_a_table_that_cannot_be_made_is_an_error(warehouse):
    table = Table("f", MetaData(), Column("id", BigInteger))
    event.listen(
        warehouse,
        "before_cursor_execute",
        lambda c, k, s, *_: (s.replace("CREATE TABLE", "CREATE TABEL"), ()),
        retval=True,
    )
    with pytest.raises(DBAPIError):
        tables.create_missing(warehouse, [table])


def test_decimals_of_fifteen_digits_keep_each_one(warehouse):
    numbers = [
        Decimal(int(n)).scaleb(-2)
        for n in np.random.default_rng(1).integers(-(10**15) + 1, 10**15, 5000)
    ]
    data = pa.table(
        {"k": range(5000), "n": pa.array([*numbers[:-2], Decimal(0), None], pa.decimal128(15, 2))}
    )
    table = tables.ensure(warehouse, tables.dimension_table("m", data.schema, ["k"]))
    with warehouse.begin() as connection:
        bulk.bulk_insert(connection, table, data)
        query = select(table.c.k, table.c.n).order_by(table.c.k)
        assert pa.Table.from_batches(bulk.fetch(connection, query, data.schema)) == data


def test_a_checksum_is_the_one_that_ledgers_have():
    """Of many rows, whatever batches and integer types they come in."""
    n = np.arange(40_000)
    rows = pa.table(
        {"N": n, "text": [f"{i}" for i in n], "half": n / 2, "few": pa.array(n, mask=n % 7 > 0)}
    )
    assert checksum(rows) == -6163140663806081140  # as a former version has it
    hashes = row_hashes(rows)
    assert len(set(hashes.tolist())) == len(n) and signed(hashes.sum()) == checksum(rows)
    for table in (
        pa.concat_tables([rows.slice(30_001), rows.slice(0, 30_001)]),
        rows.set_column(0, "n", rows["N"].cast(pa.int32())),
    ):
        assert checksum(table) == checksum(rows)


MARKED = ["\ufeff", "\ufeffx", "x\ufeff", None, "\ufeff\ufeff", ""]


def test_a_mark_before_the_first_text_is_kept(warehouse):
    """Arrow's CSV reader takes U+FEFF at the beginning of a file away, and rows are read as one."""
    for n, first in enumerate(MARKED):
        rows = pa.table({"first": pa.array([first, *MARKED]), "k": range(len(MARKED) + 1)})
        table = tables.ensure(warehouse, tables.dimension_table(f"m{n}", rows.schema, ["k"]))
        with warehouse.begin() as connection:
            bulk.bulk_insert(connection, table, rows)
            for columns in (["first", "k"], ["first"]):
                query = select(*(table.c[c] for c in columns)).order_by(table.c.k)
                wanted = rows.select(columns)
                assert pa.Table.from_batches(bulk.fetch(connection, query, wanted.schema)) == wanted


@pytest.fixture
def small_packets(mariadb):
    """A database of a server whose packets have a MiB at most."""
    engine = connect(mariadb.fresh())

    def limit(most):
        with engine.connect() as connection:
            before = connection.exec_driver_sql("SELECT @@GLOBAL.max_allowed_packet").scalar()
            connection.exec_driver_sql(f"SET GLOBAL max_allowed_packet = {most}")
        engine.dispose()
        return before

    before = limit(1 << 20)
    yield engine
    limit(before)


def test_rows_longer_than_a_packet_of_mysql_s_are_read(small_packets):
    """Together, or after their characters are escaped, or in hexadecimal; none becomes null."""
    half, tabs = 600_000, ("x" * 500 + "\t") * 2090
    rows = pa.table(
        {
            "k": range(7),
            "s": ["x" * half, "short", tabs, "x", None, "\ufeff", "x" * half],
            "t": ["y" * half, "~N", None, "y", "", None, "~" * 9],
            "b": [b"", b"", b"x", b"\0\xff" * (half // 2), None, b"z", b"\0" * half],
            "i": [1, None, 3, 4, 5, 6, 7],
            "d": pa.array([0, 1, None, 3, 4, 5, 6], pa.date32()),
            "f": [0.5, None, 0.25, 1e300, 5.0, 6.0, 7.0],
            "o": [True, None, False, True, *[None] * 3],
            "c": pa.array([1, None, 3, *[None] * 4], pa.time64("us")),
            "m": pa.array([Decimal("1.50"), None, *[Decimal("-0.01")] * 5], pa.decimal128(9, 2)),
        }
    )
    table = tables.ensure(small_packets, tables.dimension_table("m", rows.schema, ["k"]))
    with small_packets.begin() as connection:
        bulk.bulk_insert(connection, table, rows)
    query = select(*(table.c[c] for c in rows.column_names))
    with small_packets.connect() as connection:
        found = pa.Table.from_batches(bulk.fetch(connection, query, rows.schema))
        assert found.column("k").to_pylist() == [1, 4, 5, 0, 2, 3, 6]  # the long ones are last
        assert found.sort_by("k") == rows
        texts = pa.Table.from_batches(bulk.fetch_texts(connection, query, rows.schema))
    assert texts.sort_by("k").select(["i", "f", "b"]).to_pylist()[3] == {
        "i": "4",
        "f": "1e300",
        "b": rows["b"][3].as_py(),
    }


def test_rows_that_change_while_the_long_ones_are_read_are_an_error(small_packets, monkeypatch):
    rows = pa.table({"k": range(2), "s": ["x" * 600_000] * 2, "t": ["y" * 600_000] * 2})
    table = tables.ensure(small_packets, tables.dimension_table("m", rows.schema, ["k"]))
    with small_packets.begin() as connection:
        bulk.bulk_insert(connection, table, rows)
    chunks, query = mysql.chunks, select(*(table.c[c] for c in rows.column_names))

    def changing(connection, query, most, first=0):
        if first:
            with small_packets.begin() as other:
                other.execute(table.delete().where(table.c.k == 1))
        return chunks(connection, query, most, first or 1000)

    monkeypatch.setattr(mysql, "chunks", changing)
    with (
        small_packets.connect() as connection,
        pytest.raises(bulk.BulkError, match="2 rows were longer .* and 1 when"),
    ):
        list(bulk.fetch(connection, query, rows.schema))


def test_a_backtick_in_a_name_is_found_again(warehouse):
    schema = pa.schema([("``", pa.int64()), ("b`t", pa.int64()), ("a", pa.int64())])
    for _ in range(2):
        table = tables.ensure(warehouse, tables.dimension_table("m", schema, ["``", "b`t"]))
    found = tables.existing_table(warehouse, table.name)
    assert found.c.keys() == ["m_sk", "``", "b`t", "a"]


def test_a_table_has_the_options_of_every_system_and_names_that_each_takes(monkeypatch):
    """A system that is added is asked too, and no other file names one."""

    class Added:
        name_length = 30

        def table_options(self, clustered, numbered):
            return {"info": {"clustered": clustered, "numbered": numbered}}

        def index_options(self, long, length):
            return {"info": {"long": {*long}, "length": length}}

    monkeypatch.setattr(dialects, "SYSTEMS", [*SYSTEMS, Added()])
    fact = tables.fact_table(
        "a_long_name_of_facts",
        pa.schema([("id", pa.int64()), ("t", pa.string())]),
        ["m_sk"],
        pa.schema([]),
        ["id"],
        index_ids=True,
        keys=["t"],
    )
    assert fact.info == {"clustered": True, "numbered": False}
    assert fact.dialect_options["sqlite"]["with_rowid"] is False
    assert fact.dialect_options["mysql"]["engine"] == "InnoDB"
    options = {tuple(i.columns.keys()): (i.info, i.dialect_options) for i in fact.indexes}
    assert options["t",][0] == {"long": {"t"}, "length": tables.KEY_CHARACTERS}
    assert options["t",][1]["mysql"]["length"] == {"t": tables.KEY_CHARACTERS}
    assert all(len(index.name) <= Added.name_length for index in fact.indexes)


def test_numbers_of_the_warehouse_s_own_tables_have_a_number_as_default():
    """A strict system refuses FALSE as the default of an integer."""
    defaults = [
        str(column.server_default.arg)
        for table in metadata.tables.values()
        for column in table.columns
        if column.server_default is not None and isinstance(column.type, Integer)
    ]
    assert defaults and all(d.lstrip("-").isdigit() for d in defaults)
