"""The command line: the list of commands, and the arguments of the given one."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from semistream.cli.command import Command
from semistream.cli.commands import (
    algorithms,
    check,
    completion,
    estimate_join_size,
    init,
    join,
    join_streams,
    load,
    provision,
    replay,
    reset,
    schema,
    snapshot,
    status,
    stop,
    tune,
    unmatched,
    verify,
)
from semistream.cli.options import add_arguments

COMMANDS = {
    command.name: command
    for command in (
        join.COMMAND,
        join_streams.COMMAND,
        init.COMMAND,
        check.COMMAND,
        load.COMMAND,
        snapshot.COMMAND,
        provision.COMMAND,
        verify.COMMAND,
        unmatched.COMMAND,
        replay.COMMAND,
        tune.COMMAND,
        estimate_join_size.COMMAND,
        algorithms.COMMAND,
        status.COMMAND,
        stop.COMMAND,
        reset.RESET,
        reset.REMOVE,
        schema.COMMAND,
        completion.COMMAND,
    )
}
ENVIRONMENT = (
    "Environment: SEMISTREAM_HOME [var], WAREHOUSE_URL [sqlite:///$SEMISTREAM_HOME/warehouse.db]."
)
NEXT_STEPS = """\
Join a stream with master data larger than memory, exactly and completely.

  semistream join --stream sales.csv --master products.csv --on sku --out joined.parquet
      joins two files; --help explains every option
  semistream load nycflights13
      loads a shipped job into a warehouse, and proves that all of it arrived
  semistream init sales.csv products.csv
      proposes a job for files of your own, to check and load: docs/first-job.md

semistream --help lists the other commands."""


class Parser(argparse.ArgumentParser):
    """A parser whose flags must be written out. An unknown flag is an error that names the nearest
    one."""

    def __init__(self, **options: Any):
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        given = re.search(r"invalid choice: '([^']+)'", message)
        near = difflib.get_close_matches(given[1], COMMANDS, 1, 0.5) if given else []
        said = f"{message}. Did you mean {near[0]}?" if near else message
        self.exit(2, f"{self.prog}: {said}\nSee {self.prog} --help.\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        first = unknown[0].split("=")[0]
        near = (
            difflib.get_close_matches(first, self._option_string_actions, 1, 0.5)
            if first.startswith("-")
            else []
        )
        self.error(f"unknown argument {first}." + (f" Did you mean {near[0]}?" if near else ""))


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        from importlib.metadata import version

        parser.exit(0, f"semistream {version('semistream')}\n")


def parse(argv: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """Parse a command line. Return the command and its arguments. Exits if the command line is
    wrong."""
    parser, parsers = _parsers(argv)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parsers[arguments.command].refuse(unknown)
    return COMMANDS[arguments.command], arguments


def complete(line: str) -> None:
    """Print the completions of a command line for the shell, and exit."""
    import argcomplete

    argcomplete.autocomplete(_parsers(line.split()[1:])[0])


def _parsers(argv: Sequence[str]) -> tuple[Parser, dict[str, Parser]]:
    """Return the main parser, and the parser of each command. Only the given command's parser has
    arguments, because those of the others would be slow to import."""
    parser = Parser(
        prog="semistream",
        description="Join a stream with master data larger than memory, exactly and completely.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    given = next((word for word in argv if not word.startswith("-")), None)
    parsers: dict[str, Parser] = {}
    for name, command in COMMANDS.items():
        epilog = [f"Example: {command.example}"] if command.example else []
        epilog += [] if command.files_only else [ENVIRONMENT]
        parsers[name] = subparsers.add_parser(
            name,
            help=command.about,
            epilog=" ".join(epilog) or None,
            description=f"{command.about[0].upper()}{command.about[1:]}.",
        )
    if given in parsers:
        add_arguments(parsers[given], COMMANDS[given])
    return parser, parsers
