"""``semistream load``."""

from __future__ import annotations

import sys
from argparse import Namespace

from semistream.cli import console
from semistream.cli.command import Command


def run(arguments: Namespace) -> int:
    from semistream.pipeline.load import load
    from semistream.pipeline.summary import final_summary, summary_table
    from semistream.quality import VerificationFailed
    from semistream.streaming.settings import load_with_settings, settings_kind

    given, paths = arguments.settings, arguments.paths
    job, of_job = load_with_settings(given.job, paths)
    settings = settings_kind(job).load(
        of_job | {name: getattr(given, name) for name in given.model_fields_set}
    )

    def show() -> None:
        summary = final_summary(settings.name(), paths)
        console.show(
            arguments.json,
            summary.as_dict(),
            lambda _: console.text_console().print(summary_table(summary)),
        )

    try:
        with console.progress(arguments.progress) as tell:
            stopped = load(settings, paths, tell, lambda line: print(line, file=sys.stderr))
    except VerificationFailed:  # then above all one wants to see what was loaded
        show()
        raise
    show()
    if stopped:
        print(f"Interrupted: {stopped}.", file=sys.stderr)
    return 130 if stopped else 0


COMMAND = Command(
    "load",
    "provision a job's dimensions, load its stream, and prove that all of it arrived",
    run,
    settings="semistream.streaming.settings.AnyLoadSettings",
    positional=(("job", "JOB"),),
    progress=True,
    json=True,
    example="semistream load nycflights13.",
    extras=("spark", "verify"),
)
