"""The console command ``semistream``: the join without Airflow or Spark, and the single steps of
the pipeline.

Modules are imported only when a command needs them, so that listing the commands is fast.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semistream import interrupts

if TYPE_CHECKING:
    from argparse import Namespace

    from semistream.cli.command import Command

GARBAGE = 50_000  # new objects after which Python looks for garbage


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit code: 0 for success; 1 for a failure or an incomplete load; 2
    for wrong settings; 130 for an interrupt."""
    own_process = argv is None
    if own_process:
        interrupts.end_at_once()
        # what imports create stays; to look for garbage would take a tenth of their time
        gc.set_threshold(GARBAGE)
        # Pydantic searches all installed packages for plugins
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        # no matrices are multiplied here, and NumPy's threads for that spin when they begin
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from semistream.cli.parser import NEXT_STEPS, complete, parse

    if own_process and "_ARGCOMPLETE" in os.environ:
        complete(os.environ["COMP_LINE"])
    words = sys.argv[1:] if argv is None else argv
    if not words:
        print(NEXT_STEPS)
        return 0
    command, arguments = parse(words)
    if own_process and command.without_pandas:
        from semistream.resident import spare_pandas

        spare_pandas()
    if not (own_process and hasattr(arguments, "progress")):  # otherwise done when progress begins
        interrupts.raise_from_now_on()
    code = _run(command, arguments)
    if own_process and (code == 130 or command.files_only):
        interrupts.leave(code)
    if own_process:
        interrupts.ignore()
    return code


def _run(command: Command, arguments: Namespace) -> int:
    from semistream.cli.options import prepare
    from semistream.errors import ConfigError, MissingExtra, SemistreamError
    from semistream.imports import missing_extra, require

    try:
        require(command.extras)
        prepare(command, arguments)
        code = command.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as e:
        # an interrupt may be inside code that wraps every error, as NumPy's import does
        if interrupts.came or isinstance(e, KeyboardInterrupt):
            code, message = 130, interrupts.MESSAGE if command.files_only else interrupts.KEPT
        elif isinstance(e, ConfigError):
            code, message = 2, "\n".join(f"Wrong setting: {error}" for error in e.errors)
        elif isinstance(e, MissingExtra):
            code, message = 2, str(e)
        elif isinstance(e, ImportError):
            if (missing := missing_extra(e)) is None:
                raise
            code, message = 2, str(missing)
        elif isinstance(e, SemistreamError):
            code, message = 1, f"Failed: {e}"
        elif isinstance(e, OSError):
            code, message = 1, f"Failed: {e}.{_remedy(str(e), e.filename, arguments)}"
        else:
            from sqlalchemy import make_url  # takes a while to import
            from sqlalchemy.exc import DBAPIError

            if not isinstance(e, DBAPIError):
                raise
            url = make_url(arguments.paths.warehouse_url)
            remedy = _remedy(str(e.orig), url.database, arguments)
            code, message = 1, f"Failed: {e.orig} (warehouse: {url.render_as_string()}).{remedy}"
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(message, style="red", markup=False)
    return code


# what an operating system or SQLite says of a place where nothing can be written, and the remedy
REMEDIES = (
    (("No space left", "Disk quota", "is full"), " Make room there, and run the command again."),
    (
        ("Read-only", "readonly", "Permission denied", "unable to open database"),
        " Allow this user to write there, or {other}.",
    ),
)


def _remedy(message: str, place: str | bytes | int | None, arguments: Namespace) -> str:
    """Return what helps where a place cannot be written; "" for other errors. place: its path, if
    it is known. Only a place in SEMISTREAM_HOME moves with it."""
    paths, path = getattr(arguments, "paths", None), os.path.realpath(str(place))
    inside = paths is not None and path.startswith(os.path.join(os.path.realpath(paths.home), ""))
    other = "set SEMISTREAM_HOME to another directory" if inside else "name another place"
    found = next((remedy for words, remedy in REMEDIES if any(w in message for w in words)), "")
    return found.format(other=other)
