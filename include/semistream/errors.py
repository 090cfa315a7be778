"""Errors that a user can act on."""


class SemistreamError(Exception):
    """Base of every error raised on purpose by this library."""


class ConfigError(SemistreamError, ValueError):
    """A setting that cannot work, named with its constraint, the value received and the remedy.

    Raised before any session or connection is opened.
    """

    def __init__(self, parameter: str, constraint: str, value: object, remedy: str):
        self.parameter, self.constraint, self.value = parameter, constraint, value
        self.remedy = remedy
        super().__init__(f"'{parameter}' {constraint}. Got {value!r} instead. {remedy}")


class NotEnoughMemory(ConfigError):
    """M is too small for an operator. ``least``: bytes that are enough for it, to the end of any
    stream."""

    def __init__(self, least: int, value: int, what: str, remedy: str = "Give more memory."):
        self.least = least
        super().__init__("memory", f"must be at least {least:,} bytes for {what}", value, remedy)


class StateError(SemistreamError):
    """Saved state (a checkpoint, a snapshot) that does not fit the job that asked for it."""
