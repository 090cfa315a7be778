"""The parts of the report other than its checks: the verified range, its completeness, the changes
since the last successful proof, and the course of the last loads. They are stored with the result,
as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, select

from semistream.counted import counted
from semistream.expect import MatchRate, Volume
from semistream.job import SIDES, AnyJob, Job
from semistream.joins.waits import in_seconds
from semistream.positions import Kind, Position, resolves
from semistream.quality.expected_loads import Limits, match_limits, match_rate, volume_limits
from semistream.quality.scope import Scope
from semistream.reasons import QUARANTINED
from semistream.streaming.sinks.registry import sink_kind
from semistream.warehouse.ledger import parts_of
from semistream.warehouse.load_history import Load
from semistream.warehouse.load_ids import last_load
from semistream.warehouse.proof import Run, as_run, counting
from semistream.warehouse.records import still_unmatched, unaccounted
from semistream.warehouse.schema import (
    load_batches,
    load_commits,
    load_files,
    load_inputs,
    load_rejections,
    masters,
    quality_runs,
)

LISTED_BATCHES = 100
CHARTED_LOADS = 30
FILES_NAMED = 3
# the columns of a batch in the report
STILL = "still unmatched, in all"
MEDIAN, LONGEST = "median wait", "longest wait"  # of tuples, for their master data
NUMBERS = [
    "waiting_before",
    "rows_read",
    "resolved",
    "matched",
    "unmatched",
    "waiting",
    "output_rows",
]


def summarise(
    connection: sa.Connection, scope: Scope, job: AnyJob, loads: Sequence[Load], reports: Path
) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the totals of the verified batches, and the content of the report about them.

    loads: all loads up to the verified range; reports: the directory of the reports.
    """
    figures, batches = _figures(connection, scope)
    since = "all-batches" if scope.first is None else f"batches-after-{position_word(scope.first)}"
    good = _last_good(connection, scope)
    return (
        figures,
        {
            "run": f"{since}-up-to-{position_word(scope.last)}",  # also the name of a directory
            "app": scope.app,
            "fact_table": scope.fact_name,
            "sink": "" if sink_kind(scope.sink).in_warehouse else scope.sink,
            "figures": [[k, n] for k, n in figures.items()],
            "counts": _whereabouts(figures, whole=scope.first is None),
            "columns": [*NUMBERS, MEDIAN, LONGEST],
            "commits": len(batches),
            "batches": [list(b.values()) for b in batches[-LISTED_BATCHES:]],
            "covered": [list(pair) for pair in _covered(connection, scope, figures)],
            "flows": _flows(connection, scope, batches),
            "good": good and _good(good, reports),
            "changes": list(_changes(connection, scope, good)) if good else [],
            "trends": list(_trends(job, loads)),
        },
    )


def position_word(position: Position) -> str:
    """Return a position as a word that may be part of a directory's name."""
    what = "-drained" if position[1] else ""
    if resolves(position[1]):
        what = f"-resolved-{position[1] - Kind.RESOLVE + 1}"
    return f"{position[0]}{what}"


def _figures(
    connection: sa.Connection, scope: Scope
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return the totals of the verified batches, and the figures of each batch."""
    b, r = load_batches.c, load_rejections.c
    rows = connection.execute(
        select(
            b.batch,
            b.drain,
            *(func.sum(b[n]).label(n) for n in NUMBERS),
            func.max(b.wait_median).label(MEDIAN),
            func.max(b.wait_longest).label(LONGEST),
        )
        .where(scope.holds(load_batches))
        .group_by(b.batch, b.drain)
        .order_by(b.batch, b.drain)
    ).all()
    batches: list[dict[str, Any]] = [
        {
            "batch": position_word((row.batch, row.drain)),
            **{n: int(row._mapping[n]) for n in NUMBERS},
            **{
                n: "" if (seconds := row._mapping[n]) is None else in_seconds(seconds)
                for n in (MEDIAN, LONGEST)
            },
            "ok": not unaccounted(row),
        }
        for row in rows
    ]
    figures = {
        label: sum(x[n] for x in batches)
        for label, n in (
            ("rows read", "rows_read"),
            ("resolved", "resolved"),
            ("matched", "matched"),
            ("unmatched", "unmatched"),
        )
        if n != "resolved" or any(x[n] for x in batches)
    }
    reasons = connection.execute(
        select(r.reason, func.sum(r.tuples))
        .where(scope.holds(load_rejections))
        .group_by(r.reason)
        .order_by(r.reason)
    )
    figures |= {f"unmatched: {reason}": int(n) for reason, n in reasons}
    still = connection.scalar(select(func.sum(still_unmatched(b))).where(scope.until(load_batches)))
    if int(still or 0) != figures["unmatched"]:
        figures[STILL] = int(still or 0)
    if before := batches[0]["waiting_before"] if batches else 0:
        figures["waiting before"] = before
    figures |= {
        "waiting": batches[-1]["waiting"] if batches else 0,
        "output rows": sum(x["output_rows"] for x in batches),
        "batches": len({row.batch for row in rows}),
    }
    return figures, batches


def _whereabouts(figures: Mapping[str, int], *, whole: bool) -> str:
    """Return what became of the tuples, in sentences whose numbers add up. whole: whether all
    batches were verified; then a tuple that was joined again is counted once, where it is now."""
    came, unmatched = [f"{counted(figures['rows read'], 'row')} read"], figures["unmatched"]
    still, waiting = figures.get(STILL, unmatched), figures["waiting"]
    if whole:
        unmatched = still
    else:
        came += [
            f"{figures[name]:,} {words}"
            for name, words in (("waiting before", "from before"), ("resolved", "joined again"))
            if figures.get(name)
        ]
    said = (
        f"of {' and '.join(came)}, {_are(figures['matched'])} matched, {_are(unmatched)} "
        f"unmatched, and {f'{waiting:,}' if waiting else 'none'} "
        f"{'wait' if waiting > 1 else 'waits'}."
    )
    return said if unmatched == still else f"{said} In all, {_are(still)} unmatched."


def _are(number: int) -> str:
    return f"{number:,} {'is' if number == 1 else 'are'}"


# ---- what was verified


def _covered(
    connection: sa.Connection, scope: Scope, figures: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return a description of the verified range as (heading, text): batches, commits in time,
    files, master data."""
    c = load_commits.c
    first, last = connection.execute(
        select(func.min(c.committed_at), func.max(c.committed_at)).where(scope.holds(load_commits))
    ).one()
    begin = 0 if scope.first is None else scope.first[0] + (scope.first[1] > 0)
    batches = f"{begin:,} to {scope.last[0]:,}" if begin < scope.last[0] else f"{scope.last[0]:,}"
    covered = [
        ("Batches", f"{batches}, {'all' if scope.first is None else 'the newest'}"),
        ("Rows", f"{figures['rows read']:,} read, {figures['output rows']:,} in {scope.fact_name}"),
    ]
    if first is not None:
        covered.append(("Loaded", f"{_minute(first)} to {_minute(last)}"))
    if files := _files(connection, scope, scope.first):
        covered.append(("Files", files))
    versions = {role.name: role.versions.get(scope.last) for role in scope.roles}
    if named := ", ".join(f"{name} {version}" for name, version in versions.items() if version):
        covered.append(("Master data", named))
    return covered


def _files(connection: sa.Connection, scope: Scope, after: Position | None) -> str:
    """Return a text with the number of files in the batches after a position, and some of their
    names."""
    f = load_files.c
    begin = -1 if after is None else after[0]
    mine = (f.app == scope.app) & (f.batch > begin) & (f.batch <= scope.last[0])
    count = connection.scalar(select(func.count()).select_from(load_files).where(mine)) or 0
    newest = connection.scalars(
        select(f.path).where(mine).order_by(f.batch.desc(), f.number.desc()).limit(FILES_NAMED)
    ).all()
    names = ", ".join(Path(path).name for path in reversed(newest))
    more = "the newest " if count > FILES_NAMED else ""
    c = load_commits.c
    loaded = connection.scalars(
        select(c.source_offsets).where(
            c.app == scope.app, c.drain == Kind.BATCH, c.batch > begin, c.batch <= scope.last[0]
        )
    )
    every = sum(part.get("files", 0) for said in loaded for part in parts_of(json.loads(said)))
    if lost := max(every - count, 0):
        names = " and ".join(
            filter(None, (names, f"{lost:,} that {'is' if lost == 1 else 'are'} gone"))
        )
    return f"{every:,}: {more}{names}" if every else ""


# ---- how complete it is


def _flows(
    connection: sa.Connection, scope: Scope, batches: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the flows of tuples: from all inputs together and, if there are several inputs, from
    each of them. A flow has ``came`` and ``went``, lists of (description, number of tuples)."""
    i, r = load_inputs.c, load_rejections.c
    reasons: dict[str, Counter[str]] = {}
    for role, reason, n in connection.execute(
        select(r.role, r.reason, func.sum(r.tuples))
        .where(scope.holds(load_rejections))
        .group_by(r.role, r.reason)
    ):
        reasons.setdefault(role, Counter())[reason] += int(n)
    names = ("waiting_before", "rows_read", "resolved", "matched", "missed", "waiting")
    inputs: dict[str, dict[str, int]] = {}
    ends = [(batches[0]["batch"], batches[-1]["batch"])] if batches else []
    for row in connection.execute(
        select(
            i.role,
            load_batches.c.batch,
            load_batches.c.drain,
            func.min(i.number).label("number"),
            *(func.sum(i[n]).label(n) for n in names),
        )
        .join(load_batches, load_batches.c.load_id == i.load_id)
        .where(scope.holds(load_inputs))
        .group_by(i.role, load_batches.c.batch, load_batches.c.drain)
        .order_by(func.min(i.number), load_batches.c.batch, load_batches.c.drain)
    ):
        of, at = inputs.setdefault(row.role, dict.fromkeys(names, 0)), position_word(row[1:3])
        for n in names[1:-1]:
            of[n] += int(row._mapping[n])
        of["waiting_before"] += int(row.waiting_before) if at == ends[0][0] else 0
        of["waiting"] += int(row.waiting) if at == ends[0][1] else 0
    if len(inputs) < 2 or not batches:
        return [_flow(role, of, reasons.get(role, Counter())) for role, of in inputs.items()]
    total = {n: sum(b[n] for b in batches) for n in ("rows_read", "resolved", "matched")} | {
        "waiting_before": batches[0]["waiting_before"],
        "waiting": batches[-1]["waiting"],
        "missed": 0,
    }
    flows = [_flow("", total, sum(reasons.values(), Counter[str]()))]
    for role, of in inputs.items():
        kept = reasons.get(role, Counter())
        if role not in SIDES:  # the first role counts what was refused before it was joined
            of["rows_read"] -= sum(kept.pop(reason, 0) for reason in QUARANTINED)
        flows.append(_flow(role, of, kept))
    return flows


def _flow(name: str, of: Mapping[str, int], reasons: Mapping[str, int]) -> dict[str, Any]:
    came = [("read", of["rows_read"]), ("from before", of["waiting_before"])]
    came += [("resolved", of["resolved"])]
    went = [("matched", of["matched"] - of["missed"]), ("without a row", of["missed"])]
    went += [(reason.replace("_", " "), n) for reason, n in sorted(reasons.items())]
    went += [("waiting", of["waiting"])]
    return {
        "name": name,
        "came": [list(part) for n, part in enumerate(came) if part[1] or not n],
        "went": [list(part) for n, part in enumerate(went) if part[1] or not n],
    }


# ---- what has changed


def _last_good(connection: sa.Connection, scope: Scope) -> Run | None:
    """Return the newest verification that succeeded."""
    q = quality_runs.c
    row = connection.execute(
        select(quality_runs)
        .where(counting(scope.app, scope.fact_name), q.success == 1)
        .order_by(q.id.desc())
        .limit(1)
    ).first()
    return None if row is None else as_run(row)


def _good(run: Run, reports: Path) -> dict[str, Any]:
    path = Path(run.report)
    there = bool(run.report) and path.is_relative_to(reports) and path.is_file()
    return {
        "at": _minute(run.at),
        "batches": run.batches,
        "checks": run.checks,
        "report": str(path.relative_to(reports)) if there else "",
    }


def _changes(connection: sa.Connection, scope: Scope, good: Run) -> Iterator[str]:
    """Yield sentences on the differences from a former verification: what was loaded since then,
    from which files, with which master data and settings."""
    b, m = load_batches.c, masters.c
    names = ("rows_read", "resolved", "matched", "unmatched")
    after = scope.until(load_batches) & (b.load_id > last_load(scope.number, good.last))
    batches, *sums = connection.execute(
        select(func.count(b.batch.distinct()), *(func.sum(b[n]) for n in names)).where(after)
    ).one()
    if batches:
        read, resolved, matched, rejected = (int(n or 0) for n in sums)
        again = f", {resolved:,} joined again" if resolved else ""
        yield (
            f"{counted(batches, 'batch')} loaded: {counted(read, 'row')} read"
            f"{again}, {matched:,} matched, {rejected:,} unmatched."
        )
        if files := _files(connection, scope, good.last):
            yield f"Files of the source: {files}."
    else:
        yield "Nothing was loaded."
    for role in scope.roles:
        then, now = (role.versions.get(at, "") for at in (good.last, scope.last))
        if then and now and then != now:
            yield f"The master data of {role.name} went from version {then} to {now}."
    tables = [role.dimension.name for role in scope.roles]
    for name, at in connection.execute(
        select(m.name, m.provisioned_at)
        .where(m.table_name.in_(tables), m.provisioned_at > good.at)
        .order_by(m.name)
    ):
        yield f"The dimension {name} was provisioned at {_minute(at)}."
    former, job = (_job_at(connection, scope, at) for at in (good.last, scope.last))
    for setting in sorted({*former, *job} if former else ()):
        if former.get(setting) != job.get(setting):
            yield f"The job's {setting} went from {former.get(setting)} to {job.get(setting)}."


def _job_at(connection: sa.Connection, scope: Scope, at: Position) -> dict[str, str]:
    """Return the settings of a commit's job, by dotted name, as JSON."""
    c = load_commits.c
    text = connection.scalar(
        select(c.job).where(c.app == scope.app, c.batch == at[0], c.drain == at[1])
    )
    return dict(_flat("", json.loads(text))) if text else {}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}".lstrip("."), inner)
    else:
        yield name, json.dumps(value)


# ---- how the last loads went


def _trends(job: AnyJob, loads: Sequence[Load]) -> Iterator[dict[str, Any]]:
    """Yield the series of the last loads that the report shows. A series has a name, a format, and
    for each load its description, its value, the usual band as [low, median, high] or None, and
    whether the value is outside its limits."""
    shown = range(max(len(loads) - CHARTED_LOADS, 0), len(loads))
    volume = job.expect.volume or Volume.load({})
    yield _trend(
        "rows read",
        "number",
        [(loads[n], loads[n].read, volume_limits(volume, loads, n)) for n in shown],
    )
    inputs = dict.fromkeys(name for n in shown for name in loads[n].finished)
    least = (
        {role.name: 1 - role.max_unmatched for role in job.roles} if isinstance(job, Job) else {}
    )
    for name in inputs:
        rate = job.expect.match_rate
        if rate is None or (rate.roles and name not in rate.roles):
            rate = MatchRate.load({})
        yield _trend(
            f"matched, {name}" if len(inputs) > 1 else "matched",
            "share",
            [
                (
                    loads[n],
                    match_rate(loads[n], name),
                    _at_least(least.get(name), match_limits(rate, name, loads, n)),
                )
                for n in shown
                if loads[n].finished[name]
            ],
        )
    waits = {
        MEDIAN: [(loads[n], loads[n].wait_median, None) for n in shown],
        LONGEST: [(loads[n], loads[n].wait_longest or 0.0, None) for n in shown],
    }
    if any(longest for _, longest, _ in waits[LONGEST]):
        for name, values in waits.items():
            yield _trend(name, "seconds", values)


def _at_least(least: float | None, limits: Limits | None) -> Limits | None:
    """Return the limits with a lower limit of at least this."""
    if least is None:
        return limits
    known = limits or Limits()
    return replace(known, low=max(known.low or 0.0, least))


def _trend(
    name: str, form: str, values: Sequence[tuple[Load, float, Limits | None]]
) -> dict[str, Any]:
    return {
        "name": name,
        "form": form,
        "loads": [
            {
                "batches": load.batches,
                "at": _minute(load.ended_at),
                "value": value,
                "low": limits and limits.low,
                "high": limits and limits.high,
                "median": limits and limits.usual and limits.usual.median,
                "outside": limits is not None and not load.waiting and not limits.holds(value),
            }
            for load, value, limits in values
        ],
    }


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
