"""One Great Expectations checkpoint, run over the warehouse's existing connection, and its page of
Data Docs.

The context is only in memory. Validation results and HTML pages are written to disk; none of them
contains the connection string.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from semistream.errors import SemistreamError
from semistream.imports import put_off, without
from semistream.quality.checks import Check

if TYPE_CHECKING:
    from great_expectations.data_context import EphemeralDataContext

SITE = "semistream"
RUNS_KEPT = 200  # on the index page
DOCS = "semistream.quality.docs"
PAGES, RESULTS = "validations", "results"  # the index omits pages without a result
OF_CHECK = ("remedy", "cause", "of", "expected", "found")  # what a result keeps of its check


@dataclass(frozen=True)
class CheckResult:
    """The result of one expectation. rows: the first offending rows; count: the number of all;
    error: why the check could not run; cause, remedy: tell the reader why it fails, and what to do;
    of: the role or stream that it is about; warns: whether rows found are no failure; expected,
    found: the rows' columns that have what was expected and found, if they have such."""

    name: str
    title: str
    explanation: str
    success: bool
    count: int
    query: str
    rows: list[dict[str, Any]]
    error: str | None
    remedy: str = ""
    cause: str = ""
    of: str = ""
    warns: bool = False
    expected: str = ""
    found: str = ""

    @property
    def warned(self) -> bool:
        """Whether the check found wrong rows that are only a warning."""
        return self.success and self.count > 0


def run_checkpoint(
    url: str,
    asset: str,
    name: str,
    checks: Sequence[Check],
    summary: dict[str, Any],
    reports: Path,
    kept: int,
) -> tuple[bool, list[CheckResult], Path]:
    """Run the checks. Return whether all hold, their results, and the path of the report's page.

    asset: the table under which the validation is filed; name: name of the suite; summary: the part
    of the report above the checks; kept: how many reports of the suite to keep, including this one.
    """
    _prune(reports, name, kept - 1)
    context = _context(reports)
    import great_expectations as gx
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.core.run_identifier import RunIdentifier

    from semistream.quality.expectations import (
        ExpectQueryToFindNoRows,
        OneCheckpoint,
        OneValidation,
    )

    with warnings.catch_warnings():
        # GX recommends a data source for SQLite, but has none for MySQL; one kind serves both
        warnings.simplefilter("ignore")
        datasource = context.data_sources.add_sql("warehouse", connection_string=url)
    engine = datasource.get_engine()
    batch = datasource.add_table_asset(asset, table_name=asset).add_batch_definition_whole_table(
        "whole"
    )
    expectations = [
        ExpectQueryToFindNoRows(
            query=c.sql(engine.dialect),
            description=c.title,
            notes=c.explanation,
            severity="warning" if c.warns else "critical",
            meta={"check": c.name}
            | {name: getattr(c, name) for name in OF_CHECK}
            | ({"run": summary} if i == 0 else {}),
        )
        for i, c in enumerate(checks)
    ]
    suite = gx.ExpectationSuite(name=name, expectations=expectations)
    checkpoint = OneCheckpoint(
        name=name,
        validation_definitions=[OneValidation(name=name, data=batch, suite=suite)],
        actions=[UpdateDataDocsAction(name="docs")],
        result_format="COMPLETE",
    )
    try:
        done = checkpoint.run(
            run_id=RunIdentifier(run_name=summary["run"], run_time=datetime.now(UTC))
        )
    finally:
        # GX keeps a connection to SQLite open; the last one that closes removes the -wal file
        execution = datasource.get_execution_engine()
        with execution.get_connection() as connection:
            connection.close()
        execution.close()
        engine.dispose()
    identifier, result = next(iter(done.run_results.items()))
    sites = context.get_docs_sites_urls(resource_identifier=identifier, site_names=[SITE])
    page = Path(unquote(urlparse((sites[0]["site_url"] if sites else None) or "").path))
    if not page.is_file():  # GX only logs an exception of a renderer
        raise SemistreamError(
            f"The report of {name} was not written below {reports}; see the log "
            f"of great_expectations."
        )
    return bool(result.success), [read_result(r) for r in result.results], page


def suite_of(path: PurePath) -> str:
    """Return the suite of which a file is a report or a result; "" for any other file. path: below
    the directory of reports."""
    kind, *rest = path.parts or ("",)
    return ".".join(rest[:-3]) if kind in (PAGES, RESULTS) else ""


def discard(page: Path, reports: Path) -> None:
    """Remove a report. The index page lists it until the next report is written."""
    result = reports / RESULTS / page.relative_to(reports / PAGES).with_suffix(".json")
    for file in (page, result):
        file.unlink(missing_ok=True)
        # the directories of its time and of its batches, if they are empty now
        for directory in file.parents[:2]:
            with suppress(OSError):
                directory.rmdir()


def _prune(reports: Path, suite: str, kept: int) -> None:
    """Remove all but the latest reports of a suite."""
    pages = (reports / PAGES / Path(*suite.split("."))).glob("*/*/*.html")
    for page in sorted(pages, key=lambda page: page.parent.name, reverse=True)[kept:]:
        discard(page, reports)


def read_result(result: Any) -> CheckResult:
    """Convert the result of one expectation."""
    config, found = result.expectation_config, result.result or {}
    meta, info = config.meta or {}, result.exception_info or {}
    # columns and rows are stored apart, because the store sorts the keys of mappings
    details = found.get("details", {})
    # GX gives one mapping of an exception, or one for each metric
    errors = [
        e["exception_message"].split("\n")[0]
        for e in (info, *info.values())
        if isinstance(e, dict) and e.get("raised_exception")
    ]
    return CheckResult(
        meta.get("check", config.type),
        config.description,
        config.notes,
        bool(result.success),
        found.get("observed_value", 0),
        config.kwargs.get("query", ""),
        [
            dict(zip(details.get("columns", []), r, strict=True))
            for r in details.get("unexpected_rows", [])
        ],
        errors[0] if errors else None,
        warns=config.severity == "warning",
        **{name: meta.get(name, "") for name in OF_CHECK},
    )


def _context(reports: Path) -> EphemeralDataContext:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # GX reads it when it is imported
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    # of what it imports, the checks use neither statistics nor charts nor Spark: 1.2 s of 2.8 s
    with warnings.catch_warnings(), without("pyspark"), put_off("scipy.stats", "altair"):
        warnings.simplefilter("ignore")
        import great_expectations as gx
        from great_expectations.data_context.types.base import (
            DataContextConfig,
            InMemoryStoreBackendDefaults,
            ProgressBarsConfig,
        )
    defaults = InMemoryStoreBackendDefaults()
    defaults.stores[defaults.validation_results_store_name]["store_backend"] = _files(
        reports / RESULTS
    )
    index = {
        "class_name": "DefaultSiteIndexBuilder",
        "validation_results_limit": RUNS_KEPT,
        "renderer": _docs_class("RunsRenderer"),
        "view": _docs_class("View", template="index.html"),
    }
    section = {
        "class_name": "DefaultSiteSectionBuilder",
        "source_store_name": defaults.validation_results_store_name,
        "renderer": _docs_class("ReportRenderer"),
        "view": _docs_class("View", template="report.html"),
    }
    sections = {"validations": section, "expectations": "None", "profiling": "None"}
    site = {
        **_docs_class("Site"),
        "show_how_to_buttons": False,
        "store_backend": _files(reports),
        "site_index_builder": index,
        "site_section_builders": sections,
    }
    config = DataContextConfig(
        store_backend_defaults=defaults,
        data_docs_sites={SITE: site},
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
    )
    return gx.get_context(mode="ephemeral", project_config=config)


def _docs_class(class_name: str, **settings: str) -> dict[str, str]:
    return {"module_name": DOCS, "class_name": class_name, **settings}


def _files(directory: Path) -> dict[str, Any]:
    return {
        "class_name": "TupleFilesystemStoreBackend",
        "base_directory": str(directory.absolute()),
    }
