"""What a proof cannot look at turns nothing off: it is named, all else is checked, and the verdict
says so."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from semistream.data_files import Unreadable, list_files, same_names
from semistream.errors import ConfigError
from semistream.job import StreamSpec
from semistream.streaming.sources.file_reader import find_reader
from semistream.warehouse.ledger import Ledger
from semistream.warehouse.proof import proof_and_source, read_proof
from semistream.warehouse.source_files import source_files
from sink_loads import Loader, alter, check, failed, rows_of


@pytest.fixture
def loader(tmp_path):
    """Two batches, and a file in a directory below that is in none."""
    loader = Loader(f"sqlite:///{tmp_path / 'warehouse.db'}", tmp_path)
    (loader.directory / "below").mkdir()
    (loader.directory / "below" / "late.parquet").write_bytes(b"late")
    loader.load(range(2))
    return loader


def findings(loader: Loader) -> dict[str, str]:
    result = check(loader, sample=0)
    assert failed(result) == {"source_files"}, result.describe()
    assert "`semistream reset sales --file PATH`" in result.failed[0].remedy
    rows = rows_of(result, "source_files")
    return {str(Path(r["file"]).relative_to(loader.directory)): r["finding"] for r in rows}


def test_a_link_that_leads_nowhere(loader):
    (loader.directory / "dangling.parquet").symlink_to("/nothing")
    found = findings(loader)
    assert (
        found["dangling.parquet"]
        == "could not be looked at: a link to /nothing, which is not there"
    )
    assert found["below/late.parquet"].startswith("in no batch") and len(found) == 2


def test_a_name_that_is_not_utf8(loader):
    shutil.rmtree(loader.directory / "below")
    with open(os.fsencode(loader.directory) + b"/bad\xff.parquet", "wb"):
        pass
    assert findings(loader) == {
        "bad\\xff.parquet": "its name is not UTF-8, so that no load takes it: rename it"
    }
    with pytest.raises(ConfigError, match="names are in UTF-8.*bad.*xff.parquet"):
        find_reader(StreamSpec(path=str(loader.directory), columns="id INT"))


def test_links_in_a_circle(loader):
    (loader.directory / "self.parquet").symlink_to("self.parquet")
    (loader.directory / "again").symlink_to(".", target_is_directory=True)
    found = findings(loader)
    assert "it leads to a directory above it" in found["again"]
    assert "Too many levels of symbolic links" in found["self.parquet"]
    assert "below/late.parquet" in found and len(found) == 3


@pytest.mark.parametrize("what", ["a file of a batch", "an entry", "a directory"])
def test_an_entry_that_gives_an_error(loader, monkeypatch, what):
    """As a network file system may, for instance."""
    path = (
        loader.directory
        / {
            "a file of a batch": "orders-1.parquet",
            "an entry": "below/late.parquet",
            "a directory": "below",
        }[what]
    )
    look = {"a directory": "scandir"}.get(what, "stat")
    original = getattr(os, look)

    def failing(place=".", *arguments, **options):
        if str(place) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return original(place, *arguments, **options)

    if what == "an entry":
        path.unlink()
        path.symlink_to(path.with_name("x" * 300))  # ENAMETOOLONG
    else:
        monkeypatch.setattr(os, look, failing)
    found = findings(loader)
    assert found[str(path.relative_to(loader.directory))].startswith("could not be looked at: ")
    assert len(found) == (2 if what == "a file of a batch" else 1)


def test_a_directory_that_may_not_be_read(monkeypatch):
    place = Path(tempfile.mkdtemp())
    try:
        place.chmod(0o755)
        (place / "hidden").mkdir(mode=0o700)
        (place / "seen.csv").touch()
        if os.geteuid():
            (place / "hidden").chmod(0)
        else:
            os.seteuid(65534)
        found = {Path(e.path).name: e for e in list_files(str(place), {})}
        several = {Path(e.path).name: e for e in list_files(f"{place}/*", {})}
    finally:
        os.seteuid(os.getuid())
        shutil.rmtree(place)
    for each in (found, several):
        assert each.keys() == {"seen.csv", "hidden"}
        assert each["hidden"].why == "Permission denied"


def test_what_vanishes_while_it_is_listed(tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    for name in ("stays.csv", "goes.csv", "below/goes_too.csv"):
        (tmp_path / name).touch()
    original = os.scandir

    @contextmanager
    def vanishing(place):
        with original(place) as entries:
            found = list(entries)
        for name in ("goes.csv", "below/goes_too.csv"):
            (tmp_path / name).unlink(missing_ok=True)
        if (tmp_path / "below").exists():
            (tmp_path / "below").rmdir()
        yield found

    monkeypatch.setattr(os, "scandir", vanishing)
    assert [e.name for e in list_files(str(tmp_path), {})] == ["stays.csv"]


def test_patterns_name_what_hadoop_does(tmp_path):
    for name in ("a/1.csv", "b/2.csv", "c/3.csv", ".d/4.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "e").symlink_to("/nothing")

    def names(pattern):
        return [
            Path(e.path).name if not isinstance(e, Unreadable) else f"not {Path(e.path).name}"
            for e in list_files(f"{tmp_path}/{pattern}", {})
        ]

    assert names("{a,b}") == ["1.csv", "2.csv"] and names("{a,b}/*.csv") == ["1.csv", "2.csv"]
    assert names("?/*.csv") == ["1.csv", "2.csv", "3.csv", "not e"]
    assert names("none") == [] and names("[ab]") == ["1.csv", "2.csv"]


@pytest.mark.parametrize(
    ("path", "former", "same"),
    [
        ("/data/sales/", "/data/sales", True),
        ("/data/*", "/data/sales", True),
        ("/data", "/data/sales", True),
        ("/data/{sales,more}", "/data/sales", True),
        ("/data/sales/*.csv", "/data/sales", True),
        ("/data/other", "/data/sales", False),
        ("/data/x*", "/data/sales", False),
        ("s3://a/b", "s3://a/b/", True),
        ("s3://a/c", "s3://a/b", False),
        ("/a/b", "s3://a/b", False),
    ],
)
def test_paths_under_which_files_keep_their_names(path, former, same):
    assert same_names(path, former) == same


def test_the_verdict_says_what_was_not_looked_at(loader):
    """With the source gone, nothing is wrong, but not all was looked at."""
    shutil.rmtree(loader.directory / "below")
    assert "looked at" not in check(loader).describe()
    shutil.rmtree(loader.directory)
    result = check(loader)
    assert result.success and len(result.notes) == 2
    said = result.describe()
    assert "but not all could be looked at; The source was not counted again: " in said
    assert f"The source {loader.directory} is gone" in said
    with loader.engine.connect() as connection:
        assert read_proof(connection, "sales").unseen == tuple(result.unseen)


def test_files_that_are_not_loaded_are_in_the_verdict(loader):
    """A driver was killed, and what it had loaded was verified. The next load reads to the end."""
    alter(loader, "UPDATE load_commits SET source_listed = NULL")
    for since_last in (False, True):
        result = check(loader, since_last=since_last)
        assert result.success and (result.report is None) == since_last
        assert "Complete as far as it was loaded: yes: batches 0 to 1, " in result.describe()
        assert "1 file of the source is not loaded yet. `semistream load JOB`" in result.describe()
        assert "looked at" not in result.describe()
    with loader.engine.connect() as connection:
        proof = proof_and_source(connection, "sales")
    said = "yes, so far: 1 file of the source is not loaded yet; proven are batch"
    assert str(proof).startswith(said)

    Ledger(loader.engine, "sales").end_run(None, 1, time.time())  # and has passed it over
    result = check(loader, since_last=True)
    assert failed(result) == {"source_files"} and "not loaded yet" not in result.describe()
    shutil.rmtree(loader.directory / "below")
    result = check(loader, since_last=True)
    assert result.success and result.proof.startswith("yes: ") and not result.unfinished


def test_a_file_that_has_changed_is_noticed_though_nothing_was_committed(loader):
    shutil.rmtree(loader.directory / "below")
    file = loader.directory / "orders-0.parquet"
    status = file.stat()
    noted = f"size = {status.st_size}, modified = {status.st_mtime_ns}"
    alter(loader, f"UPDATE load_files SET {noted} WHERE path = '{file}'")
    assert check(loader).success
    assert "nothing was committed" in str(check(loader, since_last=True))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with loader.engine.connect() as connection:
        proof = str(proof_and_source(connection, "sales"))
    assert proof.startswith("yes, so far: 1 file of the source is not as loaded")
    for _ in range(2):  # until it is mended
        assert failed(check(loader, since_last=True)) == {"source_files"}
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert check(loader, since_last=True).proof.startswith("yes: ")


def test_ten_thousand_files_are_compared_at_once(loader):
    shutil.rmtree(loader.directory / "below")
    time.sleep(0.05)  # the kernel's clock of files goes in steps
    for number in range(10_000):
        (loader.directory / f"more-{number}.parquet").touch()
    began = time.process_time()
    with loader.engine.connect() as connection:
        found = source_files(connection, "sales")
    assert (found.left, found.findings) == (10_000, ())
    assert time.process_time() - began < 1


def test_a_later_verification_of_everything_takes_the_reservations_away(loader):
    shutil.rmtree(loader.directory / "below")
    file = loader.directory / "orders-1.parquet"
    aside = shutil.move(file, loader.directory.parent)
    assert "but not all could be looked at" in check(loader).proof
    shutil.move(aside, file)
    result = check(loader)
    assert result.success and "looked at" not in result.proof
