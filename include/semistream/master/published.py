"""A dimension's snapshots, one for each join key: their directories, the current version, the
versions that apps hold, and the manifest. This module serves code that does not read R."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semistream.durable import read_checked, write_checked, write_text
from semistream.errors import StateError

CURRENT, MANIFEST = "CURRENT", "manifest.json"
# the remedy for a version that is damaged or missing
ANEW = (
    "Restore it from a backup. If no tuples wait for that version, its directory may be "
    "deleted, and the master data published anew: `semistream provision JOB`, or the DAG "
    "provision_master_data."
)


def key_name(key: Sequence[str]) -> str:
    """Return the name of the directory of a dimension's snapshot for a key. The order of the key's
    columns does not matter."""
    name = "+".join(sorted(key))
    # exclude names that a version may have, and names that the separator or a file system would
    # spoil
    if (
        len(name) <= 100
        and all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", c) for c in key)
        and not re.fullmatch(r"v[0-9].*|pins|CURRENT", name)
    ):
        return name
    return "key-" + hashlib.sha256(json.dumps(sorted(key)).encode()).hexdigest()[:16]


def snapshot_root(snapshots: Path, dimension: str, key: Sequence[str]) -> Path:
    """Return the directory ``<snapshots>/<dimension>/<key>`` that holds the versions of a
    dimension's snapshot for a key."""
    return snapshots / dimension / key_name(key)


def snapshot_roots(snapshots: Path, dimension: str) -> dict[tuple[str, ...], Path]:
    """Return the directories of a dimension's published snapshots, by key."""
    roots = sorted((snapshots / dimension).glob("*/"))
    return {key: root for root in roots if (key := _key_of(root))}


def same_key(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two keys have the same columns, in any order."""
    return set(one) == set(other)


def _key_of(root: Path) -> tuple[str, ...]:
    """Return the key of the current version under ``root``; empty if the version is missing or
    damaged."""
    try:
        return tuple((read_manifest(root) or {}).get("key_columns", ()))
    except StateError:
        return ()


def current_version(root: str | Path) -> str | None:
    """Return the name of the current version under ``<root>`` = snapshots/<dimension>/<key>, or
    None before the first one. Raises StateError when the file with the name is damaged."""
    current = read_checked(Path(root) / CURRENT, ANEW)
    return None if current is None else current["version"]


def set_current(root: str | Path, version: str, *, flush: bool = True) -> None:
    write_checked(Path(root) / CURRENT, {"version": version}, flush=flush)


def read_manifest(root: str | Path) -> dict[str, Any] | None:
    """Return the manifest of the current version, exactly as stored; None before the first version.
    Raises StateError when the manifest is damaged."""
    version = current_version(root)
    return None if version is None else read_checked(Path(root) / version / MANIFEST, ANEW)


def pin(root: str | Path, holder: str, version: str | None) -> None:
    """Keep a version for a holder (an app's name), and release the version that the holder kept
    before. If the version is None, only release the former one."""
    directory = Path(root) / "pins"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / holder.replace("/", "_")
    if version is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, version)
