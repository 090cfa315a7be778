"""The arguments that several commands share, and the settings and apps that they name."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.cli.command import Command

if TYPE_CHECKING:
    from semistream.errors import ConfigError
    from semistream.settings import Settings


def add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add all arguments of a command."""
    if command.settings:
        _add_settings(parser, command)
    if command.progress:
        parser.add_argument(
            "--progress",
            action=argparse.BooleanOptionalAction,
            default=sys.stderr.isatty(),
            help="show a progress bar on the standard error [on a terminal]",
        )
    command.add_arguments(parser)
    if command.json:
        parser.add_argument("--json", action="store_true", help="as JSON")


def _add_settings(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the flags of a settings class, and ``--config``. No flag is required by argparse, because
    the configuration file may contain the setting."""
    settings = _settings_of(command)
    for name, shown in command.positional:
        parser.add_argument(
            name,
            nargs="?",
            metavar=shown,
            default=argparse.SUPPRESS,
            help=settings.model_fields[name].description,
        )
    settings.add_arguments(parser, exclude=[name for name, _ in command.positional])
    for action in parser._actions:
        if action.required:
            action.required = False
            action.help = f"{action.help} (required)"
    nested = "".join(
        f"; {name}, only there: {field.description}" for name, field in settings.nested().items()
    )
    parser.add_argument(
        "--config",
        metavar="YAML",
        help="file with these settings by name; flags take precedence over it"
        + nested.replace("%", "%%"),
    )


def _settings_of(command: Command) -> type[Settings]:
    module, _, name = command.settings.rpartition(".")
    kind: type[Settings] = getattr(import_module(module), name)
    return kind


def prepare(command: Command, arguments: argparse.Namespace) -> None:
    """Add to the arguments what the command runs with: ``settings``, if it has such, and
    ``paths``, those of the environment, unless it uses none. Raises ConfigError for wrong ones."""
    if command.settings:
        arguments.settings = _read_settings(command, arguments)
    if not command.files_only:
        from semistream.paths import Paths

        arguments.paths = Paths.from_environment()
        arguments.paths.check_warehouse()


def _read_settings(command: Command, arguments: argparse.Namespace) -> Settings:
    """Return the settings of the command line and of its configuration file. Raises ConfigError for
    settings that are missing or wrong."""
    from semistream.errors import ConfigError

    kind = _settings_of(command)
    given = {k: v for k, v in vars(arguments).items() if k in kind.model_fields}
    values = (kind.read_config(arguments.config) if arguments.config else {}) | given
    missing = [n for n, f in kind.model_fields.items() if f.is_required() and n not in values]
    if missing:
        raise ConfigError(
            missing[0],
            "must be given",
            None,
            f"It means: {kind.model_fields[missing[0]].description}",
        )
    return kind.load(values)


def add_app(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="name of the app")


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")


def check_new(out: Path, force: bool) -> None:
    """Raise ConfigError for a file that exists and is not to be replaced."""
    from semistream.errors import ConfigError

    if out.exists() and not force:
        raise ConfigError(
            "out", "must be a new file", str(out), "Give another one, or --force to replace it."
        )


def unknown_app(name: str, checkpoints: Path) -> ConfigError:
    """Return the error for an app that has no checkpoint in this directory."""
    from semistream.errors import ConfigError
    from semistream.pipeline import drivers

    known = ", ".join(drivers.app_names(checkpoints)) or "none"
    return ConfigError(
        "app", f"must have run under {checkpoints}", name, f"Those that have: {known}."
    )
