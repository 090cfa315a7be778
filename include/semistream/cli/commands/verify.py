"""``semistream verify``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from semistream.cli import console
from semistream.cli.command import Command


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", help="name of the load; by default a job's name")
    parser.add_argument(
        "--since-last",
        action="store_true",
        help="only what no verification has proven yet [everything]",
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=1000,
        metavar="ROWS",
        help="facts, and unmatched tuples, that the database joins again, drawn "
        "anew each time [1000]",
    )
    parser.add_argument(
        "--job",
        default="",
        metavar="FILE",
        help="the job's YAML file, after max_unparsable, unique_ids, max_unmatched or "
        "max_open_hours was changed in it [the job as it was loaded]",
    )


def run(arguments: Namespace) -> int:
    from semistream.pipeline import steps

    result = steps.verify(
        arguments.app,
        arguments.paths,
        since_last=arguments.since_last,
        sample=arguments.sample,
        job=arguments.job,
    )
    console.show(arguments.json, result, lambda r: print(r["text"]))
    return 0


COMMAND = Command(
    "verify",
    "prove that what an app has loaded is complete; exit code 1 where it is not",
    run,
    add_arguments,
    json=True,
    extras=("verify",),
)
