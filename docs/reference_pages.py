"""The reference pages, generated from the code: job file, settings, tables, console."""

from __future__ import annotations

import argparse
import ast
import html
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from semistream import job
from semistream.cli.options import add_arguments
from semistream.cli.parser import COMMANDS, Parser
from semistream.files.settings import JoinFiles, JoinStreams
from semistream.streaming.settings import LoadSettings, StreamStreamSettings
from semistream.warehouse import schema

JOB_FILE = (
    (
        job.Job,
        "A job: one stream, joined with dimensions",
        "The short form of a job with one role gives `master` (the dimension), `on`, `columns` and "
        "the role's other settings at the top, in the place of `dimensions`.",
    ),
    (job.StreamSpec, "`stream`", "The source of the tuples."),
    (
        job.Role,
        "A role, under `dimensions`",
        "The part that a dimension plays in the facts. Its name is the key under which it stands. "
        "The settings of a dimension may stand here too, beside `path` or `table`.",
    ),
    (
        job.Dimension,
        "A dimension",
        "In a file `dimensions/NAME.yaml`, inside a role, or as `master`.",
    ),
    (
        job.StreamStreamJob,
        "A job of two streams",
        "A job with `left` and `right` joins two streams with each other.",
    ),
    (job.SideSpec, "`left` and `right`", "Besides these settings a side has those of `stream`."),
    (job.WatermarkSpec, "`watermark`", "Under `left` or `right`."),
    (job.WithinSpec, "`within`", "Of a job of two streams."),
)
SETTINGS = (
    (
        LoadSettings,
        "Of a load",
        "Flags of `semistream load` and of `spark_apps/semi_stream_join.py`, and the trigger form "
        "of the DAG `semi_stream_load`.",
    ),
    (
        StreamStreamSettings,
        "Of a load of two streams",
        "Flags of `semistream load`, for such a job, and of `spark_apps/stream_stream_join.py`, "
        "and the trigger form of the DAG "
        "`stream_stream_load`.",
    ),
    (JoinFiles, "Of `semistream join`", "Flags, and keys of its `--config` file."),
    (JoinStreams, "Of `semistream join-streams`", "Flags, and keys of its `--config` file."),
)


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    return {
        "job-file.md": _of_settings(
            "Job file",
            "Every key that a job's YAML file may have. [Loading](../loading.md#dimensions-and-"
            "roles) explains how they go together.",
            JOB_FILE,
        ),
        "settings.md": _of_settings(
            "Settings",
            "A setting has the same name, default and meaning as a flag of the console "
            "(`--max-wait`), in a YAML file (`max_wait`) and in a form of Airflow.",
            SETTINGS,
        ),
        "tables.md": _of_tables(),
        "console.md": _of_console(),
    }


def _of_settings(title: str, about: str, kinds: Iterable[tuple[type[BaseModel], str, str]]) -> str:
    parts = [f"# {title}", about]
    for kind, heading, text in kinds:
        parent = kind.__mro__[1]
        inherited = parent.model_fields if kind is job.SideSpec else {}  # type: ignore[attr-defined]
        rows = [
            (f"`{name}`", _default(field), _cell(field.description or _described(field.annotation)))
            for name, field in kind.model_fields.items()
            if name not in inherited and not (kind is job.Role and name == "name")
        ]
        parts += [f"## {heading}", text, _table(("key", "default", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _described(annotation: Any) -> str:
    """Return the first sentence of the docstring of a setting that itself consists of settings."""
    text = inspect.cleandoc(inspect.getdoc(annotation) or "")
    return " ".join(text.split(". ")[0].split()).rstrip(".")


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}, ""):
        return ""
    if "ByteSize" in str(field.annotation) and value and not value % 1_000_000:
        return f"`{value // 1_000_000}MB`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _of_tables() -> str:
    parts = [
        "# Tables",
        "The tables that Semistream keeps in the warehouse, besides dimensions and facts, whose "
        "columns a job tells. [Loading](../loading.md#the-tables) says what they are for, and has "
        "queries to begin with.",
    ]
    comments = _comments()
    for table in schema.metadata.tables.values():
        of_table = comments.get(table.name, {})
        rows = [
            (
                f"`{column.name}`",
                f"`{column.type}`",
                "key" if column.primary_key else "" if column.nullable else "not null",
                _cell(of_table.get(column.name, "")),
            )
            for column in table.columns
        ]
        about = of_table.get("", "")
        parts += [f"## `{table.name}`", f"{about[:1].upper()}{_cell(about[1:])}." if about else ""]
        parts += [_table(("column", "type", "", "meaning"), rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _comments() -> dict[str, dict[str, str]]:
    """Return the comments of the schema's source by table and column; "" is the table itself. A
    comment stands behind the table or column, or on the lines above it."""
    source = inspect.getsource(schema)
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for statement in ast.parse(source).body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
            continue
        call = statement.value
        if getattr(call.func, "id", "") != "Table":
            continue
        assert isinstance(call.args[0], ast.Constant)
        found[str(call.args[0].value)] = {"": _comment(lines, statement.lineno)} | {
            str(argument.args[0].value): _comment(lines, argument.lineno, argument.end_lineno)
            for argument in call.args
            if isinstance(argument, ast.Call)
            and getattr(argument.func, "id", "") == "Column"
            and isinstance(argument.args[0], ast.Constant)
        }
    return found


def _comment(lines: Sequence[str], first: int, last: int | None = None) -> str:
    """Return the comment behind line `last`; if there is none, return the comment above line
    `first`. Lines are numbered from 1."""
    if last and (behind := re.search(r"  # (.*)$", lines[last - 1])):
        comment = behind[1]
    else:
        above: list[str] = []
        while (line := lines[first - 2 - len(above)].strip()).startswith("# "):
            above.insert(0, line[2:])
        comment = " ".join(above)
    return re.sub(r"(, |; )?see [\w/]+\.py", "", comment)


def _of_console() -> str:
    parts = [
        "# Console",
        "`semistream COMMAND --help` prints the same. Exit codes: 0 done, 1 failed or not "
        "complete, 2 settings that cannot work, 130 interrupted.",
    ]
    for name, command in COMMANDS.items():
        parser = Parser(prog=f"semistream {name}", add_help=False)
        add_arguments(parser, command)
        parts += [f"## semistream {name}", f"{command.about[0].upper()}{command.about[1:]}."]
        if command.example:
            parts.append(f"```sh\n{command.example.rstrip('.')}\n```")
        if rows := list(_arguments(parser)):
            parts.append(_table(("argument", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        takes = action.nargs != 0 and action.option_strings
        value = formatter._format_args(action, action.dest.upper()) if takes else ""
        about = formatter._expand_help(action) if action.help else ""
        yield f"`{name} {value}`".replace(" `", "`"), _cell(about)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Escape a plain text for a cell of a table."""
    return re.sub(r"([*|\\])", r"\\\1", html.escape(text, quote=False))
