"""What SIGINT and SIGTERM do to a command: they end it at once until its work begins, and then by a
KeyboardInterrupt, so that what it has begun to write goes. A Spark app has a way of its own to
stop, once it can; until then they end it at once, too."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec

P = ParamSpec("P")
MESSAGE = "Interrupted; nothing was written."

came: list[int] = []  # signals


def end_at_once() -> None:
    """Let a signal end this process without a traceback, wherever its imports are."""
    _handle(_end)


def raise_from_now_on() -> None:
    """Let a signal raise KeyboardInterrupt."""
    came.clear()
    _handle(_raise)
    sys.unraisablehook = _unraisable


def ignore() -> None:
    """Let no signal disturb the end of a process whose work is done."""
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[[int, object], object] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        # as a shell has it for what runs in the background
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _end(number: int, frame: object) -> NoReturn:
    os.write(2, f"{MESSAGE}\n".encode())
    os._exit(130)


def _raise(number: int, frame: object) -> NoReturn:
    came.append(number)
    raise KeyboardInterrupt


def leave(code: int) -> NoReturn:
    """End the process without destroying its objects one by one, which takes a while. PyArrow's
    readers and writers that an interrupt has cut short do not survive that, about once in a hundred
    times."""
    ignore()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """An interrupt that came within a finaliser is noted, and ends the command a moment later: no
    traceback of it, nor of what finalisers find half made."""
    if not came:
        sys.__unraisablehook__(what)


def interruptible(tell: Callable[P, None]) -> Callable[P, None]:
    """What tells of progress also ends the command where a finaliser swallowed the
    KeyboardInterrupt."""
    def told(*arguments: P.args, **named: P.kwargs) -> None:
        if came:
            raise KeyboardInterrupt
        tell(*arguments, **named)

    return told
