"""How long-running steps tell where they are."""

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]  # (step, rows done, all rows if known), called now and then


def silent(step: str, done: int, total: int | None) -> None:
    """The progress that nobody watches."""
