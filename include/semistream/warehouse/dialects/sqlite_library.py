"""The copy of SQLite with which Python's ``sqlite3`` is linked, and the handles of its connections.

Rows are transferred at the speed of C only through SQLite's C interface, and only this copy may
touch a file that ``sqlite3`` has open. If a process has two copies, the one that closes the file
releases the locks of the other (https://sqlite.org/howtocorrupt.html, 2.2.1).
"""

from __future__ import annotations

import _sqlite3
import ctypes
import threading
from functools import cache

ENTRY_POINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_opened = threading.local()


@ENTRY_POINT
def _note(handle: int, _message: int, _api: int) -> int:
    _opened.handle = handle
    return 0  # SQLITE_OK


@cache
def library() -> ctypes.CDLL | None:
    """Load SQLite's functions. Return None if Python does not expose them. From then on SQLite
    reports the handle of each connection that it opens."""
    try:
        # finds the library that the extension module is linked with, or contains
        found = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        found.sqlite3_auto_extension.argtypes = [ENTRY_POINT]
        return found if found.sqlite3_auto_extension(_note) == 0 else None
    except (OSError, AttributeError):
        return None


def newest_handle() -> int | None:
    """Return the ``sqlite3 *`` of the connection that this thread opened last, and forget it.
    Return None if it is unknown or was already returned."""
    return _opened.__dict__.pop("handle", None)
