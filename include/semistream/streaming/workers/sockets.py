"""Abstract Unix sockets by which the Python workers of one machine and one user find each other.

An address is derived from a key, and vanishes with the process that listens there.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Iterator

TIMEOUT = 10.0  # s, of a send or receive


def listen(key: object) -> socket.socket | None:
    """Listen on the socket derived from ``key``; return None if another process already listens
    there."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_address(key))
    except OSError:
        listening.close()
        return None
    listening.listen(64)
    return listening


def connections(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept connections of the same user, one at a time, until ``close``."""
    while True:
        try:
            other, _ = listening.accept()
        except OSError:
            return
        with other:
            other.settimeout(TIMEOUT)
            if _is_same_user(other):
                yield other


def close(listening: socket.socket) -> None:
    """Stop listening, even if another thread is waiting for a connection."""
    listening.shutdown(socket.SHUT_RDWR)  # ends a waiting accept, which close() does not
    listening.close()


def connect(key: object) -> socket.socket | None:
    """Connect to the process of the same user that listens for ``key``; None if there is none."""
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.settimeout(TIMEOUT)
    try:
        other.connect(_address(key))
        if _is_same_user(other):
            return other
    except OSError:
        pass
    other.close()
    return None


def receive_exactly(source: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises EOFError if the connection ends earlier."""
    parts = []
    while size:
        part = source.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _address(key: object) -> str:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
    return f"\0semistream-{os.getuid()}-{digest}"


def _is_same_user(other: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user. Processes of other users
    are not trusted."""
    return (
        struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        == os.getuid()
    )
