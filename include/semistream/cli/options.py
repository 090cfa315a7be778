"""The arguments that several commands share, and the settings read from them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from semistream.settings import Settings

    S = TypeVar("S", bound=Settings)


def add_settings(
    parser: argparse.ArgumentParser, settings: type[Settings], exclude: Sequence[str] = ()
) -> None:
    """Add the flags of a settings class, and ``--config``. None of them is required by argparse,
    because the configuration file may give it."""
    settings.add_arguments(parser, exclude=exclude)
    for action in parser._actions:
        if action.required:
            action.required = False
            action.help = f"{action.help} (required)"
    parser.add_argument(
        "--config",
        metavar="YAML",
        help="file with these settings by name; flags take precedence over it",
    )


def read_settings(kind: type[S], arguments: argparse.Namespace) -> S:
    """Return the settings of the command line and of its configuration file. Raises ConfigError for
    settings that are missing or wrong."""
    from semistream.errors import ConfigError
    from semistream.settings import read_yaml

    given = {k: v for k, v in vars(arguments).items() if k in kind.model_fields}
    values = (read_yaml(arguments.config) if arguments.config else {}) | given
    missing = [n for n, f in kind.model_fields.items() if f.is_required() and n not in values]
    if missing:
        raise ConfigError(
            missing[0],
            "must be given",
            None,
            f"It means: {kind.model_fields[missing[0]].description}",
        )
    return kind.load(values)


def add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=sys.stderr.isatty(),
        help="show a progress bar on the standard error [on a terminal]",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def add_app(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="name of the app")
