"""Data files as streams of Arrow batches, in and out, and the join of files. Memory is bounded, and
malformed rows are set apart.

The names listed here are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream.files.join import join_files, publish_file
    from semistream.files.opening import open_source
    from semistream.files.settings import JoinFiles, MasterFile

MODULES = {"join_files": "join", "publish_file": "join", "open_source": "opening",
           "JoinFiles": "settings", "MasterFile": "settings"}
__all__ = ["JoinFiles", "MasterFile", "join_files", "open_source", "publish_file"]


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
