"""A job proposed from a user's files, as YAML with comments: how the files are written, the types
of their columns, and the keys by which they are joined."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from semistream.column_format import ColumnFormat, declared
from semistream.ddl import to_ddl
from semistream.errors import ConfigError
from semistream.files.column_facts import column_facts
from semistream.files.detection import DetectedFile, detect
from semistream.files.key_proposals import Ids, KeyProposal, given_key, identifying, propose_key
from semistream.settings import pair_words, pairs
from semistream.warehouse.types import stored_type

STREAM_ROWS, MASTER_ROWS = 50_000, 1_000_000  # the most rows that are read
SAMPLE_BYTES = 128_000_000  # the most bytes of rows of each file that are held
DIGITS, WIDE = 15, 3  # digits of a proposed decimal, if the sample's numbers leave so many free
NAME = 40  # characters of a name
# names of directories and files that tell nothing of what is in them
VAGUE = {
    *("data", "file", "files", "part", "raw", "tmp", "temp", "test", "new", "old", "all", "in"),
    *("input", "inputs", "inbox", "incoming", "landing", "drop", "out", "output", "export"),
    *("csv", "json", "jsonl", "parquet", "stream", "streams", "source", "master", "dimensions"),
}
MOST_UNMATCHED = 0.5  # the default of a role's max_unmatched


@dataclass(frozen=True)
class ProposedRole:
    """A role of a master file in a proposed job."""

    name: str
    master: DetectedFile
    key: KeyProposal


@dataclass(frozen=True)
class Proposal:
    """A proposed job. notes: remarks about its files for the user."""

    name: str
    stream: DetectedFile
    ids: Ids
    roles: tuple[ProposedRole, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the proposal as JSON values."""
        return {
            "name": self.name,
            "stream": _file(self.stream)
            | {"id": self.ids.columns, "duplicates": self.ids.duplicates},
            "roles": {
                role.name: _file(role.master)
                | {
                    "on": role.key.on,
                    "match_rate": role.key.rate,
                    "tuples_looked_up": role.key.tuples,
                    "distinct": role.key.distinct,
                    "sure": role.key.sure,
                    "business_key": role.key.business_key,
                    "others": [pair._asdict() for pair in role.key.others],
                }
                for role in self.roles
            },
            "notes": list(self.notes()),
        }

    def notes(self) -> Iterator[str]:
        """Yield remarks for the user, the most important first."""
        files = (self.stream, *(role.master for role in self.roles))
        yield from (f"{file.path.name}: {file.header}" for file in files if file.header)
        for role in self.roles:
            key = role.key
            if not key.sure:
                yield (
                    f"{role.name}: the key {pair_words(key.on)} is a guess, by the values alone: "
                    "check it"
                )
            if key.distinct < 1:
                yield (
                    f"{role.name}: only {key.distinct:.1%} of its rows differ in "
                    f"{', '.join(key.on.values())}: a tuple may match several of them"
                )
            if 1 - key.rate > MOST_UNMATCHED:
                yield (
                    f"{role.name}: {1 - key.rate:.0%} of the tuples have no row: check its key; "
                    f"the proof fails above max_unmatched, {_limit(key.rate)}"
                )
            for pair in key.others:
                yield (
                    f"{role.name}: {pair.stream} matches {pair.master}, too ({pair.rate:.0%}): "
                    "another role of it?"
                )
        if not self.ids.columns:
            yield "the stream has no column that identifies a tuple: the proof only counts"
        elif self.ids.duplicates:
            yield (
                f"{self.ids.duplicates:,} ids come twice in {', '.join(self.ids.columns)}: "
                "unique_ids is false"
            )
        for file in files:
            for column, note in file.notes.items():
                text = note if column in note else f"{column}: {note}"
                yield f"{file.path.name}: {text}"
            if file.rejected:
                yield (
                    f"{file.path.name}: {len(file.rejected):,} of "
                    f"{len(file.rejected) + file.rows.num_rows:,} rows cannot be read, the first: "
                    f"{file.rejected[0].detail}"
                )
            if not file.whole:
                yield (
                    f"{file.path.name}: {file.rows.num_rows:,} of about {file.about:,} rows were "
                    "looked at"
                )

    def to_yaml(self, directory: Path, schema: str) -> str:
        """Return the job's YAML with comments. directory: the directory of the YAML file, to which
        paths below it are relative; schema: path of the job files' JSON schema, relative to that
        directory."""
        lines = [
            f"# yaml-language-server: $schema={schema}",
            f"# Proposed by `semistream init` from {self.stream.path.name} and "
            f"{', '.join(role.master.path.name for role in self.roles)}. What is left out has a",
            "# default: docs/loading.md explains every setting, docs/input.md how files are read.",
            f"name: {self.name}",
            "stream:",
            *_indented(self._stream(directory)),
            "dimensions:",
        ]
        for role in self.roles:
            lines += [f"  {role.name}:", *_indented(self._role(role, directory), 4)]
        lines.append(f"fact_table: fact_{self.name}"[: len("fact_table: ") + NAME])
        return "\n".join(lines) + "\n"

    def _stream(self, directory: Path) -> Iterator[str]:
        of = self.stream
        yield f"format: {of.kind}"
        comment = "" if of.path.is_dir() else "  # or a directory, whose new files are loaded, too"
        yield f"path: {_scalar(_relative(of.path, directory))}{comment}"
        yield from _written(of)
        if of.rejected:
            yield f"max_unparsable: {_limit(_read(of))}  # of the tuples; the proof fails above it"
        if self.ids.columns:
            same = f"{self.ids.duplicates:,} come twice" if self.ids.duplicates else "none twice"
            yield (
                f"id: {_flow(list(self.ids.columns))}  # identifies a tuple, for the proof; of "
                f"{of.rows.num_rows:,} {same}"
            )
            if self.ids.duplicates:
                yield "unique_ids: false  # otherwise the proof fails for an id that comes twice"
        else:
            yield "# id: [...]  # no columns identify a tuple: without, the proof can only count"

    def _role(self, role: ProposedRole, directory: Path) -> Iterator[str]:
        of, key = role.master, role.key
        yield "dimension:"
        yield f"  path: {_scalar(_relative(of.path, directory))}"
        yield from _indented(_written(of))
        if of.rejected:
            yield f"  max_rejected: {_limit(_read(of))}  # share of the rows; more are refused"
        if key.business_key:
            yield (
                f"  business_key: {_flow(list(key.business_key))}  # identifies a row; only "
                f"{key.distinct:.1%} of the rows differ in the join columns"
            )
        if not key.sure:
            yield "# a guess, by the values alone: check it"
        yield (
            f"on: {_flow(key.on)}  # stream column: master column; {key.rate:.1%} of "
            f"{key.tuples:,} tuples have a row"
        )
        if key.business_key:
            yield "many: true  # a tuple becomes a fact with each row that it matches"
        elif key.distinct < 1:
            yield (
                f"# {1 - key.distinct:.1%} of the rows have another one's key: the last is taken"
            )
        added = [c for c in _storable(of).names if c not in key.on.values()]
        yield f"columns: {_flow(added)}  # that the facts get; renamed: {{name: product_name}}"
        yield "join_type: inner  # left: a tuple without a row is loaded, too, with nulls"
        yield (
            f"max_unmatched: {_limit(key.rate)}  # share of the tuples that may have no row, with "
            f"room above the {1 - key.rate:.1%} that have none; the proof fails above it"
        )


def propose(
    stream: Path,
    masters: Sequence[Path],
    *,
    name: str = "",
    on: Sequence[str] = (),
    ids: Sequence[str] = (),
) -> Proposal:
    """Propose a job from a stream's file and master files, or directories of files.

    name: name of the job, by default derived from the stream's; on: join columns, as
    [ROLE:]STREAM=MASTER, which replace proposed ones; ids: columns that identify a tuple, which
    replace proposed ones. Raises ConfigError for files that cannot be read, and if no key of a
    master is found.
    """
    of_stream = detect(stream, "stream", STREAM_ROWS, SAMPLE_BYTES)
    names = [_name(path) or _word(path.absolute().name) or "data" for path in masters]
    given = _given(on, names)
    roles, taken = list[ProposedRole](), set[str]()
    for path, role in zip(masters, names, strict=True):
        master = detect(path, "master", MASTER_ROWS, SAMPLE_BYTES)
        role = _free(role, taken)
        taken.add(role)
        if role in given:
            _check_columns(given[role], of_stream, master)
            key: KeyProposal | None = given_key(of_stream, master, given[role])
        else:
            key = propose_key(of_stream, master)
        if key is None:
            raise ConfigError(
                "on",
                f"must be given for {path}: no column of it has values of the stream's",
                None,
                f"Columns of the stream: {', '.join(of_stream.columns)}; of {path.name}: "
                f"{', '.join(master.columns)}. Give --on {role}:STREAM=MASTER.",
            )
        roles.append(ProposedRole(role, master, key))
    of_stream, roles = _with_keys(of_stream, roles)
    found = Ids(tuple(ids), 0) if ids else identifying(of_stream)
    joined = {column for role in roles for column in role.key.on}
    of_stream = _typed(of_stream, {*(found.columns or ()), *joined})
    roles = [
        replace(role, master=_typed(role.master, {*role.key.on.values(), *role.key.business_key}))
        for role in roles
    ]
    if not name and not (name := _name(stream)):  # of a vague directory
        name = _word(f"{stream.absolute().name}_{roles[0].name}")
    return Proposal(name, of_stream, found, tuple(roles))


def _typed(of: DetectedFile, keyed: Container[str]) -> DetectedFile:
    """Return a file with the types of its columns that suit most of their cells. keyed: columns
    that keep their types."""
    return of.with_few_unfit(keyed).with_fixed_point(keyed)


def _with_keys(
    stream: DetectedFile, roles: Sequence[ProposedRole]
) -> tuple[DetectedFile, list[ProposedRole]]:
    """Return the files with the types and the formats that their keys need."""
    out = list[ProposedRole]()
    for role in roles:
        master = role.master
        for s in role.key.stream_texts:
            stream = stream.with_type(s, pa.string())
        for m in role.key.master_texts:
            master = master.with_type(m, pa.string())
        for s in role.key.stream_integers:
            stream = stream.with_type(s, pa.int64())
        stream = replace(stream, formats=stream.formats | role.key.formats)
        # a form that one side declares applies to both sides, and also to the roles after this one
        out.append(replace(role, master=master))
    return stream, out


def _given(on: Sequence[str], roles: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the join columns that the user gave, by role. Join columns without a role belong to
    the first role."""
    found: dict[str, dict[str, str]] = {}
    for text in on:
        role, _, rest = text.rpartition(":")
        if role and role not in roles:
            raise ConfigError(
                "on", "must name a master file", role, f"They are: {', '.join(roles)}."
            )
        found.setdefault(role or roles[0], {}).update(pairs(rest))
    return found


def _check_columns(on: Mapping[str, str], stream: DetectedFile, master: DetectedFile) -> None:
    for column, of in [*((s, stream) for s in on), *((m, master) for m in on.values())]:
        if column not in of.columns:
            raise ConfigError(
                "on",
                f"must name columns of {of.path.name}",
                column,
                f"It has: {', '.join(of.columns)}.",
            )


def _name(path: Path) -> str:
    """Return a name for a job or a role, derived from a file's name. For a directory, it is the
    directory's name or, if that is vague, the word with which all of its files begin, or the name
    of the directory above; "" if all of these are vague."""
    if not path.is_dir():
        return _word(path.name.split(".")[0]) or "data"
    directory = path.absolute()
    begin = {_begin(file.name) for file in directory.iterdir() if file.name[0] not in "._"}
    words = (directory.name, *(begin if len(begin) == 1 else ()), directory.parent.name)
    return next((word for name in words if (word := _word(name)) and word not in VAGUE), "")


def _begin(text: str) -> str:
    """Return the letters and underscores with which a text begins."""
    return re.split(r"[\W\d]", text, maxsplit=1, flags=re.ASCII)[0]


def _word(text: str) -> str:
    """Return a text as a name: letters, digits and underscores, not beginning with a digit."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()
    return (name if name[:1].isalpha() else name and f"_{name}")[: NAME - len("fact_")]


def _free(name: str, taken: set[str]) -> str:
    return next(n for n in (name, *(f"{name}_{i}" for i in range(2, 100))) if n not in taken)


def _file(of: DetectedFile) -> dict[str, Any]:
    return {
        "path": str(of.path),
        "format": of.kind,
        "options": of.options,
        "formats": {c: json.loads(str(form)) for c, form in of.formats.items()},
        "rows": of.rows.num_rows,
        "about": of.about,
        "columns": [asdict(column) for column in column_facts(of.rows, of.rejected)],
    }


def _written(of: DetectedFile) -> Iterator[str]:
    """Yield lines that describe how files are written, and their columns with examples."""
    if of.options:
        yield f"options: {_flow(of.options)}"
    if of.formats:
        yield "formats:"
        for column, form in of.formats.items():
            note = f"  # {of.notes[column]}" if column in of.notes else ""
            yield f"  {_scalar(column)}: {_form(column, form)}{note}"
    facts = column_facts(of.rows, of.rejected)
    widths = [max(len(f.name) for f in facts), max(len(f.type) for f in facts)]
    for f in facts:
        nulls = f"; {f.nulls / max(of.rows.num_rows, 1):.1%} null" if f.nulls else ""
        unfit = f"; {f.unparsable:,} unparsable" if f.unparsable else ""
        examples = ", ".join(" ".join(e.split()) for e in f.examples)
        yield f"# {f.name:{widths[0]}}  {f.type:{widths[1]}}  {examples}{nulls}{unfit}".rstrip()
    storable = _storable(of)
    if nested := [f.name for f in facts if f.name not in storable.names]:
        yield f"# left out, as no database column can hold them: {', '.join(nested)}"
    if of.kind != "parquet" or len(storable) < len(facts) or of.retyped:
        yield f"columns: {_scalar(to_ddl(storable))}"


def _storable(of: DetectedFile) -> pa.Schema:
    """Return the columns that a job declares, in the types in which they are stored: without those
    that no database column can hold, such as nested ones."""
    fields = list[pa.Field]()
    for field in of.rows.schema:
        with suppress(ConfigError):
            fields.append(_wide(of.rows, field.with_type(stored_type(field.name, field.type))))
    return pa.schema(fields)


def _wide(rows: pa.Table, field: pa.Field) -> pa.Field:
    """Return a decimal column with DIGITS digits if the sample's numbers leave at least WIDE of
    them free; otherwise return the column unchanged."""
    if not pa.types.is_decimal(field.type):
        return field
    most = pc.max(pc.abs(rows.column(field.name))).as_py()
    digits = len(str(int(most or 0))) + field.type.scale
    if digits + WIDE > DIGITS:
        return field
    return field.with_type(pa.decimal128(DIGITS, field.type.scale))


def _read(of: DetectedFile) -> float:
    """Return the share of a file's rows that can be read."""
    return of.rows.num_rows / (of.rows.num_rows + len(of.rejected))


def _limit(rate: float) -> float:
    """Return a limit for the share of unmatched or unparsable tuples: their present share and a
    quarter more, in hundredths. rate: the share of the others."""
    return min(math.floor(125 * (1 - rate)) + 1, 100) / 100


def _form(column: str, form: ColumnFormat) -> str:
    short = form.describe()
    if form.notation and _same(column, short, form):
        return _scalar(short)
    return _flow(json.loads(str(form)))


def _same(column: str, short: str, form: ColumnFormat) -> bool:
    try:
        return declared(column, short) == form
    except ConfigError:
        return False


def _relative(path: Path, directory: Path) -> str:
    """Return a path in a job's notation: relative if the file is below the job's directory."""
    found, base = Path(os.path.abspath(path)), Path(os.path.abspath(directory))
    return str(found.relative_to(base)) if found.is_relative_to(base) else str(found)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20
    )
    return str(text).strip()


def _scalar(text: str) -> str:
    return _flow([text])[1:-1]


def _indented(lines: Iterable[str], by: int = 2) -> list[str]:
    return [" " * by + line for line in lines]
