"""``semistream stop``."""

from __future__ import annotations

from argparse import Namespace

from semistream.cli.command import Command
from semistream.cli.options import add_app, unknown_app


def run(arguments: Namespace) -> int:
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status, request_stop

    checkpoint = arguments.paths.checkpoints / arguments.app
    if arguments.app not in drivers.app_names(checkpoint.parent):
        raise unknown_app(arguments.app, checkpoint.parent)
    status = read_status(checkpoint)
    if status is not None and drivers.ending(checkpoint) is not None:
        print(f"{arguments.app} is not running: {drivers.state_of(checkpoint, status)}.")
        return 0
    request_stop(checkpoint)
    print(f"{arguments.app} was asked to drain and stop; see: semistream status {arguments.app}")
    return 0


COMMAND = Command("stop", "ask a streaming app to drain and stop", run, add_app)
