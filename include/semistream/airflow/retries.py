"""The rules for retrying a task: after which failures, and how often."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from semistream.errors import ConfigError, MissingExtra, TooManyRows, WarehouseAway
from semistream.imports import missing_extra

TRIES = 3  # tries after a failure that is not known to be temporary
WAIT = timedelta(minutes=5)  # between two tries while the warehouse cannot be reached
AWAY = timedelta(hours=1)  # the least time for which tasks wait for the warehouse


class Retrying(RetryPolicy):
    """The retries of a task: none after an error that a retry cannot help, a few after other
    errors, and one every five minutes for more than an hour while the warehouse is unreachable.

    The task's ``retries`` must not be less than `RETRIES`.
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any = None
    ) -> RetryDecision:
        from semistream.quality import VerificationFailed
        from semistream.warehouse.ledger import is_transient

        if isinstance(exception, WarehouseAway) or is_transient(exception):
            return RetryDecision.retry(WAIT, "the warehouse is away")
        if isinstance(exception, ImportError) and (missing := missing_extra(exception)):
            return RetryDecision.fail(str(missing))
        if isinstance(exception, ConfigError | MissingExtra | TooManyRows | VerificationFailed):
            return RetryDecision.fail("something must be changed first")
        if try_number > TRIES:
            return RetryDecision.fail(f"it has failed {try_number} times")
        return RetryDecision.default()


# default_args of tasks
RETRIES: dict[str, Any] = {
    "retries": AWAY // WAIT + TRIES,
    "retry_delay": timedelta(seconds=10),
    "retry_policy": Retrying(),
}
