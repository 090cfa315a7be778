"""The comparisons of the overview: the peers, their result files, and their names in a user's
words."""

from __future__ import annotations

from typing import NamedTuple


class Compared(NamedTuple):
    """A comparison of a benchmark's two peers, in a user's words."""

    what: str
    beside: str
    name: str  # of the result file
    ours: str  # peers
    other: str
    case: str = ""  # how the case begins


JOIN, APP_NAME = "`semistream join`", "the Spark app"
STATIC, CASE = "Spark's stream-static join", "R=20,000,000 M=10% batch="
COMPARED = tuple(
    Compared(*c)
    for c in (
        (f"{APP_NAME}, R of 2 million", STATIC, "spark-2m-full", "auto", "spark, as is"),
        ("the same", "the same with R cached", "spark-2m-full", "auto", "spark, R cached"),
        (f"{APP_NAME}, R of 20 million", STATIC, "spark-full", "auto", "spark, as is"),
        (f"{APP_NAME}, R of 100 million", STATIC, "spark-100m-full", "auto", "spark, as is"),
        (
            f"{JOIN}, R of 500,000",
            "Flink's streaming join",
            "flink-small",
            "semistream join",
            "flink, streaming join",
            "R=",
        ),
        (
            "the same",
            "Flink's lookup join",
            "flink-small",
            "semistream join",
            "flink, lookup join",
            "R=",
        ),
        (
            "the same",
            "Flink's batch join",
            "flink-small",
            "semistream join",
            "flink, batch join",
            "R=",
        ),
        (
            f"{APP_NAME}, the same",
            "Flink's batch join",
            "flink-small",
            "semistream, spark app",
            "flink, batch join",
            "R=",
        ),
        (
            f"{JOIN}, Nexmark's query 13, 10,000 keys",
            STATIC,
            "nexmark-small",
            "semistream join",
            "spark, stream-static join",
            "q13, 10,000 keys",
        ),
        (
            f"{APP_NAME}, the same",
            STATIC,
            "nexmark-small",
            "semistream, spark app",
            "spark, stream-static join",
            "q13, 10,000 keys",
        ),
        (
            f"{JOIN}, the same, 20 million keys",
            STATIC,
            "nexmark-small",
            "semistream join",
            "spark, stream-static join",
            "q13, 20,000,000",
        ),
        (
            f"{APP_NAME}, the same",
            STATIC,
            "nexmark-small",
            "semistream, spark app",
            "spark, stream-static join",
            "q13, 20,000,000",
        ),
        (
            f"{JOIN}, six dimensions",
            "Spark's chain of these joins",
            "star-small",
            "semistream join",
            "spark chained",
        ),
        (
            "the same",
            "six runs of it, one a dimension",
            "star-small",
            "semistream join",
            "semistream join chained",
        ),
        (
            "the same",
            "DuckDB, a query a micro-batch",
            "star-small",
            "semistream join",
            "duckdb limit base and M",
        ),
        (
            f"{APP_NAME}, the same",
            "Spark's chain of these joins",
            "star-small",
            "semistream app",
            "spark chained",
        ),
        (
            f"{JOIN}, CSV files, R of 200,000",
            "Pathway",
            "pathway-small",
            "semistream join",
            "pathway",
        ),
        (
            f"{JOIN}, R of 200,000, 1 core, cold",
            "DuckDB",
            "console-small",
            "auto, from files",
            "duckdb",
            "R=200,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            "the same",
            "Polars, without a limit",
            "console-small",
            "auto, from files",
            "polars",
            "R=200,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            f"{JOIN}, R of 2 million, 1 core, cold",
            "DuckDB",
            "console-small",
            "auto, from files",
            "duckdb",
            "R=2,000,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            "the same, the snapshot ready",
            "DuckDB",
            "console-small",
            "auto, ready",
            "duckdb",
            "R=2,000,000 S=2,000,000 M=25 MB, 1 core",
        ),
        *(
            (
                f"{what}, {cores}",
                "DuckDB",
                "console-full",
                f"auto, {how}",
                "duckdb",
                f"R=2,000,000 S=20,000,000 M=250 MB, {cores}",
            )
            for cores in ("1 core", "2 cores")
            for what, how in (
                (f"{JOIN}, R of 2 million, S of 20 million, cold", "from files"),
                ("the same, the snapshot ready", "ready"),
            )
        ),
        (
            "the operator, micro-batches of 100,000",
            "DuckDB, R sorted",
            "duckdb-full",
            "elevatorjoin",
            "duckdb, sorted",
            f"{CASE}100,000 columns",
        ),
        (
            "the operator, micro-batches of a million",
            "DuckDB, R sorted",
            "duckdb-full",
            "elevatorjoin",
            "duckdb, sorted",
            f"{CASE}1,000,000 columns",
        ),
        (
            "the same",
            "look-ups in SQLite",
            "anchors-full",
            "elevatorjoin",
            "sqlite",
            f"{CASE}1,000,000",
        ),
        (
            "the operator, M of 1% of R",
            "a hash join, all of R in memory",
            "memory-full",
            "elevatorjoin",
            "hash join, all of R",
            "R=20,000,000 M=1%",
        ),
        (
            "the operator, M of 10% of R",
            "the same",
            "memory-full",
            "elevatorjoin",
            "hash join, all of R",
            "R=20,000,000 M=10%",
        ),
        (
            "the SQLite sink",
            "ADBC's ingestion",
            "sinks-small",
            "semistream",
            "adbc_ingest",
            "sqlite",
        ),
        (
            "the MariaDB sink",
            "LOAD DATA, file ready",
            "sinks-small",
            "semistream",
            "LOAD DATA, file ready",
            "mariadb",
        ),
        ("the Delta sink", "`write_deltalake`", "sinks-full", "semistream", "write_deltalake"),
        (
            "restart, a million tuples wait",
            "Spark's own start",
            "start-small",
            "all wait",
            "spark's own start",
            "restart",
        ),
    )
)
