"""The declared format of a column's cells: the setting ``formats``. ``files.formats`` reads cells
in these formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

from semistream.errors import ConfigError

DATE, CLOCK = ("Y", "y", "m", "b", "B", "d"), ("H", "I", "p", "M", "S", "f", "z")
DIRECTIVES = {
    "Y": "year, 4 digits",
    "y": "year, 2 digits: 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068",
    "m": "month",
    "b": "month, Jan to Dec",
    "B": "month, January to December",
    "d": "day",
    "H": "hour, 0 to 23",
    "I": "hour, 1 to 12, with %p",
    "p": "AM or PM",
    "M": "minute",
    "S": "second",
    "f": "fraction of a second, at most 6 digits",
    "z": "Z, +02:00 or +0200",
    "%": "a per cent sign",
}
# settings that transform a key's texts
NORMAL_FORM = ("trim", "case", "unicode", "fraction", "zeros")
BLANKS = " \u00a0\u2007\u2009\u202f"  # blanks that may separate groups of digits
EQUIVALENT = {**dict.fromkeys(BLANKS, " "), "\u2019": "'"}
# 1234.56 as an example of a column's numbers, with the signs around it
EXAMPLE = re.compile(rf"([^\d.,%]*?)\s*1([.,_'\u2019{BLANKS}]?)234([.,])56\s*([^\d.,]*)")
WORDS: dict[str, dict[str, Any]] = {
    "trim": {"trim": True},
    **{c: {"case": c} for c in ("fold", "lower", "upper")},
    **{f: {"unicode": f} for f in ("NFC", "NFD", "NFKC", "NFKD")},
}
REMEDY = (
    "Give a time format such as %d/%m/%Y, an example number such as 1.234,56 (1234.56 as the "
    "column has it), words such as trim or fold, or a mapping of: "
)


class ColumnFormat(BaseModel):
    """The format of a column's cells.

    time: format of dates or times; decimal, thousands, strip, percent: format of numbers; missing:
    texts that stand for null. trim, case, unicode, fraction and zeros transform texts into the
    normal form of a key, which both sides of a join share.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: str = ""
    decimal: Literal["", ".", ","] = ""
    thousands: Literal["", ".", ",", " ", "'", "_"] = ""
    strip: tuple[str, ...] = ()
    percent: bool = False
    missing: tuple[str, ...] = ()
    trim: bool = False
    case: Literal["", "fold", "lower", "upper"] = ""
    unicode: Literal["", "NFC", "NFD", "NFKC", "NFKD"] = ""
    fraction: Literal["", "strip"] = ""
    zeros: Literal["", "strip"] | Annotated[int, Field(ge=1, le=1000)] = ""

    @field_validator("thousands", mode="before")
    @classmethod
    def _one_sign(cls, value: Any) -> Any:
        return EQUIVALENT.get(value, value) if isinstance(value, str) else value

    @field_validator("strip", "missing", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def number(self) -> bool:
        return bool(self.decimal or self.thousands or self.strip or self.percent)

    @property
    def notation(self) -> bool:
        """Whether the texts denote a date, time or number."""
        return bool(self.time) or self.number

    @property
    def point(self) -> str:
        """The decimal separator."""
        return self.decimal or ("," if self.thousands == "." else ".")

    @property
    def directives(self) -> list[str]:
        return re.findall("%(.?)", self.time)

    @property
    def clock(self) -> bool:
        """Whether the time format has a time of day."""
        return any(d in CLOCK for d in self.directives)

    @property
    def zone(self) -> bool:
        return "z" in self.directives

    @property
    def normal_form(self) -> dict[str, Any]:
        """The settings that change the texts of a key, as JSON values by name. It is empty if they
        leave the texts as they are."""
        return self.model_dump(include=set(NORMAL_FORM), exclude_defaults=True)

    def __str__(self) -> str:
        """Return a text that ``declared`` accepts."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)

    def describe(self) -> str:
        """Return a short description: the time format, or an example number."""
        if self.time:
            return self.time
        if not self.number:
            return str(self)
        signs = "".join(f" {sign}" for sign in (*self.strip, *(["%"] if self.percent else [])))
        return f"1{self.thousands}234{self.point}56{signs}"


def declared(column: str, value: Any) -> ColumnFormat:
    """Return the format that a mapping or a short form declares. Raises ConfigError for a wrong
    format."""
    name, known = f"formats.{column}", ", ".join(ColumnFormat.model_fields)
    if isinstance(value, ColumnFormat):
        return value
    given = _expand(value) if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(name, "must tell how the column is written", value, f"{REMEDY}{known}.")
    try:
        found = ColumnFormat.model_validate(dict(given))
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join([name, str(first["loc"][0])])
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                where, "is nothing that a format can say", first["input"], f"Known are: {known}."
            ) from None
        raise ConfigError(
            where,
            f"is wrong: {first['msg']}",
            first["input"],
            f"Known are: {known}; see docs/input.md.",
        ) from None
    if found == ColumnFormat():
        raise ConfigError(name, "must tell how the column is written", value, f"{REMEDY}{known}.")
    _check(name, found)
    return found


def formats(value: Any) -> Any:
    """Validate ``formats``: a mapping, or texts COLUMN=FORMAT, where FORMAT is a short form or a
    mapping in braces."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, (list, tuple)):
        pairs = [v.partition("=") for v in value]
        for column, sign, _ in pairs:
            if not sign:
                raise ConfigError(
                    "formats", "must be COLUMN=FORMAT", column, "For instance sold_at=%d/%m/%Y."
                )
        if len({column for column, _, _ in pairs}) < len(pairs):
            raise ConfigError(
                "formats",
                "must name a column once",
                list(value),
                "Say all of a column at once: sku={trim: true, case: fold}.",
            )
        value = {column: form for column, _, form in pairs}
    if not isinstance(value, Mapping):
        raise ConfigError(
            "formats",
            "must be a mapping of column to format",
            value,
            "For instance sold_at: '%d/%m/%Y'.",
        )
    return {str(column): declared(str(column), form) for column, form in value.items()}


Formats = Annotated[
    dict[str, ColumnFormat], BeforeValidator(formats), WithJsonSchema({"type": "object"})
]


def paired(
    on: Iterable[tuple[str, str]],
    left: Mapping[str, ColumnFormat],
    right: Mapping[str, ColumnFormat],
    sides: tuple[str, str] = ("stream", "master"),
) -> tuple[dict[str, ColumnFormat], dict[str, ColumnFormat]]:
    """Give both columns of each pair the normal form that one of them declares. Return the formats
    of both sides. Raises ConfigError if the two columns of a pair declare different normal
    forms."""
    both = dict(left), dict(right)
    for pair in on:
        forms = [
            side.get(c, ColumnFormat()).normal_form for side, c in zip(both, pair, strict=True)
        ]
        if forms[0] and forms[1] and forms[0] != forms[1]:
            raise ConfigError(
                f"formats.{pair[0]}",
                "must give a key the same form on both sides",
                f"{sides[0]} {pair[0]}: {json.dumps(forms[0])}, {sides[1]} {pair[1]}: "
                f"{json.dumps(forms[1])}",
                f"Declare {', '.join(NORMAL_FORM)} of a join column on one side only; they "
                "hold for both.",
            )
        for side, column, other in zip(both, pair, forms[::-1], strict=True):
            if other and (now := side.get(column, ColumnFormat())).normal_form != other:
                side[column] = declared(column, now.model_dump(exclude_defaults=True) | other)
    return both


def key_forms(
    columns: Iterable[str], declared: Mapping[str, ColumnFormat]
) -> dict[str, dict[str, Any]]:
    """Return the normal form, as JSON, of each key column that has one."""
    return {c: form for c in columns if c in declared and (form := declared[c].normal_form)}


def _expand(text: str) -> Any:
    """Return the mapping that a short form such as '%d/%m/%Y', '1.234,56' or 'trim fold' stands
    for; None for any other text."""
    if text.lstrip().startswith("{"):
        import yaml  # a slow import, needed for few formats

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return None
    if re.search("%[A-Za-z%]", text):
        return {"time": text}
    if found := EXAMPLE.fullmatch(text.strip()):
        before, thousands, decimal, behind = found.groups()
        signs = [s for s in (before.strip(), behind.strip()) if s]
        return {
            "decimal": decimal,
            "thousands": thousands,
            "strip": [s for s in signs if s != "%"],
            "percent": "%" in signs,
        }
    words = [w for w in re.split(r"[\s,]+", text.strip()) if w]
    if words and all(w in WORDS for w in words):
        return {k: v for w in words for k, v in WORDS[w].items()}
    return None


def _check(name: str, form: ColumnFormat) -> None:
    """Check a format. Raises ConfigError for settings that contradict each other."""
    texts = [k for k in ("case", "unicode", "fraction", "zeros") if getattr(form, k)]
    if form.notation and texts:
        raise ConfigError(
            f"{name}.{texts[0]}",
            "must be of a column of texts, not of times or numbers",
            str(form),
            "Leave one of them out.",
        )
    if form.time and form.number:
        raise ConfigError(
            name, "must be of times or of numbers", str(form), "Leave one of them out."
        )
    if form.thousands and form.thousands == form.point:
        raise ConfigError(
            f"{name}.thousands",
            "must differ from the decimal separator",
            form.thousands,
            "For instance decimal: ',' and thousands: '.'.",
        )
    for sign in form.strip:
        if not sign.strip() or re.search(r"[\d.,+\-\u2212]", sign):
            raise ConfigError(
                f"{name}.strip",
                "must have signs without digits, points, commas, plus or minus",
                sign,
                "For instance € or EUR.",
            )
    if form.percent and "%" in form.strip:
        raise ConfigError(
            f"{name}.strip",
            "must not have the sign that percent: true divides for",
            "%",
            "Either percent: true, and 12.5 % is 0.125, or strip: '%', and it is 12.5.",
        )
    if form.time:
        _check_time(f"{name}.time", form.time, form.directives)


def _check_time(name: str, time: str, found: list[str]) -> None:
    known = "; ".join(f"%{d} {what}" for d, what in DIRECTIVES.items())
    for directive in found:
        if directive not in DIRECTIVES:
            raise ConfigError(
                name, f"has %{directive}, which is not known", time, f"Known are: {known}."
            )
    count = {d: found.count(d) for d in DIRECTIVES}
    for what, some in (("day", "d"), ("month", "mbB"), ("year", "Yy")):
        if sum(count[d] for d in some) != 1:
            raise ConfigError(
                name,
                f"must have a {what}, once",
                time,
                f"For instance %d/%m/%Y. Known are: {known}.",
            )
    hours = sum(count[d] for d in "HI")
    if (
        any(count[d] > 1 for d in CLOCK)
        or hours > 1
        or count["I"] != count["p"]
        or (any(count[d] for d in "MSf") and not hours)
        or (count["S"] and not count["M"])
        or (count["f"] and not count["S"])
        or (count["z"] and not hours)
    ):
        raise ConfigError(
            name,
            "must have a time of day from hours on, and each part once, %I with %p",
            time,
            f"For instance %d/%m/%Y %H:%M:%S. Known are: {known}.",
        )
