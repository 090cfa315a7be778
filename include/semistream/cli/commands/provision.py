"""``semistream provision``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from semistream.cli import console
from semistream.cli.command import Command


def add_arguments(parser: ArgumentParser) -> None:
    from semistream.settings import Publishing

    parser.add_argument(
        "job",
        metavar="DIMENSION|JOB",
        help="tpch, nycflights13, tpcds, or the YAML file of a job, whose dimensions are "
        "provisioned, or of a dimension; or a dimension's name",
    )
    parser.add_argument("--url", help="database of the dimensions' tables [the warehouse]")
    Publishing.add_arguments(parser)


def run(arguments: Namespace) -> int:
    from semistream import workloads
    from semistream.master.published import snapshot_root
    from semistream.paths import Paths
    from semistream.provisioning.dimensions import provision
    from semistream.provisioning.publishing import publish
    from semistream.settings import Publishing
    from semistream.warehouse import open_warehouse

    places, memory = Paths.from_environment(), Publishing.from_arguments(arguments).memory
    wanted = workloads.load_dimensions(arguments.job, places)
    report: list[str] = []  # printed behind the progress bars, which take over standard output
    with (
        open_warehouse(places.warehouse_url) as engine,
        console.progress(arguments.progress) as tell,
    ):
        workloads.prepare_target(arguments.job, places, tell)
        for joined in wanted:
            name = joined.dimension.name
            result = provision(joined, engine, tell, url=arguments.url)
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.reasons.items())
            report.append(
                f"dim_{name}: read {result.read:,}, inserted {result.inserted:,}, updated "
                f"{result.updated:,}, unchanged {result.unchanged:,}, rejected "
                f"{result.rejected:,}{f' ({reasons})' if reasons else ''}"
            )
            for key in joined.keys:
                manifest, changed = publish(
                    name, key, engine, places.snapshots, tell, memory=int(memory)
                )
                report.append(
                    f"snapshot {manifest.version}{'' if changed else ', as before'}: "
                    f"{manifest.tuple_count:,} rows, in "
                    f"{snapshot_root(places.snapshots, name, key)}"
                )
            if not joined.keys:
                report.append(f"No job joins {name} yet: semistream provision JOB publishes it.")
    print("\n".join(report))
    return 0


COMMAND = Command(
    "provision",
    "bring a dimension, or those of a job, into its table, and publish its snapshots",
    run,
    add_arguments,
    progress=True,
    example="semistream provision nycflights13.",
    without_pandas=True,
)
