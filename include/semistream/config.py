"""Frozen, validated settings; to and from command-line arguments, YAML and Airflow params.

A field's ``description``, constraints and default are written once, here, and appear in ``--help``,
in the trigger form and in error messages. Every settings class is a frozen pydantic model that
refuses unknown names.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from semistream.column_format import Formats, paired
from semistream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True,
                              allow_inf_nan=False, protected_namespaces=(), defer_build=True)

    @classmethod
    def load(cls, values: dict[str, Any]) -> Self:
        """Validate a mapping. Raises ConfigError that names the first wrong parameter."""
        try:
            return cls.model_validate(values)
        except ValidationError as e:
            raise _config_error(cls, e) from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a YAML file. Raises ConfigError when the file is missing or wrong."""
        return cls.load(read_yaml(path))

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser, *, exclude: Sequence[str] = ()) -> None:
        """Add one ``--flag`` per field to a parser. The help is the field's description and
        default."""
        for name, field in cls.model_fields.items():
            if name in exclude:
                continue
            kind, many = _argument_kind(field.annotation)
            default = ("" if field.is_required()
                       or field.get_default(call_default_factory=True) in (None, (), {}, "")
                       else f" [{_default(field.get_default(call_default_factory=True))}]")
            options: dict[str, Any] = {
                "help": f"{field.description or name}{default}".replace("%", "%%"), "dest": name,
                "default": argparse.SUPPRESS, "required": field.is_required()}
            if kind is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                options["metavar"] = name.split("_")[-1].upper()
                if many:
                    options["action"] = "append"
                if field.annotation is not None and names in _validators(field):
                    options |= {"action": "extend", "type": _split_names}
                if (choices := typing.get_args(kind)) and typing.get_origin(kind) is Literal:
                    options["choices"] = choices
                    del options["metavar"]
            parser.add_argument("--" + name.replace("_", "-"), **options)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Return the settings given on the command line. Others have their defaults."""
        return cls.load({k: v for k, v in vars(arguments).items() if k in cls.model_fields})

    def to_arguments(self) -> list[str]:
        """Return a command line (``--flag value …``) that gives these settings again, without
        defaults."""
        out: list[str] = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value == field.get_default(call_default_factory=True) and not field.is_required():
                continue
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                out.append(flag if value else "--no-" + flag[2:])
            elif isinstance(value, dict):
                out += [f for k, v in value.items() for f in (flag, f"{k}={v}")]
            elif isinstance(value, (tuple, list)):
                quoted = names in _validators(field)
                out += [f for v in value for f in (flag, _quoted(v) if quoted else _plain(v))]
            elif value is not None:
                out += [flag, _plain(value)]
        return out

    @classmethod
    def airflow_params(cls, overrides: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return keyword arguments for ``airflow.sdk.Param``, one entry per field: default,
        description, JSON-schema type and range.

        overrides: keyword arguments by field that replace or extend those.
        """
        schema = cls.model_json_schema()
        out = {}
        for name, field in cls.model_fields.items():
            keywords = _inline(schema["properties"][name], schema.get("$defs", {}))
            default = None if field.is_required() else _json_default(
                field.get_default(call_default_factory=True))
            keywords |= {"default": default, "description": field.description or name}
            keywords.pop("title", None)
            out[name] = keywords | overrides.get(name, {})
        return out


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises ConfigError when the file is missing, unreadable or not a
    mapping."""
    try:
        values = _yaml(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise ConfigError("config", "must be a readable YAML file", str(path), str(e)) from None
    if not isinstance(values, dict):
        raise ConfigError("config", "must be a YAML mapping of parameter to value", str(path),
                          "See the README for an example.")
    return values


def read_secrets(parameter: str, path: str | Path) -> dict[str, str]:
    """Read a YAML mapping from a file that only its owner may read. Raises ConfigError otherwise,
    without revealing the content."""
    remedy = "Write lines of the form NAME: 'VALUE', and chmod 600 it."
    try:
        mode, text = os.stat(path).st_mode, Path(path).read_text(errors="replace")
    except OSError as e:
        raise ConfigError(parameter, f"must be a file that can be read ({e.strerror})", str(path),
                          remedy) from None
    if mode & 0o077:
        raise ConfigError(parameter, "must be a file that its owner alone may read", str(path),
                          f"chmod 600 {path}")
    try:
        values = _yaml(text)
    except ValueError:
        values = None
    if not isinstance(values,
                      dict) or not all(isinstance(v, (str, int, float)) for v in values.values()):
        raise ConfigError(parameter, "must be a YAML mapping of names to texts", str(path), remedy)
    return {str(name): json.dumps(v) if isinstance(v, bool) else str(v)
            for name, v in values.items()}


def _yaml(text: str) -> Any:
    """Parse a YAML text with the booleans of YAML 1.2, true and false only, as ``on:`` is a job's
    key and not True. Raises ValueError for malformed YAML."""
    import yaml  # takes a while, and many commands read none

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
            first: [(tag, pattern) for tag, pattern in resolvers
                    if tag != "tag:yaml.org,2002:bool"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}

    Loader.add_implicit_resolver("tag:yaml.org,2002:bool",
                                 re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as e:
        raise ValueError(str(e)) from None


def _inline(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Replace "$ref" and "anyOf" of plain types in a schema by "type", which Airflow's form
    reads."""
    schema = dict(schema)
    if "$ref" in schema:
        schema |= definitions[schema.pop("$ref").rsplit("/", 1)[-1]]
    if "anyOf" in schema:
        options = [_inline(s, definitions) for s in schema.pop("anyOf")]
        kinds = [k for s in options
                 for k in ([s["type"]] if isinstance(s.get("type"), str) else s.get("type", []))]
        for s in options:
            schema |= {k: v for k, v in s.items() if k != "type"}
        schema["type"] = list(dict.fromkeys(kinds))
    return schema


def _argument_kind(annotation: Any) -> tuple[Any, bool]:
    """Return (scalar type, whether the flag repeats) for a field's annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _argument_kind(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _argument_kind(next(a for a in arguments if a is not type(None)))
    if origin in (tuple, list, dict):
        return arguments[0], True
    return annotation, False


def _default(value: Any) -> str:
    """Format a default as it would be given on a command line, several values separated by
    commas."""
    return ",".join(map(_plain, value)) if isinstance(value, tuple) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "=".join(map(str, value)) if isinstance(value, tuple) else json.dumps(value)
    return (json.dumps(value) if isinstance(value, (dict, bool))
            else str(int(value) if isinstance(value, ByteSize) else value))


def _json_default(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_default(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _config_error(cls: type[Settings], e: ValidationError) -> ConfigError:
    errors = e.errors()
    # a name that is mistyped is also missing
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    where = ".".join(str(p) for p in first["loc"]) or cls.__name__
    name = str(first["loc"][0]) if first["loc"] else ""
    field = cls.model_fields.get(name)
    if first["type"] == "extra_forbidden":
        return ConfigError(where, f"is not a setting of {cls.__name__}", first["input"],
                           f"Settings: {', '.join(cls.model_fields)}.")
    remedy = (f"It means: {field.description}" if field is not None and field.description
              else "See --help.")
    if first["type"] == "missing":
        return ConfigError(where, "must be given", None, remedy)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return cause
    return ConfigError(where, f"is wrong: {first['msg']}", first["input"], remedy)


def pairs(value: Any) -> Any:
    """Convert {'a': 'b'}, ['a=b', 'c'] or 'a=b' to a mapping. A lone name maps to itself."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, (list, tuple)):
        pairs = [tuple((v.split("=", 1) if "=" in v else (v, v)) if isinstance(v, str) else v)
                 for v in value]
        if len(dict(pairs)) < len(set(pairs)):
            raise ValueError(f"a name is given twice with different values in {value}")
        return dict(pairs)
    return value


def names(value: Any) -> Any:
    """Convert 'a, "b, c"' or ['a', 'b, c'] to a tuple of names. Each element of a list is one
    name."""
    return tuple(_split_names(value)) if isinstance(value, str) else \
        tuple(str(v) for v in value) if isinstance(value, (list, tuple)) else value


def _split_names(text: str) -> list[str]:
    """Split names at commas. Names that contain commas are in quotes."""
    return [n.strip() for n in next(csv.reader([text], skipinitialspace=True), []) if n.strip()]


def _quoted(name: Any) -> str:
    text = str(name)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def _types(value: Any) -> Any:
    """Convert as ``pairs`` does. One text may hold several: 'a=string,b, c=decimal(12,2)' names the
    columns a, and 'b, c'."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, (list, tuple)):
        value = [part for v in value for part in ([v] if TYPED.sub("", v) else TYPED.findall(v))]
    return pairs(value)


def _validators(field: Any) -> list[Any]:
    return [getattr(m, "func", None) for m in field.metadata]


def _positive(value: ByteSize) -> ByteSize:
    if value <= 0:
        raise ConfigError("memory", "must be positive", int(value),
                          "Give for instance 64MB or 1GiB.")
    if value > MOST_MEMORY:
        raise ConfigError("memory", f"must be at most {MOST_MEMORY:,} bytes", int(value),
                          "Give what this machine has.")
    return value


Pairs = Annotated[dict[str, str], BeforeValidator(pairs)]
Types = Annotated[dict[str, str], BeforeValidator(_types)]
Names = Annotated[tuple[str, ...], BeforeValidator(names)]
Bytes = Annotated[ByteSize, AfterValidator(_positive)]
JoinType = Literal["inner", "left"]
MOST_MEMORY = 2**47  # bytes, the address space of a process
SECRET = "pass|secret|jaas|token|key$"  # in the name of an option, in upper or lower case
PASSWORD = "://[^/@]*:[^/@]+@"  # in the value of an option
FILE_FORMATS = ("parquet", "orc", "csv", "json", "text", "avro")  # Spark's file formats
# COLUMN=TYPE, whose column may have commas
TYPED = re.compile(r"\s*(.+?)=([^=,()]*(?:\([^()]*\))?)\s*(?:,|$)")
AUTO = "auto"  # in the place of an algorithm's name: the cost models choose


def parse_bytes(text: str | int) -> int:
    """Convert '64MB' or 64000000 to bytes."""
    return int(TypeAdapter(ByteSize).validate_python(text))


class JoinSettings(Settings):
    """The settings of a semi-stream join, common to all ways to run it."""

    algorithm: str = Field(
        AUTO, description="Join algorithm, a name of the registry (see `semistream algorithms`), "
                          "or auto: the one that the cost models find fastest for the first "
                          "tuples, at its best sizes")
    memory: Bytes = Field(ByteSize(64_000_000),
                          description="M, bytes that one job's join may hold, shared by its "
                                      "partitions; for instance 64MB")
    join_type: JoinType = Field("inner", description="inner: matched tuples only; left: unmatched "
                                                     "ones too, with nulls")
    parameters: Annotated[dict[str, Any], BeforeValidator(pairs)] = Field(
        {}, description="Further parameters of the algorithm, NAME=VALUE (see `semistream "
                        "algorithms`)")

    @property
    def auto(self) -> bool:
        return self.algorithm.lower() == AUTO

    @model_validator(mode="after")
    def _auto_chooses(self) -> Self:
        if self.auto and self.parameters:
            raise ConfigError("parameters", "must not be given with the algorithm auto, the "
                                            "default: it chooses them",
                              self.parameters, "Name the algorithm, or leave them out.")
        return self


class Publishing(Settings):
    """The settings for publishing a snapshot."""

    memory: Bytes = Field(ByteSize(256_000_000), ge=1_000_000, description="Bytes that publishing "
                          "may take in each process beside what the process itself needs, however "
                          "large the master data are; for instance 256MB")


class StreamSpec(Settings):
    """The source of a job's stream tuples, as for Spark's readStream."""

    format: str = Field("parquet", description="Spark source format: parquet, csv, json, kafka, "
                                               "zipf, outbox, …")
    options: dict[str, str] = Field({}, description="Options of the source, as Spark takes them")
    options_file: str | None = Field(None, description="YAML file with further options that hold a "
                                                       "secret; its owner alone may read it")
    path: str | None = Field(None, description="Directory of the stream's files")
    columns: str | None = Field(None, description="Schema of the stream as Spark DDL ('id BIGINT, "
                                                  "sku STRING'); read from the files where their "
                                                  "format has one")
    id: Names = Field((), description="Columns that identify a stream tuple, for the completeness "
                                      "proof")
    formats: Formats = Field({}, description="How columns are written that are not written as "
                                             "usual, by column: a time format such as %d/%m/%Y, "
                                             "an example number such as 1.234,56, or a mapping")
    max_unparsable: float = Field(0.01, ge=0, le=1,
                                  description="Share of the tuples that may be unparsable; the "
                                              "proof of completeness fails when more are")
    unique_ids: bool = Field(True, description="Whether no id comes twice in the source: the proof "
                                               "of completeness fails when one does; false: it "
                                               "tells how many do")

    @property
    def declared(self) -> pa.Schema | None:
        """The schema that ``columns`` declares. Raises ConfigError if it is not a schema."""
        from semistream.ddl import parse_ddl  # parsing a DAG file needs no Arrow

        return parse_ddl(self.columns, "stream.columns", nested=True) if self.columns else None

    def secrets(self) -> dict[str, str]:
        """Read the options in ``options_file``, which are not stored anywhere else. Raises
        ConfigError when the file cannot be read, or when others may read it."""
        return read_secrets("options_file", self.options_file) if self.options_file else {}

    def all_options(self) -> dict[str, str]:
        """Return the options, including those of ``options_file``. Raises ConfigError as
        ``secrets`` does."""
        return self.options | self.secrets()

    @property
    def mark(self) -> str | None:
        """The column that marks rows which are not tuples."""
        return None

    def shown(self) -> Self:
        """Return a copy without options that may hold a secret."""
        options = {k: v for k, v in self.options.items()
                   if not re.search(f"url$|{SECRET}", k, re.IGNORECASE)}
        return self.model_copy(update={"options": options})


class WatermarkSpec(Settings):
    """A column of event time that advances."""

    column: str = Field(description="Column of times: a join column, or one of within")
    delay: float = Field(0, ge=0, description="How much older a tuple may be than the newest "
                                              "before it, in seconds; of a column of integers in "
                                              "its unit")


class SideSpec(StreamSpec):
    """One of two streams, and its promises about tuples that are still to come. Each promise lets
    the job drop waiting tuples. A tuple that breaks a promise is kept in unmatched with the reason
    against_punctuation, and is not joined."""

    unique: bool = Field(False, description="No two tuples have the same join columns")
    clustered: bool = Field(False, description="Tuples with the same join columns come one after "
                                               "the other; they are complete once a later "
                                               "micro-batch brings others and none of them")
    watermark: WatermarkSpec | None = Field(None, description="No tuple is older than the newest "
                                                              "before it by more than a delay")
    punctuation: str | None = Field(None, description="Column that tells rows that are no tuples: "
                                                      "true: no later tuple has this row's join "
                                                      "columns, of which null means any; or a "
                                                      "text, the patterns as JSON by join column")

    @property
    def mark(self) -> str | None:
        return self.punctuation

    @property
    def promises(self) -> dict[str, Any]:
        """The promises that are given, as JSON."""
        names = {"unique", "clustered", "watermark", "punctuation"}
        return self.model_dump(include=names, exclude_defaults=True)


class WithinSpec(Settings):
    """A further join condition: two times are close to each other. It lets a watermark drop tuples
    that are too old for all tuples still to come."""

    left: str = Field(description="Column of times of the left stream")
    right: str = Field(description="Column of times of the right stream")
    distance: float = Field(ge=0, description="The most that they differ, in seconds; of columns "
                                              "of integers in their unit")


class MasterSpec(Settings):
    """A job's master data and its dimension table."""

    name: str = Field(description="Name of the master relation; its dimension table is dim_NAME "
                                  "with surrogate key NAME_sk")
    path: str | None = Field(None, description="CSV, JSON lines or Parquet file (or directory) "
                                               "that it is provisioned from")
    table: str | None = Field(None, description="Existing table that it is provisioned from, in "
                                                "the warehouse or at --url")
    columns: str | None = Field(None, description="Schema of the master data as Spark DDL ('sku "
                                                  "STRING, price DECIMAL(10,2)'); default: what "
                                                  "the table has or the file's first 16 MB suggest")
    formats: Formats = Field({}, description="How columns are written, as a stream's formats")
    business_key: Names = Field((), description="Columns that identify a master tuple; default: "
                                                "the join columns")
    max_rejected: float = Field(0.01, ge=0, le=1,
                                description="Share of the master rows that may be left out, as "
                                            "unparsable or for their keys; when more are, nothing "
                                            "is provisioned")


def surrogate_key(master: str) -> str:
    """Return the name of a dimension's surrogate key column."""
    return f"{master}_sk"


class Job(Settings):
    """A load of one stream: the stream, its master data, their join, and the table for the
    result."""

    shipped: ClassVar[tuple[str, ...]] = ("tpch", "nycflights13")

    name: str = Field(description="Name of the job")
    stream: StreamSpec
    master: MasterSpec
    on: Pairs = Field(description="Join columns: a name, or STREAM=MASTER; several for a composite "
                                  "key")
    columns: Names = Field((), description="Master columns to add; default: all but the join "
                                           "columns")
    fact_table: str = Field(description="Table that receives the joined tuples")
    index_ids: bool = Field(False, description="Whether the fact table has an index on the "
                                               "stream's id columns, for those who look rows up by "
                                               "them; the load takes longer with it")

    @model_validator(mode="after")
    def _one_form_of_keys(self) -> Self:
        """Give both sides the normal form of their keys that one of them declares."""
        stream, master = paired(self.on.items(), self.stream.formats, self.master.formats)
        return self.model_copy(update={
            "stream": self.stream.model_copy(update={"formats": stream}),
            "master": self.master.model_copy(update={"formats": master})})

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return (self.stream,)

    def fact_ids(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the fact table's columns that identify the tuples from which a row was joined."""
        return self.stream.id

    def to_ledger(self) -> str:
        """Return JSON that ``Job.load`` accepts, without options of the source that may hold a
        secret."""
        return self.model_copy(update={"stream": self.stream.shown()}).model_dump_json()


SIDES = ("left", "right")  # the sides of a job of two streams
SideJoinType = Literal["inner", "left", "right", "full"]
TOTAL = re.compile(r"(count|sum|min|max)\((.+)\)|count")


def parse_total(text: str) -> tuple[str, str | None]:
    """Parse a total such as ``max(price)``. Return (function, column); ``count`` has no column.
    Raises ValueError for another text."""
    found = TOTAL.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"must be count, or count, sum, min or max of a column, as max(price) is, "
                         f"and not {text}")
    return found[1] or "count", found[2]


class StreamStreamJob(Settings):
    """A load of two streams: the streams, their join, and the table for the result.

    The fact table has the columns of the left stream, then those of the right one. Right columns
    with a name of the left stream are called right_COLUMN.
    """

    shipped: ClassVar[tuple[str, ...]] = ("tpch_orders", "auctions")

    name: str = Field(description="Name of the job")
    left: SideSpec
    right: SideSpec
    on: Pairs = Field(description="Join columns: a name, or LEFT=RIGHT; several for a composite "
                                  "key")
    join_type: SideJoinType = Field("inner", description="inner: joined tuples only; left, right, "
                                                         "full: also those of that stream, or of "
                                                         "both, that certainly have no partner, "
                                                         "with nulls")
    within: WithinSpec | None = Field(None, description="Times of both streams that differ little")
    fact_table: str = Field(description="Table that receives the joined tuples")
    index_ids: bool = Field(False, description="Whether the fact table has an index on both "
                                               "streams' id columns; the load takes longer with "
                                               "it")
    totals: Pairs = Field({}, description="Totals of each join key, written to FACT_TABLE_closed "
                                          "once no later row can have that key: NAME=count, or "
                                          "count, sum, min or max of a column of the fact table, "
                                          "NAME=max(price)")

    @model_validator(mode="after")
    def _totals_that_close(self) -> Self:
        for total in self.totals.values():
            parse_total(total)
        if self.totals and self.join_type not in ("inner", "left"):
            raise ValueError("totals need a join_type of inner or left: of another one, rows that "
                             "have no key of the left stream come until the end")
        return self

    @model_validator(mode="after")
    def _one_form_of_keys(self) -> Self:
        """Give both sides the normal form of their keys that one of them declares."""
        left, right = paired(self.on.items(), self.left.formats, self.right.formats, SIDES)
        return self.model_copy(update={
            "left": self.left.model_copy(update={"formats": left}),
            "right": self.right.model_copy(update={"formats": right})})

    @property
    def streams(self) -> tuple[SideSpec, ...]:
        return (self.left, self.right)

    def in_fact(self, side: int, names: Iterable[str], columns: Collection[str]) -> dict[str, str]:
        """Return the names of a side's columns in the fact table, which has these columns."""
        return {n: f"right_{n}" if side and f"right_{n}" in columns else n for n in names}

    def fact_ids(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the fact table's columns that identify the tuples from which a row was joined."""
        return tuple(of for side, stream in enumerate(self.streams)
                     for of in self.in_fact(side, stream.id, columns).values())

    def to_ledger(self) -> str:
        """Return JSON that ``StreamStreamJob.load`` accepts, without options that may hold a
        secret."""
        shown = {"left": self.left.shown(), "right": self.right.shown()}
        return self.model_copy(update=shown).model_dump_json()


AnyJob = Job | StreamStreamJob


def job_of(values: dict[str, Any]) -> AnyJob:
    """Return the job that a mapping describes: of two streams if it has ``left`` or ``right``.
    Raises ConfigError for a wrong mapping."""
    two = "left" in values or "right" in values
    return StreamStreamJob.load(values) if two else Job.load(values)


class Places(Settings):
    """The directories and the database of an installation, from SEMISTREAM_HOME and WAREHOUSE_URL.

    reports_kept: how many of the latest reports are kept, of each app's verifications and of tuning
    sweeps.
    """

    home: Path = Path("var")
    warehouse_url: str = ""
    reports_kept: int = Field(50, ge=1)

    @classmethod
    def from_environment(cls) -> Places:
        home = Path(os.environ.get("SEMISTREAM_HOME", "var")).absolute()
        given = {"warehouse_url": os.environ.get("WAREHOUSE_URL")
                 or f"sqlite:///{home / 'warehouse.db'}",
                 "reports_kept": os.environ.get("SEMISTREAM_REPORTS_KEPT")}
        return cls.load({"home": home} | {k: v for k, v in given.items() if v})

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def snapshots(self) -> Path:
        return self.home / "snapshots"

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    @property
    def reports(self) -> Path:
        return self.home / "reports"
