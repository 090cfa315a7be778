"""The state of an app for its tile: whether it is running, complete and late, with its problems and
their remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import Connection, func, select

from semistream.counted import counted
from semistream.joins.waits import in_seconds
from semistream.pipeline import drivers
from semistream.positions import resolves
from semistream.streaming.status import Status, read_status, stop_requested
from semistream.warehouse.commit_history import CommitCounts, read_commits
from semistream.warehouse.lateness import Lateness
from semistream.warehouse.load_history import LEARNED_FROM, Band
from semistream.warehouse.proof import Proof
from semistream.warehouse.schema import load_commits, load_files
from semistream.warehouse.totals import Totals

HOURS, BARS = 6, 48  # of the sparkline
KEPT = 5_000  # commits of an app that are remembered
NOW = 60.0  # the least s over which the present rate is measured
SHARE_OF = 1_000  # newest tuples of which the present match rate is computed
SLACK = 1.5  # a wait longer than this many times the bound is late

Tone = Literal["good", "bad", "busy", "warn", "none"]


class Verdict(NamedTuple):
    """The answer to one question. word: the answer; text: the reasons for it."""

    tone: Tone
    word: str
    text: str = ""


class Trouble(NamedTuple):
    """A problem, its cause and its remedy. action: the button that starts the remedy: "restart",
    "verify", "report" or "unmatched"; "" for no button; at: the argument of the action, for
    instance the report's path."""

    what: str
    cause: str
    remedy: str
    action: str = ""
    at: str = ""


class Arrival(NamedTuple):
    """The newest source file that an app has loaded, with the times (UTC) at which the file was
    written and committed."""

    written: datetime
    committed: datetime

    @property
    def lag(self) -> float:
        """The seconds from the writing of the file to its commit."""
        return max((self.committed - self.written).total_seconds(), 0.0)


@dataclass(frozen=True)
class Recent:
    """The newest commits of an app, in order, and its newest source file. resets: see
    ``Totals``."""

    commits: tuple[CommitCounts, ...] = ()
    arrival: Arrival | None = None
    resets: int = 0

    @property
    def last(self) -> CommitCounts | None:
        return self.commits[-1] if self.commits else None


@dataclass(frozen=True)
class Tile:
    """The content of an app's tile. rate: stream tuples per second now, or of the last run; bars:
    the bars of the sparkline, stream tuples per second, the oldest first; newest: the share of the
    newest tuples that were matched when they came, None without tuples; band: the usual range of
    this share."""

    app: str
    running: Verdict
    complete: Verdict
    late: Verdict
    troubles: tuple[Trouble, ...]
    status: Status | None
    totals: Totals | None
    at: datetime | None  # the last sign of life, UTC
    alive: bool
    stopping: bool
    rate: float
    bars: tuple[float, ...]
    newest: float | None
    band: tuple[float, float] | None
    waiting: int
    wait_median: float | None
    wait_longest: float | None
    max_wait: float
    proof: Proof | None
    arrival: Arrival | None
    launch: drivers.Launch | None = None
    lateness: str = ""
    inputs: Mapping[str, int] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, float]:
        """The sort key of a tile: failures come first, then running apps, then the others by
        age."""
        last = self.at.replace(tzinfo=UTC).timestamp() if self.at is not None else 0.0
        return (0 if self.troubles else 1 if self.alive else 2), -last


def read_recent(connection: Connection, totals: Totals, known: Recent | None) -> Recent:
    """Return the newest commits of an app and its newest file. known: an earlier result, which is
    updated."""
    app, f, c = totals.app, load_files.c, load_commits.c
    if known is None or known.resets != totals.resets:
        known = Recent(resets=totals.resets)
    if (last := known.last) is not None:
        same = (c.app == app) & (c.batch == last.batch) & (c.drain == last.drain)
        if connection.scalar(select(c.committed_at).where(same)) != last.committed_at:
            known = Recent(resets=totals.resets)  # the app was started from the beginning
        elif last.position == (totals.batch, totals.drain):
            return known
    after = None if known.last is None else known.last.position
    commits = (*known.commits, *read_commits(connection, app, KEPT, after=after))[-KEPT:]
    found = connection.execute(
        select(c.committed_at, func.max(f.modified))
        .join_from(load_files, load_commits, (c.app == f.app) & (c.batch == f.batch))
        .where(f.app == app, c.drain == 0)
        .group_by(f.batch, c.committed_at)
        .order_by(f.batch.desc())
        .limit(1)
    ).first()
    arrival = known.arrival
    if found is not None and found[1] > 0:
        written = datetime.fromtimestamp(found[1] / 1e9, UTC).replace(tzinfo=None)
        arrival = Arrival(written, found[0])
    return Recent(commits, arrival, totals.resets)


def tile_of(
    app: str,
    checkpoint: Path,
    totals: Totals | None,
    proof: Proof | None,
    recent: Recent,
    late: Lateness | None,
    now: datetime,
) -> Tile:
    """Return the tile of an app. checkpoint: the app's directory, which may not exist; totals: None
    if the app has committed nothing; now: UTC."""
    status, launch = read_status(checkpoint), drivers.last_launch(checkpoint)
    known = (checkpoint / "status.json").exists()
    end = drivers.ending(checkpoint) if known else ("stopped", "")
    alive, last = end is None, recent.last
    at = _naive(status.heartbeat) if status else totals.committed_at if totals else None
    waiting = status.waiting if alive and status else totals.waiting if totals else 0
    share, band = match_share(recent.commits)
    running = _running(status, end, known)
    limit = status.max_wait if status else 0.0
    begun = launch.at if launch else None
    wait, longest = None, None
    if totals and totals.master_version:  # two streams wait for no master data
        wait = status.median_wait if status and alive else last.wait_median if last else None
        longest = status.longest_wait if status and alive else totals.wait_longest
    return Tile(
        app,
        running,
        completeness(proof, alive),
        _late(status, alive, waiting, limit),
        tuple(_troubles(checkpoint, status, end if known else None, proof, waiting, alive)),
        status,
        totals,
        at,
        alive,
        stop_requested(checkpoint) or running.word == "draining",
        rate_now(recent.commits, now, begun) if alive else status.rate if status else 0.0,
        bars(recent.commits, now),
        share,
        band,
        waiting,
        wait,
        longest,
        limit,
        proof,
        recent.arrival,
        launch,
        str(late or ""),
        status.inputs if status and alive else {},
    )


# ---- numbers


def rate_now(commits: Sequence[CommitCounts], now: datetime, begun: float | None) -> float:
    """Return the stream tuples per second that are loaded now. begun: the start time of the run, in
    seconds since 1970, None if unknown."""
    read = [of for of in commits if of.rows_read]
    if not read:
        return 0.0
    gap = (read[-1].committed_at - read[-2].committed_at).total_seconds() if len(read) > 1 else 0.0
    window = max(NOW, 2 * gap)
    if begun is not None:
        window = min(window, max(now.replace(tzinfo=UTC).timestamp() - begun, 1.0))
    since = now - timedelta(seconds=window)
    return sum(of.rows_read for of in read if of.committed_at >= since) / window


def bars(commits: Sequence[CommitCounts], now: datetime) -> tuple[float, ...]:
    """Return the stream tuples per second in each part of the last HOURS hours, which are divided
    into BARS parts. The oldest part comes first."""
    width, sums = HOURS * 3600 / BARS, [0.0] * BARS
    for of in commits:
        part = int((now - of.committed_at).total_seconds() / width)
        if 0 <= part < BARS:
            sums[BARS - 1 - part] += of.rows_read / width
    return tuple(sums)


def match_share(commits: Sequence[CommitCounts]) -> tuple[float | None, tuple[float, float] | None]:
    """Return the share of the newest finished tuples that were matched when they came, and the
    usual range of this share in former commits. The share is None if no tuple is finished; the
    range is None if there are few former commits."""
    commits = [of for of in commits if not resolves(of.drain)]  # its tuples are no new ones
    newest, finished, matched = len(commits), 0, 0
    while newest and finished < SHARE_OF:
        newest -= 1
        finished, matched = (finished + commits[newest].finished, matched + commits[newest].matched)
    former = [of.matched / of.finished for of in commits[:newest] if of.finished]
    band = None
    if len(former) >= LEARNED_FROM:
        usual = Band.learn(former)
        band = max(usual.low, 0.0), min(usual.high, 1.0)
    return (matched / finished if finished else None), band


# ---- verdicts


def _running(status: Status | None, end: tuple[str, str] | None, known: bool) -> Verdict:
    if not known:
        return Verdict("none", "not here", "It has loaded, but with another home than this")
    if status is None:
        return Verdict("bad", "unknown", "Its status cannot be read")
    batch = "" if status.batch is None else f"batch {status.batch}"
    if end is None:
        return Verdict("busy", status.state, batch)
    if end[0] == "stopped":
        return Verdict("none", "ended", batch)
    killed = end[1].startswith("was killed")
    return Verdict("bad", "killed" if killed else "failed", batch)


def completeness(proof: Proof | None, alive: bool) -> Verdict:
    """Return whether an app's loads are complete. alive: whether the app runs."""
    if proof is None:
        return Verdict("none", "nothing loaded")
    text = str(proof).partition(": ")[2]
    if proof.complete and proof.left:  # a load that runs will read it
        return Verdict("good" if alive else "warn", "complete so far", text)
    if proof.complete:
        return Verdict("good", "complete", text)
    if proof.failures:
        return Verdict("bad", "not complete", text)
    if alive:  # a proof follows when it has ended
        return Verdict("busy", "not proven yet", text)
    return Verdict("warn", "not proven", text)


def _late(status: Status | None, alive: bool, waiting: int, limit: float) -> Verdict:
    if waiting and not alive:
        return Verdict(
            "bad",
            "stuck",
            f"{counted(waiting, 'tuple')} {'waits' if waiting == 1 else 'wait'}, and nothing runs",
        )
    if alive and status is not None:
        silent = (datetime.now(UTC) - datetime.fromisoformat(status.heartbeat)).total_seconds()
        if silent > drivers.SILENCE:
            return Verdict("bad", "silent", f"no sign of life for {silent:,.0f} s")
        if limit and status.longest_wait > SLACK * limit:
            return Verdict(
                "warn",
                "late",
                f"a tuple waited {in_seconds(status.longest_wait)}, the bound is "
                f"{in_seconds(limit)}",
            )
    return Verdict("good", "in time") if alive else Verdict("none", "nothing waits")


def _troubles(
    checkpoint: Path,
    status: Status | None,
    end: tuple[str, str] | None,
    proof: Proof | None,
    waiting: int,
    alive: bool,
) -> list[Trouble]:
    found = list[Trouble]()
    if end is not None and end[0] == "failed":
        found.append(_ended(checkpoint, status, end[1]))
    elif waiting and not alive:
        found.append(
            Trouble(
                "Tuples wait, and nothing runs",
                f"The load ended with {counted(waiting, 'unfinished tuple')}",
                "Start it again: it finishes them first.",
                "restart",
            )
        )
    if proof is not None and proof.failures:
        run = proof.failures[0]
        found.append(
            Trouble(
                f"Not complete: batches {run.batches}",
                f"The proof failed: {', '.join(run.failed)}",
                "The report names the rows. Mend them, or take the batches out "
                f"(semistream reset {proof.app}) and load them again; then verify.",
                "report",
                run.report,
            )
        )
    return found


def _ended(checkpoint: Path, status: Status | None, why: str) -> Trouble:
    """Return the problem of a driver that failed, was killed, or never began."""
    if status is None:
        return Trouble(
            "Its state is unknown",
            f"{checkpoint / 'status.json'} cannot be read",
            "Start it again: a running app writes it anew.",
            "restart",
        )
    if why.startswith("failed: "):
        cause = drivers.refusal(checkpoint, why) or why.removeprefix("failed: ")
        return Trouble(
            "Failed",
            cause.partition("\n")[0],
            "Mend the cause and start it again: it goes on where it was.",
            "restart",
        )
    if why.startswith("was killed"):
        return Trouble(
            f"Killed while {status.state}",
            "Its process ended without a word: by SIGKILL, for want of memory, or with its machine",
            "No row is lost, none comes twice. Start it again: it goes on where it was.",
            "restart",
        )
    return Trouble(
        "It never began",
        f"The driver {why}; {checkpoint / 'driver.log'} tells more",
        "Mend the cause and start it again.",
        "restart",
    )


def _naive(heartbeat: str) -> datetime:
    return datetime.fromisoformat(heartbeat).astimezone(UTC).replace(tzinfo=None)
