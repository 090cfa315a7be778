"""Numbers with their nouns."""

import pytest

from semistream.counted import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (1849, "source file", "1,849 source files"),
    ],
)
def test_a_noun_agrees_with_its_number(number, noun, text):
    assert counted(number, noun) == text
