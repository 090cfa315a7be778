"""DuckDB's join of a stream with several dimensions, as a program. Each micro-batch is a file of
the stream; one query joins it with the dimensions in a database and writes a Parquet file."""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    import duckdb

    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("database", "stream", "output", "scratch"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True, help="memory_limit, bytes")
    a = parser.parse_args()
    connection = duckdb.connect(
        str(a.database),
        read_only=True,
        config={
            "threads": a.threads,
            "memory_limit": f"{a.memory}B",
            "temp_directory": str(a.scratch),
            "preserve_insertion_order": False,
        },
    )
    dimensions = sorted(name for (name,) in connection.execute("SHOW TABLES").fetchall())
    joins = " ".join(f"JOIN {name} USING (key{name[1:]})" for name in dimensions)
    a.output.mkdir()
    for file in sorted(a.stream.glob("*.parquet")):
        connection.execute(
            f"COPY (SELECT * FROM '{file}' s {joins}) TO '{a.output / file.name}' (FORMAT parquet)"
        )


if __name__ == "__main__":
    main()
