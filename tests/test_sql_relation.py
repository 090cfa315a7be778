import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import event

from semistream.errors import ConfigError, StateError
from semistream.master.sql import SqlRelation
from semistream.warehouse import bulk, tables
from test_snapshot import MASTERS, N, everything, master


def load(engine, table, names):
    dimension = tables.dimension_table("m", table.schema.remove(table.schema.get_field_index("m_sk")), names[:1], names)
    dimension.indexes = {i for i in dimension.indexes if not i.unique}
    tables.ensure(engine, dimension)
    with engine.begin() as connection:
        bulk.bulk_insert(connection, dimension, table)
    return "dim_m"


@pytest.mark.parametrize("kind", MASTERS)
def test_every_row_is_in_one_partition_where_its_code_says(warehouse, kind):
    table, names = master(kind)
    load(warehouse, table, names)
    relation = SqlRelation(warehouse, "dim_m", names, 333, schema=table.schema)
    assert relation.partition_count == -(-N // 333) and relation.tuple_count == N and relation.unique == (kind != "repeated")
    assert everything(relation, table.schema.names) == sorted(table.to_pylist(), key=lambda r: r["m_sk"])
    held = {}
    for i in range(relation.partition_count):
        codes, batch = relation.read_codes(i), relation.read(i, ["name", *names])
        assert (relation.keys.master_codes(batch)[0] == codes).all() and len(codes) <= relation.partition_tuples
        for code in codes.tolist():
            held.setdefault(code, set()).add(i)
    known = np.array(list(held))
    for code, (first, last) in zip(known.tolist(), relation.partitions_of(known).tolist(), strict=True):
        assert held[code] <= set(range(first, last)) and first in held[code] and last - 1 in held[code]
    strangers = np.setdiff1d(np.concatenate([known - 1, known + 1, [-2**63, 2**63 - 1]]), known)
    ranges = relation.partitions_of(strangers)
    assert (ranges[:, 1] - ranges[:, 0] <= 1).all()
    other = relation.with_partition(10**6)
    assert other.partition_count == 1 and other.read(0, ["m_sk"]).num_rows == N
    relation.close()
    other.close()


def test_pages_are_found_by_key_and_never_by_offset(warehouse):
    table, names = master("composite")
    load(warehouse, table, names)
    relation, statements = SqlRelation(warehouse, "dim_m", names, 500), []
    event.listen(warehouse, "before_cursor_execute", lambda _c, _cur, statement, *_: statements.append(statement))
    relation.read(5, ["name"])
    assert len(statements) == 1 and "OFFSET" not in statements[0] and ">=" in statements[0] and "<=" in statements[0]


def test_null_keys_are_left_out_and_an_empty_table_is_one_partition(warehouse):
    table = pa.table({"a": [1, None, 3], "b": ["x", "y", None], "m_sk": [1, 2, 3]})
    load(warehouse, table.slice(0, 0), ["a", "b"])
    empty = SqlRelation(warehouse, "dim_m", ["a", "b"])
    assert (empty.partition_count, empty.tuple_count, len(empty.read_codes(0))) == (1, 0, 0)
    assert (empty.partitions_of(np.array([1, 2])) == 0).all()
    assert (SqlRelation(warehouse, "dim_m", ["a"]).partitions_of(np.array([1, 2])) == 0).all()
    with warehouse.begin() as connection:
        connection.exec_driver_sql("INSERT INTO dim_m (m_sk, a, b) VALUES (1, 1, 'x'), (2, 2, NULL)")
    assert SqlRelation(warehouse, "dim_m", ["a", "b"]).tuple_count == 1


def test_a_table_that_changes_underneath_is_noticed(warehouse):
    table, names = master("int")
    load(warehouse, table, names)
    relation = SqlRelation(warehouse, "dim_m", names, 1000)
    relation.read_codes(1)
    with warehouse.begin() as connection:
        connection.exec_driver_sql("DELETE FROM dim_m WHERE k0 BETWEEN 0 AND 5000")
    with pytest.raises(StateError, match="changed while it was joined"):
        relation.read_codes(1)


def test_repeated_keys_need_a_primary_key(warehouse):
    with warehouse.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE plain (k INTEGER, v INTEGER)")
        connection.exec_driver_sql("INSERT INTO plain VALUES (1, 1), (2, 2)")
    assert SqlRelation(warehouse, "plain", ["k"]).unique
    with warehouse.begin() as connection:
        connection.exec_driver_sql("INSERT INTO plain VALUES (2, 3)")
    with pytest.raises(ConfigError, match="primary key"):
        SqlRelation(warehouse, "plain", ["k"])
    with pytest.raises(ConfigError, match="must be a table"):
        SqlRelation(warehouse, "absent", ["k"])
