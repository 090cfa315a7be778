"""``semistream experiments``."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace

from semistream import interrupts
from semistream.cli import console
from semistream.cli.command import Command
from semistream.cli.options import add_settings, read_settings


def add_arguments(parser: ArgumentParser) -> None:
    from semistream.experiments.settings import ExperimentSettings

    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="experiments, a paper's (ssj, ssbj, sscj, x-hybridjoin, pjoin, "
                             "sketch: all of it), or all")
    parser.add_argument("--list", action="store_true", help="list them")
    add_settings(parser, ExperimentSettings)


def run(arguments: Namespace) -> int:
    from semistream.config import Places
    from semistream.experiments import EXPERIMENTS
    from semistream.experiments.findings import claims
    from semistream.experiments.report import claims_table
    from semistream.experiments.run import chosen, run
    from semistream.experiments.settings import ExperimentSettings

    screen = console.wide_console(150)
    if arguments.list or not arguments.names:
        table = console.list_table("name", "paper", "figure", "default scale", "what")
        for e in EXPERIMENTS.values():
            table.add_row(e.name, e.paper, e.figure, f"{e.scale:g}", e.about)
        console.print_table(screen, table)
        return 0
    settings, places = read_settings(ExperimentSettings, arguments), Places.from_environment()
    command = shlex.join(["semistream", "experiments", *arguments.names, *settings.to_arguments()])

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    for experiment in chosen(arguments.names):
        try:
            result = run(experiment, settings, places, command, interrupts.interruptible(tell))
        except KeyboardInterrupt:
            print("Interrupted; what was measured is kept, and the same command goes on from "
                  "there.", file=sys.stderr)
            return 130
        if result.findings:
            console.print_table(screen, claims_table(result.about, claims(result.findings)))
        for line in result.wrong:
            screen.print(f"Different answers to the same stream: {line}", style="red",
                         markup=False)
        print(f"Report: {result.report}")
        if result.wrong or not result.measured:
            return 1
    return 0


COMMAND = Command(
    "experiments", "repeat the papers' experiments, and judge their claims", add_arguments, run,
    example="semistream experiments ssbj-memory. Without a name: the list.")
