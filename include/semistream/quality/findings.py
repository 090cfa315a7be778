"""Findings of wrong rows, and their descriptions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from semistream.quality.scope import Scope

NAMED = 1_000  # rows named of each kind
ROW_CHARACTERS = 2_000
BEFORE = 20  # characters shown before the first that differs, of long texts
CHANGED, SURPLUS, MISSING = "changed", "surplus", "missing"


@dataclass(frozen=True)
class Load:
    """A load whose checksums differ. facts, kept: the ledger's checksum of the load's rows in the
    fact table and in unmatched, if it differs from the computed one; otherwise None."""

    load_id: int
    versions: tuple[str, ...]  # of each role's master data
    rows: int
    facts: int | None
    kept: int | None


@dataclass(frozen=True)
class Finding:
    load_id: int | None
    table: str
    finding: str
    stream_id: str | None
    column: str | None = None
    old: str | None = None
    new: str | None = None
    batch: int | None = None  # if the load is unknown


@dataclass
class WrongRows:
    """The wrong rows. findings: the rows that could be identified; notes: sentences that say how
    many rows of each kind there are, and what was not compared."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def id_text(scope: Scope, row: dict[str, Any]) -> str:
    return "|".join(str(text(row[i])) for i in scope.ids)


def same(a: Any, b: Any) -> bool:
    both_nan = a != a and b != b  # noqa: PLR0124 - any type, not only a float
    return a == b or both_nan or _whole(a) == _whole(b)


def text(value: Any) -> str | None:
    whole = _whole(value)
    return whole if whole is None else whole[:ROW_CHARACTERS]


def differing(old: Any, new: Any) -> tuple[str | None, str | None]:
    """Return the texts of two values that differ; of texts whose beginnings are equal, the parts
    from shortly before the first difference."""
    a, b = _whole(old), _whole(new)
    if a is None or b is None or a[:ROW_CHARACTERS] != b[:ROW_CHARACTERS]:
        return text(old), text(new)
    different = (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    first = next(different, min(len(a), len(b))) - BEFORE
    return f"…{a[first:]}"[:ROW_CHARACTERS], f"…{b[first:]}"[:ROW_CHARACTERS]


def _whole(value: Any) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def row_text(values: dict[str, Any]) -> str:
    return json.dumps(values, default=text, ensure_ascii=False)[:ROW_CHARACTERS]
