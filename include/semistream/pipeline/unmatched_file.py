"""All unmatched tuples of an app as a file that can be mended and given back to a load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import Engine, and_, or_, select

from semistream.errors import ConfigError
from semistream.files.sink import OutputFile, check_output
from semistream.job import SIDES, Job, StreamStreamJob
from semistream.paths import Paths
from semistream.pipeline.unmatched import Loaded, typed_column
from semistream.progress import Progress, silent
from semistream.quality.tuple_origins import Origins, TupleOrigins
from semistream.reasons import QUARANTINED, Reason
from semistream.streaming.replaying import free_name
from semistream.streaming.spool import TEXT
from semistream.warehouse import existing, open_warehouse
from semistream.warehouse.bulk import fetch
from semistream.warehouse.schema import unmatched
from semistream.warehouse.unmatched_groups import Kind, is_of

SEARCHED = 500_000  # tuples whose origins are looked for at a time
WRITTEN = 10_000  # tuples converted at a time
PLACED_KEYS = pa.schema(
    [("load_id", pa.int64()), ("load_row", pa.int32()), ("stream_id", pa.string())]
)
# columns of the file
OUTPUT_COLUMNS = ("load_id", "load_row", "reason", "why", "role", "stream_id", "file", "line")


def export_unmatched(
    app: str, paths: Paths, out: Path, *, reason: str = "", role: str = "", tell: Progress = silent
) -> int:
    """Write an app's unmatched tuples to a CSV, JSON lines or Parquet file, and return their
    number. If there are none, no file is written. Raises ConfigError.

    The file has the columns ``OUTPUT_COLUMNS``, then the tuple's columns, and ``text`` for tuples
    that could not be parsed; ``why`` says what is wrong with such a text, and ``stream_id`` is the
    id that was found in it. If the tuple has a column with a name of ``OUTPUT_COLUMNS``, the output
    column is called ``_NAME`` instead. A user can correct rows of the file and give them back to a
    load.
    """
    check_output("out", out)
    with open_warehouse(existing(paths.warehouse_url)) as engine:
        loaded = Loaded.of(engine, app, paths)
        kinds = loaded.kinds(engine, reason, role)
        if not kinds:
            return 0
        side = _side(loaded, kinds)
        tuples = _schema(loaded, side)
        schema = _file_schema(tuples)
        check_output("out", out, schema)
        search = TupleOrigins(engine, app, loaded.job, loaded.schemas())
        with OutputFile("out", out, schema) as file:
            for batch in _rows(engine, loaded, kinds, tuples, schema, search, side):
                file.write(batch)
                tell("unmatched tuples", file.rows, None)
            file.finish()
            if file.rows:
                file.publish()
            return file.rows


def _side(loaded: Loaded, kinds: Sequence[Kind]) -> int:
    """Return the number of the stream whose tuples are exported. Raises ConfigError if there are
    tuples of two streams, which have different columns."""
    if not isinstance(loaded.job, StreamStreamJob):
        return 0
    sides = {kind.role for kind in kinds}
    if len(sides) > 1:
        raise ConfigError(
            "role",
            "must be given, as the two streams have different columns",
            None,
            "Write a file of each: --role left, and --role right.",
        )
    return SIDES.index(sides.pop())


def _schema(loaded: Loaded, side: int) -> pa.Schema:
    if not (schemas := loaded.schemas()):
        raise ConfigError(
            "checkpoint",
            f"must be here, as it has the columns of {loaded.app}",
            str(loaded.checkpoint),
            "Call this where the load runs, with its SEMISTREAM_HOME.",
        )
    return schemas[side]


def _file_schema(tuples: pa.Schema) -> pa.Schema:
    kinds = (pa.int64(), pa.int32(), *[pa.string()] * 5, pa.int64())

    output_columns = [
        pa.field(free_name(name, tuples), kind)
        for name, kind in zip(OUTPUT_COLUMNS, kinds, strict=True)
    ]
    return pa.schema(
        [
            *output_columns,
            *(f.with_nullable(True) for f in tuples),
            pa.field(free_name("text", tuples), pa.string()),
        ]
    ).remove_metadata()


def _rows(
    engine: Engine,
    loaded: Loaded,
    kinds: Sequence[Kind],
    tuples: pa.Schema,
    schema: pa.Schema,
    search: TupleOrigins,
    side: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the file. For several rows at a time, the ids are read first, then the
    files and lines are looked up, and then the rows are read."""
    # in which the tuples without master data are whose rows name none
    u, role = unmatched.c, loaded.job.roles[0].name if isinstance(loaded.job, Job) else None
    with engine.connect() as connection:
        mine = or_(*(is_of(connection, loaded.app, kind) for kind in kinds))
        after = (-1, -1)
        while True:
            beyond = and_(u.load_id >= after[0], or_(u.load_id > after[0], u.load_row > after[1]))
            keys = (
                select(u.load_id, u.load_row, u.stream_id)
                .where(mine, beyond)
                .order_by(u.load_id, u.load_row)
                .limit(SEARCHED)
            )
            some = pa.Table.from_batches(fetch(connection, keys, PLACED_KEYS), PLACED_KEYS)
            if not some.num_rows:
                return
            some = some.combine_chunks()
            loads, numbers, ids = (column.chunk(0) for column in some.columns)
            last = (loads[-1].as_py(), numbers[-1].as_py())
            origins = search.find(loads.to_numpy(), ids, side)
            within = and_(u.load_id <= last[0], or_(u.load_id < last[0], u.load_row <= last[1]))
            query = (
                select(
                    *(u.load_id, u.load_row, u.reason, u.role, u.side, u.stream_id),
                    u.tuple.label("kept"),
                )
                .where(mine, beyond, within)
                .order_by(u.load_id, u.load_row)
            )
            done = 0
            with connection.execution_options(yield_per=WRITTEN).execute(query) as rows:
                for part in rows.partitions(WRITTEN):
                    yield _batch(part, origins, done, tuples, schema, role)
                    done += len(part)
            after = last


def _batch(
    rows: Sequence[Any],
    origins: Origins,
    first: int,
    tuples: pa.Schema,
    schema: pa.Schema,
    role: str | None,
) -> pa.RecordBatch:
    """Return a batch of unmatched tuples in the columns of the file to write. first: the position
    of the first row in ``origins``."""
    values = [json.loads(row.kept) for row in rows]
    unparsable = [row.reason == Reason.UNPARSABLE for row in rows]
    output_columns: list[Sequence[Any]] = [
        [row.load_id for row in rows],
        [row.load_row for row in rows],
        [row.reason for row in rows],
        [of.get("why") if bad else None for of, bad in zip(values, unparsable, strict=True)],
        [row.role or row.side or (None if row.reason in QUARANTINED else role) for row in rows],
        [row.stream_id for row in rows],
        [
            of.get("file") if bad else origins.file(first + n)
            for n, (of, bad) in enumerate(zip(values, unparsable, strict=True))
        ],
        [
            of.get("line") if bad else origins.line(first + n)
            for n, (of, bad) in enumerate(zip(values, unparsable, strict=True))
        ],
    ]
    cells = [
        typed_column(
            f.name,
            [None if bad else of.get(f.name) for of, bad in zip(values, unparsable, strict=True)],
            f.type,
        )
        for f in tuples
    ]
    text = [of[TEXT] if bad else None for of, bad in zip(values, unparsable, strict=True)]
    columns = [pa.array(of, f.type) for of, f in zip(output_columns, schema, strict=False)]
    return pa.RecordBatch.from_arrays(
        [*columns, *cells, pa.array(text, pa.string())], schema=schema
    )
