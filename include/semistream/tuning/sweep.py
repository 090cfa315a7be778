"""A tuning sweep: the Spark app runs with every point of a grid, on a bounded stream. A comparison,
a recommendation and a report follow.

All data of a sweep are under ``<SEMISTREAM_HOME>/tuning/<sweep>``. Each point has a separate home
directory there, with checkpoint, ledger and sink, which is deleted once the point is recorded. The
rows of ``tuning_runs`` and the report stay.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from sqlalchemy import delete, func, select, update

from semistream.cost_models import Costs
from semistream.durable import naming, write_json
from semistream.errors import ConfigError, SemistreamError
from semistream.job import Dimension, Job, Role
from semistream.master.published import read_manifest, set_current, snapshot_root
from semistream.paths import Paths
from semistream.sizing.choice import COSTS_FILE
from semistream.sizing.search import fastest, format_sizes, tune_all
from semistream.sizing.sizing_input import SizingInput
from semistream.streaming.settings import LoadSettings
from semistream.streaming.status import read_status
from semistream.streaming.summary import read_summary
from semistream.tuning.advice import describe, recommendation
from semistream.tuning.measure import (
    FAILED,
    MEASURED,
    TURNOVERS,
    Point,
    grid,
    is_steady,
    point_of,
    recommend,
)
from semistream.tuning.settings import TuneSettings
from semistream.tuning.tuning_input import costs_for, open_tuning_input
from semistream.warehouse import open_warehouse
from semistream.warehouse.identity import adopt
from semistream.warehouse.ledger import utc_now
from semistream.warehouse.schema import load_batches, tuning_runs
from semistream.workloads import load_job

BATCHES = 8  # micro-batches of a point; the first half warms up
# a sample is repeated to so many rows: enough to warm up, and to turn over the slowest H_S
LEAST_ROWS, MOST_ROWS = 400_000, 4_000_000
NOISE = 0.1  # relative difference below which rates, of batches or of points, count as equal
ABOVE = 2  # a recommendation is valid for up to so many times its memory


class Sweep:
    """The sweep of a DAG run."""

    def __init__(self, run: str, paths: Paths):
        self.name, self.paths = re.sub(r"[^A-Za-z0-9_.-]+", "-", run)[:120], paths
        self.directory = paths.home / "tuning" / self.name

    def begin(self, settings: TuneSettings) -> list[dict[str, Any]]:
        """Write the bounded stream and return the grid's points. Raises ConfigError for an input
        that cannot be tuned for."""
        paths, directory = self.paths, self.directory
        shutil.rmtree(directory, ignore_errors=True)
        with open_tuning_input(settings, paths) as sizing:
            costs = costs_for(sizing, paths, settings.calibrate)
            points = grid(
                sizing,
                settings.memory,
                sizing.algorithms(settings.algorithms),
                settings.grid,
                costs,
            )
            points, chosen = _with_auto(sizing, points, settings.memory, costs)
            wanted = 2 * TURNOVERS * max((p.turnover for p in points), default=0.0)
            _write_stream(
                sizing.sample,
                max(sizing.sample.num_rows, LEAST_ROWS, int(min(wanted, MOST_ROWS))),
                directory / "stream",
            )
            job = _bounded_job(sizing.role, directory, sizing.relation.manifest.formats)
            (directory / "job.yaml").write_text(
                yaml.safe_dump(job.model_dump(mode="json", exclude_defaults=True))
            )
            costs.save(directory / COSTS_FILE)
            write_json(
                directory / "sweep.json",
                {
                    "sweep": self.name,
                    "job": _job(settings, sizing, paths),
                    "title": Path(settings.stream or settings.job).stem,
                    "auto": chosen,
                    "snapshot": str(sizing.snapshot),
                    "partitions": sizing.partitions,
                    "about": describe(sizing, costs.machine),
                },
            )
        return [asdict(p) for p in points]

    def app(self, values: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Prepare an empty home directory for a point. Return the arguments and the environment of
        the app that measures the point."""
        point, directory = Point(**values), self.directory
        home = self._home(point)
        shutil.rmtree(home, ignore_errors=True)
        snapshot = Path(self._about()["snapshot"]).absolute()
        job = Job.from_yaml(directory / "job.yaml")
        (role,) = job.roles
        master = snapshot_root(home / "snapshots", role.dimension.name, role.key)
        master.mkdir(parents=True)
        (master / snapshot.name).symlink_to(snapshot, target_is_directory=True)
        set_current(master, snapshot.name)
        with open_warehouse(_ledger(home)) as engine:
            # the sweep's own warehouse poses as the one whose surrogate keys the snapshot has
            adopt(engine, (read_manifest(master) or {}).get("source", {}))
        settings = LoadSettings.load(
            {
                "job": str(directory / "job.yaml"),
                "app": self._app(point),
                "algorithm": point.algorithm,
                "memory": point.memory,
                "parameters": point.parameters,
                "partitions": point.partitions,
                "sink": str(home / "sink"),
                "reason": f"sweep {self.name}",
            }
        )
        return settings.to_arguments(), {
            "SEMISTREAM_HOME": str(home),
            "WAREHOUSE_URL": _ledger(home),
        }

    def record(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Record a point's result in ``tuning_runs``, even if the point failed, and delete its home
        directory."""
        point, t = Point(**values), tuning_runs.c
        home = self._home(point)
        point = _measured(point, home, self._app(point))
        row = {
            "sweep": self.name,
            "point": point.number,
            "job": self._about()["job"],
            "parameters": json.dumps(point.parameters),
            "rows_read": point.rows,
            "best": int(point.best),
            "recommended": 0,
            "recorded_at": utc_now(),
        }
        row |= {c.name: getattr(point, c.name) for c in t if c.name not in row}
        with open_warehouse(self.paths.warehouse_url) as engine, engine.begin() as connection:
            connection.execute(
                delete(tuning_runs).where(t.sweep == self.name, t.point == point.number)
            )
            connection.execute(tuning_runs.insert(), row)
        shutil.rmtree(home, ignore_errors=True)
        return asdict(point)

    def publish(self) -> dict[str, Any]:
        """Compare the points, recommend the best and write the report. Return the data of the asset
        event. Raises SemistreamError if no point was recorded."""
        about, paths, t = self._about(), self.paths, tuning_runs.c
        with open_warehouse(paths.warehouse_url) as engine, engine.begin() as connection:
            rows = connection.execute(
                select(tuning_runs).where(t.sweep == self.name).order_by(t.point)
            ).all()
            points = [_from_row(row._mapping) for row in rows]
            best = recommend(p for p in points if is_steady(p))
            chosen = [p.number for p in best.values()]
            connection.execute(
                update(tuning_runs)
                .where(t.sweep == self.name, t.point.in_(chosen))
                .values(recommended=1)
            )
        if not points:
            raise SemistreamError(
                f"The sweep {self.name} has recorded no point; see the tasks that failed."
            )
        advice = better(best, points, about.get("auto", {}))
        about["kept"] = [m for m, p in best.items() if p not in advice]
        from semistream.tuning.report import write_report  # imports matplotlib

        report = write_report(
            paths.reports / "tuning" / f"{self.name}.html",
            about,
            points,
            best,
            self._restored(about),
            Costs.load(self.directory / COSTS_FILE),
        )
        shutil.rmtree(self.directory, ignore_errors=True)
        for older in sorted(report.parent.glob("*.html"), key=lambda p: p.stat().st_mtime)[
            : -paths.reports_kept
        ]:
            older.unlink(missing_ok=True)
        return {
            "sweep": self.name,
            "job": about["job"],
            "report": str(report),
            "points": len(points),
            "failed": sum(p.state == FAILED for p in points),
            "settings": [recommendation(p) for p in advice],
        }

    def _restored(self, about: Mapping[str, Any]) -> SizingInput:
        """Restore the input from the files that ``begin`` wrote."""
        sample = pq.read_table(self.directory / "sample.parquet").combine_chunks().to_batches()[0]
        return SizingInput(
            Job.from_yaml(self.directory / "job.yaml"),
            sample,
            Path(about["snapshot"]),
            about["partitions"],
        )

    def _about(self) -> dict[str, Any]:
        try:
            return json.loads((self.directory / "sweep.json").read_text())
        except FileNotFoundError:
            raise SemistreamError(
                f"There is no sweep in {self.directory}; its first task has failed."
            ) from None

    def _home(self, point: Point) -> Path:
        return self.directory / "points" / f"{point.number:04d}"

    def _app(self, point: Point) -> str:
        return f"{self.name}-{point.number:04d}"


def _with_auto(
    sizing: SizingInput, points: list[Point], budgets: Iterable[int], costs: Costs
) -> tuple[list[Point], dict[str, int]]:
    """Return the points including the choice of `auto`, and by budget the point number of that
    choice. A recommendation must be better than this choice."""
    points, auto = list(points), {}
    for memory in map(int, budgets):
        ranking = tune_all(sizing.workload, memory // sizing.partitions, costs)
        if not ranking:
            continue
        best = fastest(ranking, lambda p: p.mu)
        same = [
            p
            for p in points
            if (p.memory, p.algorithm, p.parameters) == (memory, best.algorithm, best.parameters)
        ]
        if not same:
            same = [replace(point_of(sizing, memory, best, True), number=len(points))]
            points += same
        auto[str(memory)] = same[0].number
    return points, auto


def better(
    best: Mapping[int, Point], points: Iterable[Point], auto: Mapping[str, int]
) -> list[Point]:
    """Return the best points that are faster than the choice of `auto` by more than noise. Budgets
    without such a point are left out, so that `auto` decides."""
    chosen = {p.number: p for p in points if is_steady(p)}
    return [
        p
        for memory, p in best.items()
        if (mine := chosen.get(auto.get(str(memory), -1))) is None
        or (p.rate or 0.0) > (1 + NOISE) * (mine.rate or 0.0)
    ]


def advised(settings: LoadSettings, events: Iterable[Mapping[str, Any]]) -> LoadSettings:
    """Return settings in which auto is replaced by the recommendation of the newest sweep for their
    job and memory. Without such a sweep the settings are returned unchanged, so that the app
    chooses.

    events: results of ``publish``, the newest first. A recommendation is valid for its budget and
    up to twice as much.
    """
    memory = int(settings.memory)
    for event in events:
        fitting = [
            s
            for s in event.get("settings", ())
            if event.get("job") == settings.job
            and s["memory"] <= memory <= ABOVE * s["memory"]
            and settings.partitions in (0, s["partitions"])
        ]
        if fitting:
            best = max(fitting, key=lambda s: s["memory"])
            reason = (
                f"recommended by the tuning sweep {event['sweep']}: {best['rate']:,.0f} "
                f"tuples/s measured with M = {best['memory']:,} bytes, "
                f"{format_sizes(best['parameters'])}"
            )
            return LoadSettings.load(
                settings.model_dump()
                | {
                    "algorithm": best["algorithm"],
                    "parameters": best["parameters"],
                    "partitions": best["partitions"],
                    "reason": reason,
                }
            )
    return settings


def _job(settings: TuneSettings, sizing: SizingInput, paths: Paths) -> str:
    """Return the job for which the sweep is valid. Return "" if the sample comes from files of the
    user instead of the named job. Return "" also if several roles share the memory, because only
    one of them was measured."""
    try:
        job = sizing.job if settings.stream is None else load_job(settings.job, paths)
    except ConfigError:
        return ""
    mine = job.role(settings.role)
    same = (mine.dimension.name, mine.on) == (sizing.relation.name, sizing.role.on)
    return settings.job if same and len(job.roles) == 1 else ""


def _write_stream(sample: pa.RecordBatch, rows: int, directory: Path) -> None:
    """Write the sample's tuples, repeated, in one file for each micro-batch."""
    directory.mkdir(parents=True)
    table = pa.Table.from_batches([sample])
    kinds = [
        f.with_type(pa.timestamp("us", f.type.tz)) if pa.types.is_timestamp(f.type) else f
        for f in table.schema
    ]
    table, each = table.cast(pa.schema(kinds), safe=False), -(-rows // BATCHES)
    with naming(directory):
        for i in range(0, rows, each):
            which = np.arange(i, min(i + each, rows)) % table.num_rows
            pq.write_table(table.take(pa.array(which)), directory / f"part-{i:09d}.parquet")
        pq.write_table(table, directory.with_name("sample.parquet"))


def _bounded_job(role: Role, directory: Path, forms: Mapping[str, Any]) -> Job:
    """Return a job that joins the bounded stream with a role. forms: the normal forms of the
    snapshot's keys, which the sample's keys already have."""
    stream = {
        "format": "parquet",
        "path": str((directory / "stream").absolute()),
        "options": {"maxFilesPerTrigger": "1"},
        "formats": {s: forms[m] for s, m in role.on.items() if m in forms},
    }
    dimension = Dimension.load({"name": role.dimension.name})
    roles = {role.name: role.model_copy(update={"dimension": dimension})}
    return Job.load(
        {"name": "sweep", "stream": stream, "dimensions": roles, "fact_table": "tuning"}
    )


def _measured(point: Point, home: Path, name: str) -> Point:
    """Return the point with the measurements from the ledger of its app. Only the batches after the
    warm-up count."""
    checkpoint = home / "checkpoints" / name
    status = read_status(checkpoint)
    if status is None or status.state != "stopped":
        return replace(
            point,
            state=FAILED,
            error=(status and status.error) or point.error or "the app did not come to its end",
        )
    summary = read_summary(checkpoint)
    b = load_batches.c
    last = select(func.max(b.batch)).scalar_subquery()
    batches = (
        select(func.sum(b.matched + b.unmatched), func.max(b.seconds), func.sum(b.cache_hits))
        .where(b.drain == 0, b.batch >= (last + 1) // 2)
        .group_by(b.batch)
        .order_by(b.batch)
    )
    with open_warehouse(_ledger(home)) as engine, engine.connect() as connection:
        rows = [tuple(map(float, row)) for row in connection.execute(batches)]
    finished, seconds, hits = (sum(column) for column in zip(*rows, strict=True))
    rates, middle = [f / s for f, s, _ in rows if f and s], len(rows) // 2
    halves = [
        sum(f for f, _, _ in part) / max(sum(s for _, s, _ in part), 1e-9)
        for part in (rows[:middle], rows[middle:])
    ]
    unsteady = len(rates) < 2 or max(halves) > (1 + NOISE) * min(halves)
    note = (
        f"not settled: {min(rates, default=0):,.0f} to {max(rates, default=0):,.0f} tuples/s "
        "from batch to batch; sweep with more rows"
        if unsteady
        else ""
    )
    return replace(
        point,
        state=MEASURED,
        rate=finished / seconds,
        cache_share=hits / max(finished, 1),
        rows=summary.rows_read,
        memory_peak=summary.memory_peak,
        seconds=summary.seconds,
        error=note,
    )


def _from_row(row: Mapping[Any, Any]) -> Point:
    named = {
        "number": row["point"],
        "parameters": json.loads(row["parameters"]),
        "rows": row["rows_read"],
        "best": bool(row["best"]),
    }
    return Point(
        **named | {k: row[k] for k in Point.__dataclass_fields__ if k in row and k not in named}
    )


def _ledger(home: Path) -> str:
    return f"sqlite:///{home / 'warehouse.db'}"
