"""``semistream provision``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import add_progress


def add_arguments(parser: ArgumentParser) -> None:
    from semistream.config import Publishing

    parser.add_argument("job", help="tpch, nycflights13, or a job's YAML file")
    parser.add_argument("--url", help="database of the job's master table [the warehouse]")
    Publishing.add_arguments(parser)
    add_progress(parser)


def run(arguments: Namespace) -> int:
    from semistream import workloads
    from semistream.config import Places, Publishing
    from semistream.provisioning import dimensions
    from semistream.warehouse import open_warehouse

    places, memory = Places.from_environment(), Publishing.from_arguments(arguments).memory
    job = workloads.load_job(arguments.job, places)
    with (open_warehouse(places.warehouse_url) as engine,
          console.progress(arguments.progress) as tell):
        workloads.prepare(job, places, tell)
        result = dimensions.provision(job, engine, tell, url=arguments.url)
        manifest, changed = dimensions.publish(job, engine, places.snapshots, tell,
                                               memory=int(memory))
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.reasons.items())
    print(f"dim_{job.master.name}: read {result.read:,}, inserted {result.inserted:,}, updated "
          f"{result.updated:,}, unchanged {result.unchanged:,}, rejected "
          f"{result.rejected:,}{f' ({reasons})' if reasons else ''}")
    print(f"snapshot {manifest.version}{'' if changed else ', as before'}: "
          f"{manifest.tuple_count:,} rows, in {places.snapshots / job.master.name}")
    return 0


COMMAND = Command(
    "provision", "bring a job's master data into its dimension table, and publish its snapshot",
    add_arguments, run, example="semistream provision nycflights13.", without_pandas=True)
