"""`semistream load`: a job from end to end without Airflow, its second run, errors, and a stop."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect

from loads import delta_facts, until
from semistream.errors import ConfigError
from semistream.paths import Paths
from semistream.pipeline import drivers
from semistream.settings import read_yaml
from semistream.warehouse import open_warehouse

JOB = """
name: sales
stream: {format: csv, path: sales, id: [id]}
master: {name: product, path: products.csv}
on: sku
fact_table: fact_sales
"""

# an app that ends, drained, before a batch comes
STOPPED = """
import sys
from pathlib import Path
from semistream.errors import NotEnoughMemory
from semistream.streaming.status import StatusFile
checkpoint = Path("var/checkpoints/sales")
with StatusFile(checkpoint, "sales") as status:
    (checkpoint / "flags").write_text(" ".join(sys.argv[1:]))
    status.update(state="stopped")
"""
REFUSES = f"{STOPPED}    raise NotEnoughMemory(5_000, 9, 'a join')"
TWO = """
name: sales
left: {format: csv, path: sales, id: [id]}
right: {format: csv, path: sales, id: [id]}
on: id
fact_table: fact_sales
"""


@pytest.fixture
def sales(run, tmp_path) -> Path:
    """A job's file in the directory in which ``run`` runs commands; 900 of 1,000 tuples match."""
    (tmp_path / "products.csv").write_text(
        "sku,name\n" + "".join(f"p{i},Product {i}\n" for i in range(90))
    )
    (tmp_path / "sales").mkdir()
    add_sales(tmp_path, "a", 0, 1000)
    (tmp_path / "sales.yaml").write_text(JOB)
    return tmp_path


def add_sales(directory: Path, name: str, first: int, count: int) -> None:
    lines = [f"{i},p{i % 100},{i % 7}" for i in range(first, first + count)]
    (directory / f"{name}.new").write_text("\n".join(["id,sku,quantity", *lines]))
    (directory / f"{name}.new").rename(directory / "sales" / f"{name}.csv")


@pytest.mark.slow
def test_it_provisions_loads_and_proves(run, sales):
    code, out, err = run("load", "sales.yaml")
    assert code == 0, err
    table = [line.split() for line in out.replace("│", " ").splitlines()]
    assert ["rows", "read", "1,000", "1,000"] in table
    assert ["no_match", "100", "100"] in table
    assert ["complete", "yes"] in table
    (rate,) = [line[3] for line in table if line[:3] == ["end", "to", "end"]]
    assert f", {rate} tuples/s end to end" in run("status", "sales")[1]
    assert "dim_product: read 90, inserted 90" in err
    assert "INFO" not in out + err

    log = sales / "var" / "checkpoints" / "sales" / "driver.log"
    before = log.stat().st_size
    code, out, err = run("load", "sales.yaml")
    assert (code, log.stat().st_size) == (0, before)  # Spark was not started
    assert "sales: nothing new to load" in err

    (sales / "sales.yaml").write_text(JOB.replace("on: sku", "on: {article: sku}"))
    add_sales(sales, "b", 1000, 10)
    code, out, err = run("load", "sales.yaml")
    assert code == 2
    assert "'dimensions.product.on' must stay {'sku': 'sku'}, by which the facts that" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_load_into_another_sink_is_refused_before_anything_is_written(run, sales):
    """One forgotten --sink would split the facts, and each load's own proof would hold."""
    lake = str(sales / "lake")
    code, out, err = run("load", "sales.yaml", "--sink", lake)
    assert code == 0, err
    before = delta_facts(lake, ["id"])
    add_sales(sales, "b", 1000, 10)
    with (sales / "products.csv").open("a") as file:
        file.write("p90,Product 90\n")
    refusal = f"'sink' must stay {lake}, into which sales has loaded so far. Got 'sql' instead."
    ways = "Give the former one, load under another --app name, or load the source anew: "
    driver = [sys.executable, "-m", "semistream.spark_apps.semi_stream_join", "--job", "sales.yaml"]
    app = subprocess.run(driver, capture_output=True, text=True, check=False)
    for code, err in (run("load", "sales.yaml")[::2], (app.returncode, app.stderr)):
        assert code == 2 and f"{refusal} {ways}semistream reset sales." in err, err
    code, out, _ = run("check", "sales.yaml")
    assert code == 1 and refusal in out
    with open_warehouse(Paths.from_environment().warehouse_url) as engine:
        assert not inspect(engine).has_table("fact_sales")
        with engine.connect() as connection:
            names = "SELECT count(*) FROM dim_product WHERE sku = 'p90'"
            assert connection.exec_driver_sql(names).scalar() == 0
    assert delta_facts(lake, ["id"]) == before
    code, out, _ = run("check", "sales.yaml", "--sink", lake)
    assert code == 0 and f"Facts go to fact_sales in {lake}." in out
    assert f"  facts: fact_sales in {lake}\n" in run("status", "sales")[1]
    assert run("load", "sales.yaml", "--sink", lake)[0] == 0
    assert len(delta_facts(lake, ["id"])) == len(before) + 10


@pytest.mark.slow
def test_a_load_whose_proof_fails_says_what_it_has_loaded(run, sales):
    (sales / "sales.yaml").write_text(JOB + "max_unmatched: 0.01\n")
    code, out, err = run("load", "sales.yaml")
    assert code == 1 and "unmatched_share" in err
    table = [line.split() for line in out.replace("│", " ").splitlines()]
    assert ["rows", "read", "1,000", "1,000"] in table and ["complete", "NO"] in table
    (sales / "sales.yaml").write_text(JOB + "max_unmatched: 0.5\n")
    code, out, _ = run("verify", "sales", "--job", "sales.yaml")
    assert code == 0 and out.count("Report: ") == 1


@pytest.mark.slow
def test_an_unknown_format_is_one_sentence_that_names_the_likely_one(run, sales):
    (sales / "sales.yaml").write_text(JOB.replace("format: csv", "format: cvs"))
    code, _, err = run("load", "sales.yaml")
    assert code == 2
    assert err.splitlines()[-1].startswith("Wrong setting: 'stream.format' must be")
    assert "Got 'cvs' instead. Did you mean csv?" in err


def interrupted(sales: Path, progress: str, *flags: str) -> tuple[int, str, str]:
    """The exit code and the output of a load that is interrupted when its driver's progress has
    this text."""
    process = subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", "load", "sales.yaml", *flags],
        cwd=sales,
        env=os.environ | {"SEMISTREAM_HOME": str(sales / "var")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell lets what runs in the background ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    checkpoint = sales / "var" / "checkpoints" / "sales"
    try:
        until(lambda: progress in drivers.progress(checkpoint), timeout=120)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "Stopping sales" in err
    assert drivers.ending(checkpoint) == ("stopped", "")
    return process.returncode, out, err


@pytest.mark.slow
def test_an_interrupt_drains_and_proves(sales):
    code, out, err = interrupted(sales, "1,000 rows read", "--trigger", "1 second")
    assert code == 0, err
    assert "complete" in out


@pytest.mark.slow
def test_an_interrupt_before_all_was_read_says_what_is_left(run, sales):
    for number in range(1, 60):
        add_sales(sales, f"b{number}", 1000 * number, 10)
    code, out, err = interrupted(sales, "starting: batch -", "--max-files", "1")
    assert code == 130, err
    assert "sales was stopped before its first batch: nothing is loaded." in err
    assert "Failed" not in err and not out

    code, out, err = interrupted(sales, "running: batch 1,", "--max-files", "1")
    with sqlite3.connect(sales / "var" / "warehouse.db") as connection:
        ((loaded,),) = connection.execute("SELECT count(*) FROM load_files")
    assert code == 130 and 0 < loaded < 60, err
    left = f"{60 - loaded} files of the source are not loaded yet"
    assert f"Interrupted: {left}. The same command goes on where it was." in err
    table = [line.split() for line in out.replace("│", " ").splitlines()]
    assert ["complete", "yes,", "so", "far"] in table
    assert f"Complete so far: {left}; proven are batches 0 to " in out
    for said in (run("status", "sales")[1], run("verify", "sales")[1]):
        assert left in said and "far" in said
    assert json.loads(run("status", "sales", "--json")[1])[0]["proof"] == "complete so far"

    code, out, err = run("load", "sales.yaml")
    table = [line.split() for line in out.replace("│", " ").splitlines()]
    assert code == 0 and ["complete", "yes"] in table and "not loaded" not in out + err
    add_sales(sales, "c", 60_000, 10)
    code, out, err = interrupted(sales, "starting: batch -")
    assert code == 130, err
    assert "Interrupted: 1 file of the source is not loaded yet. The same command goes on" in err
    assert (
        "Complete so far: 1 file of the source is not loaded yet; proven are batches 0 to " in out
    )


@pytest.mark.slow
def test_a_file_that_was_appended_to_is_noticed_by_a_load_with_nothing_new(run, sales):
    assert run("load", "sales.yaml")[0] == 0
    file = sales / "sales" / "a.csv"
    loaded = file.read_text()
    file.write_text(f"{loaded}\n5000,p1,1\n")
    for command in (("load", "sales.yaml"), ("load", "sales.yaml"), ("verify", "sales")):
        code, out, err = run(*command)
        assert code == 1 and "written since it was loaded" in err, out + err
    code, out, _ = run("check", "sales.yaml")
    assert code == 1 and f"{file}: written since it was loaded" in out
    assert "sales: nothing new to load" in run("load", "sales.yaml")[2]
    for check in ("(source_files): 1 row", "(source_rows): 1 row", "(none_missing): 1 row"):
        remedy = err.partition(check)[2].partition("What to do: ")[2].partition("\n")[0]
        assert "`semistream reset sales --file PATH`, and load" in remedy and "cp -p" in remedy

    file.write_text(loaded)  # the same bytes, at another time
    said = run("verify", "sales")[2]
    assert "1 of " in said and "checks failed" in said
    told = re.search(rf"{len(loaded):,} bytes of (.+? UTC) then, {len(loaded):,} bytes of", said)
    subprocess.run(["touch", "-d", told[1], file], check=True)
    assert run("verify", "sales")[0] == 0

    file.write_text(f"{loaded}\n5000,p1,1\n")
    assert run("load", "sales.yaml")[0] == 1
    assert run("reset", "sales", "--file", file, "--yes")[0] == 0
    code, out, _ = run("load", "sales.yaml")
    assert code == 0 and "1,001" in out


def test_yaml_that_has_true_for_on_is_understood(tmp_path):
    (tmp_path / "job.yaml").write_text("true: {a: b}\nname: x\n")
    assert read_yaml(tmp_path / "job.yaml") == {"on": {"a": "b"}, "name": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {b: 1}\nc:\n  d: 1\n  e: 2\n  d: 3\n", "Line 5: d is given twice, first in line 3."),
        (
            "a:\n  b: {c: d, e\nf: g\n",
            "Line 3: expected ',' or '}', but got ':' "
            "(while parsing a flow mapping, which begins in line 2).",
        ),
        ("a: 1\nb: \t- c\n", "Line 2: found character '\\t' that cannot start any token"),
        ("a: 1\nb: \x01\n", "Line 2: special characters are not allowed: '\\x01'."),
    ],
)
def test_wrong_yaml_is_named_with_its_file_and_line(tmp_path, text, said):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_yaml(tmp_path / "job.yaml")
    assert str(tmp_path / "job.yaml") in str(raised.value)
    assert said in str(raised.value)


def test_a_yaml_mapping_may_override_a_key_that_it_merges(tmp_path):
    (tmp_path / "job.yaml").write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}\n")
    assert read_yaml(tmp_path / "job.yaml")["d"] == {"b": 3, "c": 2}


def test_without_a_command_the_next_steps_are_named(run):
    code, out, _ = run()
    assert code == 0
    assert "semistream load nycflights13" in out
    code, _, err = run("lod", "sales.yaml")
    assert code == 2
    assert "Did you mean load?" in err


def test_a_reader_that_has_read_enough_is_no_error(sales):
    words = f"{sys.executable} -m semistream.cli algorithms"
    shell = subprocess.run(
        ["bash", "-c", f"{words} | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (shell.stdout.strip(), shell.stderr) in (("141", ""), ("0", ""))


def test_a_running_load_is_not_started_again(run, sales):
    from semistream.streaming.status import checkpoint_lock

    with checkpoint_lock(sales / "var" / "checkpoints" / "sales"):
        code, _, err = run("load", "sales.yaml")
    assert code == 2
    assert "'app' must not be running already" in err


def test_an_app_that_was_stopped_before_its_first_batch_is_told_so(run, sales, monkeypatch):
    from semistream.pipeline import load

    monkeypatch.setattr(load, "APP", (sys.executable, "-c", STOPPED))
    code, _, err = run("load", "sales.yaml")
    assert code == 130
    assert "sales was stopped before its first batch: nothing is loaded." in err
    assert "Interrupted; what was finished until then is kept." in err


def test_a_setting_that_only_the_app_refuses_is_a_wrong_one(run, sales, monkeypatch):
    from semistream.pipeline import load

    monkeypatch.setattr(load, "APP", (sys.executable, "-c", REFUSES))
    code, _, err = run("load", "sales.yaml", "--memory", "9")
    assert code == 2
    assert "Wrong setting: 'memory' must be at least 5,000 bytes for a join. Got 9" in err


def test_what_cannot_be_is_refused_before_anything_is_provisioned(run, sales):
    code, _, err = run("load", "sales.yaml", "--algorithm", "hashjoin")
    assert code == 2 and "Did you mean 'hash-join'?" in err
    code, _, err = run("load", "sales.yaml", "--algorithm", "ssj", "--parameters", "disk=1")
    assert code == 2 and "'disk' is not a setting" in err
    assert not (sales / "var" / "warehouse.db").exists()
    code, _, err = run("verify", "sales", "--sample", "-1")
    assert code == 2 and "'sample' must be at least 0" in err


def test_a_tuple_that_one_role_would_infer_and_another_rejects_is_proven(run, tmp_path):
    (tmp_path / "rows.csv").write_text("".join(f"{i},name {i}\n" for i in ["k", *range(10)]))
    (tmp_path / "in").mkdir()
    tuples = "".join(f"{i},{i % 11}\n" for i in range(44))  # no row has key 10
    (tmp_path / "in" / "a.csv").write_text(f"id,k\n{tuples}")
    (tmp_path / "job.yaml").write_text(
        """
name: star
stream: {format: csv, path: in, columns: 'id BIGINT, k BIGINT', id: [id]}
dimensions:
  a: {dimension: {path: rows.csv}, on: k, late: infer, columns: {name k: a}}
  b: {dimension: {path: rows.csv}, on: k, columns: {name k: b}}
fact_table: fact_star
"""
    )
    code, out, err = run("load", "job.yaml")
    assert code == 0, err
    assert "unmatched" in out


def test_settings_of_two_streams_are_those_of_their_jobs(run, sales, monkeypatch):
    from semistream.pipeline import load

    monkeypatch.setattr(load, "APP", (sys.executable, "-c", STOPPED))
    assert "--end" in run("load", "--help")[1]
    flags = ("--end", "--parameters", "purge_threshold=5")
    assert run("load", "sales.yaml", *flags[:1])[0] == 2
    (sales / "two.yaml").write_text(TWO)
    run("load", "two.yaml", *flags)
    given = (sales / "var" / "checkpoints" / "sales" / "flags").read_text()
    assert all(flag in given.split() for flag in flags)


def test_settings_of_the_job_are_the_defaults_of_its_load(run, sales, monkeypatch):
    monkeypatch.setattr("semistream.pipeline.load.APP", (sys.executable, "-c", STOPPED))
    (sales / "sales.yaml").write_text(JOB + "settings: {memory: 5MB, partitions: 3}\n")
    assert run("load", "sales.yaml", "--partitions", "2")[0] == 130
    flags = Path("var/checkpoints/sales/flags").read_text()
    assert "--memory 5000000" in flags.replace("=", " ")
    assert "--partitions 2" in flags.replace("=", " ")


@pytest.mark.parametrize(
    "line, said",
    [
        ("schedule: 61 5 * * *", "'schedule' must be a cron expression of five fields"),
        ("schedule: on_file", "'schedule' must be a cron expression of five fields"),
        ("deadline: '06:00'", "'deadline' needs notify"),
        ("notify: [{class: no.such.Notifier}]", "must be the import path of a notifier that is"),
    ],
)
def test_what_airflow_would_refuse_is_found_by_check(sales, run, line, said):
    (sales / "sales.yaml").write_text(f"{JOB}{line}\n")
    code, out, _ = run("check", "sales.yaml")
    assert code == 1 and said in " ".join(out.split())
    (sales / "sales.yaml").write_text(f"{JOB}schedule: 59 5 * * *\n")
    assert run("check", "sales.yaml")[0] == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{memory: many}", "'settings.memory' is wrong"),
        ("{memry: 3MB}", "'settings.memry' is not a setting. Did you mean memory?"),
    ],
)
def test_wrong_settings_of_a_job_are_refused_by_their_name(run, sales, settings, said):
    (sales / "sales.yaml").write_text(f"{JOB}settings: {settings}\n")
    for command, code in (("check", 1), ("load", 2), ("tune", 2)):
        found, out, err = run(command, "sales.yaml")
        assert found == code
        assert said in out + err
    assert not list(sales.glob("var/snapshots/*"))


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        (
            {"stream:": "straem:", "fact_table:": "fact_tabel:", "name: sales": "name: [sales]"},
            ["'straem' is no", "'fact_tabel' is no", "'name' is wrong"],
        ),
        (
            {"format: csv": "fromat: csv", "on:": "max_unmatched: lots\nlate: soon\non:"},
            ["'stream.fromat' is no", "'max_unmatched' is wrong", "'late' is wrong"],
        ),
        (
            {"fact_table:": "settings: {memory: 8XB, max_wait: -1, memry: 1}\nfact_table:"},
            ["'settings.memry' is no", "'settings.memory' is wrong", "'settings.max_wait' is"],
        ),
        (
            {"fact_table:": "settings: {memory: 8XB, memry: 1}\nfact_tabel:"},
            ["'fact_tabel' is no", "'settings.memry' is no", "'settings.memory' is wrong"],
        ),
    ],
)
def test_all_wrong_settings_of_a_job_are_named_at_once(run, sales, changes, wrong):
    """A mistyped name is told once, and not as a missing one, too."""
    text = JOB
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    (sales / "sales.yaml").write_text(text)
    code, out, _ = run("check", "sales.yaml")
    out = " ".join(out.split())
    assert code == 1 and out.count("error: job: '") == len(wrong)
    assert all(f"error: job: {one}" in out for one in wrong)
    assert "sales.yaml cannot be loaded: 3 errors." in out
    for command in ("load", "tune", *(["provision"] if "settings:" not in text else [])):
        code, _, err = run(command, "sales.yaml")
        assert code == 2 and err.count("Wrong setting: '") == len(wrong), err
        assert all(f"Wrong setting: {one}" in err for one in wrong)


def test_a_check_and_tuning_take_the_memory_of_the_job(run, sales):
    job, found = sales / "sales.yaml", dict[str, str]()
    for given in ("", "settings: {memory: 5MB}\n"):
        job.write_text(JOB + given)
        found[given] = "".join(run("check", "sales.yaml")[1])
    default, given = found.values()
    assert "M = 64,000,000 bytes" in default
    assert "M = 5,000,000 bytes" in given
    assert "M = 6,000,000 bytes" in run("check", "sales.yaml", "--memory", "6MB")[1]
    assert run("provision", "sales.yaml")[0] == 0
    _, out, err = run("tune", "sales.yaml")
    assert "M = 5,000,000" in out, err
    job.write_text(JOB)
    assert "M = 64,000,000" in run("tune", "sales.yaml")[1]
