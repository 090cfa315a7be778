"""The description of a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """A command of the console.

    about: what it does, as a clause in the imperative; add_arguments: adds its arguments to a
    parser; run: executes it and returns the exit code; files_only: whether it depends on no
    environment variable; without_pandas: whether nothing that it calls needs pandas.
    """

    name: str
    about: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    example: str = ""
    files_only: bool = False
    without_pandas: bool = False
