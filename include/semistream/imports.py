"""Packages that are missing, kept from being imported, or imported later: optional packages that
are not installed, and packages that other packages would import without need."""

from __future__ import annotations

import os
import sys
import threading
import zipimport
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader, find_spec
from types import ModuleType
from typing import Any

from semistream.errors import EXTRAS, MissingExtra


def require(extras: Iterable[str]) -> None:
    """Raise MissingExtra if a module of these extras of the package is not installed."""
    if lacking := [name for name in EXTRAS if EXTRAS[name] in extras and not _installed(name)]:
        raise MissingExtra(*lacking)


def missing_extra(error: ImportError) -> MissingExtra | None:
    """Return the error that names the remedy, for an import that failed because an extra is not
    installed; None if the import failed for another reason."""
    module = (error.name or "").partition(".")[0]
    return MissingExtra(module) if module in EXTRAS and not _installed(module) else None


def _installed(name: str) -> bool:
    return find_spec(name) is not None


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let imports of these packages fail inside the block, in this thread, as if they were not
    installed. Packages that have already been imported stay imported."""
    with _with_finder(_Missing(packages)):
        yield


@contextmanager
def put_off(*modules: str) -> Iterator[None]:
    """Let imports of these modules inside the block, in this thread, give modules that are only
    loaded when something of them is used. Modules that have already been imported are as they
    were."""
    with _with_finder(_Late(modules)):
        yield


@contextmanager
def _with_finder(finder: Any) -> Iterator[None]:
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def leave_out_archives(package: str) -> None:
    """Import a package from its directory, not from archives in this directory that are on the path
    as well. An archive has no bytecode, and each process keeps a list of all its files, which it
    reads again when the path changes: 16 MB for Spark's."""
    found = PathFinder.find_spec(package, [path for path in sys.path if os.path.isdir(path)])
    if found is None or found.origin is None:
        return
    inside = os.path.dirname(found.origin) + os.sep
    sys.path[:] = [path for path in sys.path if not path.startswith(inside)]
    lists: Any = zipimport._zip_directory_cache  # type: ignore[attr-defined]
    for held in (sys.path_importer_cache, lists):
        for path in [path for path in held if path.startswith(inside)]:
            del held[path]
    sys.modules.pop("org", None)  # a directory of Spark's jar, in which Python looks for Jython


class _Finder:
    def __init__(self, names: tuple[str, ...]):
        self._names, self._thread = names, threading.get_ident()

    def _holds(self, name: str) -> bool:
        # meanwhile another thread starts Spark
        return threading.get_ident() == self._thread and name in self._names


class _Missing(_Finder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if self._holds(name.partition(".")[0]):
            raise ImportError(f"{name} is not to be imported here", name=name)


class _Late(_Finder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if self._holds(name) else None
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found
