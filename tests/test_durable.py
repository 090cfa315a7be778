import json
import os
import signal

import pytest

from semistream.durable import replacing, write_json, write_text


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})
    write_json(path, {"n": [2, None]})
    assert json.loads(path.read_text()) == {"n": [2, None]}
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_changes_nothing(tmp_path):
    path = tmp_path / "a"
    write_text(path, "before")
    with pytest.raises(OSError, match="disk"), replacing(path) as file:
        file.write(b"half")
        raise OSError("disk")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_changes_nothing(tmp_path):
    path = tmp_path / "a"
    write_text(path, "before")
    if not (pid := os.fork()):
        with replacing(path) as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert path.read_text() == "before"


def test_content_and_name_are_on_disk_before_it_returns(tmp_path, monkeypatch):
    """In this order: the content, the name, the directory."""
    seen, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync",
                        lambda handle: (seen.append(os.readlink(f"/proc/self/fd/{handle}")),
                                        fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("rename"), replace(a, b)))
    write_text(tmp_path / "a", "x")
    beside, *rest = seen
    assert beside.startswith(str(tmp_path / ".a.")) and rest == ["rename", str(tmp_path)]
