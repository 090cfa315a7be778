"""Suppression of imports that other packages would make, and that this program does not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let imports of these packages fail inside the block, as if they were not installed. Packages
    that were imported before stay."""
    finder = _Missing(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Missing:
    def __init__(self, packages: tuple[str, ...]):
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ImportError(f"{name} is not to be imported here", name=name)
