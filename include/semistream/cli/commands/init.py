"""``semistream init``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import add_force, check_new

if TYPE_CHECKING:
    from semistream.pipeline.proposal import Proposal


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "stream",
        nargs="?",
        type=Path,
        metavar="STREAM_FILE",
        help="the stream's tuples: a CSV, JSON lines or Parquet file, or a directory of such; "
        "without one, the command asks",
    )
    parser.add_argument(
        "master", nargs="*", type=Path, metavar="MASTER_FILE", help="master data, likewise"
    )
    parser.add_argument("--name", default="", help="name of the job [after the stream]")
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="[ROLE:]STREAM=MASTER",
        help="join columns in the place of proposed ones; ROLE is the master file's name",
    )
    parser.add_argument(
        "--id",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column that identifies a stream tuple, in the place of proposed ones; repeat it for "
        "several",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the job's file [$SEMISTREAM_HOME/jobs/NAME.yaml]"
    )
    add_force(parser)


def run(arguments: Namespace) -> int:
    from semistream.errors import ConfigError
    from semistream.pipeline.job_schema import SCHEMA_FILE, job_schema
    from semistream.pipeline.proposal import propose

    if arguments.stream is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                "STREAM_FILE",
                "must be given, where no terminal is there to ask on",
                None,
                "For instance: semistream init sales.csv products.csv",
            )
        _ask(arguments)
    if not arguments.master:
        raise ConfigError(
            "MASTER_FILE",
            "must be given: what the stream is joined with",
            None,
            f"For instance: semistream init {arguments.stream} products.csv",
        )
    found = propose(
        arguments.stream, arguments.master, name=arguments.name, on=arguments.on, ids=arguments.id
    )
    if not arguments.name and arguments.stream.is_dir() and sys.stdin.isatty():
        found = replace(found, name=_answer("Name of the job", found.name))
    out = arguments.out or arguments.paths.jobs / f"{found.name}.yaml"
    check_new(out, arguments.force)
    out.parent.mkdir(parents=True, exist_ok=True)
    schema = out.parent / SCHEMA_FILE
    schema.write_text(job_schema())
    out.write_text(found.to_yaml(out.parent, SCHEMA_FILE))
    console.show(arguments.json, found.as_dict() | {"file": str(out)}, lambda _: _print(found, out))
    return 0


def _ask(arguments: Namespace) -> None:
    """Ask the user for what the command line lacks, with proposals found in the files."""
    from semistream.pipeline.proposal import propose

    arguments.stream = Path(_answer("1. The stream's file or directory"))
    masters = _answer("2. Master files, separated by blanks")
    arguments.master = [Path(word) for word in masters.split()]
    found = propose(arguments.stream, arguments.master)
    for role in found.roles:
        shown = ",".join(f"{s}={m}" for s, m in role.key.on.items())
        said = f"3. Join columns of {role.name} ({role.key.rate:.0%} of the tuples have a row)"
        if (given := _answer(said, shown)) != shown:
            arguments.on += [f"{role.name}:{pair.strip()}" for pair in given.split(",")]
    ids = ",".join(found.ids.columns)
    if (given := _answer("4. Columns that identify a tuple", ids)) != ids:
        arguments.id = [column.strip() for column in given.split(",") if column.strip()]
    arguments.name = _answer("5. Name of the job", arguments.name or found.name)


def _answer(question: str, proposed: str = "") -> str:
    """Return the user's answer to a question, or the proposed answer if the user just confirms.
    The end of the input (Ctrl-D) is an interrupt."""
    shown = f" [{proposed}]" if proposed else ""
    while True:
        try:
            given = input(f"{question}{shown}: ").strip()
        except EOFError:
            raise KeyboardInterrupt from None
        if given or proposed:
            return given or proposed


def _print(found: Proposal, out: Path) -> None:
    from semistream.settings import pair_words

    shares = ("tuples with a row", "rows that differ in it")
    table = console.plain_table("role", "rows", "join columns", *shares, right=("rows", *shares))
    for role in found.roles:
        key, master = role.key, role.master
        table.add_row(
            role.name,
            f"{'' if master.whole else 'about '}{master.about:,}",
            pair_words(key.on),
            f"{key.rate:.1%}",
            f"{key.distinct:.1%}",
        )
    stream, ids = found.stream, ", ".join(found.ids.columns) or "no columns"
    about = "" if stream.whole else "about "
    print(f"{found.name}: {about}{stream.about:,} tuples, identified by {ids}\n")
    console.print_table(console.wide_console(150), table)
    screen = console.text_console()
    if notes := list(found.notes()):
        print()
        console.print_remarks(screen, note=notes)
    screen.print(
        f"\nWritten: {out}\n"
        f"  semistream check {out}    what its load will do, without loading\n"
        f"  semistream load {out}     provision, load and prove it"
    )


COMMAND = Command(
    "init",
    "propose a job from a stream's file and master files: types, keys and formats",
    run,
    add_arguments,
    json=True,
    example="semistream init sales.csv products.csv stores.csv --out sales.yaml.",
    without_pandas=True,
)
