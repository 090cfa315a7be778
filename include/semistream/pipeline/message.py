"""The texts of notifications for the people who are responsible for a job."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semistream.errors import ConfigError, WarehouseAway

LINES = 40  # most lines of an error in a message


@dataclass(frozen=True)
class Message:
    """A notification. subject: one line; text: several lines."""

    subject: str
    text: str

    @property
    def html(self) -> str:
        """The text as HTML, for mails."""
        return f"<pre>{html.escape(self.text)}</pre>"


def failure(
    job: str, owner: str, task: str, run: str, error: BaseException | str | None, link: str
) -> Message:
    """Describe a task of a job's run that has failed for good: the job, the run, the failure and
    its remedy, with a link. For an incomplete proof, the checks, the range of batches and the first
    rows are included.

    error: the error with which the task failed; None if its process was killed.
    """
    result = getattr(error, "result", None)  # of a verification
    subject = f"{job}: {'incomplete' if result is not None else f'{task} failed'}"
    lines = str(error or "The task's process was killed.").splitlines()
    if len(lines) > LINES:
        lines = [*lines[:LINES], f"… and {len(lines) - LINES} further lines, in the task's log"]
    if result is not None and result.proof:
        lines.insert(0, f"Complete: {result.proof}")
    return _message(subject, job, owner, run, [*lines, f"What to do: {_remedy(error)}"], link)


def warning(job: str, owner: str, run: str, checks: Sequence[str], text: str, link: str) -> Message:
    """Describe a verification that holds and warns. checks: the names of the expectations that do
    not hold; text: the description of the verification."""
    said = [*text.splitlines()[:LINES], "Nothing has failed: these expectations only warn."]
    return _message(f"{job}: warning: {', '.join(checks)}", job, owner, run, said, link)


def missed_deadline(
    job: str, owner: str, deadline: str, run: str, proven: str, link: str
) -> Message:
    """Describe a run that is not complete at its deadline. deadline: a time of day and its zone;
    proven: what is proven of the job's loads."""
    said = [f"The run is not complete at {deadline}.", f"Proven until now: {proven}"]
    way = "What to do: see in Airflow which task waits, fails or still runs. It is not stopped."
    return _message(f"{job}: not complete by {deadline}", job, owner, run, [*said, way], link)


def _message(subject: str, job: str, owner: str, run: str, lines: list[str], link: str) -> Message:
    head = [f"Job: {job}", *([f"Owner: {owner}"] if owner else []), f"Run: {run}"]
    return Message(subject, "\n".join([*head, *lines, *([f"Link: {link}"] if link else [])]))


def _remedy(error: Any) -> str:
    if getattr(error, "result", None) is not None:
        return "mend what the checks name, then clear the task. The report lists all rows."
    if isinstance(error, ConfigError):
        return "change the setting, then clear the task. It is not tried again before."
    if isinstance(error, WarehouseAway):
        return "bring the warehouse back, then clear the task: it goes on where it was."
    return "see the task's log; cleared, the task goes on where it was, and loads nothing twice."
