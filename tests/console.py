"""The command `semistream join`: its flags, its files, and what a database says to its output."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq

# the output's name follows
JOIN = ["join", "--stream", "s.csv", "--master", "m.csv", "--on", "k", "--out"]


def flag(name):
    return f"--{name.replace('_', '-')}"


def flags(options):
    """Options by name, as a command takes them; those that are None are not given."""
    return [word for k, v in options.items() if v is not None for word in (flag(k), v)]


def write(path, text):
    Path(path).write_text(text)


def put(stream, master, directory=Path()):
    """Write the two files that `JOIN` reads."""
    write(directory / "s.csv", stream)
    write(directory / "m.csv", master)


def table(path):
    return pq.read_table(path)


def same_as_sql(path, query):
    """Whether a Parquet file has the rows of a DuckDB query, columns in order."""
    connection = duckdb.connect()
    mine = f"SELECT * FROM '{path}'"
    differing = (
        f"SELECT count(*) FROM (({mine} EXCEPT ALL {query}) UNION ALL ({query} EXCEPT ALL {mine}))"
    )
    return connection.execute(differing).fetchone()[0] == 0
