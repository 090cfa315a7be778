"""Reading in a thread."""

import threading
from contextlib import closing

import pytest

from semistream.ahead import ahead


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("reading")]


def test_items_come_in_order_and_the_next_one_is_made_meanwhile():
    made, threads = [], set()

    def items():
        for i in range(5):
            made.append(i)
            threads.add(threading.current_thread().name)
            yield i

    for given, item in enumerate(ahead(items())):
        assert item == given and len(made) <= given + 2
    assert made == list(range(5)) and threads == {"reading_0"} and not readers()


def test_an_error_comes_where_its_item_would():
    def items():
        yield 1
        raise OSError("the file broke")

    coming = ahead(items())
    assert next(coming) == 1
    with pytest.raises(OSError, match="the file broke"):
        next(coming)
    assert not readers()


def test_closing_ends_the_thread():
    with closing(ahead(iter(range(10)))) as coming:
        assert next(coming) == 0 and readers()
    assert not readers()
