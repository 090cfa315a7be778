"""The common part of the scripts in ``spark_apps``.

``python -m semistream.streaming.script --job JOB`` runs the script that fits the job, on this
machine.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from semistream import interrupts
from semistream.errors import ConfigError, SemistreamError
from semistream.job import AnyJob
from semistream.paths import Paths
from semistream.resident import spare_pandas
from semistream.streaming.session import silence, start_spark
from semistream.streaming.settings import AppSettings, settings_kind
from semistream.streaming.status import StatusFile, checkpoint_lock, forget_former_stop


def run_app(
    program: str,
    about: str,
    kind: type[AppSettings],
    job_of: Callable[[str, Paths], AnyJob],
    argv: Sequence[str] | None,
) -> int:
    """Run the app according to its command line and return the exit code. about: the help's text;
    kind: class of the settings; job_of: a function that returns the job for a name or file."""
    parser = argparse.ArgumentParser(
        program,
        description=about,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kind.add_arguments(parser)
    arguments = parser.parse_args(argv)
    _log_to_stderr()
    try:
        settings = kind.from_arguments(arguments)
        paths = Paths.from_environment()
        checkpoint = settings.directory(paths)
        with checkpoint_lock(checkpoint):
            # before the status is written, as others wait for it to ask again
            forget_former_stop(checkpoint)
            with StatusFile(checkpoint, settings.name()) as status:
                _run(settings, job_of(settings.job, paths), paths, status)
            interrupts.ignore()
        return 0
    except SemistreamError as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        silence()
        return 2 if isinstance(e, ConfigError) else 1


def _run(settings: AppSettings, job: AnyJob, paths: Paths, status: StatusFile) -> None:
    """Run the app, and print its summary."""
    # opens in the background during the imports and checks below
    opening = start_spark(settings.name())
    spare_pandas()
    from semistream.streaming.app import App
    from semistream.streaming.summary import describe

    app = App(settings, job, paths, status)
    with app.signals.taken():
        app.check()
        context = opening(app.stop_requested)
        if context is None:
            print(describe(app.leave()))
            silence()
            return
        with context:
            print(describe(app.run(context)))


def main() -> int:
    """Run the app of the job in the command line, and return the exit code."""
    interrupts.end_at_once()
    from semistream.workloads import load_any_job

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--job", required=True)
    job = load_any_job(parser.parse_known_args()[0].job)
    return run_app("semistream load", __doc__ or "", settings_kind(job), load_any_job, None)


def _log_to_stderr() -> None:
    """Log the app's messages with the time to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s semistream: %(message)s", "%y/%m/%d %H:%M:%S")
    )
    logger = logging.getLogger("semistream")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
