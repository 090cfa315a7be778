import pytest

from semistream.durations import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 seconds", 5),
        ("1 second", 1),
        ("100 ms", 0.1),
        ("250 milliseconds", 0.25),
        ("2m", 120),
        ("1.5 Hours", 5400),
        (" 90 min ", 5400),
        ("2 days", 172_800),
        ("2", None),
        ("-1 s", None),
        ("3 ss", None),
        ("3 versions", None),
        ("", None),
    ],
)
def test_times_as_they_are_written(text, seconds):
    assert seconds_of(text) == (seconds if seconds is None else pytest.approx(seconds))
