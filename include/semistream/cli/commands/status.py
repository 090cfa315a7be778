"""``semistream status``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from semistream.cli.command import Command
from semistream.cli.options import unknown_app


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", help="name of the app [all]")


def run(arguments: Namespace) -> int:
    from semistream.paths import Paths
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    checkpoints = Paths.from_environment().checkpoints
    names = [arguments.app] if arguments.app else drivers.app_names(checkpoints)
    for name in names:
        if name not in drivers.app_names(checkpoints):
            raise unknown_app(name, checkpoints)
        status = read_status(checkpoints / name)
        print(
            f"{name}: its status.json cannot be read; a running app writes it anew"
            if status is None
            else drivers.describe(checkpoints / name, status)
        )
    if not names:
        print(f"No app has run under {checkpoints}.")
    return 0


COMMAND = Command("status", "show how a streaming app is doing", run, add_arguments)
