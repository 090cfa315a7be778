"""Data of apps for the UI page, the console and ``make load``: totals, verifications, sweeps, the
summary of a load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from sqlalchemy import Connection, case, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from semistream.errors import SemistreamError
from semistream.joins.waits import in_seconds
from semistream.paths import Paths
from semistream.pipeline import drivers
from semistream.pipeline.tiles import completeness
from semistream.streaming.summary import InputTotals, RunSummary, read_summary, two_ways
from semistream.warehouse import connect, existing, open_warehouse
from semistream.warehouse.lateness import lateness
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import app_loads
from semistream.warehouse.proof import Run, as_run, proof_and_source
from semistream.warehouse.schema import (
    load_commits,
    load_inputs,
    quality_runs,
    rejected_master,
    tuning_runs,
)
from semistream.warehouse.totals import Totals, read_totals
from semistream.warehouse.unmatched_groups import count_open

SWEEPS = 5  # the number of tuning sweeps that are shown, the latest ones


class Standing(NamedTuple):
    """What the ledger has of an app. proof: a word; complete: the sentence on it. totals and proof
    are None while the warehouse does not answer."""

    totals: Totals | None = None
    proof: str | None = None
    complete: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        t, in_all = self.totals or Totals(""), None
        if self.totals is not None:
            in_all = {name: getattr(t, name) for name in ("rows_read", "matched", "waiting")}
            in_all |= {"unmatched": t.open, "output_rows": t.output_rows}
            in_all |= {"batch": t.batch if t.batch >= 0 else None}
        place = {"fact_table": t.fact_table, "sink": t.sink}
        return place | {"in_all": in_all, "proof": self.proof, "complete": self.complete}


class Verified(NamedTuple):
    """A verification. batches: its range, or a remark that it was taken out; report: the report's
    file relative to the reports' directory, "" if it no longer exists."""

    run: Run
    batches: str
    report: str


class Swept(NamedTuple):
    """A tuning sweep. points, failed: how many points it has, and how many of them failed; best: a
    line for each recommendation; report: as in ``Verified``."""

    sweep: str
    job: str | None
    recorded_at: datetime
    points: int
    failed: int
    best: tuple[str, ...]
    report: str


@dataclass(frozen=True)
class FinalSummary:
    """A load after its last run. total: everything that the app has committed; reasons: the
    unmatched tuples by reason; inputs: the totals of each of several roles or streams;
    rejected_master: the number of master rows left out; run: the last run; complete: the sentence
    on the proof; report: the file of the last verification's report."""

    app: str
    total: Totals
    reasons: Mapping[str, int]
    inputs: Mapping[str, InputTotals]
    rejected_master: int
    late: str
    run: RunSummary
    complete: str
    report: str

    @property
    def texts(self) -> dict[str, str]:
        """The totals that the table has as texts."""
        t = self.total
        return {
            "cache_share": f"{t.cache_hits / t.rows_read:.1%}" if t.rows_read else "–",
            "memory": f"{megabytes(t.memory_peak)} of {megabytes(t.memory_budget)}",
            "resident": resident(t.resident_peak),
            "waited": in_seconds(t.wait_longest),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self) | {"total": asdict(self.total) | {"open": self.total.open} | self.texts}


def standing(names: Iterable[str], paths: Paths) -> dict[str, Standing]:
    """Return by app what the ledger has of it. Nothing is written, as an earlier version may be
    loading."""
    engine = connect(existing(paths.warehouse_url))
    try:
        with engine.connect() as connection:
            begun = inspect(connection).has_table(load_commits.name)
            totals = read_totals(connection) if begun else {}
            proofs = {n: proof_and_source(connection, n) for n in names if n in totals}
    finally:
        engine.dispose()
    known = {name: (totals.get(name, Totals(name)), proofs.get(name)) for name in names}
    return {
        name: Standing(
            loaded,
            completeness(proof, drivers.ending(paths.checkpoints / name) is None).word,
            str(proof or ""),
        )
        for name, (loaded, proof) in known.items()
    }


def proven(app: str, paths: Paths) -> str:
    """Return a sentence on what is proven of an app's loads, even if the warehouse is away."""
    try:
        return standing([app], paths)[app].complete or "NO: nothing is loaded"
    except (SQLAlchemyError, OSError, SemistreamError) as e:
        return f"not known: {str(e).splitlines()[0]}"


def quality(
    connection: Connection, paths: Paths, app: str, limit: int = 20
) -> tuple[Verified, ...]:
    """Return the latest verifications of an app, newest first."""
    q = quality_runs.c
    latest = select(quality_runs).where(q.app == app).order_by(q.id.desc()).limit(limit)
    return tuple(
        Verified(run, "taken out since" if gone else run.batches, _report(Path(run.report), paths))
        for run, gone in ((as_run(row), row.outdated) for row in connection.execute(latest))
    )


def sweeps(connection: Connection, paths: Paths) -> tuple[Swept, ...]:
    """Return the latest tuning sweeps, newest first, with their recommendations."""
    t = tuning_runs.c
    latest = (
        select(
            t.sweep,
            func.max(t.job).label("job"),
            func.max(t.recorded_at).label("recorded_at"),
            func.count().label("points"),
            func.count(case((t.state == "failed", 1))).label("failed"),
        )
        .group_by(t.sweep)
        .order_by(func.max(t.recorded_at).desc())
        .limit(SWEEPS)
    )
    best = (
        select(t.sweep, t.memory, t.algorithm, t.rate).where(t.recommended == 1).order_by(t.memory)
    )
    rows = connection.execute(latest).all()
    recommended = connection.execute(best.where(t.sweep.in_([row.sweep for row in rows]))).all()
    return tuple(
        Swept(
            row.sweep,
            row.job and Path(row.job).stem,
            row.recorded_at,
            row.points,
            row.failed,
            tuple(
                f"{megabytes(memory)}: {algorithm}, {rate:,.0f} tuples/s"
                for sweep, memory, algorithm, rate in recommended
                if sweep == row.sweep
            ),
            _report(paths.reports / "tuning" / f"{row.sweep}.html", paths),
        )
        for row in rows
    )


def _report(file: Path, paths: Paths) -> str:
    """Return a report's path relative to the reports' directory; "" if the report no longer
    exists."""
    reports, file = paths.reports.resolve(), file.resolve()
    return str(file.relative_to(reports)) if file.is_relative_to(reports) and file.is_file() else ""


def final_summary(app: str, paths: Paths) -> FinalSummary:
    i = load_inputs.c
    with open_warehouse(existing(paths.warehouse_url)) as engine, engine.connect() as connection:
        first, last = app_loads(app_number(connection, app))
        by_reason, by_role = Counter[str](), Counter[str]()
        for (reason, role), count in count_open(connection, (first, last)).items():
            by_reason[reason] += count
            by_role[role] += count
        inputs = (
            select(i.role, *map(func.sum, (i.missed, i.lacking, i.inferred)))
            .where(i.load_id.between(first, last))
            .group_by(i.role)  # alone, as the order of the joins may differ from run to run
            .order_by(func.min(i.number), i.role)
        )
        by_input = {
            role: InputTotals(by_role[role], int(missed), int(without), int(members))
            for role, missed, without, members in connection.execute(inputs)
        }
        totals = read_totals(connection, app).get(app, Totals(app))
        dimensions = select(load_inputs.c.dimension).where(
            load_inputs.c.load_id.between(first, last)
        )
        rejected = (
            connection.scalar(
                select(func.count())
                .select_from(rejected_master)
                .where(rejected_master.c.master.in_(dimensions))
            )
            or 0
        )
        late = lateness(connection, app)
        latest = quality(connection, paths, app, limit=1)
        proof = proof_and_source(connection, app)
    return FinalSummary(
        app,
        totals,
        dict(by_reason.most_common()),
        by_input if len(by_input) > 1 else {},
        rejected,
        str(late or ""),
        read_summary(paths.checkpoints / app),
        str(proof or "NO: nothing was committed"),
        latest[0].run.report if latest else "",
    )


def _parts(summary: FinalSummary, key: str) -> Iterator[tuple[str, ...]]:
    """Yield the details of a row of the summary, as (name, number in this run, number in all runs).
    ``unmatched`` is divided by reason and, if there are several roles, also by role.
    ``output_rows`` is detailed by the roles of which rows have no row, or an inferred member."""
    run = summary.run

    def of_inputs(count: str, head: str) -> Iterator[tuple[str, ...]]:
        for name, of in summary.inputs.items():
            if in_all := getattr(of, count):
                now = getattr(run.inputs.get(name, InputTotals()), count)
                yield f"{head}{name}", f"{now:,}", f"{in_all:,}"

    if key == "output_rows":
        yield from of_inputs("lacking", "without ")
        yield from of_inputs("inferred", "inferred ")
    if key == "unmatched":
        reasons = [
            (reason, f"{run.rejected.get(reason, 0):,}", f"{count:,}")
            for reason, count in summary.reasons.items()
        ]
        yield from two_ways(reasons, list(of_inputs("unmatched", "")), "", "")


def summary_table(summary: FinalSummary) -> Table:
    """Return a table that compares this run with everything that the app has ever committed."""
    run, total, texts = summary.run, summary.total, summary.texts
    table = Table(
        "", "this run", "in all", title=f"{summary.app} → {total.fact_table}", title_justify="left"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for label, key in (
        ("rows read", "rows_read"),
        ("matched", "matched"),
        ("unmatched", "unmatched"),
        ("resolved, late", "resolved"),
        ("waiting", "waiting"),
        ("output rows", "output_rows"),
    ):
        # in the total, only those count as unmatched that no later load has resolved
        now, in_all = getattr(run, key), getattr(total, "open" if key == "unmatched" else key)
        if now or in_all or key != "resolved":
            table.add_row(label, f"{now:,}", f"{in_all:,}")
        for part in _parts(summary, key):
            table.add_row(f"  {part[0]}", *part[1:])
    for name, count in sorted(run.nulled.items()):
        table.add_row(f"  NULL, not a number: {name}", f"{count:,}", "")
    if summary.rejected_master:
        table.add_row("master rows left out", "", f"{summary.rejected_master:,}")
    memory = f"{megabytes(run.memory_peak)} of {megabytes(run.memory_budget)}"
    for label, this, key in (
        ("service rate", f"{run.service_rate:,.0f} tuples/s", ""),
        ("end to end", f"{run.end_to_end:,.0f} tuples/s", ""),
        *(_of_master(run) if run.master_version else ()),
        ("peak memory of budget", memory, "memory"),
    ):
        # without a batch there was nothing new
        table.add_row(label, this if run.batches else "–", texts.get(key, ""))
    table.add_row("peak resident, a worker", resident(run.resident_peak), texts["resident"])
    table.add_section()
    said, _, why = summary.complete.partition(": ")
    table.add_row("complete", "", said)
    warnings = "".join(f"Warning: {sentence}\n" for sentence in run.warnings)
    late = f"Late: {summary.late}\n" if summary.late else ""
    far = said.partition(",")[2]
    table.caption = f"{warnings}{late}Complete{far}: {why}\nReport: {summary.report}"
    table.caption_justify = "left"
    return table


def _of_master(run: RunSummary) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a summary about the joins with master data, which two streams have not, as
    (name, number in this run, key of the total)."""
    share = f"{run.cache_share:.1%}" if run.rows_read else "–"
    yield "through the cache", share, "cache_share"
    yield "median wait for master data", in_seconds(run.median_wait), ""
    yield "longest wait for master data", in_seconds(run.longest_wait), "waited"


def resident(peak: int) -> str:
    """Format the peak anonymous memory of a worker's process. peak: bytes, 0 if unknown."""
    return megabytes(peak) if peak else "–"


def megabytes(n: float) -> str:
    return f"{n / 1e6:,.1f} MB"
