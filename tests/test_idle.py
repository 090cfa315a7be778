"""A load that has nothing to do ends without Spark, as a run of it would; whatever is left to do
makes it run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loads import SmallLoad
from semistream.errors import ConfigError, SemistreamError
from semistream.pipeline import steps
from semistream.sizing.role_plan import RolePlan
from semistream.streaming.app import App
from semistream.streaming.progress import Progress
from semistream.streaming.status import StatusFile, checkpoint_lock, read_status
from semistream.streaming.summary import read_summary


@pytest.fixture
def loaded(spark, sqlite_load) -> SmallLoad:
    """Two batches, loaded, and the last one drained."""
    for rows in (400, 300):
        sqlite_load.add_file(rows)
    assert sqlite_load.run(spark).waiting == 0
    return sqlite_load


def idle(load: SmallLoad, **values):
    settings = load.settings(**values)
    directory = settings.directory(load.paths)
    with checkpoint_lock(directory):
        return App(settings, load.job, load.paths, StatusFile(directory, "sales")).idle()


def test_it_notes_what_a_run_would_note(spark, loaded):
    ran = loaded.run(spark)
    (before,) = loaded.query("SELECT max(source_listed) FROM load_commits")[0]
    (loaded.checkpoint / "stop").touch()
    found = idle(loaded)
    assert replace(found, seconds=ran.seconds) == ran
    assert read_summary(loaded.checkpoint) == found
    assert read_status(loaded.checkpoint).state == "stopped"
    assert not (loaded.checkpoint / "stop").exists()
    assert loaded.query("SELECT max(source_listed) FROM load_commits")[0][0] > before
    loaded.add_file(200)
    assert idle(loaded) is None
    assert loaded.run(spark).rows_read == 200
    assert idle(loaded).rows_read == 0
    loaded.check()


def begun(load: SmallLoad) -> None:
    at = Progress.read(load.checkpoint, RolePlan)
    Progress(at.batch + 1, 0, at.plan, {}, at.source, at.sources).write(load.checkpoint)


def given_by_spark(load: SmallLoad) -> None:
    offsets = load.checkpoint / "query" / "offsets"
    (offsets / "2").write_bytes((offsets / "1").read_bytes())


LEFT_TO_DO = {
    "a file": lambda load: load.add_file(100),
    "a master version": lambda load: load.publish("new"),
    "a batch that was begun": begun,
    "a batch that Spark has begun": given_by_spark,
    "a batch that Spark has not noted": lambda load: (
        load.checkpoint / "query" / "commits" / "1"
    ).unlink(),
    "tuples that wait": lambda load: load.alter(
        "UPDATE load_inputs SET waiting = 5, rows_read = rows_read + 5 "
        "WHERE load_id = (SELECT max(load_id) FROM load_batches)"
    ),
    "a file whose name is forgotten": lambda load: load.alter(
        "DELETE FROM load_files WHERE batch = 0"
    ),
    "an entry that cannot be looked at": lambda load: (
        load.stream_directory / "x.parquet"
    ).symlink_to("nowhere"),
    "another job": lambda load: setattr(
        load,
        "job",
        load.job.model_copy(
            update={"stream": load.job.stream.model_copy(update={"max_unparsable": 0.5})}
        ),
    ),
    "no progress": lambda load: (load.checkpoint / "progress.json").unlink(),
    "no list of files": lambda load: (load.checkpoint / "query" / "sources" / "0" / "1").unlink(),
    "a damaged note": lambda load: (load.checkpoint / "progress.json").write_text("{}"),
    "an older ledger": lambda load: load.alter("DELETE FROM load_commits WHERE batch = 1"),
    "facts that are gone": lambda load: load.alter("DELETE FROM fact_sales"),
}
REFUSED = ("no progress", "a damaged note", "an older ledger", "facts that are gone")


@pytest.mark.parametrize("what", LEFT_TO_DO)
def test_whatever_is_left_to_do_or_to_refuse_is_left_to_a_run(loaded, what):
    assert idle(loaded) is not None
    LEFT_TO_DO[what](loaded)
    if what in REFUSED:
        with pytest.raises(SemistreamError):
            idle(loaded)
    else:
        assert idle(loaded) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"trigger": "5 seconds"},
        {"memory": "300KB"},
        {"join_type": "left"},
        {"partitions": 1},
        {"source_columns": "id BIGINT, sku STRING, amount DOUBLE"},
    ],
)
def test_changed_settings_are_left_to_a_run(loaded, settings):
    loaded_settings = {**loaded.settings().model_dump(), **settings}
    found = type(loaded.settings()).load(loaded_settings)
    directory = found.directory(loaded.paths)
    with checkpoint_lock(directory):
        assert App(found, loaded.job, loaded.paths, StatusFile(directory, "sales")).idle() is None


def test_another_sink_is_refused(loaded, tmp_path):
    with pytest.raises(ConfigError, match="'sink' must stay sql"):
        idle(loaded, sink=str(tmp_path / "delta"))


def test_a_step_leaves_what_a_load_refuses_to_the_load(loaded):
    settings = loaded.settings().model_copy(update={"job": str(loaded.yaml())})
    assert steps.load_without_spark(settings, loaded.paths)
    with checkpoint_lock(loaded.checkpoint):  # as another app holds it
        assert not steps.load_without_spark(settings, loaded.paths)
    loaded.alter("DELETE FROM fact_sales")
    assert not steps.load_without_spark(settings, loaded.paths)
    other = settings.model_copy(update={"app": "never_started"})
    assert not steps.load_without_spark(other, loaded.paths)
    assert not other.directory(loaded.paths).exists()


def test_what_lies_beside_the_data_is_nothing_to_do(loaded):
    (loaded.stream_directory / "_beside").mkdir()
    (loaded.stream_directory / "README").write_text("no data")
    (loaded.stream_directory / ".hidden.parquet").write_text("no data")
    assert idle(loaded) is not None
