"""The progress reports of long-running steps."""

from collections.abc import Callable

# (step, rows done, all rows if known), called now and then
Progress = Callable[[str, int, int | None], None]


def silent(step: str, done: int, total: int | None) -> None:
    """Ignore the progress."""
