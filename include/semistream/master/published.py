"""A master's snapshots: the current version, the versions that apps hold, and the manifest; for
code that does not read R."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semistream.durable import read_checked, write_checked, write_text

CURRENT, MANIFEST = "CURRENT", "manifest.json"
# the remedy for a version that is damaged or missing
ANEW = ("Restore it from a backup. If no tuples wait for that version, its directory may be "
        "deleted, and the master data published anew: `semistream provision JOB`, or the DAG "
        "provision_master_data.")


def current_version(root: str | Path) -> str | None:
    """Return the name of the current version under ``<root>`` = snapshots/<master>, or None before
    the first one. Raises StateError when the file with the name is damaged."""
    current = read_checked(Path(root) / CURRENT, ANEW)
    return None if current is None else current["version"]


def set_current(root: str | Path, version: str, *, flush: bool = True) -> None:
    write_checked(Path(root) / CURRENT, {"version": version}, flush=flush)


def read_manifest(root: str | Path) -> dict[str, Any] | None:
    """Return the manifest of the current version, as it is on disk; None before the first version.
    Raises StateError when it is damaged."""
    version = current_version(root)
    return None if version is None else read_checked(Path(root) / version / MANIFEST, ANEW)


def pin(root: str | Path, holder: str, version: str | None) -> None:
    """Keep a version for a holder (an app's name), in the place of the one that it held before;
    None: keep none."""
    directory = Path(root) / "pins"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / holder.replace("/", "_")
    if version is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, version)
