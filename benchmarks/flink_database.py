"""A MariaDB server with R, for joins that look up tuples of R."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pymysql
from pyarrow import csv

from benchmarks.data import Files
from benchmarks.harness import MB, ROOT, Unavailable
from benchmarks.processes import proportional


@dataclass(frozen=True)
class Tables:
    """The columns of R and of S except the key, with their types in SQL."""

    master: Mapping[str, str]
    stream: Mapping[str, str]


def declared(columns: Mapping[str, str]) -> list[str]:
    return [f"`{name}` {kind} NOT NULL" for name, kind in columns.items()]


@dataclass(frozen=True)
class Server:
    """A MariaDB server with R in the table r of the database r."""

    port: int
    process: int

    def memory(self) -> dict[str, float]:
        """Return the server's present memory as remarks for a table."""
        resident, anonymous = proportional(self.process)
        return {"database MB": resident / MB, "database anonymous MB": anonymous / MB}


def tests_server() -> Callable[[Path], Any]:
    """Return the class of the tests' server. Raises Unavailable if there is no mariadbd."""
    sys.path.insert(0, str(ROOT / "tests"))
    with patch.dict(os.environ):  # the tests' options for JVMs would slow those that are measured
        from conftest import MARIADBD, MariaDB
    if not MARIADBD:
        raise Unavailable("no mariadbd (apt-get install mariadb-server-core)")
    return MariaDB


@contextmanager
def database(files: Files, batches: Iterable[pa.RecordBatch], tables: Tables) -> Iterator[Server]:
    """Yield a private server of the tests' class, with R in it. Raises Unavailable if there is no
    mariadbd."""
    make = tests_server()
    directory = files.runs / "mariadb"
    directory.mkdir(parents=True)
    server = make(directory)
    server.install()
    server.start()
    try:
        rows = directory / "r.csv"
        with open(rows, "wb") as file:
            for batch in batches:
                csv.write_csv(batch, file, csv.WriteOptions(include_header=False))
        columns = ", ".join(declared({"key": "BIGINT"} | tables.master))
        with (
            pymysql.connect(
                host="127.0.0.1", port=server.port, user="root", local_infile=True, autocommit=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("CREATE DATABASE r")
            cursor.execute(f"CREATE TABLE r.r ({columns}, PRIMARY KEY (`key`))")
            cursor.execute(
                f"LOAD DATA LOCAL INFILE '{rows}' INTO TABLE r.r FIELDS TERMINATED BY "
                f"',' OPTIONALLY ENCLOSED BY '\"'"
            )
            cursor.execute("ANALYZE TABLE r.r")
        rows.unlink()
        yield Server(server.port, server.process.pid)
    finally:
        server.stop()
