"""Fetching of the next item in a thread, while the previous one is processed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items. A thread fetches the next item meanwhile. Closing the generator ends the
    thread."""
    end = object()
    with ThreadPoolExecutor(1, "reading") as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]
