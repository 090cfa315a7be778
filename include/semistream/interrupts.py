"""The effect of SIGINT and SIGTERM on a command. Before its work begins, a signal ends the command
at once. Afterwards a signal raises KeyboardInterrupt, so that incomplete output is removed. A Spark
app handles signals itself once it is able to; until then, a signal ends the app at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, ParamSpec

P = ParamSpec("P")
MESSAGE = "Interrupted; nothing was written."
KEPT = "Interrupted; what was finished until then is kept."  # after a command with several steps

came: list[int] = []  # signals
_deferring: list[bool] = []  # an element for each block of the main thread that is not interrupted


def end_at_once() -> None:
    """Let a signal end this process without a traceback, even during imports."""
    _handle(_end)


def raise_from_now_on() -> None:
    """Let signals raise KeyboardInterrupt from now on."""
    came.clear()
    _handle(_raise)
    sys.unraisablehook = _unraisable


def ignore() -> None:
    """Ignore signals from now on, at the end of a process whose work is done."""
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[[int, object], object] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        # a shell ignores the signal for background processes
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _end(_number: int, _frame: object) -> NoReturn:
    os.write(2, f"{MESSAGE}\n".encode())
    os._exit(130)


def _raise(number: int, _frame: object) -> None:
    came.append(number)
    if not _deferring:
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a signal at the end of a block: for one in which a finaliser
    or a callback of C would swallow it, and go on with what is half done."""
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        yield
        return
    before = len(came)
    _deferring.append(True)
    try:
        yield
    finally:
        _deferring.pop()
    if len(came) > before:
        raise KeyboardInterrupt


def leave(code: int) -> NoReturn:
    """End the process without destroying its objects one by one, which would take a while. Besides,
    destroying PyArrow's readers and writers after an interrupt crashes about once in a hundred
    times."""
    ignore()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Suppress the traceback of an interrupt inside a finaliser, and of errors that finalisers then
    raise. The interrupt has been recorded, and ends the command a moment later."""
    if not came:
        sys.__unraisablehook__(what)


def interruptible(tell: Callable[P, None]) -> Callable[P, None]:
    """Wrap a progress function so that it also ends the command if a finaliser swallowed the
    KeyboardInterrupt."""

    def wrapper(*arguments: P.args, **named: P.kwargs) -> None:
        if came:
            raise KeyboardInterrupt
        tell(*arguments, **named)

    return wrapper
