"""The description of a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple


def no_more_arguments(parser: ArgumentParser) -> None:
    """Add no argument: the default for commands whose arguments ``Command`` describes
    completely."""


class Command(NamedTuple):
    """A command of the console.

    about: what the command does, as a clause in the imperative; run: a function that executes the
    command and returns the exit code; add_arguments: a function that adds the command's special
    arguments to a parser; settings: the name, module.Class, of the settings class whose settings
    are flags of the command; the class is imported only when needed, and `run` gets the settings
    as `arguments.settings`; positional: the settings that are given without a flag, each with its
    name in the help; progress, json: whether the command has these flags; files_only: whether the
    command uses no environment variable, others get the installation's paths as
    `arguments.paths`; without_pandas: whether the command never needs pandas; extras: the extras
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
