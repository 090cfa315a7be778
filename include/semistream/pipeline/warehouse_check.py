"""The warehouse's part in the check of a job: whether it exists, which numbers it stores as texts,
and which loaded files have changed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pyarrow as pa
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import DBAPIError

from semistream.counted import counted
from semistream.job import AnyJob
from semistream.pipeline.check_result import JobCheck
from semistream.warehouse import connect
from semistream.warehouse.dialects import may_exist, system_of
from semistream.warehouse.source_files import NOT_SEEN, compare


def open_existing(url: str, found: JobCheck) -> Engine | None:
    """Return an engine of the warehouse; None if there is no database yet, or if it does not
    answer, which is added to the findings. Raises ConfigError for a URL of no known system."""
    if not may_exist(url):
        return None
    engine = connect(url)
    try:
        engine.connect().close()
    except DBAPIError as e:
        found.add("error", "job", f"the warehouse does not answer: {e.orig or e}")
        return None
    return engine


def note_decimals(url: str, schemas: Sequence[pa.Schema], found: JobCheck) -> None:
    """Add a note about numeric columns that the warehouse stores, and compares, as texts."""
    system = system_of(make_url(url).get_dialect()())
    names = [
        f.name
        for schema in schemas
        for f in schema
        if pa.types.is_decimal(f.type) and system.decimal_is_text(f.type.precision)
    ]
    if names:
        found.add(
            "note",
            "job",
            f"{', '.join(names)}: decimals with so many digits are texts in the warehouse, "
            "which compares them as such. Compare and add them by CAST(… AS REAL), or declare "
            "fewer digits",
        )


def check_loaded_files(engine: Engine, app: str, job: AnyJob, found: JobCheck) -> None:
    """Check that the files that the app has loaded have not changed since then."""
    for name, spec in zip(job.stream_names, job.streams, strict=True):
        with engine.connect() as connection:
            files = compare(connection, app, spec)
        wrong = [f for f in files.findings if not f[2].startswith(NOT_SEEN)] if files else []
        if wrong:
            _, path, what = wrong[0]
            more = f", and {counted(len(wrong) - 1, 'more file')}" if wrong[1:] else ""
            found.add(
                "error",
                name,
                f"{path}{more}: {what}. The proof fails until it is as it was, or is loaded "
                f"anew: semistream reset {app} --file {shlex.quote(path)}",
            )
