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


class TooMuchMemory(ConfigError):
    """The system refuses an array of an operator. size: its bytes; most: those that a process may
    have here; before: those that it has without arrays; enough: an M for one operator that will
    do."""

    def __init__(self, size: int, most: int, before: int, enough: int):
        super().__init__(
            "memory", f"must be less: the system refuses an array of {size:,} bytes, as a process "
            f"may have {most:,} bytes here, and takes {before:,} of them without any array", None,
            f"Give each operator at most {enough:,} bytes, or allow more (ulimit -v, "
            "vm.overcommit_memory).")


class TooManyRows(ConfigError):
    """A join is estimated to have more rows than the limit that was set. estimate, bound: rows, and
    what they are off by at most, with probability ``confidence``; what: the join, for a person."""

    def __init__(self, limit: int, estimate: int, bound: int, confidence: float,
                 what: str = "the join"):
        self.estimate, self.bound, self.limit = estimate, bound, limit
        super().__init__("max_output_rows",
                         f"must be at least what {what} is estimated to have: {estimate:,} rows, "
                         f"off by at most {bound:,} with a probability of {confidence:.0%}", limit,
                         "Look for keys that are frequent on both sides, or raise it.")


class StateError(SemistreamError):
    """Saved state (a checkpoint, a snapshot) that does not fit the job that asked for it."""
