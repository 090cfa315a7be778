"""Errors that a user can act on."""


class SemistreamError(Exception):
    """Base of every error raised on purpose by this library."""


class ConfigError(SemistreamError, ValueError):
    """A setting that cannot work, named with its constraint, the value received (None: it is
    missing) and the remedy.

    Raised before any session or connection is opened.
    """

    def __init__(self, parameter: str, constraint: str, value: object, remedy: str):
        self.parameter, self.constraint, self.value = parameter, constraint, value
        self.remedy = remedy
        got = "" if value is None else f" Got {value!r} instead."
        super().__init__(f"'{parameter}' {constraint}.{got} {remedy}")


class NotEnoughMemory(ConfigError):
    """M is too small for an operator. ``least``: bytes that are enough for it, to the end of any
    stream."""

    def __init__(self, least: int, value: int, what: str, remedy: str = "Give more memory."):
        self.least = least
        super().__init__("memory", f"must be at least {least:,} bytes for {what}", value, remedy)


class TooManyRows(SemistreamError):
    """A join is estimated to have more rows than the limit that was set. estimate, bound: rows, and
    what they are off by at most, with probability ``confidence``; what: the join, for a person."""

    def __init__(self, limit: int, estimate: int, bound: int, confidence: float,
                 what: str = "the join"):
        self.estimate, self.bound, self.limit = estimate, bound, limit
        super().__init__(f"It is estimated that {what} has {estimate:,} rows, off by at most "
                         f"{bound:,} with a probability of {confidence:.0%}, and max_output_rows "
                         f"is {limit:,}. Look for keys that are frequent on both sides, or raise "
                         f"it.")


class StateError(SemistreamError):
    """Saved state (a checkpoint, a snapshot) that does not fit the job that asked for it."""
