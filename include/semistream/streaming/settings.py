"""The settings of the streaming apps, and the job after they are applied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from semistream.column_format import declared
from semistream.durations import seconds_of
from semistream.errors import ConfigError, wrong_settings
from semistream.job import AnyJob, Job, StreamStreamJob
from semistream.paths import Paths
from semistream.settings import (
    MEMORY,
    PASSWORD,
    SECRET,
    Bytes,
    JoinSettings,
    Pairs,
    Settings,
    pairs,
    read_yaml,
)
from semistream.workloads.jobs import check_name, job_file, load_any_job

AVAILABLE_NOW = "availableNow"


def _trigger(value: str) -> str:
    if value != AVAILABLE_NOW and not re.fullmatch(
        r"\d+(\.\d+)? *(ms|milliseconds?|s|seconds?|m|minutes?|hours?)", value
    ):
        raise ConfigError(
            "trigger",
            "must be availableNow or an interval",
            value,
            "Give for instance '5 seconds'.",
        )
    return re.sub(
        r"(?<=\d) *(ms|s|m)$",
        lambda m: {"ms": " milliseconds", "s": " seconds", "m": " minutes"}[m[1]],
        value,
    )


def _app(value: str) -> str:
    if value:
        check_name("app", value)
    return value


def _no_secret(options: dict[str, str]) -> dict[str, str]:
    for name, value in options.items():
        if re.search(SECRET, name, re.IGNORECASE) or re.search(PASSWORD, value):
            raise ConfigError(
                "source_options",
                "must hold no secret, which command lines and Airflow's database show",
                name,
                "Write it into a YAML file that you alone may read (chmod 600), and "
                "give that as source_options_file.",
            )
    return options


def _absolute(value: str) -> str:
    return str(Path(value).absolute()) if value else value


def _sink(value: str) -> str:
    return value if value == "sql" or "://" in value else _absolute(value)


AppName = Annotated[str, AfterValidator(_app)]
SinkSetting = Annotated[str, AfterValidator(_sink)]


class AppSettings(Settings):
    """The settings of one run of a streaming app, for a job of one or two streams."""

    job: str = Field(description="What is loaded: tpch, nycflights13, tpcds, or a job's YAML file")
    app: AppName = Field(
        "",
        description="Name of the load; its rows and its ledger are kept by it; default: the "
        "job's name",
    )
    checkpoint: Path | None = Field(
        None,
        description="Directory of progress, join state, status and lock; it must be shared "
        "by driver and executors; default: $SEMISTREAM_HOME/checkpoints/APP",
    )
    sink: SinkSetting = Field(
        "sql",
        description="Where joined tuples go: sql (the warehouse), or the directory or URI "
        "of a Delta table",
    )
    trigger: Annotated[str, AfterValidator(_trigger)] = Field(
        AVAILABLE_NOW,
        description="availableNow: load what there is, then stop; '5 seconds': go on until stopped",
    )
    partitions: int = Field(
        0,
        ge=0,
        le=4096,
        description="P, join operators side by side, each with M/P bytes; 0: one a core",
    )
    max_files: int = Field(
        0, ge=0, description="Most files that one micro-batch reads; 0: no limit"
    )
    max_rows: int = Field(
        0,
        ge=0,
        description="Most tuples that one micro-batch reads, of a "
        "source that can limit them (kafka, zipf, outbox); "
        "0: no limit",
    )
    min_age: float = Field(
        0,
        ge=0,
        description="Seconds for which a file must not have changed "
        "before it is loaded, where files are not renamed "
        "into the stream's directory when they are "
        "complete",
    )
    stop_after: float = Field(
        0, ge=0, description="Seconds after which the app drains and stops by itself; 0: never"
    )
    reason: str = Field(
        "", max_length=1000, description="Why this algorithm, for the ledger; auto tells its own"
    )
    retry: float = Field(
        60,
        gt=0,
        description="Seconds for which a lost or locked database is "
        "tried again before the app fails",
    )

    def name(self) -> str:
        """Return the app's name, by default the job's. Raises ConfigError if the job's file cannot
        be read, or if its name is not allowed for an app."""
        if self.app:
            return self.app
        if not Path(self.job).is_file():  # a shipped job, or one that will be refused
            return _app(Path(self.job).stem)
        return _app(str(read_yaml(self.job).get("name", "")))

    @property
    def interval(self) -> float | None:
        """Seconds from one micro-batch to the next; None with availableNow."""
        if self.trigger == AVAILABLE_NOW:
            return None
        return seconds_of(self.trigger)

    def directory(self, paths: Paths) -> Path:
        """Return the absolute path of the checkpoint."""
        return (self.checkpoint or paths.checkpoints / self.name()).absolute()


class LoadSettings(AppSettings, JoinSettings):
    """The settings of one run of the app that joins a stream with master data."""

    source_format: str = Field(
        "",
        description="Spark source format in place of the job's: parquet, csv, json, kafka, "
        "zipf, outbox …",
    )
    source_path: str = Field(
        "", description="Directory of the stream's files in place of the job's"
    )
    source_options: Annotated[Pairs, AfterValidator(_no_secret)] = Field(
        {},
        description="Source options besides the job's, NAME=VALUE as Spark takes them",
        json_schema_extra={
            "propertyNames": {"not": {"pattern": f"(?i){SECRET}"}},
            "additionalProperties": {"type": "string", "not": {"pattern": PASSWORD}},
        },
    )
    source_options_file: Annotated[str, AfterValidator(_absolute)] = Field(
        "",
        description="YAML file with source options that hold a secret, such as a password; its "
        "owner alone may read it",
    )
    source_columns: str = Field(
        "", description="Schema of the stream as Spark DDL in place of the job's"
    )
    max_wait: float = Field(
        0,
        ge=0,
        description="Most seconds that a stream tuple waits for its "
        "master data, from the micro-batch that brings "
        "it, at least two triggers; 0: with an interval as "
        "trigger, two of them, or as many as let reads of "
        "the master data take a quarter of the time",
    )
    max_output_rows: int = Field(
        0,
        ge=0,
        description="Most rows that the app may load in all, where several master rows "
        "can match a tuple: a batch that is estimated to bring more is "
        "refused before it begins; 0: any number",
    )
    key_sketch: bool = Field(
        True,
        description="Whether the ledger keeps a sketch of each load's join keys, up to some "
        "10 KB, from which the proof knows how many rows to expect",
    )

    def applied(self, job: Job) -> Job:
        """Return the job as it is loaded with these settings: with their source, and with the type
        of each role's join."""
        spec = job.stream
        changed: dict[str, Any] = {
            "format": self.source_format or spec.format,
            "path": self.source_path or spec.path,
            "columns": self.source_columns or spec.columns,
            "options": spec.options | self.source_options,
            "options_file": self.source_options_file or spec.options_file,
        }
        if self.source_format and self.source_format != spec.format:
            changed |= {
                "options": self.source_options,
                "options_file": self.source_options_file or None,
                "path": self.source_path or None,
                "columns": self.source_columns or None,
                # the source decides how texts are written; the job, how keys are normalised
                "formats": {
                    c: declared(c, form.normal_form)
                    for c, form in spec.formats.items()
                    if form.normal_form
                },
            }
        roles = {
            name: role.model_copy(update={"join_type": role.join_type or self.join_type})
            for name, role in job.dimensions.items()
        }
        stream = spec.model_copy(update=changed)
        return job.model_copy(update={"stream": stream, "dimensions": roles})


class StreamStreamSettings(AppSettings):
    """The settings of one run of the app that joins two streams."""

    algorithm: str = Field(
        "pjoin",
        description="Join algorithm of two streams: pjoin, or xjoin, "
        "which knows no constraints of the streams",
    )
    memory: Bytes = Field(
        MEMORY,
        description="M, bytes that the join may hold, "
        "shared by its partitions; what does "
        "not fit waits on local disk",
    )
    parameters: Annotated[dict[str, Any], BeforeValidator(pairs)] = Field(
        {},
        description="Further parameters of the algorithm, NAME=VALUE: purge_threshold, "
        "propagate (push or pull), propagate_count, propagate_seconds, index (lazy "
        "or eager), activation_threshold, activation_seconds",
    )
    end: bool = Field(
        False,
        description="Whether both streams end with what there is: once it has "
        "been read, tuples that are held are finished. Nothing "
        "can be loaded after that",
    )


def _of_both(name: str) -> Any:
    """Return a setting of a load whose description also covers its meaning for a job of two
    streams."""
    one, two = LoadSettings.model_fields[name], StreamStreamSettings.model_fields[name]
    _, _, choices = f"{two.description}".partition(": ")
    return Field(one.default, description=f"{one.description}; of two streams: {choices}")


class AnyLoadSettings(LoadSettings):
    """The settings of one run of an app, for a job of one or two streams. The job's kind decides
    which of them are allowed."""

    algorithm: str = _of_both("algorithm")
    parameters: Annotated[dict[str, Any], BeforeValidator(pairs)] = _of_both("parameters")
    end: bool = Field(
        StreamStreamSettings.model_fields["end"].default,
        description=f"Of two streams: {StreamStreamSettings.model_fields['end'].description}",
    )

    @property
    def auto(self) -> bool:
        return False  # not known before the job is: of two streams, no algorithm is auto


def settings_kind(job: AnyJob) -> type[AppSettings]:
    """Return the class of the settings with which a job is loaded."""
    return StreamStreamSettings if isinstance(job, StreamStreamJob) else LoadSettings


def load_with_settings(file: str, paths: Paths) -> tuple[AnyJob, dict[str, Any]]:
    """Load a job, as ``load_any_job`` does, and return it with the settings that it gives to its
    loads. Raises ConfigError that names what is wrong in both."""
    try:
        job = load_any_job(file, paths)
    except ConfigError as e:
        errors, path = list(e.errors), job_file(file, paths)
        values = read_yaml(path) if path.exists() else {}
        if isinstance(given := values.get("settings"), dict):
            two = {"left", "right"} & values.keys()
            try:
                _check(StreamStreamSettings if two else LoadSettings, file, given)
            except ConfigError as more:
                errors += more.errors
        raise wrong_settings(errors) from None
    return job, checked_settings(job, file, job.settings)


def checked_settings(job: AnyJob, file: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a job's load. Raises ConfigError for a wrong setting, under the name
    that the setting has in the job's file."""
    _check(settings_kind(job), file, given)
    return given


def _check(kind: type[AppSettings], file: str, given: dict[str, Any]) -> None:
    try:
        kind.load({**given, "job": file})
    except ConfigError as e:
        raise e.renamed(lambda name: f"settings.{name}") from None
