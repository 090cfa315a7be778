"""Frozen, validated settings, which can be converted to and from command-line arguments, YAML and
Airflow params.

A field's ``description``, constraints and default are defined once, in its class, and appear in
``--help``, in the trigger form and in error messages. Every settings class is a frozen pydantic
model that refuses unknown names.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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

from semistream.errors import ConfigError, wrong_settings
from semistream.yaml_lines import loader

if typing.TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    @classmethod
    def load(cls, values: dict[str, Any]) -> Self:
        """Validate a mapping. Raises ConfigError that names every wrong parameter."""
        try:
            return cls.model_validate(values)
        except ValidationError as e:
            raise wrong_settings(list(_config_errors(cls, e))) from None

    @classmethod
    def read_config(cls, path: str | Path) -> dict[str, Any]:
        """Return the settings, by name, that a configuration file of a command gives. Raises
        ConfigError when it cannot be read."""
        return read_yaml(path)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read settings from a YAML file. Raises ConfigError when the file is missing or wrong."""
        return cls.load(read_yaml(path))

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser, *, exclude: Sequence[str] = ()) -> None:
        """Add one ``--flag`` for each field to a parser, except for nested settings. The help text
        is the field's description and default."""
        nested = cls.nested()
        for name, field in cls.model_fields.items():
            if name in exclude or name in nested:
                continue
            kind, many = _argument_kind(field.annotation)
            default = (
                ""
                if field.is_required()
                or field.get_default(call_default_factory=True) in (None, (), {}, "")
                else f" [{_plain(field.get_default(call_default_factory=True), ',')}]"
            )
            options: dict[str, Any] = {
                "help": f"{field.description or name}{default}".replace("%", "%%"),
                "dest": name,
                "default": argparse.SUPPRESS,
                "required": field.is_required(),
            }
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
    def setting_names(cls) -> list[str]:
        """Return the names of the settings that users can give."""
        return list(cls.model_fields)

    @classmethod
    def nested(cls) -> dict[str, FieldInfo]:
        """Return the fields whose values are settings, or mappings of settings."""
        return {
            name: field
            for name, field in cls.model_fields.items()
            if _settings_in(field.annotation)
        }

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Return the settings given on the command line. Settings that are not given have their
        defaults."""
        return cls.load({k: v for k, v in vars(arguments).items() if k in cls.model_fields})

    def to_arguments(self) -> list[str]:
        """Return a command line (``--flag value …``) that produces these settings. Defaults are
        omitted."""
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

        overrides: by field, keyword arguments that replace or extend these.
        """
        schema = cls.model_json_schema()
        out = {}
        for name, field in cls.model_fields.items():
            keywords = _inline(schema["properties"][name], schema.get("$defs", {}))
            default = (
                None
                if field.is_required()
                else _json_default(field.get_default(call_default_factory=True))
            )
            keywords |= {"default": default, "description": field.description or name}
            keywords.pop("title", None)
            out[name] = keywords | overrides.get(name, {})
        return out


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises ConfigError when the file is missing, unreadable, not a mapping,
    or gives a setting twice."""
    try:
        values = _yaml(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(str(path), "must be a readable YAML file", None, str(e)) from None
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise ConfigError(
            str(path),
            "must be a YAML mapping of settings to values, and is "
            + ("empty" if values is None else kind),
            None,
            "See docs/how-to/own-job.md for an example; `semistream init` writes one.",
        )
    # what a program of YAML 1.1 makes of ``on:``
    return {"on" if name is True else name: value for name, value in values.items()}


def read_secrets(parameter: str, path: str | Path) -> dict[str, str]:
    """Read a YAML mapping from a file that only its owner may read. Raises ConfigError otherwise,
    without revealing the content."""
    remedy = "Write lines of the form NAME: 'VALUE', and chmod 600 it."
    try:
        mode, text = os.stat(path).st_mode, Path(path).read_text(errors="replace")
    except OSError as e:
        raise ConfigError(
            parameter, f"must be a file that can be read ({e.strerror})", str(path), remedy
        ) from None
    if mode & 0o077:
        raise ConfigError(
            parameter,
            "must be a file that its owner alone may read",
            str(path),
            f"chmod 600 {path}",
        )
    try:
        values = _yaml(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(
        isinstance(v, (str, int, float)) for v in values.values()
    ):
        raise ConfigError(parameter, "must be a YAML mapping of names to texts", str(path), remedy)
    return {
        str(name): json.dumps(v) if isinstance(v, bool) else str(v) for name, v in values.items()
    }


def _yaml(text: str) -> Any:
    """Parse a YAML text. Raises ValueError that names the line for malformed YAML, and for a
    mapping that has a key twice."""
    import yaml  # takes a while, and many commands read none

    try:
        return yaml.load(text, loader())  # noqa: S506 - it is a SafeLoader
    except yaml.MarkedYAMLError as e:
        lines = [mark.line + 1 for mark in (e.context_mark, e.problem_mark) if mark]
        since = f" ({e.context}, which begins in line {lines[0]})" if len(lines) > 1 else ""
        raise ValueError(f"Line {lines[-1]}: {e.problem}{since}.") from None
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        raise ValueError(f"Line {line}: {e.reason}: {chr(e.character)!r}.") from None


def _inline(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Replace "$ref" and "anyOf" of plain types in a schema by "type", which Airflow's form
    reads."""
    schema = dict(schema)
    if "$ref" in schema:
        schema |= definitions[schema.pop("$ref").rsplit("/", 1)[-1]]
    if "anyOf" in schema:
        options = [_inline(s, definitions) for s in schema.pop("anyOf")]
        kinds = [
            k
            for s in options
            for k in ([s["type"]] if isinstance(s.get("type"), str) else s.get("type", []))
        ]
        for s in options:
            schema |= {k: v for k, v in s.items() if k != "type"}
        schema["type"] = list(dict.fromkeys(kinds))
    return schema


def _argument_kind(annotation: Any) -> tuple[Any, bool]:
    """Return (scalar type, whether the flag may be repeated) for a field's annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _argument_kind(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _argument_kind(next(a for a in arguments if a is not type(None)))
    if origin in (tuple, list, dict):
        return arguments[0], True
    return annotation, False


def _plain(value: Any, separator: str = "=") -> str:
    """Format a value in the notation of the command line. separator: the character between the
    parts of a tuple."""
    if isinstance(value, tuple):
        return separator.join(map(_plain, value))
    return (
        json.dumps(value)
        if isinstance(value, (dict, bool, list))
        else str(int(value) if isinstance(value, ByteSize) else value)
    )


def _json_default(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_default(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _config_errors(cls: type[Settings], e: ValidationError) -> Iterator[ConfigError]:
    """Yield an error for each wrong parameter: first for the names that are no settings, because a
    name that is mistyped is also missing, which is not told."""
    import difflib

    unknown, wrong = list[Any](), list[Any]()
    for error in e.errors():
        (unknown if error["type"] == "extra_forbidden" else wrong).append(error)
    meant = set[tuple[int | str, ...]]()
    for error in unknown:
        *outer, name = error["loc"]
        owner, _ = _innermost(cls, error["loc"])
        near = difflib.get_close_matches(str(name), owner.setting_names(), 1)
        meant |= {(*outer, one) for one in near}
        yield ConfigError(
            ".".join(map(str, error["loc"])),
            "is not a setting",
            None,
            "".join(f"Did you mean {one}? " for one in near)
            + f"Settings: {', '.join(owner.setting_names())}.",
        )
    for error in wrong:
        if error["type"] == "missing" and error["loc"] in meant:
            continue
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            yield from cause.errors
            continue
        where = ".".join(map(str, error["loc"])) or cls.__name__
        _, field = _innermost(cls, error["loc"])
        described = field is not None and field.description
        remedy = f"It means: {described}" if described else "See --help."
        if error["type"] == "missing":
            yield ConfigError(where, "must be given", None, remedy)
        else:
            message = error["msg"].removeprefix("Value error, ")  # of a validator of this package
            yield ConfigError(where, f"is wrong: {message}", error["input"], remedy)


def _innermost(
    cls: type[Settings], place: Sequence[int | str]
) -> tuple[type[Settings], FieldInfo | None]:
    """Return the settings class at a place in nested settings, and its field at this place, if
    any."""
    field, keys = None, iter(place)
    for key in keys:
        found = cls.model_fields.get(str(key))
        if found is None:
            break
        field, kind = found, found.annotation
        if inside := _settings_in(kind):
            if typing.get_origin(kind) is dict:
                next(keys, None)
            cls = inside[0]
    return cls, field


def _settings_in(annotation: Any) -> list[type[Settings]]:
    """Return the settings classes that a field's annotation names."""
    return [
        one
        for one in (annotation, *typing.get_args(annotation))
        if isinstance(one, type) and issubclass(one, Settings)
    ]


def pairs(value: Any) -> Any:
    """Convert {'a': 'b'}, ['a=b', 'c'] or 'a=b' to a mapping. A lone name maps to itself."""
    if isinstance(value, Mapping):
        return value
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)):
        raise ValueError("must be names, or a mapping of names")  # noqa: TRY004 - for pydantic
    pairs = []
    for v in several:
        pair = (v.split("=", 1) if "=" in v else (v, v)) if isinstance(v, str) else v
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError(f"must have names, or pairs of names; {v!r} is neither")
        pairs.append(tuple(pair))
    if len(dict(pairs)) < len(set(pairs)):
        raise ValueError(f"a name is given twice with different values in {value}")
    return dict(pairs)


def percent(value: Any) -> Any:
    """Convert a percentage such as '20%' to a share. Anything else is returned as it is."""
    text = value.strip() if isinstance(value, str) else ""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else value
    except ValueError:
        return value


def pair_words(given: Mapping[str, str]) -> str:
    """Return pairs of names as people read them: ``a = b``, or ``a`` where both are the same."""
    return ", ".join(a if a == b else f"{a} = {b}" for a, b in given.items())


def names(value: Any) -> Any:
    """Convert 'a, "b, c"' or ['a', 'b, c'] to a tuple of names. Each element of a list is one
    name."""
    return (
        tuple(_split_names(value))
        if isinstance(value, str)
        else tuple(str(v) for v in value)
        if isinstance(value, (list, tuple))
        else value
    )


def _split_names(text: str) -> list[str]:
    """Split names at commas. Names that contain commas are in quotes."""
    return [n.strip() for n in next(csv.reader([text], skipinitialspace=True), []) if n.strip()]


def _quoted(name: Any) -> str:
    text = str(name)
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text


def _types(value: Any) -> Any:
    """Convert a value like ``pairs``. One text may hold several pairs: 'a=string,b,
    c=decimal(12,2)' names the columns a, and 'b, c'."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, (list, tuple)):
        value = [part for v in value for part in ([v] if TYPED.sub("", v) else TYPED.findall(v))]
    return pairs(value)


def _validators(field: Any) -> list[Any]:
    return [getattr(m, "func", None) for m in field.metadata]


def _positive(value: ByteSize) -> ByteSize:
    if value <= 0:
        raise ConfigError(
            "memory", "must be positive", int(value), "Give for instance 64MB or 1GiB."
        )
    if value > MOST_MEMORY:
        raise ConfigError(
            "memory",
            f"must be at most {MOST_MEMORY:,} bytes",
            int(value),
            "Give what this machine has.",
        )
    return value


Pairs = Annotated[dict[str, str], BeforeValidator(pairs)]
Types = Annotated[dict[str, str], BeforeValidator(_types)]
Names = Annotated[tuple[str, ...], BeforeValidator(names)]
# of 0 to 1; also as a percentage
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(percent)]
Bytes = Annotated[ByteSize, AfterValidator(_positive)]
JoinType = Literal["inner", "left"]
MOST_MEMORY = 2**47  # bytes, the address space of a process
# in the name of an option, in upper or lower case
SECRET = "pass|secret|jaas|token|key$"  # noqa: S105
PASSWORD = "://[^/@]*:[^/@]+@"  # noqa: S105 - in the value of an option
# COLUMN=TYPE, whose column may have commas
TYPED = re.compile(r"\s*(.+?)=([^=,()]*(?:\([^()]*\))?)\s*(?:,|$)")
AUTO = "auto"  # in the place of an algorithm's name: the cost models choose


def parse_bytes(text: str | int) -> int:
    """Convert '64MB' or 64000000 to bytes."""
    return int(TypeAdapter(ByteSize).validate_python(text))


MEMORY = ByteSize(64_000_000)  # M, unless it is given


class JoinSettings(Settings):
    """The settings of a semi-stream join that are common to all ways to run it."""

    algorithm: str = Field(
        AUTO,
        description="Join algorithm, a name of the registry (see `semistream algorithms`), "
        "or auto: the one that the cost models find fastest for the first "
        "tuples, at its best sizes",
    )
    memory: Bytes = Field(
        MEMORY,
        description="M, bytes that one job's join may hold, shared by its "
        "partitions; for instance 64MB",
    )
    join_type: JoinType = Field(
        "inner", description="inner: matched tuples only; left: unmatched ones too, with nulls"
    )
    parameters: Annotated[dict[str, Any], BeforeValidator(pairs)] = Field(
        {},
        description="Further parameters of the algorithm, NAME=VALUE (see `semistream algorithms`)",
    )

    @property
    def auto(self) -> bool:
        return self.algorithm.lower() == AUTO

    @model_validator(mode="after")
    def _auto_chooses(self) -> Self:
        if self.auto and self.parameters:
            raise ConfigError(
                "parameters",
                "must not be given with the algorithm auto, the default: it chooses them",
                self.parameters,
                "Name the algorithm, or leave them out.",
            )
        return self


class Publishing(Settings):
    """The settings for publishing a snapshot."""

    memory: Bytes = Field(
        ByteSize(256_000_000),
        ge=1_000_000,
        description="Bytes that publishing "
        "may take in each process beside what the process itself needs, however "
        "large the master data are; for instance 256MB",
    )
