import json
import os
import resource
import signal
from contextlib import closing
from pathlib import Path

import pytest

from semistream.durable import BLOCK, SECTOR, DirectFile, replacing, write_json, write_text


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
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (seen.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle)),
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("rename"), replace(a, b)))
    write_text(tmp_path / "a", "x")
    beside, *rest = seen
    assert beside.startswith(str(tmp_path / ".a.")) and rest == ["rename", str(tmp_path)]


@pytest.mark.parametrize("place", ["disk", "memory"])  # which has no page cache to write past
@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [SECTOR], [BLOCK], [BLOCK, 1], [BLOCK - 1, 2, 2 * BLOCK + 5], [70_001] * 90],
)
def test_a_direct_file_has_what_was_written(place, sizes, tmp_path):
    path = tmp_path / "a" if place == "disk" else Path(f"/dev/shm/semistream-{os.getpid()}")
    pieces = [os.urandom(size) for size in sizes]
    try:
        with closing(DirectFile(path)) as file:
            assert [file.write(piece) for piece in pieces] == sizes
        assert path.read_bytes() == b"".join(pieces)
        with pytest.raises(FileExistsError):
            DirectFile(path)
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("more", [0, 3 * BLOCK])  # found at the end, and before it
def test_a_direct_file_that_cannot_grow_says_so(more, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = DirectFile(tmp_path / "a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK + 5_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"), closing(file):
            file.write(bytes(2 * BLOCK + more))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_direct_file_is_on_disk_when_it_is_closed(tmp_path, monkeypatch):
    """The last bytes, which no direct write takes, too."""
    seen, fsync, pwrite = [], os.fsync, os.pwrite
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append("flushed"), fsync(handle)))
    monkeypatch.setattr(
        os,
        "pwrite",
        lambda handle, data, at: (written := pwrite(handle, data, at), seen.append(written))[0],
    )
    with closing(DirectFile(tmp_path / "a")) as file:
        file.write(bytes(SECTOR + 7))
    assert seen == [SECTOR, 7, "flushed"]
