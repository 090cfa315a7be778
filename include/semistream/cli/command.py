"""The description of a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple


def no_more_arguments(parser: ArgumentParser) -> None:
    """Add no argument. Commands have this default if ``Command`` describes all their arguments."""


class Command(NamedTuple):
    """A command of the console.

    about: what it does, as a clause in the imperative; run: executes it and returns the exit code;
    add_arguments: adds arguments of its own to a parser; settings: module.Class of the settings
    whose flags it has, imported when they are needed, which `run` finds among its arguments;
    positional: those settings that are given without a flag, each with the name that the help
    shows; progress, json: whether it has these flags; files_only: whether it depends on no
    environment variable; without_pandas: whether nothing that it calls needs pandas; extras: those
    of the package that must be installed.
    """

    name: str
    about: str
    run: Callable[[Namespace], int]
    add_arguments: Callable[[ArgumentParser], None] = no_more_arguments
    settings: str = ""
    positional: tuple[tuple[str, str], ...] = ()
    progress: bool = False
    json: bool = False
    example: str = ""
    files_only: bool = False
    without_pandas: bool = False
    extras: tuple[str, ...] = ()
