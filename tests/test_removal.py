"""An app's name, its rows and its checkpoint taken away again, and what is said when something
fails."""

import errno
import json
import logging
import os
import re
from pathlib import Path

import pytest
from sqlalchemy import inspect

from loads import verify
from semistream import cli, local
from semistream.durable import naming
from semistream.errors import ConfigError
from semistream.paths import Paths
from semistream.pipeline import steps
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import StatusFile, checkpoint_lock, read_status
from semistream.warehouse import connect


def tables(load):
    mine = dict.fromkeys(
        ("load_batches", "load_commits", "load_files", "quality_runs"), "app = 'sales'"
    )
    mine |= dict.fromkeys(
        ("fact_sales", "unmatched", "load_inputs", "load_rejections"), of_app("sales")
    )
    return {
        t: load.query(f"SELECT count(*) FROM {t} WHERE {where}")[0][0] for t, where in mine.items()
    }


def of_app(name):
    """Rows of an app, also where their ledger rows are gone: the number is the first digits of its
    load_ids."""
    number = f"(SELECT number FROM load_apps WHERE app = '{name}')"
    first = f"{number} * 100000000000000"
    return f"load_id BETWEEN {first} AND {first} + 99999999999999"


@pytest.mark.parametrize("command", ["reset", "remove"])
def test_what_an_app_has_loaded_is_taken_away_and_can_be_loaded_again(
    spark, load, monkeypatch, capsys, command
):
    monkeypatch.setenv("SEMISTREAM_HOME", str(load.paths.home))
    monkeypatch.setenv("WAREHOUSE_URL", load.paths.warehouse_url)
    load.publish()
    load.add_file(500)
    load.run(spark, app="other")
    load.run(spark)
    assert verify(load).success and all(tables(load).values())
    assert cli.main([command, "sales"]) == 1  # nobody can be asked
    assert "This deletes what sales has loaded (" in capsys.readouterr().out
    assert all(tables(load).values())
    with checkpoint_lock(load.paths.checkpoints / "sales"):
        assert cli.main([command, "sales", "--yes"]) == 2
        said = capsys.readouterr().err
        assert "is in use by another app" in said and "semistream stop sales" in said
    (load.paths.home / "mine").mkdir()
    (load.paths.home / "mine" / "file").touch()
    assert cli.main([command, "sales", "--yes", "--checkpoint", str(load.paths.home / "mine")]) == 2
    assert cli.main([command, "..", "--yes"]) == 2 and (load.paths.home / "mine/file").exists()
    assert all(tables(load).values())
    capsys.readouterr()
    assert cli.main([command, "sales", "--yes"]) == 0
    assert not any(tables(load).values()) and not (load.paths.checkpoints / "sales").exists()
    assert not list(load.paths.snapshots.glob("*/*/pins/sales"))
    assert list(load.paths.snapshots.glob("*/*/pins/other"))
    assert (load.paths.home / "reports/validations/sales").exists() == (command == "reset")
    assert load.query("SELECT count(*) FROM load_commits WHERE app = 'other'") != [(0,)]
    assert cli.main([command, "sales", "--yes"]) == 2
    assert "Those that have: other" in capsys.readouterr().err
    assert load.run(spark).rows_read == 500 and verify(load).success
    assert load.query(f"SELECT count(*) FROM fact_sales WHERE {of_app('sales')}") == load.query(
        f"SELECT count(*) FROM fact_sales WHERE {of_app('other')}"
    )


def test_what_is_in_a_delta_table_is_not_taken_away(spark, sqlite_load):
    sqlite_load.publish()
    sqlite_load.add_file(50)
    sqlite_load.run(spark, sink=str(sqlite_load.paths.home / "delta"))
    with pytest.raises(ConfigError, match="Delete that table or directory"):
        steps.reset("sales", sqlite_load.paths)
    assert sqlite_load.query("SELECT count(*) FROM load_commits") != [(0,)]


def test_a_second_app_on_a_fact_table_is_warned_of(spark, sqlite_load, caplog):
    sqlite_load.publish()
    sqlite_load.add_file(50)
    sqlite_load.run(spark)
    with caplog.at_level(logging.WARNING):
        sqlite_load.run(spark, app="second")
    assert "fact_sales also has rows of sales" in caplog.text


def test_an_app_is_called_as_its_job_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path / "var"))
    job = {
        "name": "sales",
        "stream": {},
        "master": {"name": "part"},
        "on": "sku",
        "fact_table": "f",
    }
    for name in ("sales", "returns"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(json.dumps(job | {"name": name}))
        assert LoadSettings.load({"job": str(tmp_path / name / "job.yaml")}).name() == name
    assert LoadSettings.load({"job": "tpch"}).name() == "tpch"
    (tmp_path / "odd.yaml").write_text(json.dumps(job | {"name": "a/b"}))
    for settings in (
        {"job": str(tmp_path / "odd.yaml")},
        {"job": "tpch", "app": ".."},
        {"job": "tpch", "app": "."},
    ):
        with pytest.raises(ConfigError, match="not begin with"):
            LoadSettings.load(settings).name()


def test_a_full_disk_is_said_with_the_file(tmp_path, monkeypatch):
    with (
        pytest.raises(OSError, match=r"No space left on device: .*state-1"),
        naming(tmp_path / "state-1"),
        open("/dev/full", "wb") as file,
    ):
        file.write(b"x" * 100_000)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ValueError, match="the reason"), StatusFile(tmp_path, "sales") as status:
        status.update(state="running")
        monkeypatch.setattr("semistream.streaming.status.write_json", full)
        raise ValueError("the reason")
    told = read_status(tmp_path)
    assert told is not None and (told.state, told.error) == ("failed", "ValueError: the reason")


def test_the_readme_s_queries_run(spark, load):
    load.publish()
    load.add_file(300)
    load.run(spark)
    assert verify(load).success
    assert inspect(connect(load.paths.warehouse_url)).has_table("dim_part")
    text = (Path(__file__).parents[1] / "docs" / "loading.md").read_text()
    queries = re.search(r"```sql\n(.*?)```", text, re.DOTALL)[1].strip().splitlines()
    assert len(queries) == 3
    for query in queries:
        query = (
            query.replace("dim_product", "dim_part")
            .replace("product_sk", "part_sk")
            .replace("d.category", "d.name")
        )
        assert load.query(query.removesuffix(";"))


def test_a_failed_step_of_make_load_says_which_checks(tmp_path):
    from rich.console import Console

    class Fails:
        def run(self, *arguments):
            # no other app's failure is this load's
            form = json.loads(arguments[arguments.index("--conf") + 1])
            assert form == {"app": "tpch", "since_last": True}
            log.write_text(
                "INFO x\nVerificationFailed: tpch: 1 of 17 checks failed.\n- Rows "
                "(rows): 3 rows\n    id=7\nReport: /r/1.html\nINFO y\n"
            )
            return False

    log = tmp_path / "load.log"
    log.write_text("")
    screen = Console(record=True, width=200)
    assert not local._run_dag(
        Fails(), "verify_completeness", "tpch", screen, Paths(home=tmp_path), log
    )
    shown = screen.export_text()
    assert "1 of 17 checks failed" in shown and "id=7" in shown and "Report: /r/1.html" in shown
    assert "INFO" not in shown
