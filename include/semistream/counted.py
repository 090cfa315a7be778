"""Numbers with their nouns, as people write them: 1 batch, 1,849 batches."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, which is in the plural unless the number is 1."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {noun}{ending}"
