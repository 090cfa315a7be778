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


JOIN, APP, OPERATOR = "join", "app", "operator"
STATIC = "Spark's stream-static join"
BOTH, LONG = f"{JOIN}, R and S of 2 million", f"{JOIN}, R of 2 million, S of 20 million"
SHORT_CASE, LONG_CASE = "R=2,000,000 S=2,000,000 M=25 MB, 2", "R=2,000,000 S=20,000,000 M=250 MB, 2"
COMPARED = tuple(
    Compared(*c)
    for c in (
        (f"{APP}, R of 2 million", STATIC, "spark-2m-full", "auto", "spark, as is"),
        (f"{APP}, R of 100 million", STATIC, "spark-100m-full", "auto", "spark, as is"),
        (
            f"{APP}, Nexmark, R of 10,000",
            STATIC,
            "nexmark-small",
            "semistream, spark app",
            "spark, stream-static join",
            "q13, 10,000 keys",
        ),
        (
            f"{JOIN}, Nexmark, R of 20 million",
            STATIC,
            "nexmark-small",
            "semistream join",
            "spark, stream-static join",
            "q13, 20,000,000",
        ),
        (
            f"{JOIN}, six dimensions",
            "Spark's joins, chained",
            "star-small",
            "semistream join",
            "spark chained",
        ),
        *(
            (
                f"{JOIN}, R of 500,000",
                f"Flink's {join} join",
                "flink-small",
                "semistream join",
                f"flink, {join} join",
                "R=",
            )
            for join in ("streaming", "lookup")
        ),
        *(
            (
                f"{APP}, R of {size}",
                "Flink's batch join",
                f"flink-{scale}",
                "semistream, spark app",
                "flink, batch join",
                case,
            )
            for size, scale, case in (
                ("500,000", "small", "R="),
                ("2 million", "full", "R=2,000,000 M=64MB"),
            )
        ),
        (f"{JOIN}, R of 200,000", "Pathway", "pathway-small", "semistream join", "pathway"),
        (
            f"{JOIN}, six dimensions",
            "DuckDB",
            "star-small",
            "semistream join",
            "duckdb limit base and M",
        ),
        (BOTH, "DuckDB", "console-small", "auto, from files", "duckdb", SHORT_CASE),
        (f"{BOTH}, snapshot ready", "DuckDB", "console-small", "auto, ready", "duckdb", SHORT_CASE),
        (BOTH, "Polars", "console-small", "auto, from files", "polars", SHORT_CASE),
        (LONG, "DuckDB", "console-full", "auto, from files", "duckdb", LONG_CASE),
        (
            f"{OPERATOR}, batches of a million",
            "DuckDB, R sorted",
            "duckdb-full",
            "elevatorjoin",
            "duckdb, sorted",
            "R=20,000,000 M=10% batch=1,000,000 columns",
        ),
        (
            f"{OPERATOR}, M of 1% of R",
            "an in-memory hash join",
            "memory-full",
            "elevatorjoin",
            "hash join, all of R",
            "R=20,000,000 M=1%",
        ),
        (
            "sink of SQLite",
            "ADBC's ingestion",
            "sinks-small",
            "semistream",
            "adbc_ingest",
            "sqlite",
        ),
        (
            "sink of MariaDB",
            "LOAD DATA",
            "sinks-small",
            "semistream",
            "LOAD DATA, file ready",
            "mariadb",
        ),
        ("sink of Delta", "`write_deltalake`", "sinks-full", "semistream", "write_deltalake"),
    )
)
