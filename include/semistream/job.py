"""Jobs: their streams, the dimensions that they are joined with, and the table for the result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from semistream.column_format import Formats, paired
from semistream.durations import seconds_of
from semistream.errors import ConfigError
from semistream.expect import Expectations
from semistream.scheduling import SCHEDULING, Scheduling
from semistream.settings import SECRET, JoinType, Names, Pairs, Settings, read_secrets

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
    max_unparsable: float = Field(
        0.01,
        ge=0,
        le=1,
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

    def shown(self) -> Self:
        """Return a copy without options that may hold a secret."""
        options = {
            k: v
            for k, v in self.options.items()
            if not re.search(f"url$|{SECRET}", k, re.IGNORECASE)
        }
        return self.model_copy(update={"options": options})


class WatermarkSpec(Settings):
    """A column with the event time, which advances in the stream."""

    column: str = Field(description="Column of times: a join column, or one of within")
    delay: float = Field(
        0,
        ge=0,
        description="How much older a tuple may be than the newest "
        "before it, in seconds; of a column of integers in "
        "its unit",
    )


class SideSpec(StreamSpec):
    """One of two streams, and its guarantees about tuples that are still to come. Each guarantee
    lets the job drop waiting tuples. A tuple that violates a guarantee is not joined; it is kept in
    unmatched with the reason against_punctuation."""

    unique: bool = Field(False, description="No two tuples have the same join columns")
    clustered: bool = Field(
        False,
        description="Tuples with the same join columns come one after "
        "the other; they are complete once a later "
        "micro-batch brings others and none of them",
    )
    watermark: WatermarkSpec | None = Field(
        None, description="No tuple is older than the newest before it by more than a delay"
    )
    punctuation: str | None = Field(
        None,
        description="Column that tells rows that are no tuples: "
        "true: no later tuple has this row's join "
        "columns, of which null means any; or a "
        "text, the patterns as JSON by join column",
    )

    @property
    def mark(self) -> str | None:
        return self.punctuation

    @property
    def promises(self) -> dict[str, Any]:
        """The guarantees that are given, as JSON."""
        names = {"unique", "clustered", "watermark", "punctuation"}
        return self.model_dump(include=names, exclude_defaults=True)


class WithinSpec(Settings):
    """A further join condition: two times are close to each other. With a watermark, the condition
    lets the join drop tuples that are too old for all tuples still to come."""

    left: str = Field(description="Column of times of the left stream")
    right: str = Field(description="Column of times of the right stream")
    distance: float = Field(
        ge=0,
        description="The most that they differ, in seconds; of columns of integers in their unit",
    )


UNKNOWN = 0  # surrogate key of a dimension's unknown member


def surrogate_key(name: str) -> str:
    """Return the name of the surrogate key of a dimension, or of a dimension's role."""
    return f"{name}_sk"


class Dimension(Settings):
    """Rows that facts refer to: their source, and their table."""

    name: str = Field(
        description="Name of the dimension; its table is dim_NAME with surrogate key NAME_sk"
    )
    path: str | None = Field(
        None,
        description="CSV, JSON lines or Parquet file (or directory) that it is provisioned from",
    )
    table: str | None = Field(
        None, description="Existing table that it is provisioned from, in the warehouse or at --url"
    )
    columns: str | None = Field(
        None,
        description="Schema of the rows as Spark DDL ('sku STRING, "
        "price DECIMAL(10,2)'); default: what the table "
        "has or the file's first 16 MB suggest",
    )
    formats: Formats = Field({}, description="How columns are written, as a stream's formats")
    options: dict[str, str] = Field(
        {},
        description="How its CSV or JSON files are written, as a stream's options: sep, quote, "
        "escape, encoding, nullValue",
    )
    business_key: Names = Field(
        (),
        description="Columns that identify a row; default, of a "
        "dimension that is declared inside a job: the join "
        "columns",
    )
    max_rejected: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of the rows that may be left out, as unparsable "
        "or for their keys; when more are, nothing is "
        "provisioned",
    )
    allow_empty: bool = Field(
        False,
        description="Whether its source may have no row that can be taken; "
        "otherwise nothing is provisioned then",
    )
    unknown_member: bool = Field(
        False,
        description="Whether its table has a row with surrogate key 0, which the facts "
        "name that a left join finds no row for; otherwise they name none (null)",
    )

    @property
    def surrogate_key(self) -> str:
        return surrogate_key(self.name)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path and self.table:
            raise ConfigError(
                f"dimension {self.name}",
                "must have a path or a table, not both",
                self.path,
                "Leave one out.",
            )
        return self


VERSIONS = re.compile(r"(\d+) *versions?")


class Role(Settings):
    """The part that a dimension plays in a job's facts: the dimension airport may be the origin or
    the destination of a flight."""

    name: str = Field(
        description="Name of the role; the fact table's column NAME_sk has the "
        "dimension's surrogate keys"
    )
    dimension: Dimension
    on: Pairs = Field(
        description="Join columns: a name, a list of names, or STREAM=DIMENSION; "
        "several for a composite key"
    )
    columns: Pairs = Field(
        {},
        description="Dimension columns to add, or DIMENSION=FACT; default: "
        "all but the join columns. One that the stream has too "
        "is called NAME_COLUMN",
    )
    join_type: JoinType | None = Field(None, description="inner or left; default: the load's")
    many: bool = Field(
        False,
        description="Whether a tuple may have several rows of the dimension, and becomes a fact "
        "with each; of a job with one role it may always",
    )
    max_unmatched: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the tuples that may have no row of the dimension, or no key; the "
        "proof of completeness fails when more have none",
    )
    late: Literal["reject", "resolve", "infer"] = Field(
        "reject",
        description="What becomes of a tuple whose row of the dimension comes later. reject: it "
        "stays in unmatched; resolve: it is joined again when a version of the dimension has the "
        "row, and becomes a fact; infer: it is a fact at once, with an inferred member of the "
        "dimension, which the row fills in",
    )
    max_open_hours: float | None = Field(
        None,
        gt=0,
        description="Hours that a tuple may be in unmatched without a row of the dimension; the "
        "proof of completeness fails when one is there for longer; default: any time",
    )

    grace: str | None = Field(
        None,
        description="How long a tuple may have no row of the dimension before max_unmatched and "
        "max_open_hours count it: a time such as '90 minutes', '2 hours', '1 day', or versions of "
        "the dimension that loads have taken up since, such as '3 versions'; default: not at all",
    )

    @model_validator(mode="after")
    def _a_grace(self) -> Self:
        if self.grace is not None and not (self.grace_hours or self.grace_versions):
            raise ConfigError(
                f"dimensions.{self.name}.grace",
                "must be a number of minutes, hours, days or versions",
                self.grace,
                "For instance grace: 2 hours, or grace: 3 versions.",
            )
        return self

    @property
    def grace_hours(self) -> float:
        """The grace in hours; 0 if there is none, or if the grace is a number of versions."""
        return (seconds_of(self.grace or "") or 0.0) / 3600

    @property
    def grace_versions(self) -> int:
        """The grace in versions; 0 if there is none, or if the grace is a time."""
        found = VERSIONS.fullmatch(self.grace or "")
        return int(found[1]) if found else 0

    @property
    def surrogate_key(self) -> str:
        """The fact table's column of the dimension's surrogate keys."""
        return surrogate_key(self.name)

    @property
    def key(self) -> tuple[str, ...]:
        """The dimension's join columns."""
        return tuple(self.on.values())


class Job(Scheduling):
    """A load of one stream: the stream, the dimensions that it is joined with, and the table for
    the result.

    A job with one role may give ``master`` (the dimension), ``on``, ``columns``, ``max_unmatched``,
    ``late``, ``max_open_hours`` and ``grace`` instead of ``dimensions``. The role then has the
    dimension's name.
    """

    shipped: ClassVar[tuple[str, ...]] = ("tpch", "nycflights13", "tpcds")

    name: str = Field(description="Name of the job")
    stream: StreamSpec
    dimensions: dict[str, Role] = Field(
        description="Dimensions that the stream is joined with, by role"
    )
    fact_table: str = Field(description="Table that receives the joined tuples")
    index_ids: bool = Field(
        False,
        description="Whether the fact table has an index on the "
        "stream's id columns, for those who look rows up by "
        "them; the load takes longer with it",
    )
    expect: Expectations = Field(
        Expectations.load({}),
        description="What is expected of each load (volume, match_rate, freshness), as part of the "
        "proof of completeness",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, values: Any) -> Any:
        return with_roles(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _one_form_of_keys(self) -> Self:
        """Apply the normal form that is declared for one side's join column to the other side's,
        too."""
        stream, roles = self.stream.formats, {}
        for name, role in self.dimensions.items():
            dimension = role.dimension
            stream, formats = paired(role.on.items(), stream, dimension.formats)
            roles[name] = role.model_copy(
                update={
                    "dimension": dimension.model_copy(
                        update={
                            "formats": formats,
                            "business_key": dimension.business_key or role.key,
                        }
                    )
                }
            )
        return self.model_copy(
            update={
                "stream": self.stream.model_copy(update={"formats": stream}),
                "dimensions": roles,
            }
        )

    @model_validator(mode="after")
    def _expected_of_its_roles(self) -> Self:
        self.expect.check_roles(tuple(self.dimensions))
        return self

    @model_validator(mode="after")
    def _one_declaration(self) -> Self:
        declared: dict[str, Role] = {}
        for role in self.roles:
            other = declared.setdefault(role.dimension.name, role)
            check_same(
                role.dimension, f"the role {role.name}", other.dimension, f"the role {other.name}"
            )
        return self

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(self.dimensions.values())

    def role(self, name: str) -> Role:
        """Return the role of this name; the first role for "". Raises ConfigError."""
        if name and name not in self.dimensions:
            raise ConfigError(
                "role",
                f"must be a role of the job {self.name}",
                name,
                f"It has: {', '.join(self.dimensions)}.",
            )
        return self.dimensions[name] if name else self.roles[0]

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return (self.stream,)

    def fact_ids(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the fact table's columns that identify the tuples from which a row was joined."""
        return self.stream.id

    def to_ledger(self) -> str:
        """Return JSON that ``Job.load`` accepts, without options of the source that may hold a
        secret."""
        shown = self.model_copy(update={"stream": self.stream.shown()})
        return shown.model_dump_json(exclude=SCHEDULING)


def added_columns(
    roles: Sequence[Role], dimensions: Sequence[Sequence[str]]
) -> list[dict[str, str] | None]:
    """Return the columns that each role adds, in the form of ``RolePlan.columns``. A column that
    several roles add is called ROLE_column. dimensions: the columns of each role's dimension."""
    if len(roles) == 1:
        return [roles[0].columns or None]
    wanted = [
        role.columns or {c: c for c in columns if c not in role.key}
        for role, columns in zip(roles, dimensions, strict=True)
    ]
    times = Counter(name for columns in wanted for name in columns.values())
    return [
        {
            c: f"{role.name}_{c}" if c == name and times[name] > 1 else name
            for c, name in columns.items()
        }
        for role, columns in zip(roles, wanted, strict=True)
    ]


# the settings of a job's only role, at the job's top
SHORT_FORM = ("master", "on", "columns", "max_unmatched", "late", "max_open_hours", "grace")


def with_roles(values: dict[str, Any]) -> dict[str, Any]:
    """Convert a job's settings from the short form of one role into ``dimensions``. Each role gets
    its name and its dimension. Raises ConfigError for settings of both forms.

    A dimension is a mapping, or a name if it is declared elsewhere.
    """
    if "left" in values or "right" in values:
        return values
    given = [name for name in SHORT_FORM if name in values]
    roles = values.get("dimensions")
    if roles is not None and given:
        raise ConfigError(
            ", ".join(given),
            "must not be given with dimensions",
            values[given[0]],
            f"Give each role its own dimension, {', '.join(SHORT_FORM[1:])}.",
        )
    if roles is None:
        if not given:
            return values
        master = values.get("master", {})
        short = {name: values[name] for name in SHORT_FORM[1:] if name in values}
        name = master.get("name") if isinstance(master, dict) else master
        if not isinstance(name, str):
            raise ConfigError(
                "master",
                "must be the name of a dimension, or a mapping with its name",
                master or None,
                "For instance master: {name: product, path: product.csv}.",
            )
        roles = {name: {"dimension": master, **short}}
    if not isinstance(roles, dict) or not all(
        isinstance(role, (dict, Role)) for role in roles.values()
    ):
        raise ConfigError(
            "dimensions",
            "must be a mapping of roles, each a mapping",
            roles,
            "For instance dimensions: {product: {path: product.csv, on: sku}}.",
        )
    rest = {k: v for k, v in values.items() if k not in SHORT_FORM}
    return rest | {"dimensions": {name: _role(name, role) for name, role in roles.items()}}


def _role(name: str, given: Any) -> Any:
    if isinstance(given, Role):
        return given
    role = dict(given)
    place = {of: role.pop(of) for of in ("path", "table") if of in role}
    if place:  # the dimension's other settings belong to it, too
        of_dimension = Dimension.model_fields.keys() - Role.model_fields.keys()
        place |= {of: role.pop(of) for of in sorted(of_dimension & role.keys())}
    if place and "dimension" in role:
        raise ConfigError(
            f"dimensions.{name}",
            "must have a dimension, or a path or a table",
            sorted(place),
            "Leave one out: settings of a dimension stand under it.",
        )
    role.setdefault("dimension", {"name": name, **place} if place else name)
    if isinstance(role["dimension"], dict):
        role["dimension"] = {"name": name, **role["dimension"]}
    return {"name": name, **role}


def as_given(error: ConfigError, values: dict[str, Any]) -> ConfigError:
    """Return an error about a job whose parameter is named as the user gave it, which may be in the
    short form of one role."""
    if "master" not in values:
        return error
    (name,) = with_roles(values)["dimensions"]
    place = error.parameter.removeprefix(f"dimensions.{name}.")
    return ConfigError(
        re.sub(r"^dimension(?=\.|$)", "master", place), error.constraint, error.value, error.remedy
    )


def check_same(one: Dimension, where: str, other: Dimension, elsewhere: str) -> None:
    """Check that two declarations of a dimension are equal. Raises ConfigError that names both
    places otherwise."""
    mine, theirs = one.model_dump(), other.model_dump()
    different = {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
    if different:
        raise ConfigError(
            f"dimension {one.name}",
            f"must be declared the same way in {where} and in {elsewhere}",
            different,
            f"Declare it once, in dimensions/{one.name}.yaml, or give one of them another name.",
        )


SIDES = ("left", "right")  # the sides of a job of two streams
SideJoinType = Literal["inner", "left", "right", "full"]
TOTAL = re.compile(r"(count|sum|min|max)\((.+)\)|count")


def parse_total(text: str) -> tuple[str, str | None]:
    """Parse a total such as ``max(price)``. Return (function, column); ``count`` has no column.
    Raises ValueError for any other text."""
    found = TOTAL.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"must be count, or count, sum, min or max of a column, as max(price) is, "
            f"and not {text}"
        )
    return found[1] or "count", found[2]


class StreamStreamJob(Scheduling):
    """A load of two streams: the streams, their join, and the table for the result.

    The fact table has the columns of the left stream, then those of the right one. If a right
    column has the name of a left one, it is called right_COLUMN.
    """

    shipped: ClassVar[tuple[str, ...]] = ("tpch_orders", "auctions")

    name: str = Field(description="Name of the job")
    left: SideSpec
    right: SideSpec
    on: Pairs = Field(
        description="Join columns: a name, or LEFT=RIGHT; several for a composite key"
    )
    join_type: SideJoinType = Field(
        "inner",
        description="inner: joined tuples only; left, right, "
        "full: also those of that stream, or of "
        "both, that certainly have no partner, "
        "with nulls",
    )
    within: WithinSpec | None = Field(None, description="Times of both streams that differ little")
    fact_table: str = Field(description="Table that receives the joined tuples")
    index_ids: bool = Field(
        False,
        description="Whether the fact table has an index on both "
        "streams' id columns; the load takes longer with "
        "it",
    )
    totals: Pairs = Field(
        {},
        description="Totals of each join key, written to FACT_TABLE_closed "
        "once no later row can have that key: NAME=count, or "
        "count, sum, min or max of a column of the fact table, "
        "NAME=max(price)",
    )
    expect: Expectations = Field(
        Expectations.load({}),
        description="What is expected of each load (volume, match_rate, freshness), as part of the "
        "proof of completeness",
    )

    @model_validator(mode="after")
    def _expected_of_its_streams(self) -> Self:
        self.expect.check_roles(SIDES)
        return self

    @model_validator(mode="after")
    def _totals_that_close(self) -> Self:
        for total in self.totals.values():
            parse_total(total)
        if self.totals and self.join_type not in ("inner", "left"):
            raise ValueError(
                "totals need a join_type of inner or left: of another one, rows that "
                "have no key of the left stream come until the end"
            )
        return self

    @model_validator(mode="after")
    def _one_form_of_keys(self) -> Self:
        """Apply the normal form that is declared for one side's join column to the other side's,
        too."""
        left, right = paired(self.on.items(), self.left.formats, self.right.formats, SIDES)
        return self.model_copy(
            update={
                "left": self.left.model_copy(update={"formats": left}),
                "right": self.right.model_copy(update={"formats": right}),
            }
        )

    @property
    def streams(self) -> tuple[SideSpec, ...]:
        return (self.left, self.right)

    def in_fact(self, side: int, names: Iterable[str], columns: Collection[str]) -> dict[str, str]:
        """Return the names that a side's columns have in the fact table. columns: the fact table's
        columns."""
        return {n: f"right_{n}" if side and f"right_{n}" in columns else n for n in names}

    def fact_ids(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the fact table's columns that identify the tuples from which a row was joined."""
        return tuple(
            of
            for side, stream in enumerate(self.streams)
            for of in self.in_fact(side, stream.id, columns).values()
        )

    def to_ledger(self) -> str:
        """Return JSON that ``StreamStreamJob.load`` accepts, without options that may hold a
        secret."""
        shown = {"left": self.left.shown(), "right": self.right.shown()}
        return self.model_copy(update=shown).model_dump_json(exclude=SCHEDULING)


AnyJob = Job | StreamStreamJob


def job_of(values: dict[str, Any]) -> AnyJob:
    """Return the job that a mapping describes. The job has two streams if the mapping has ``left``
    or ``right``. Raises ConfigError for a wrong mapping."""
    two = "left" in values or "right" in values
    return StreamStreamJob.load(values) if two else Job.load(values)
