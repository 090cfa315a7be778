"""What lies on disk or in the ledger is damaged between two runs: the load is refused, naming it,
or comes out right."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from damage import copy, flip, of_former_version
from loads import SmallLoad, delta_facts, same, verify
from semistream.errors import SemistreamError, StateError
from semistream.pipeline import steps
from semistream.streaming.app import App
from semistream.streaming.sinks.delta import DeltaSink

SETTINGS = {"algorithm": "meshjoin", "parameters": {}, "memory": "400KB"}


class Lost(Exception):
    """The driver's machine is."""


def lost(*_):
    raise Lost


@pytest.fixture(scope="module")
def killed(spark, tmp_path_factory):
    """A load that was killed while tuples waited, and more of its source; it can be brought back to
    that moment."""
    home = tmp_path_factory.mktemp("damage")
    load = SmallLoad(home / "home", f"sqlite:///{home / 'warehouse.db'}")
    load.publish()
    for rows in (2500, 2500):
        load.add_file(rows)
    drain = App._drain
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Lost):
        patch.setattr(
            App, "_drain", lambda self: lost() if self.commits.last == (1, 0) else drain(self)
        )
        load.run(spark, **SETTINGS)
    assert load.query("SELECT sum(waiting) FROM load_batches WHERE batch = 1")[0][0] > 0
    load.add_file(500)
    shutil.copytree(home / "home", home / "before", symlinks=True)
    copy(home / "warehouse.db", home / "before.db")
    return load


def bring_back(load: SmallLoad) -> None:
    home = load.paths.home
    shutil.rmtree(home)
    shutil.copytree(home.parent / "before", home, symlinks=True)
    copy(home.parent / "before.db", home.parent / "warehouse.db")


def remove(path: Path) -> Path:
    path.unlink()
    return path


def largest(paths) -> Path:
    return max(paths, key=lambda p: p.stat().st_size)


def statement(*statements: str, named: str = "the ledger of sales ends with 0"):
    def run(load: SmallLoad) -> str:
        load.alter(*statements)
        return named

    return run


def state_of(load: SmallLoad) -> Path:
    [(name,)] = load.query(
        "SELECT state_file FROM load_inputs JOIN load_batches USING (load_id) "
        "WHERE batch = 1 AND partition = 0"
    )
    return load.checkpoint / "state" / name


def altered_progress(load: SmallLoad) -> Path:
    path = load.checkpoint / "progress.json"
    path.write_text(path.read_text().replace('"batch": 1', '"batch": 2'))
    return path


def version(load: SmallLoad) -> Path:
    return load.paths.snapshots / "part" / "code" / "v000001"


DAMAGES = {  # each gives what the refusal must name
    "a bit of the master data": lambda load: flip(largest(version(load).glob("*.arrow"))),
    "a bit of the master's codes": lambda load: flip(largest(version(load).glob("*.codes")), 0.1),
    "a file of the master data is gone": lambda load: remove(
        largest(version(load).glob("*.arrow"))
    ),
    "a bit of the manifest": lambda load: flip(version(load) / "manifest.json", 0.9),
    "a bit of the name of the current version": lambda load: flip(
        load.paths.snapshots / "part" / "code" / "CURRENT", 0.8
    ),
    "a bit of progress.json": lambda load: flip(load.checkpoint / "progress.json"),
    "another batch in progress.json": altered_progress,
    "progress.json is gone": lambda load: remove(load.checkpoint / "progress.json").parent,
    "a bit of a join state": lambda load: flip(state_of(load)),
    "a join state is gone": lambda load: remove(state_of(load)),
    "a join state of a former version": lambda load: of_former_version(state_of(load)),
    "a ledger row of the last batch": statement(
        "DELETE FROM load_batches WHERE batch = 1 AND partition = 1", named="load_batches"
    ),
    "the commit of the last batch": statement("DELETE FROM load_commits WHERE batch = 1"),
    "all partitions of the last batch": statement(
        "DELETE FROM load_batches WHERE batch = 1", named="load_batches"
    ),
    "all of the last batch in the ledger": statement(
        "DELETE FROM load_commits WHERE batch = 1", "DELETE FROM load_batches WHERE batch = 1"
    ),
    "spark's own note of the last batch": lambda load: (
        remove(load.checkpoint / "query" / "offsets" / "1").parent.parent
    ),
    "spark's query": lambda load: shutil.rmtree(load.checkpoint / "query"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_refused_or_comes_out_right(spark, killed, damage):
    bring_back(killed)
    named = damage(killed)
    try:
        killed.run(spark, **SETTINGS)
    except Exception as e:
        assert (
            isinstance(e, SemistreamError)
            or "StateError" in str(e)
            or "CONCURRENT_STREAM_LOG_UPDATE" in str(e)
        ), e
        assert str(named) in str(e)
        assert not killed.facts() - killed.expected()[0], "what was loaded before is right"
    else:
        killed.check()


@pytest.mark.parametrize("way", ["the directory is restored", "it is loaded anew"])
def test_the_version_that_waiting_tuples_need_is_gone_while_a_newer_one_exists(
    spark, killed, tmp_path, way
):
    bring_back(killed)
    killed.publish()
    aside = shutil.move(version(killed), tmp_path)
    for _ in range(2):
        with pytest.raises(StateError) as e:
            killed.run(spark, **SETTINGS)
        assert re.search(
            r"[\d,]+ tuples of sales wait to be joined with that very version", str(e.value)
        )
        assert f"restore {version(killed)} from a backup" in str(e.value)
        assert "semistream reset sales" in str(e.value) and "anew: `" not in str(e.value)
    if way == "the directory is restored":
        shutil.move(aside, version(killed))
    else:
        steps.reset("sales", killed.paths)
    killed.run(spark, **SETTINGS)
    killed.check()


def test_a_version_s_name_is_not_given_twice(spark, killed):
    """Else what waits for a version that is gone would be joined with another."""
    bring_back(killed)
    shutil.rmtree(version(killed))
    killed.publish()
    assert not version(killed).exists()
    with pytest.raises(StateError, match="wait to be joined with that very version"):
        killed.run(spark, **SETTINGS)


def test_a_load_that_was_not_damaged_goes_on(spark, killed):
    bring_back(killed)
    killed.run(spark, **SETTINGS)
    killed.check()


def test_a_promise_that_is_gone_is_missed(spark, sqlite_load, tmp_path, monkeypatch):
    sqlite_load.add_file(2500)
    delta = str(tmp_path / "delta")
    with monkeypatch.context() as patch, pytest.raises(Lost):
        patch.setattr(DeltaSink, "commit", lost)
        sqlite_load.run(spark, sink=delta)
    intent = sqlite_load.checkpoint / "intent.json"
    aside = shutil.move(intent, tmp_path)
    for _ in range(2):
        with pytest.raises(SemistreamError, match=r"intent\.json"):
            sqlite_load.run(spark, sink=delta)
    shutil.copy(aside, intent)
    flip(intent)
    with pytest.raises(SemistreamError, match=r"intent\.json is damaged"):
        sqlite_load.run(spark, sink=delta)
    shutil.move(aside, intent)
    sqlite_load.run(spark, sink=delta)
    same(delta_facts(delta), sqlite_load.expected()[0])
    sqlite_load.check_ledger()


def test_damaged_files_of_a_delta_table_are_found(spark, sqlite_load, tmp_path):
    delta = tmp_path / "delta"
    for _ in range(3):
        sqlite_load.add_file(500)
        sqlite_load.run(spark, sink=str(delta), partitions=1)

    def failed() -> dict[str, list]:
        return {r.name: r.rows for r in verify(sqlite_load).failed}

    assert not failed()
    first, second, third = sorted(delta.glob("*.parquet"), key=lambda p: -p.stat().st_size)[:3]
    before = second.read_bytes()
    flip(first, 0.4)
    second.write_bytes(before[:-100])
    remove(third)
    found = {r["file"]: r["finding"] for r in failed()["table_files"]}
    assert {str(second), str(third)} <= set(found) and "gone" in found[str(third)]
    assert "in place of" in found[str(second)]
    assert {"fact_rows", "same_rows"} <= set(failed())
