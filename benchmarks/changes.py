"""What has changed in the code since a result was measured."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from semistream.joins import REGISTRY
from semistream.sketches import METHODS
from semistream.stream_joins import REGISTRY as STREAM_JOINS

ROOT = Path(__file__).parent.parent


class NoHistory(Exception):
    """The source tree has no git, or lacks the commits of its results."""


def changes_since(
    commit: str, dirty: bool, peers: Iterable[str], further: Sequence[str]
) -> list[str]:
    """Return the reasons to measure a result again: those algorithms among its peers, and those
    further files and directories, whose code has changed since its commit. dirty: whether files had
    changed when the result was measured. Raises NoHistory."""
    known = REGISTRY.keys() | METHODS.keys() | STREAM_JOINS.keys()
    changed = sorted(
        {n for n in peers if n in known and any(has_changed(commit, f) for f in files_of(n))}
        | {f for f in further if has_changed(commit, f)}
    )
    found = [f"today's {', '.join(changed)}, which changed since"] if changed else []
    return found + (["a commit, as it was of changed files"] if dirty else [])


@functools.cache
def files_of(name: str) -> tuple[str, ...]:
    """Return the file of an algorithm, and the files of the parts that no other algorithm uses."""
    if name in STREAM_JOINS:
        return ("include/semistream/stream_joins",)
    if name not in REGISTRY:
        return (_path(METHODS[name].__module__),)
    contract = "semistream.joins.contract"
    algorithms = {a.make.__module__ for a in REGISTRY.values()}
    # SSJ inherits CMESHJOIN's loop, and Tuned X-HYBRIDJOIN that of X-HYBRIDJOIN
    mine = algorithms.intersection(k.__module__ for k in REGISTRY[name].make.__mro__)
    others = {part for m in (contract, *algorithms) if m not in mine for part in _parts(m)}
    parts = {part for m in mine for part in _parts(m)}
    return tuple(_path(m) for m in (*sorted(mine), *sorted(parts - others)))


@functools.cache
def _parts(module: str) -> frozenset[str]:
    """Return the modules of the joins' package that one of its modules imports."""
    tree = ast.parse((ROOT / _path(module)).read_text())
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    algorithms = {a.make.__module__ for a in REGISTRY.values()}
    return frozenset(
        n
        for n in names - algorithms
        if n.startswith("semistream.joins.") and (ROOT / _path(n)).is_file()
    )


def _path(module: str) -> str:
    plain = f"include/{module.replace('.', '/')}"
    return f"{plain}.py" if (ROOT / f"{plain}.py").exists() else f"{plain}/__init__.py"


@functools.cache
def has_changed(commit: str, path: str) -> bool:
    """Return whether the code of a file, or of a file in a directory, differs from the code at a
    commit. Formatting, comments and docstrings do not count.

    Raises NoHistory.
    """
    if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise NoHistory(f"the commit {commit} of a result is not known here")
    there = _git("ls-tree", "-r", "--name-only", commit, path) or ""
    here = ROOT / path
    files = {f for f in there.split() if f.endswith(".py")} | {
        str(f.relative_to(ROOT)) for f in ([here] if here.is_file() else here.rglob("*.py"))
    }
    return any(_tree_of(_git("show", f"{commit}:{f}")) != _tree_of(_text(ROOT / f)) for f in files)


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _tree_of(text: str | None) -> str | None:
    if text is None:
        return None
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)


def _git(*words: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", ROOT, *words], capture_output=True, text=True, check=True
        ).stdout
    except OSError as e:
        raise NoHistory(str(e)) from None
    except subprocess.CalledProcessError:
        return None


def to_measure_again(changed: Iterable[str], dirty: bool = False) -> list[str]:
    """Return the remark below a table whose results must be measured again, as lines; no lines if
    there is no reason. changed: algorithms that have changed since the measurement."""
    flaws = [f"today's {', '.join(sorted(changed))}, which changed since"] if changed else []
    flaws += ["a commit, as some were of changed files"] if dirty else []
    return ["", f"**To be measured again**: by {'; '.join(flaws)}."] if flaws else []


def measured_at(command: str, commit: str, machine: str, flaws: Sequence[str]) -> str:
    """Return a sentence on how a result was measured. flaws: reasons to measure it again."""
    again = f" **To be measured again**: by {'; '.join(flaws)}." if flaws else ""
    processor = machine.split(", Linux", maxsplit=1)[0]
    return f"`{_make_command(command)}` at commit {commit}, {processor}.{again}"


def _make_command(command: str) -> str:
    """Return the make command for a recorded command, even if the command has a former name."""
    papers = re.sub(r"^(python -m benchmarks\.papers|semistream experiments) ", "", command)
    if papers != command:
        return f'make papers ARGS="{papers}"'
    words = command.removeprefix("python -m benchmarks ")
    scale = re.search(r" ?--scale (\S+)", words)
    rest = words.replace(scale[0], "") if scale else words
    return "make bench" + (f" SCALE={scale[1]}" if scale else "") + f' ARGS="{rest.strip()}"'
