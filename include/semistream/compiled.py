"""Compiled functions, cached in files for the next process.

Numba reuses a cached function as long as the function's file is unchanged, although the compiled
code includes the code of all functions that it calls and the values of all constants that it names.
Here a cached function is reused only if those are also unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from semistream.imports import without

# slow imports: Numba only checks SciPy's version, and reads a settings file with YAML
with without("scipy", "yaml"):
    import numba
    from numba.core import caching, environment
    from numba.core.runtime import rtsys

Function = Callable[..., Any]
OPTIONS = {"nogil": True}  # for all functions: other threads read and write files meanwhile
CONSTANTS = (int, float, str, bytes, tuple, np.generic, np.ndarray)


def njit(*signatures: Any, cache: bool = False, **options: Any) -> Callable[[Function], Function]:
    """Compile functions with ``numba.njit``; they run without Python's global lock. With ``cache``,
    the compiled code is kept in a file until anything that the function includes has changed. With
    signatures, functions are compiled at once, for these signatures only."""

    def compiled(function: Function) -> Function:
        made = numba.njit(**OPTIONS | options)(function)
        if cache:
            made._cache = _Cache(function)
        for signature in signatures:
            made.compile(signature)
        if signatures:
            made.disable_compile()
        return made

    return compiled


def filled(kernel: Function, count: int, dtype: Any, *arguments: Any) -> np.ndarray:
    """Return an array, dtype[count], that a kernel has filled. The kernel gets the array as its
    last argument."""
    out = np.empty(count, dtype)
    kernel(*arguments, out)
    return out


class _Stamped:
    """A location of Numba's cache, whose stamp covers everything that the compiled function
    includes."""

    def __init__(self, function: FunctionType, file: str):
        super().__init__(function, file)  # type: ignore[call-arg]
        self._function = function

    def get_source_stamp(self) -> tuple[Any, str]:
        parts = hashlib.sha256(repr(OPTIONS).encode())
        for part in _dependencies(self._function, set()):
            parts.update(repr(part).encode())
        return super().get_source_stamp(), parts.hexdigest()  # type: ignore[misc]


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = [
        type(of.__name__, (_Stamped, of), {})
        for of in (
            caching.UserProvidedCacheLocator,
            caching.InTreeCacheLocator,
            caching.UserWideCacheLocator,
            caching.ZipCacheLocator,
        )
    ]


class _Cache(caching.FunctionCache):
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a compiled function without importing the modules with which Numba types and lowers
        functions. Those modules take longer to import than Numba itself, and only compilation needs
        them."""
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)


def _rebuild_environment(module: str, constants: list[Any], name: str) -> Any:
    """Rebuild the environment of a compiled function without importing the module that defines the
    function. Only Numba's object mode, which nothing here uses, needs that module's names.
    Importing Numba's module of arrays takes longer than many joins run."""
    known = environment.lookup_environment(name)
    if known is None:
        known = environment.Environment({"__name__": module})
        known.consts[:] = constants
        known.env_name = name
        environment.Environment._memo[name] = known
    return known


environment._rebuild_env = _rebuild_environment


def _dependencies(function: FunctionType, seen: set[FunctionType]) -> Iterator[object]:
    """Yield the code and the constants of a function, and of every function that it names, directly
    or indirectly."""
    if function in seen:
        return
    seen.add(function)
    codes = [function.__code__]
    for code in codes:  # the list grows by the functions defined inside
        codes += [x for x in code.co_consts if isinstance(x, CodeType)]
        yield code.co_code, code.co_names, code.co_varnames, code.co_freevars
        yield [x for x in code.co_consts if not isinstance(x, CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            # the Python function behind a compiled function or an intrinsic
            value = getattr(value, "py_func", getattr(value, "_defn", value))
            if isinstance(value, FunctionType):
                yield from _dependencies(value, seen)
            elif isinstance(value, CONSTANTS):
                yield name, value.tolist() if isinstance(value, np.ndarray) else value
