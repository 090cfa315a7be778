"""A day again: some files are taken out of a load, and corrected versions of them are loaded,
without reloading the rest.

A batch cannot be divided, and a tuple may have waited from one batch to the next. Therefore whole
stretches of batches are taken out, between moments at which no tuple waited (see
``warehouse.taking_out``), and all of their files are loaded again. Rows of a sink outside the
warehouse are deleted first. Then ledger and tables change in one transaction. Spark's list of the
files that it has seen changes last. ``reset.json`` in the checkpoint describes the unfinished work:
while this file exists the load refuses to start, and the same command completes the work.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, and_, or_, select

from semistream.counted import counted
from semistream.data_files import DataFile, is_remote
from semistream.durable import read_checked, sync, write_checked
from semistream.errors import ConfigError, StateError
from semistream.job import FILE_FORMATS, AnyJob, Job
from semistream.paths import Paths
from semistream.pipeline.loaded import loaded_job
from semistream.positions import Kind, Position
from semistream.streaming.position import PROGRESS, RESET, RESTORE, position, prepared
from semistream.streaming.settings import LoadSettings
from semistream.streaming.sinks.base import Sink
from semistream.streaming.sinks.registry import open_sink, sink_kind
from semistream.streaming.sinks.warehouse import Warehouse
from semistream.streaming.sources.log import SourceLog, numbers_of
from semistream.streaming.status import checkpoint_lock
from semistream.warehouse import existing, open_warehouse
from semistream.warehouse.ledger import Ledger, app_number, checkpoint_of, retrying
from semistream.warehouse.schema import load_commits, load_files
from semistream.warehouse.taking_out import (
    Stretch,
    content,
    reopened,
    stretches,
    take_out,
    with_resolving,
)

RETRY = 60.0  # s for which a locked or lost database is tried again
NAMED = 5  # files that a plan or an error names
ALL = "Or take out everything: semistream reset {app}, and load the source anew."


@dataclass(frozen=True)
class DayAgain:
    """The part of a load that is taken out. files: the requested files; others: further files of
    the same batches; batches: the batches' numbers; logs: (first - 1, last) numbers of the batches
    in Spark's list of files; listed: see ``take_out``; last: the newest commit at the time of
    planning; command: the command that completes the work; reopened: see
    ``taking_out.reopened``."""

    app: str
    stretches: tuple[Stretch, ...]
    files: tuple[str, ...]
    others: tuple[str, ...]
    batches: tuple[int, ...]
    logs: tuple[tuple[int, int], ...]
    listed: float | None
    facts: int
    unmatched: int
    rows_read: int
    last: Position
    command: str
    reopened: int

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.batches))
        every = len(self.files) + len(self.others)
        said = (
            f"This takes {'batch' if len(self.batches) == 1 else 'batches'} {numbers} out of "
            f"{self.app}: {counted(self.rows_read, 'tuple')}. {counted(self.facts, 'fact')} and "
            f"{counted(self.unmatched, 'unmatched tuple')} go. "
        )
        if self.reopened:
            said += (
                f"The facts of {counted(self.reopened, 'tuple')} of other batches go, too, as "
                "these were joined again together: their tuples are unmatched then. With late: "
                "resolve, the next load that reads a file joins them again, and `semistream replay "
                f"{self.app}` does in any case; what was mended has to be replayed from its file. "
            )
        said += f"The next load reads {counted(every, 'file')} again:"
        asked = [
            f"\n  {file}" + ("" if DataFile(file).now() else " (which is gone)")
            for file in self.files[:NAMED]
        ]
        also = [f"\n  {file} (of the same batches)" for file in self.others[: NAMED - len(asked)]]
        more = every - len(asked) - len(also)
        return said + "".join(asked + also) + (f"\n  and {more:,} more" if more else "")


DAY_AGAIN = TypeAdapter(DayAgain)


def plan(
    app: str, paths: Paths, checkpoint: Path, *, day: date | None = None, files: Sequence[str] = ()
) -> DayAgain:
    """Plan what to take out so that these files, or the files of a day, are loaded again.

    A file belongs to the day (UTC) on which it was last modified before it was loaded. If the file
    system does not give this time, the day on which its batch was committed counts. Raises
    ConfigError for files that cannot be taken out or loaded again, and if there are no such files.
    """
    LoadSettings.load({"job": app, "app": app})
    with open_warehouse(existing(paths.warehouse_url)) as engine:
        ledger = Ledger(engine, app, RETRY)
        _check_kind(loaded_job(engine, app), app)
        last = _check_checkpoint(ledger, app, checkpoint)
        with engine.connect() as connection:
            named = (
                _of_day(connection, app, day) if day else _named(connection, app, checkpoint, files)
            )
            batches = {batch for batch, _ in named}
            read = [
                of
                for of in stretches(connection, app)
                if any(of.holds((batch, Kind.BATCH)) for batch in batches)
            ]
            chosen = with_resolving(connection, app, read)
            held = content(connection, app, chosen)
            again = reopened(connection, app, chosen)
        for sink in _outside(engine, app, paths, checkpoint, held.commits):
            if (gone := sink.missing(app)) is not None:
                raise StateError(f"{gone}. {RESTORE}")
    wanted = [path for _, path in named]
    logs, every = _files_of(checkpoint, held.commits)
    others = [path for path in every if path not in set(wanted)]
    _check_there(app, others)
    asked = f"--day {day}" if day else " ".join(f"--file {shlex.quote(file)}" for file in files)
    return DayAgain(
        app,
        tuple(chosen),
        tuple(wanted),
        tuple(others),
        tuple(sorted(c.batch for c in held.commits if json.loads(c.source_offsets).get("files"))),
        tuple(logs),
        _first_seen(every),
        held.facts,
        held.unmatched + again,
        held.rows_read,
        last,
        f"semistream reset {app} {asked}",
        again,
    )


def under_way(checkpoint: Path) -> DayAgain | None:
    """Return the plan of an interrupted reset; None if no reset was interrupted."""
    values = read_checked(checkpoint / RESET, RESTORE)
    return None if values is None else DAY_AGAIN.validate_python(values)


def carry_out(of: DayAgain, paths: Paths, checkpoint: Path) -> None:
    """Take files out of a load. After a crash at any step the load refuses to start until this
    function is called again with the result of ``under_way``. Raises ConfigError while the app
    runs, and if the app has loaded more since the planning."""
    with checkpoint_lock(checkpoint):
        with open_warehouse(existing(paths.warehouse_url)) as engine:
            if not (checkpoint / RESET).exists():
                if _check_checkpoint(Ledger(engine, of.app, RETRY), of.app, checkpoint) != of.last:
                    raise ConfigError(
                        "app",
                        "must have loaded nothing since it was looked at",
                        of.app,
                        f"Do it again: {of.command}.",
                    )
                write_checked(checkpoint / RESET, DAY_AGAIN.dump_python(of, mode="json"))
            with engine.connect() as connection:
                number = app_number(connection, of.app)
                commits = content(connection, of.app, of.stretches).commits
            for sink in _outside(engine, of.app, paths, checkpoint, commits):
                sink.take_out([stretch.loads(number) for stretch in of.stretches])

            # the next load looks up all keys, as it knows those of the tuples that are open again
            if of.reopened and (progress := read_checked(checkpoint / PROGRESS, RESTORE)):
                write_checked(checkpoint / PROGRESS, progress | {"looked_up": {}})

            def work() -> None:
                with engine.begin() as connection:
                    take_out(connection, of.app, of.stretches, of.listed)

            retrying(work, RETRY)
        log = SourceLog(checkpoint / "query", "parquet")
        for after, last in of.logs:
            log.forget(after, last)
        (checkpoint / RESET).unlink()
        sync(checkpoint)


def _outside(
    engine: Engine, app: str, paths: Paths, checkpoint: Path, commits: Sequence[Any]
) -> list[Sink]:
    """Return the sinks outside the warehouse through which the commits were made."""
    settings = sorted({commit.sink for commit in commits})
    outside = [setting for setting in settings if not sink_kind(setting).in_warehouse]
    warehouse = Warehouse.of(paths.warehouse_url, loaded_job(engine, app), RETRY)
    return [open_sink(setting, warehouse, checkpoint) for setting in outside]


# ---- what can be taken out


def _check_kind(job: AnyJob, app: str) -> None:
    if not isinstance(job, Job):
        raise ConfigError(
            "app",
            "must be a load of one stream, as of two a file's tuples wait for others to come",
            app,
            ALL.format(app=app),
        )
    if job.stream.format not in FILE_FORMATS:
        raise ConfigError(
            "app",
            f"must be a load of files, which {job.stream.format} has not",
            app,
            ALL.format(app=app),
        )


def _check_checkpoint(ledger: Ledger, app: str, checkpoint: Path) -> Position:
    """Check that ledger and checkpoint agree, and that no batch has begun without a commit. Return
    the position of the newest commit."""
    noted = ledger.run(lambda connection: checkpoint_of(connection, app))
    if noted and Path(noted) != checkpoint:
        raise ConfigError(
            "checkpoint", f"must be {noted}, which {app} goes on with", str(checkpoint), "Give it."
        )
    at, last, soon = position(checkpoint), ledger.last(), prepared(checkpoint)
    if last is None or at != last or soon is not None:
        raise ConfigError(
            "app",
            "must have finished what it began, by its checkpoint and by the ledger",
            f"{app}, on {checkpoint}",
            "Start the load, which finishes it or says what is wrong, and then reset.",
        )
    return last


def _of_day(connection: Connection, app: str, day: date) -> list[tuple[int, str]]:
    """Return (batch, path) of the files of a day. Raises ConfigError for a day without files."""
    f, c = load_files.c, load_commits.c
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    end = start + timedelta(days=1)
    first, last = (int(at.timestamp()) * 10**9 for at in (start, end))
    plain = start.replace(tzinfo=None)
    found = (
        select(f.batch, f.path)
        .join(load_commits, and_(c.app == f.app, c.batch == f.batch, c.drain == Kind.BATCH))
        .where(
            f.app == app,
            or_(
                and_(f.modified >= first, f.modified < last),
                and_(
                    f.modified < 0,
                    c.committed_at >= plain,
                    c.committed_at < plain + timedelta(days=1),
                ),
            ),
        )
        .order_by(f.batch, f.number)
    )
    named = [(int(batch), path) for batch, path in connection.execute(found)]
    if not named:
        raise ConfigError(
            "day",
            f"must be one on which files that {app} has loaded were last modified (UTC)",
            str(day),
            "Name the files: --file.",
        )
    return named


def _named(
    connection: Connection, app: str, checkpoint: Path, files: Sequence[str]
) -> list[tuple[int, str]]:
    """Return (batch, path) of the requested files, which may be gone. Raises ConfigError for a file
    that was not loaded."""
    c = load_commits.c
    commits = connection.execute(
        select(c.batch, c.source_offsets)
        .where(c.app == app, c.drain == Kind.BATCH)
        .order_by(c.batch)
    ).all()
    ends = [numbers_of(json.loads(commit.source_offsets))[1] for commit in commits]
    loaded: dict[str, set[int]] = {}
    for number, path in SourceLog(checkpoint / "query", "").listed():
        if (at := bisect_left(ends, number)) < len(commits):
            loaded.setdefault(path, set()).add(int(commits[at].batch))
    named = []
    for file in files:
        path = file if is_remote(file) else os.path.abspath(file)
        if path not in loaded:
            near = difflib.get_close_matches(path, list(loaded)[:100_000], 1, 0.8)
            raise ConfigError(
                "file",
                f"must be one that {app} has loaded, and that was not taken out since",
                file,
                f"Did you mean {near[0]}?" if near else "Give its path as it was then.",
            )
        named += [(batch, path) for batch in sorted(loaded[path])]
    return named


def _files_of(checkpoint: Path, commits: Sequence[Any]) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the batches' ranges of numbers in Spark's list of files, and the files listed there.
    Raises StateError if the list lacks files."""
    logs, files = [], list[str]()
    for commit in commits:
        offsets = json.loads(commit.source_offsets)
        if not offsets.get("files"):
            continue
        after, last = numbers_of(offsets)
        found = SourceLog(checkpoint / "query", offsets["format"]).entries(after, last)
        if len(found) != offsets["files"]:
            raise StateError(
                f"{checkpoint / 'query'} has {len(found):,} files of batch {commit.batch}, and the "
                f"ledger has {offsets['files']:,}. {RESTORE}"
            )
        logs.append((after, last))
        files += found
    return logs, files


def _check_there(app: str, others: Sequence[str]) -> None:
    """Check that the files in ``others``, which are loaded again only because they belong to the
    same batches, still exist."""
    gone = [path for path in others if DataFile(path).now() is None]
    if gone:
        more = f" and {len(gone) - NAMED:,} more" if len(gone) > NAMED else ""
        raise ConfigError(
            "file",
            "must be of batches whose other files can be loaded again, and these are gone",
            ", ".join(gone[:NAMED]) + more,
            "Put them back; or name them too, if their tuples are to be taken out for good. "
            + ALL.format(app=app),
        )


def _first_seen(files: Sequence[str]) -> float | None:
    """Return a time, in seconds since 1970, before all of these files got their present content;
    None if the time is unknown."""
    times = []
    for path in files:
        if is_remote(path):
            return None
        try:
            times.append(os.stat(path).st_ctime_ns)
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return min(times) / 1e9 - 1e-3 if times else datetime.now(UTC).timestamp()
