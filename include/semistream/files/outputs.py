"""The output files of a join of files, and the part of the summary that is the same for all such
joins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.files.sink import OutputFile, check_output, check_place
from semistream.files.source import Rejected
from semistream.joins.output import UNPARSABLE

EXAMPLES = 3  # unparsable rows that the summary shows
# columns of a file of unmatched rows: why the row is unmatched, why it could not be parsed, the row
# as it was read, and the role of the dimension that has no row for it, where there are several
REASON_COLUMNS = ("reason", "detail", "text")
ROLE_COLUMN = "role"


@dataclass
class OperatorSummary:
    """The algorithm of a join, and what it needed: memory in bytes, a rate in stream tuples/s."""

    algorithm: str
    memory_budget: int
    memory_peak: int = 0  # peak of the operator's arrays
    service_rate: float = 0.0  # rate inside the operator


@dataclass
class JoinSummary(OperatorSummary):
    """The results of a join of files. Rates are in stream tuples/s, times in seconds, memory in
    bytes."""

    output_rows: int = 0
    rate: float = 0.0  # rate of the whole command, with start, reading and writing
    seconds: float = 0.0  # time of the whole command
    # JSON fields that the sample lacked, with their values
    ignored_fields: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)  # why rows were unparsable
    notes: list[str] = field(default_factory=list)  # remarks for the user on the inferred types
    statistics: dict[str, Any] = field(default_factory=dict)  # the operator's statistics

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def set_totals(self, statistics: Any, joined: int, read: int, seconds: float) -> None:
        """Set the totals. statistics: the operator's statistics; joined: stream tuples that the
        operator took in; read: these, and tuples that could not be parsed; seconds: the time of the
        whole command."""
        self.output_rows, self.memory_peak = statistics.output_rows, statistics.memory_peak
        self.service_rate = joined / statistics.seconds if statistics.seconds else 0.0
        self.rate = read / seconds if seconds else 0.0
        self.seconds, self.statistics = seconds, statistics.as_dict()


class Outputs(ExitStack):
    """The output files of a join, as a context manager. All files get their names together when all
    are complete; after an error, incomplete files are deleted.

    joined: the file of the joined rows, which gets its name last.
    """

    def __init__(self, settings: Any, schema: pa.Schema):
        """Open the file of the joined rows, which have this schema."""
        super().__init__()
        self._settings = settings
        self.joined = self.enter_context(OutputFile("out", settings.out, schema))
        self._files = [self.joined]

    def open(self, name: str, schema: pa.Schema) -> OutputFile | None:
        """Open the output file whose path the setting ``name`` gives; return None if the setting is
        empty."""
        path = getattr(self._settings, name)
        if path is None:
            return None
        self._files.append(self.enter_context(OutputFile(name, path, schema)))
        return self._files[-1]

    def finish(self) -> None:
        """Write the remaining rows. The files get their names only later, in ``publish``."""
        for file in self._files:
            file.finish()

    def publish(self, summary: JoinSummary) -> None:
        """Give the files their names, and write the summary."""
        for file in reversed(self._files):
            file.publish()
        if self._settings.stats is not None:
            self._settings.stats.write_text(
                json.dumps(summary.as_dict(), indent=2, default=str) + "\n"
            )


class Unmatched:
    """The unmatched rows of one input. If the setting ``name`` gives a file, they are written
    there. Rows that could not be parsed are also counted, and the summary shows some of them.

    schema: the schema of the operator's unmatched tuples, whose last column is the reason; counts:
    numbers of rows by reason; roles: whether the file has a column for the role in which a row is
    unmatched.
    """

    def __init__(
        self,
        outputs: Outputs,
        name: str,
        schema: pa.Schema,
        counts: dict[str, int],
        summary: JoinSummary,
        roles: bool = False,
    ):
        self._counts, self._examples = counts, summary.examples
        schema = schema.remove(len(schema) - 1)
        self._added = REASON_COLUMNS + ((ROLE_COLUMN,) if roles else ())
        for column in self._added:
            while column in schema.names:
                column = "_" + column
            schema = schema.append(pa.field(column, pa.string()))
        self._file = outputs.open(name, schema)

    def write(self, rows: pa.RecordBatch, role: str | None = None) -> None:
        """Write tuples that the operator returned as unmatched, in a role. The operator's
        statistics count them."""
        if self._file is not None and rows.num_rows:
            none = pa.nulls(rows.num_rows, pa.string())
            self._file.write(self._batch([*rows.columns, none, none], role))

    def _batch(self, columns: list[pa.Array], role: str | None) -> pa.RecordBatch:
        assert self._file is not None
        if ROLE_COLUMN in self._added:
            count = len(columns[0])
            columns = [*columns, pa.repeat(pa.scalar(role, pa.string()), count)]
        return pa.RecordBatch.from_arrays(columns, schema=self._file.schema)

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Count and write rows that could not be parsed."""
        if not rejected:
            return
        count = len(rejected)
        self._counts[UNPARSABLE] = self._counts.get(UNPARSABLE, 0) + count
        self._examples += [
            # the text has backslashes for bytes that are not UTF-8, which repr would double
            f"{r.place}: {r.detail} in {r.text[:120]!r}".replace(r"\\", "\\")
            for r in rejected[: EXAMPLES - len(self._examples)]
        ]
        if self._file is not None:
            schema = self._file.schema
            empty = [pa.nulls(count, f.type) for f in list(schema)[: -len(self._added)]]
            reasons = [
                pa.repeat(UNPARSABLE, count),
                pa.array([f"{r.place}: {r.detail}" for r in rejected], pa.string()),
                pa.array([r.text for r in rejected], pa.string()),
            ]
            self._file.write(self._batch([*empty, *reasons], None))


def check_paths(
    settings: Any, inputs: Sequence[str], outputs: Sequence[str], dimensions: Iterable[Path] = ()
) -> None:
    """Check that the output files can be written, and that no two paths are the same. Raises
    ConfigError otherwise. inputs, outputs: the names of the settings with the paths; dimensions:
    further inputs."""
    stats = settings.stats
    for name in outputs:
        if (path := getattr(settings, name)) is not None:
            check_output(name, path)
    if stats is not None:
        check_place("stats", stats)
    read = {p.resolve() for n in inputs if (p := getattr(settings, n)) is not None}
    read |= {p.resolve() for p in dimensions}
    written = [p.resolve() for n in (*outputs, "stats") if (p := getattr(settings, n)) is not None]
    if len(read.union(written)) < len(read) + len(written):
        raise ConfigError(
            "out",
            "must be a file of its own, as all files named",
            str(settings.out),
            "Choose another name.",
        )
