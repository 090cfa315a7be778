"""Python workers of one machine and user find each other by what they have.

Abstract sockets: their address is gone with the process that listens there.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Iterator

PATIENCE = 10.0  # s


def listen(key: object) -> socket.socket | None:
    """Where those find this process who want what ``key`` says; None if another process is found there already."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_address(key))
    except OSError:
        listening.close()
        return None
    listening.listen(64)
    return listening


def visitors(listening: socket.socket) -> Iterator[socket.socket]:
    """Who comes, until ``leave``."""
    while True:
        try:
            visitor, _ = listening.accept()
        except OSError:
            return
        with visitor:
            visitor.settimeout(PATIENCE)
            if _mine(visitor):
                yield visitor


def leave(listening: socket.socket) -> None:
    listening.shutdown(socket.SHUT_RDWR)  # ends a waiting accept, which close does not
    listening.close()


def visit(key: object) -> socket.socket | None:
    """Who has what ``key`` says, or None."""
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.settimeout(PATIENCE)
    try:
        other.connect(_address(key))
        if _mine(other):  # what somebody else says is not to be believed
            return other
    except OSError:
        pass
    other.close()
    return None


def exactly(source: socket.socket, size: int) -> bytes:
    """Raises EOFError when the other ends before."""
    parts = []
    while size:
        part = source.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _address(key: object) -> str:
    return f"\0semistream-{os.getuid()}-{hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()}"


def _mine(other: socket.socket) -> bool:
    """Whether the process at the other end is the same user's."""
    return struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] == os.getuid()
