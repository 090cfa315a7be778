"""The output of commands on the console: tables, remarks, progress. Rich is imported on first
use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from semistream import interrupts
from semistream.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def text_console() -> Console:
    """Return a console that prints texts unchanged, without breaking long lines."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def wide_console(width: int) -> Console:
    """Return a console for wide tables. Its width is that of the terminal, or this many characters
    if there is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def key_value_table() -> Table:
    """Return an empty table with columns for names, values, and the meaning of the values."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    return table


def plain_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Return an empty table without lines. right: the columns that are aligned to the right. Long
    texts are folded."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def place_of(sink: str) -> str:
    """Return where a sink's facts are, in words. sink: the setting's value."""
    return "the warehouse" if sink == "sql" else sink


def print_table(console: Console, table: Table) -> None:
    """Print a table without the blanks at the ends of its lines."""
    with console.capture() as captured:
        console.print(table)
    print("\n".join(map(str.rstrip, captured.get().removesuffix("\n").split("\n"))))


def show(as_json: bool, value: Any, render: Callable[[Any], None]) -> None:
    """Show a command's result: as JSON, in which dataclasses are objects, or as ``render`` prints
    it. Both get the same value."""
    if not as_json:
        render(value)
        return
    import json

    print(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Convert an object into values that JSON can represent."""
    from dataclasses import asdict, is_dataclass

    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def print_remarks(console: Console, **remarks: Iterable[str]) -> None:
    """Print a line for each remark. The line begins with the remark's kind."""
    for kind, texts in remarks.items():
        for text in texts:
            console.print(f"{kind}: {text}")


def seconds(summary: Any) -> tuple[str, str]:
    """Return the seconds for which this process has run, and a description of them, for the summary
    of a join of files."""
    try:
        with open("/proc/self/stat") as stat:
            started = stat.read().rpartition(")")[2].split()[19]  # ticks
    except OSError:  # not Linux
        return f"{summary.seconds:.1f}", f"without the program's start, with {summary.algorithm}"
    whole = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
    return (
        f"{whole:.1f}",
        f"in all, {whole - summary.seconds:.1f} to start, with {summary.algorithm}",
    )


@contextmanager
def progress(enabled: bool) -> Iterator[Progress]:
    """Show the progress of the work inside the block. From its start, an interrupt raises
    KeyboardInterrupt, because there may be incomplete output to remove."""
    interrupts.raise_from_now_on()
    if not enabled:
        yield interrupts.interruptible(silent)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield interrupts.interruptible(tell)
