"""``semistream replay``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from semistream.cli.command import Command
from semistream.cli.options import add_app


def add_arguments(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        help="CSV, JSON lines or Parquet file of unmatched tuples, as `semistream unmatched APP "
        "--out FILE` writes it, which may have been mended; [all that are open, as they are]",
    )
    parser.add_argument(
        "--job",
        default="",
        metavar="FILE",
        help="the job's YAML file, after columns or formats were changed in it by which texts are "
        "parsed [the job as it was loaded]",
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="its checkpoint [$SEMISTREAM_HOME/checkpoints/APP]"
    )


def run(arguments: Namespace) -> int:
    from semistream.pipeline import steps

    print(
        steps.replay(
            arguments.app,
            arguments.paths,
            arguments.file,
            job=arguments.job,
            checkpoint=arguments.checkpoint,
        )
    )
    return 0


COMMAND = Command(
    "replay",
    "join an app's unmatched tuples again, each once: with new master data, or as they were mended",
    run,
    add_arguments,
    extras=("spark",),
)
