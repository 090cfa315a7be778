"""The provenance of a result: the commit, the machine, the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from semistream.tuning.calibration import processor

HERE = Path(__file__).parent
RESULTS = (":(top,exclude)benchmarks/results", ":(top,exclude)docs", ":(top,exclude)README.md")


def commit() -> dict[str, Any]:
    """Return two values, commit: the short hash of the source tree's commit, and dirty: whether a
    file of the tree has changed since, other than results of measurements and pages. Without git,
    they are "" and True."""

    def git(*words: str) -> str | None:
        try:
            return subprocess.run(
                ["git", "-C", HERE, *words], capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    return {
        "commit": git("rev-parse", "--short", "HEAD") or "",
        "dirty": git("status", "--porcelain", "-uno", "--", ":/", *RESULTS) != "",
    }


def machine() -> dict[str, Any]:
    """Return the machine's properties. memory: bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "name": platform.node(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
