"""Compiled functions, whose machine code is kept in files for the next process.

Numba, which compiles them, is imported only when a function is called with arguments of types for
which no file has machine code (`machine_code`). The files lie in the ``__pycache__`` of the
function's module; where that cannot be written, under the user's caches; with the environment
variable NUMBA_CACHE_DIR, under that directory. Machine code is used again only if the function, all
functions that it calls, and the constants that they name are unchanged.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np
from numpy import ndarray

from semistream import interrupts
from semistream.durable import replacing
from semistream.machine_code import MachineCode, compile_for, load, numba, target

Function = Callable[..., Any]
OPTIONS = {"nogil": True}  # for all functions: other threads read and write files meanwhile
CONSTANTS = (int, float, str, bytes, tuple, np.generic, np.ndarray)
C, F, WRITEABLE = 1, 2, 0x400  # NumPy's flags of an array: the layouts, and whether it is writable
NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}
CHECKSUM = 32  # bytes at a file's beginning
_compiling = threading.RLock()  # while machine code is made or loaded


def njit(*, cache: bool = False, **options: Any) -> Callable[[Function], Kernel]:
    """Compile functions of arrays and numbers with ``numba.njit``, when they are first called. They
    run without Python's global lock. With ``cache``, the machine code is kept in a file until
    anything that the function includes has changed."""
    return lambda function: Kernel(function, OPTIONS | options, cache)


def filled(
    kernel: Function, shape: int | tuple[int, ...], dtype: Any, *arguments: Any
) -> np.ndarray:
    """Return an array that a kernel has filled. The kernel gets the array as its last argument."""
    out = np.empty(shape, dtype)
    kernel(*arguments, out)
    return out


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view. A kernel is compiled once for all arrays that it only reads, if all
    of them are read-only, as those over Arrow's memory are."""
    view = array.view()
    view.flags.writeable = False
    return view


class Named(ABC):
    """Something that compiled functions name, and that Numba knows in a form of its own."""

    @cached_property
    @abstractmethod
    def of_numba(self) -> Any:
        """Numba's form. Numba is imported for it."""

    @abstractmethod
    def parts(self, seen: set[Any]) -> Iterator[object]:
        """Yield what machine code that includes this depends on. seen: functions whose parts have
        been yielded, to which this one is added."""


class Kernel(Named):
    """A compiled function.

    py_func: the function in Python; options: those of ``numba.njit``; compiled, loaded: for how
    many types of arguments this process has compiled it, or found its machine code in a file.
    """

    def __init__(self, function: Any, options: dict[str, Any], cache: bool):
        self.py_func, self.options, self._cache = function, options, cache
        self.compiled = self.loaded = 0
        self._count, defaults = function.__code__.co_argcount, function.__defaults__ or ()
        self._names = function.__code__.co_varnames[: self._count]
        self._defaults = (None,) * (self._count - len(defaults)) + defaults
        self._entries: dict[tuple[Any, ...], Function] = {}
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__, self.__doc__ = function.__module__, function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) < self._count:
            arguments += self._defaults[len(arguments) - self._count :]
        kinds = tuple(  # of a list, which is made in half the time of a generator's elements
            [(a.dtype, a.ndim, a.flags.num) if type(a) is ndarray else type(a) for a in arguments]
        )
        entry = self._entries.get(kinds) or self._entry(kinds, arguments)
        return entry(*arguments)

    def __reduce__(self) -> str:
        return self.__qualname__  # another process imports it

    def _entry(self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> Function:
        """Return the function for arguments of these kinds: (dtype, dimensions, flags) of an array,
        the type of a number."""
        for name, kind in zip(self._names, kinds, strict=True):
            if not isinstance(kind, tuple) and not issubclass(kind, (int, float, np.generic)):
                raise TypeError(f"{self.__name__}: {name} must be an array or a number, no {kind}")
        same = tuple(_distinguished(kind) for kind in kinds)
        # an interrupt that a finaliser of LLVM's binding swallows leaves machine code half loaded
        with _compiling, interrupts.deferred():
            if (entry := self._entries.get(same)) is None:
                entry = load(self._machine_code(same, arguments))
            self._entries[same] = self._entries[kinds] = entry
        return entry

    def _machine_code(self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> MachineCode:
        file = _File(self, kinds) if self._cache else None
        if file is not None and (found := file.read()) is not None:
            self.loaded += 1
            return found
        made = compile_for(self.of_numba, arguments)
        self.compiled += 1
        if file is not None:
            file.write(made)
        return made

    @cached_property
    def of_numba(self) -> Any:
        given = self.py_func
        names = dict(given.__globals__)
        cells = tuple(CellType(_of_numba(c.cell_contents)) for c in given.__closure__ or ())
        function = FunctionType(given.__code__, names, given.__name__, given.__defaults__, cells)
        function.__qualname__ = given.__qualname__
        made = self.__dict__["of_numba"] = numba().njit(**self.options)(function)
        for name in _names(given):  # after that, as a function may call itself
            if name in names:
                names[name] = _of_numba(names[name])
        return made

    def parts(self, seen: set[Any]) -> Iterator[object]:
        if self not in seen:
            yield sorted(self.options.items())
            seen.add(self)
            yield from _parts(self.py_func, seen)


class Intrinsic(Named):
    """A function that writes the machine instructions of a call. py_func: see ``intrinsic``."""

    def __init__(self, function: Any):
        self.py_func, self.__doc__ = function, function.__doc__

    @cached_property
    def of_numba(self) -> Any:
        return numba().core.extending.intrinsic(self.py_func)

    def parts(self, seen: set[Any]) -> Iterator[object]:
        return _parts(self.py_func, seen)


def intrinsic(function: Function) -> Any:
    """Return the intrinsic of ``numba.extending`` for a function. The function imports what it
    needs of Numba itself."""
    return Intrinsic(function)


class External(Named):
    """A function in C that compiled functions call, a symbol that LLVM knows. gives, takes: the
    names of Numba's types."""

    def __init__(self, symbol: str, gives: str, *takes: str):
        self.symbol, self.gives, self.takes = symbol, gives, takes

    @cached_property
    def of_numba(self) -> Any:
        types = numba().types
        signature = getattr(types, self.gives)(*(getattr(types, name) for name in self.takes))
        return types.ExternalFunction(self.symbol, signature)

    def parts(self, seen: set[Any]) -> Iterator[object]:
        yield self.symbol, self.gives, self.takes


class _File:
    """The file with the machine code of a kernel for arguments of certain kinds. Its name tells
    what the machine code depends on."""

    def __init__(self, kernel: Kernel, kinds: tuple[Any, ...]):
        self._source = Path(kernel.py_func.__code__.co_filename).absolute()
        name = f"{self._source.stem}.{kernel.__qualname__}".replace("<locals>", "")
        self._prefix = f"{name}-{_hash([kinds, target()])}."
        self._name = f"{self._prefix}{_hash(kernel.parts(set()))}.kernel"

    def read(self) -> MachineCode | None:
        """Return the machine code; None if there is no file, or a damaged one."""
        for directory in self._directories():
            try:
                content = (directory / self._name).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(content[CHECKSUM:]).digest() == content[:CHECKSUM]:
                return MachineCode(*pickle.loads(content[CHECKSUM:]))  # noqa: S301 - of this program
        return None

    def write(self, of: MachineCode) -> None:
        """Write the file into the first directory that can be written, in the place of those of
        former versions of the function."""
        content = pickle.dumps(tuple(of))
        for directory in self._directories():
            try:
                directory.mkdir(parents=True, exist_ok=True)
                with replacing(directory / self._name, flush=False) as file:
                    file.write(hashlib.sha256(content).digest() + content)
                for old in directory.glob(f"{self._prefix}*"):
                    if old.name != self._name:
                        old.unlink(missing_ok=True)
            except OSError:  # for instance of another user's installation
                continue
            return

    def _directories(self) -> Iterator[Path]:
        of_module = f"{self._source.parent.name}_{_hash([str(self._source.parent)])}"
        if given := os.environ.get("NUMBA_CACHE_DIR"):
            yield Path(given) / of_module
            return
        yield self._source.parent / "__pycache__"
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        yield Path(caches) / "semistream" / of_module


def _distinguished(kind: Any) -> Any:
    """Return the kind of an argument as far as machine code distinguishes it: a contiguous array
    has one layout, and a number of Python is one of NumPy."""
    if isinstance(kind, tuple):
        dtype, dimensions, flags = kind
        return dtype, dimensions, flags & (C | WRITEABLE if flags & C else F | WRITEABLE)
    return NUMBERS.get(kind, kind)


def _hash(parts: Iterable[object]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(repr(part).encode())
    return found.hexdigest()[:20]


def _of_numba(value: Any) -> Any:
    return value.of_numba if isinstance(value, Named) else value


def _codes(function: FunctionType) -> list[CodeType]:
    """Return the code of a function, and of the functions defined inside."""
    codes = [function.__code__]
    for code in codes:  # the list grows meanwhile
        codes += [x for x in code.co_consts if isinstance(x, CodeType)]
    return codes


def _names(function: FunctionType) -> Iterator[str]:
    for code in _codes(function):
        yield from code.co_names


def _parts(function: FunctionType, seen: set[Any]) -> Iterator[object]:
    """Yield the code and the constants of a function, and of every function that it names, directly
    or indirectly. seen: functions that are left out, to which all of these are added."""
    if function in seen:
        return
    seen.add(function)
    named = {n: function.__globals__[n] for n in _names(function) if n in function.__globals__}
    for code in _codes(function):
        yield code.co_code, code.co_names, code.co_varnames, code.co_freevars
        yield [x for x in code.co_consts if not isinstance(x, CodeType)]
    for cell in function.__closure__ or ():
        named[f"cell {len(named)}"] = cell.cell_contents
    for name, value in named.items():
        if isinstance(value, Named):
            yield from value.parts(seen)
        elif isinstance(value, FunctionType):
            yield from _parts(value, seen)
        elif isinstance(value, CONSTANTS):
            yield name, value.tolist() if isinstance(value, np.ndarray) else value
