"""The papers' experiments: python -m benchmarks.papers [NAME …]

NAME is an experiment (ssbj-memory), a paper (ssj, ssbj, sscj, x-hybridjoin, pjoin, sketch: all of
its experiments), or all. Without a name: the list. The exit code is 1 if answers differ or nothing
could be measured.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.papers import EXPERIMENTS
from benchmarks.papers.findings import claims
from benchmarks.papers.report import claims_table
from benchmarks.papers.run import chosen, run
from benchmarks.papers.settings import ExperimentSettings
from semistream.errors import ConfigError, SemistreamError
from semistream.paths import Paths


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.papers",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    ExperimentSettings.add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        if arguments.list or not arguments.names:
            _list()
            return 0
        return _run(arguments.names, ExperimentSettings.from_arguments(arguments))
    except SemistreamError as e:
        _tell(str(e))
        return 2 if isinstance(e, ConfigError) else 1
    except KeyboardInterrupt:
        _tell("Interrupted; what was measured is kept, and the same command goes on from there.")
        return 130


def _run(names: list[str], settings: ExperimentSettings) -> int:
    command = shlex.join(["python", "-m", "benchmarks.papers", *names, *settings.to_arguments()])
    screen = _screen()
    for experiment in chosen(names):
        result = run(experiment, settings, Paths.from_environment(), command, _tell)
        if result.findings:
            screen.print(claims_table(result.about, claims(result.findings)))
        for line in result.wrong:
            screen.print(f"Different answers to the same stream: {line}", style="red", markup=False)
        print(f"Report: {result.report}")
        if result.wrong or not result.measured:
            return 1
    return 0


def _list() -> None:
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("name", "paper", "figure", "default scale", "what"):
        table.add_column(column, overflow="fold")
    for e in EXPERIMENTS.values():
        table.add_row(e.name, e.paper, e.figure, f"{e.scale:g}", e.about)
    _screen().print(table)


def _screen() -> Console:
    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=150)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
