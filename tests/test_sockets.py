"""Workers find each other by abstract Unix sockets."""

import os
import threading

from semistream.streaming.workers import sockets


def test_another_user_is_not_believed_and_not_answered(monkeypatch):
    monkeypatch.setattr(sockets, "_address", lambda key: f"\0semistream-test-{os.getpid()}-{key}")
    listening = [sockets.listen(key) for key in "ab"]
    friend = sockets.connect("a")
    monkeypatch.setattr(sockets.os, "getuid", lambda: 12345)
    assert sockets.connect("b") is None
    answered = []
    answering = threading.Thread(target=lambda: answered.extend(sockets.connections(listening[0])))
    answering.start()
    with friend:
        assert friend.recv(1) == b""
    for socket in listening:
        sockets.close(socket)
    answering.join(30)
    assert not answered
