"""SIGTERM and SIGINT as a request to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


class StopSignals:
    """The signals that ask an app to stop. came: an event that is set when a signal has come.

    The driver's JVM is the process of spark-submit. Without a handler it would end at once, with
    the code 143 or 130, and this process with it. With a handler the JVM lives until this process
    has drained, and returns its exit code. The handler is a Java SignalHandler: a thread of the JVM
    calls `handle`.
    """

    def __init__(self) -> None:
        self.came = threading.Event()
        # each signal with its former handler: of this process, and of the JVM
        self._former, self._of_jvm = dict[signal.Signals, Any](), list[tuple[Any, Any]]()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals inside the block, in this process and, after a call of `take_jvm`, in
        the driver's JVM."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            # a shell ignores the signal for background processes
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, lambda *_: self.came.set())
        try:
            yield
        finally:
            with suppress(Exception):  # the JVM has ended
                for taken, handler in self._of_jvm:
                    self._signals.handle(taken, handler)
            for number, handler in self._former.items():
                signal.signal(number, handler)

    def take_jvm(self, context: SparkContext) -> None:
        """Handle the signals in the JVM, too."""
        if self._former:
            ensure_callback_server_started(context._gateway)
            self._signals = context._gateway.jvm.sun.misc.Signal
            for number in self._former:
                taken = self._signals(number.name.removeprefix("SIG"))
                self._of_jvm.append((taken, self._signals.handle(taken, self)))

    def handle(self, _: object) -> None:
        self.came.set()

    class Java:
        implements = ("sun.misc.SignalHandler",)
