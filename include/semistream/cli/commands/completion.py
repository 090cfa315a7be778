"""``semistream completion``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from semistream.cli.command import Command


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(arguments: Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["semistream"], shell=arguments.shell))
    return 0


COMMAND = Command(
    "completion",
    "print the script that completes this program's words in a shell",
    run,
    add_arguments,
    example='eval "$(semistream completion bash)" in ~/.bashrc, or zsh in ~/.zshrc.',
    files_only=True,
)
