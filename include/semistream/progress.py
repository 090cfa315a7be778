"""How long-running steps tell where they are."""

from collections.abc import Callable

# (step, rows done, all rows if known), called now and then
Progress = Callable[[str, int, int | None], None]


def silent(step: str, done: int, total: int | None) -> None:
    """The progress that nobody watches."""
