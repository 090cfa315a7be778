"""The extension of Great Expectations for the checks: an expectation that a query finds no rows,
and the metric that runs the query.

GX's UnexpectedRowsExpectation runs its query twice, keeps at most 200 rows without a warning, and
interprets braces in the SQL as placeholders. This expectation runs the query once, counts all its
rows and keeps the first LISTED_ROWS for the report.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import sqlalchemy as sa
from great_expectations import Checkpoint, ValidationDefinition
from great_expectations.core.expectation_validation_result import ExpectationValidationResult
from great_expectations.core.freshness_diagnostics import (
    CheckpointFreshnessDiagnostics,
    ValidationDefinitionFreshnessDiagnostics,
)
from great_expectations.execution_engine import ExecutionEngine, SqlAlchemyExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.query_metric_provider import QueryMetricProvider
from pydantic.v1 import PrivateAttr

from semistream.quality.checks import LISTED_ROWS


class FoundRows(QueryMetricProvider):
    """The metric {"count": number of rows that the query returns, "columns": their names, "rows":
    the first LISTED_ROWS as lists}."""

    metric_name = "semistream.found_rows"
    value_keys = ("query",)

    @metric_value(engine=SqlAlchemyExecutionEngine)
    def _sqlalchemy(
        cls,  # noqa: N805 - GX makes it a class method
        execution_engine: SqlAlchemyExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> dict[str, Any]:
        found = execution_engine.execute_query(sa.text(metric_value_kwargs["query"]))
        rows = [[_plain(v) for v in row] for row in found.fetchmany(LISTED_ROWS)]
        count = len(rows)
        while more := found.fetchmany(10_000):
            count += len(more)
        return {"count": count, "columns": list(found.keys()), "rows": rows}


class ExpectQueryToFindNoRows(BatchExpectation):
    """An expectation that succeeds if the query, which looks for wrong rows, finds none, or if its
    severity is only a warning."""

    query: str
    metric_dependencies: ClassVar[tuple[str, ...]] = (FoundRows.metric_name,)
    success_keys: ClassVar[tuple[str, ...]] = ("query",)
    domain_keys: ClassVar[tuple[str, ...]] = ("batch_id", "row_condition", "condition_parser")
    _made: ExpectationConfiguration | None = PrivateAttr(None)

    @property
    def configuration(self) -> ExpectationConfiguration:
        """Return the configuration, which is made once. GX asks for it 28 times in a run."""
        if self._made is None:
            self._made = super().configuration
        return self._made

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any] | None = None,
        execution_engine: ExecutionEngine | None = None,
    ) -> ExpectationValidationResult | dict[str, Any]:
        found = metrics[FoundRows.metric_name]
        details = {"columns": found["columns"], "unexpected_rows": found["rows"]}
        return {
            "success": found["count"] == 0 or self.severity == FailureSeverity.WARNING,
            "result": {"observed_value": found["count"], "details": details},
        }


class OneValidation(ValidationDefinition):
    """A validation that is run once, as it was made. GX would store it, and compare it with what
    the store has, several times in a run."""

    def is_fresh(self) -> ValidationDefinitionFreshnessDiagnostics:
        return ValidationDefinitionFreshnessDiagnostics(errors=[])


class OneCheckpoint(Checkpoint):
    """A checkpoint that is run once, likewise."""

    def is_fresh(self) -> CheckpointFreshnessDiagnostics:
        return CheckpointFreshnessDiagnostics(errors=[])


def _plain(value: Any) -> Any:
    # MySQL returns sums of integers as decimals
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
