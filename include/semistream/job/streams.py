"""The source of a job's stream tuples, and what all jobs have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from semistream.column_format import Formats
from semistream.scheduling import SCHEDULING, Scheduling
from semistream.settings import SECRET, Names, Settings, Share, read_secrets

if TYPE_CHECKING:
    import pyarrow as pa


FILE_FORMATS = ("parquet", "orc", "csv", "json", "text", "avro")  # Spark's file formats


class StreamSpec(Settings):
    """The source of a job's stream tuples, described as for Spark's readStream."""

    format: str = Field(
        "parquet", description="Spark source format: parquet, csv, json, kafka, zipf, outbox, …"
    )
    options: dict[str, str] = Field({}, description="Options of the source, as Spark takes them")
    options_file: str | None = Field(
        None,
        description="YAML file with further options that hold a "
        "secret; its owner alone may read it",
    )
    path: str | None = Field(None, description="Directory of the stream's files")
    columns: str | None = Field(
        None,
        description="Schema of the stream as Spark DDL ('id BIGINT, "
        "sku STRING'); read from the files where their "
        "format has one",
    )
    id: Names = Field(
        (), description="Columns that identify a stream tuple, for the completeness proof"
    )
    formats: Formats = Field(
        {},
        description="How columns are written that are not written as "
        "usual, by column: a time format such as %d/%m/%Y, "
        "an example number such as 1.234,56, or a mapping",
    )
    max_unparsable: Share = Field(
        0.01,
        description="Share of the tuples that may be unparsable; the "
        "proof of completeness fails when more are",
    )
    unique_ids: bool = Field(
        True,
        description="Whether no id comes twice in the source: the proof "
        "of completeness fails when one does; false: it "
        "tells how many do",
    )

    @property
    def declared(self) -> pa.Schema | None:
        """The schema that ``columns`` declares. Raises ConfigError if it is not a schema."""
        from semistream.ddl import parse_ddl  # parsing a DAG file needs no Arrow

        return parse_ddl(self.columns, "stream.columns", nested=True) if self.columns else None

    def secrets(self) -> dict[str, str]:
        """Read the options in ``options_file``, which are stored nowhere else. Raises ConfigError
        when the file cannot be read, or when its permissions let other users read it."""
        return read_secrets("options_file", self.options_file) if self.options_file else {}

    def all_options(self) -> dict[str, str]:
        """Return the options, including those of ``options_file``. Raises ConfigError like
        ``secrets``."""
        return self.options | self.secrets()

    @property
    def mark(self) -> str | None:
        """The name of the column that marks rows which are not tuples."""
        return None

    def without_secrets(self) -> Self:
        """Return a copy without options that may hold a secret."""
        options = {
            k: v
            for k, v in self.options.items()
            if not re.search(f"url$|{SECRET}", k, re.IGNORECASE)
        }
        return self.model_copy(update={"options": options})


class BaseJob(Scheduling):
    """The common part of jobs of one stream and of two.

    shipped: the names of the jobs that are part of this package; stream_names: the settings that
    have the streams.
    """

    shipped: ClassVar[tuple[str, ...]]
    stream_names: ClassVar[tuple[str, ...]]

    name: str = Field(description="Name of the job")

    def to_ledger(self) -> str:
        """Return JSON that ``load`` accepts, without options of the sources that may hold a
        secret."""
        streams = {name: getattr(self, name).without_secrets() for name in self.stream_names}
        return self.model_copy(update=streams).model_dump_json(exclude=SCHEDULING)
