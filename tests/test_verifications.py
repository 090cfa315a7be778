"""One verification after another: what they have proven together, and what is kept of them."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from semistream import quality
from semistream.paths import Paths
from semistream.pipeline import drivers, steps
from semistream.streaming.status import StatusFile, checkpoint_lock
from semistream.warehouse import connect, create_all
from semistream.warehouse.proof import read_proof
from semistream.warehouse.schema import load_apps, load_batches, load_commits, quality_runs
from sink_loads import (
    BATCHES,
    ON_SQLITE,
    PER_BATCH,
    alter,
    change,
    check,
    failed,
    now,
    rows_of,
    run_count,
)


def test_since_last(loader):
    loader.load(range(2), drain=False)
    first = check(loader)
    assert first.success, str(first)
    assert first.figures["waiting"] > 0
    loader.load(range(2, 3), drain=False)
    alter(loader, "UPDATE fact_sales SET name = 'before' WHERE order_id = 20")
    # begins with the tuples that waited, so it needs their sources too
    later = check(loader, since_last=True)
    assert later.success and later.proof.startswith("yes: batches 0 to 2"), str(later)
    assert later.figures["rows read"] == PER_BATCH
    alter(loader, "DELETE FROM fact_sales WHERE order_id = 130")
    loader.commit(2, 1)
    drained = check(loader, since_last=True)
    # the batch that lost it was verified before, yet it has not arrived
    assert failed(drained) == {"none_missing"}
    assert run_count(loader) == 3
    assert [r["order_id"] for r in rows_of(drained, "none_missing")] == [130]
    assert failed(check(loader)) == {
        "none_missing",
        "fact_rows",
        "same_rows",
        "enriched_columns",
        "sample_joined",
    }


def test_a_failure_stays_open_until_the_same_batches_pass(loader):
    """Also when what was loaded since is sound."""
    loader.load(range(2))
    assert check(loader).success
    with loader.engine.begin() as connection:
        lost = [
            dict(r)
            for r in connection.execute(
                sa.select(loader.fact).where(loader.fact.c.order_id == 20)
            ).mappings()
        ]
        change(connection, "DELETE FROM fact_sales WHERE order_id = 20")
    # what is proven is not looked at again
    assert "nothing was committed" in str(check(loader, since_last=True))
    assert not check(loader).success
    loader.load(range(2, 3))
    later = check(loader, since_last=True)
    assert failed(later) == {"fact_rows", "none_missing", "same_rows"}
    assert later.proof.startswith("NO: batches 0 to 2 failed")
    with loader.engine.begin() as connection:
        connection.execute(loader.fact.insert(), lost)
    mended = check(loader, since_last=True)
    assert mended.success and mended.figures["rows read"] == 3 * PER_BATCH
    assert mended.proof.startswith("yes: batches 0 to 2, 24 checks on ")


@pytest.mark.parametrize(
    "runs, until, open_failures",
    [
        ([], (-1, 1), 0),
        ([(None, (3, 1), True)], (3, 1), 0),
        ([(None, (3, 1), True), ((3, 1), (5, 1), True)], (5, 1), 0),
        ([(None, (3, 1), True), ((4, 1), (5, 1), True)], (3, 1), 0),  # nobody looked at batch 4
        ([(None, (3, 1), True), (None, (3, 1), False), ((3, 1), (5, 1), True)], (-1, 1), 1),
        ([(None, (3, 1), True), ((3, 1), (5, 1), False), ((5, 1), (6, 1), True)], (3, 1), 1),
        ([(None, (3, 1), True), ((3, 1), (5, 1), False), ((3, 1), (6, 1), True)], (6, 1), 0),
        (
            [((3, 1), (5, 1), False), (None, (4, 1), True)],
            (4, 1),
            1,
        ),  # of what failed, batch 5 is left
        ([((3, 1), (5, 1), False), (None, (6, 1), True)], (6, 1), 0),
    ],
    ids=str,
)
def test_what_all_verifications_have_proven(runs, until, open_failures, tmp_path):
    engine = connect(f"sqlite:///{tmp_path / 'warehouse.db'}")
    create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            load_commits.insert().values(
                app="a",
                batch=6,
                drain=1,
                job="{}",
                fact_table="f",
                sink="sql",
                partitions=1,
                source_offsets="{}",
                rows_read=0,
                committed_at=now(),
            )
        )
        for first, last, success in runs:
            connection.execute(
                quality_runs.insert().values(
                    app="a",
                    fact_table="f",
                    started_at=now(),
                    seconds=0,
                    from_batch=first and first[0],
                    from_drain=first and first[1],
                    to_batch=last[0],
                    to_drain=last[1],
                    success=int(success),
                    expectations=19,
                    failed="[]",
                    unseen="[]",
                    report="",
                )
            )
        proof = read_proof(connection, "a")
    assert (proof.until, len(proof.failures), proof.complete) == (
        until,
        open_failures,
        until == (6, 1) and not open_failures,
    )
    assert str(proof).startswith("yes" if proof.complete else "NO")
    if not proof.complete and not proof.failures and proof.run is not None:
        assert "there are newer batches, which are not verified yet; verified are" in str(proof)


@ON_SQLITE
def test_a_verdict_says_that_the_last_load_has_failed(loader, tmp_path, monkeypatch):
    """What is loaded is complete, although the load that was to load more has failed."""
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    loader.load(range(2))
    paths = Paths(home=tmp_path, warehouse_url=loader.url)
    checkpoint = paths.checkpoints / "sales"
    checkpoint.mkdir(parents=True)

    def verified() -> tuple[str, str, str]:
        found = steps.verify("sales", paths, since_last=False, sample=0)
        page = html.unescape(re.sub("<.*?>", "", Path(found["report"]).read_text()))
        return found["unfinished"], found["text"], page

    status = StatusFile(checkpoint, "sales")
    with pytest.raises(OSError, match="full"), status:
        raise OSError("the disk is full\nand a stack trace")
    how, text, page = verified()
    assert re.fullmatch(
        r"The last load failed at 20\d\d-\d\d-\d\d \d\d:\d\d UTC: OSError: the disk is full", how
    )
    goes_on = "`semistream load JOB`, or the DAG of the load, goes on where it was."
    assert "Complete as far as it was loaded: yes: batches 0 to 1, " in text
    assert f"{how}. {goes_on} Report: " in text
    assert "sales is complete as far as it was loaded: of " in page
    assert f"Not all is loaded: {how}." in page
    again = steps.verify("sales", paths, since_last=True, sample=0)
    assert again["unfinished"] == how and f"{how}. {goes_on}" in again["text"]

    StatusFile(checkpoint, "sales").update(state="running")
    assert verified()[0].startswith("The last load was killed while running at 20")
    alter(loader, "DELETE FROM fact_sales WHERE order_id = 20")
    with pytest.raises(quality.VerificationFailed, match="The last load was killed while running"):
        verified()
    with checkpoint_lock(checkpoint):  # it runs
        assert drivers.unfinished(checkpoint) == ""
    StatusFile(checkpoint, "sales").update(state="stopped")
    assert drivers.unfinished(checkpoint) == ""


@ON_SQLITE
def test_what_holds_says_of_which_batches_and_when(loader):
    loader.load(range(BATCHES))
    assert re.search(
        r"all 24 checks hold\. Complete: yes: batches 0 to 2, 24 checks on 20\d\d-.* "
        r"UTC\.",
        str(check(loader)),
    )


def test_nothing_new(loader):
    loader.load(range(1))
    assert check(loader, since_last=True).report.exists()
    again = check(loader, since_last=True)
    assert again.success and again.report is None and run_count(loader) == 1
    assert "nothing was committed" in str(again)


@ON_SQLITE
def test_old_reports_are_removed(loader, tmp_path, monkeypatch):
    """Of each app on its own: its latest pages stay, with their results, and the index knows no
    others."""
    loader.load(range(1))
    monkeypatch.setenv("SEMISTREAM_REPORTS_KEPT", "2")
    pages = [check(loader).report for _ in range(3)]
    with loader.engine.begin() as connection:
        for table in (load_apps, load_batches, load_commits):
            connection.execute(table.update().values(app="sales.other"))
    other = quality.verify(
        loader.url,
        "sales.other",
        job=loader.job,
        reports_dir=loader.reports,
        snapshots=loader.reports / "none",
    ).report
    assert set((loader.reports / "validations").rglob("*.html")) == {*pages[1:], other}
    assert len(list((loader.reports / "results").rglob("*.json"))) == 3
    index = (loader.reports / "index.html").read_text()
    assert [str(page.relative_to(loader.reports)) in index for page in (*pages, other)] == [
        False,
        True,
        True,
        True,
    ]
    assert not [d for d in loader.reports.rglob("*") if d.is_dir() and not list(d.iterdir())]
