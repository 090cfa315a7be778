"""The kernels of `semistream join` and `join-streams`, compiled into Numba's cache."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from semistream.files.join import join_files
from semistream.files.join_streams import join_streams
from semistream.files.settings import JoinFiles, JoinStreams
from semistream.files.sink import OutputFile
from semistream.joins import REGISTRY
from semistream.stream_joins import REGISTRY as STREAM_JOINS

MASTER, STREAM = 12_000, 30_000  # rows; more than the memory holds
DAY = datetime.date(2024, 1, 1)
# declared formats of columns
FORMATS = {"day": "%d/%m/%Y", "price": "1.234,56", "code": "fold"}


def precompile(names: Sequence[str]) -> None:
    """Join small files of every format with each algorithm, on keys of every kind."""
    with TemporaryDirectory(prefix="semistream-") as place:
        directory = Path(place)
        cases = [
            _integers(directory, "csv"),
            _integers(directory, "parquet"),
            _texts(directory, "jsonl"),
            _texts(directory, "csv"),
            _composites(directory, "parquet"),
        ]
        for name, case in itertools.product(names, cases):
            given = case | {"algorithm": name, "memory": "400KB"}
            _join(directory, given)
            # otherwise the cost model decides whether there is a filter
            if "filter_bits" in REGISTRY[name].parameters.model_fields:
                _join(directory, given | {"parameters": {"filter_bits": 8}})
        _join(directory, cases[0])  # with the algorithm that the cost models choose
        _join_star(directory, cases)
        _join(directory, _declared_formats(directory))
        for case in cases:
            _join_both(directory, case)


def _join_star(directory: Path, cases: Sequence[dict[str, Any]]) -> None:
    """Join a stream with two dimensions, one of which has several rows for a key. The dimensions
    are held whole in memory in one join, and not in another."""
    integers, texts = cases[1], cases[3]
    stream = _write(
        directory / "star.parquet",
        {"k": [_key(i) for i in range(STREAM)], "t": [f"key {_key(i)}" for i in range(STREAM)]},
    )
    for memory in ("64MB", "400KB"):
        join_files(
            JoinFiles.load(
                {
                    "stream": stream,
                    "out": directory / "out.parquet",
                    "memory": memory,
                    "dimensions": {
                        "one": {"path": str(integers["master"]), "on": "k", "columns": "price"},
                        "many": {
                            "path": str(texts["master"]),
                            "on": {"t": "k"},
                            "columns": "name",
                            "many": True,
                        },
                    },
                }
            )
        )


def _join_both(directory: Path, case: dict[str, Any]) -> None:
    """Join the two files as streams, once in memory and once with a state on disk."""
    sides = {
        "on": case.get("on", "k"),
        "left": case["stream"],
        "right": case["master"],
        "out": directory / "both.parquet",
    }
    for algorithm, promise, memory in itertools.product(
        STREAM_JOINS, ({}, {"clustered": "left", "join_type": "full"}), ("64MB", "2MB")
    ):
        if algorithm == "pjoin" or not promise:
            join_streams(
                JoinStreams.load(sides | promise | {"algorithm": algorithm, "memory": memory})
            )


def _join(directory: Path, case: dict[str, Any]) -> None:
    join_files(
        JoinFiles.load(
            {
                "on": "k",
                "join_type": "left",
                "out": directory / "out.parquet",
                "unmatched": directory / "unmatched.csv",
            }
            | case
        )
    )


def _integers(directory: Path, kind: str) -> dict[str, Any]:
    return {
        "master": _write(directory / f"mi.{kind}", {"k": range(MASTER), **_payload(MASTER)}),
        "stream": _write(
            directory / f"si.{kind}", {"id": range(STREAM), "k": [_key(i) for i in range(STREAM)]}
        ),
    }


def _texts(directory: Path, kind: str) -> dict[str, Any]:
    """Return a test case with several master tuples for a key, stream tuples without a key, and
    strings in both relations."""
    return {
        "master": _write(
            directory / f"mt.{kind}",
            {"k": [f"key {i // 2}" for i in range(MASTER)], **_payload(MASTER)},
        ),
        "stream": _write(
            directory / f"st.{kind}",
            {
                "k": [None if i % 50 == 0 else f"key {_key(i)}" for i in range(STREAM)],
                "note": [f"note {i}" for i in range(STREAM)],
            },
        ),
    }


def _composites(directory: Path, kind: str) -> dict[str, Any]:
    def keys(numbers: Sequence[int]) -> dict[str, Any]:
        return {
            "k": [DAY + datetime.timedelta(i % 100) for i in numbers],
            "d": pa.array([Decimal(i // 100) for i in numbers], pa.decimal128(25, 2)),
            "b": [i % 2 == 0 for i in numbers],
        }

    return {
        "on": ["k", "d", "b"],
        "master": _write(directory / f"mc.{kind}", keys(range(MASTER)) | _payload(MASTER)),
        "stream": _write(
            directory / f"sc.{kind}", keys([_key(i) for i in range(STREAM)]) | {"id": range(STREAM)}
        ),
    }


def _declared_formats(directory: Path) -> dict[str, Any]:
    """Return a test case with columns in declared formats, and rows that cannot be read."""
    rows = [f"{i % 28 + 1:02d}/01/2024;1.0{i % 90 + 10},50;Key {i % 99}" for i in range(1000)]
    (directory / "f.csv").write_text("\n".join(["day;price;code", *rows, "no date;x;y;z", '"']))
    keys = {"k": [f"key {i}" for i in range(99)], "v": range(99)}
    return {
        "stream": directory / "f.csv",
        "delimiter": ";",
        "formats": FORMATS,
        "on": "code=k",
        "master": _write(directory / "f.parquet", keys),
    }


def _payload(rows: int) -> dict[str, Any]:
    return {"name": [f"name {i}" for i in range(rows)], "price": [i / 4 for i in range(rows)]}


def _key(i: int) -> int:
    """Return the key of a stream tuple. Some keys are frequent, and some are not in R."""
    return i % 40 if i % 3 else i * 7919 % (MASTER + MASTER // 10)


def _write(path: Path, columns: dict[str, Any]) -> Path:
    rows = pa.table({n: v if isinstance(v, pa.Array) else list(v) for n, v in columns.items()})
    with OutputFile("out", path, rows.schema) as file:
        for batch in rows.to_batches():
            file.write(batch)
        file.finish()
        file.publish()
    return path
