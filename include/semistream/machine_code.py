"""The machine code of compiled functions: Numba makes it, and LLVM alone loads it.

Importing Numba, and making it ready to compile, takes longer than a small join runs. A process
whose functions have all been compiled before needs only what the machine code itself refers to:
LLVM's loader, and the functions of Numba's extension modules, which are loaded here without Numba's
Python modules.
"""

from __future__ import annotations

import builtins
import ctypes
import pickle
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from semistream.imports import without

METH_VARARGS, METH_KEYWORDS = 1, 2
# extension modules with functions that machine code calls, and the prefix of the functions' names
EXTENSIONS = {"_helperlib": "numba_", "_dynfunc": "numba_", "core.runtime._nrt_python": "NRT_"}


@cache
def numba() -> Any:
    """Import Numba, which compiles."""
    # slow imports: Numba only checks SciPy's version, and reads a settings file with YAML
    with without("scipy", "yaml"):
        import numba
    return numba


class MachineCode(NamedTuple):
    """The machine code of a function for arguments of certain types.

    code: an object file; wrapper: the symbol of the function that takes and returns Python objects;
    environment: the symbol of a pointer to the function's environment; constants: the Python
    objects in this environment.
    """

    code: bytes
    wrapper: str
    environment: str
    constants: list[Any]


def compile_for(dispatcher: Any, arguments: tuple[Any, ...]) -> MachineCode:
    """Compile a function of Numba for arguments of these types. Integers of Python are int64.
    Raises TypeError for a function that returns an array: the machine code would call Python for
    the array's class, and end in a segmentation fault if a signal raised an error there."""
    typeof, integer = numba().typeof, numba().int64
    types = tuple(integer if type(a) is int else typeof(a) for a in arguments)
    dispatcher.compile(types)
    found = dispatcher.overloads[types]
    given = found.signature.return_type
    if any(isinstance(t, numba().types.Array) for t in (given, *getattr(given, "types", ()))):
        raise TypeError(f"{dispatcher.__name__}: must fill an array that is given, not return one")
    _, _, (code, _) = found.library.serialize_using_object_code()
    names = found.fndesc.llvm_cpython_wrapper_name, found.fndesc.env_name
    return MachineCode(code, *names, list(found.environment.consts))


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.argtypes = [ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p]
_new_function.restype = ctypes.py_object


def load(of: MachineCode) -> Callable[..., Any]:
    """Return the function with this machine code. It does not check the types of its arguments."""
    dynamic = _add_symbols()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(of.code))
    engine.finalize_object()
    environment = dynamic.Environment({})
    environment.consts[:] = of.constants
    place = engine.get_global_value_address(of.environment)
    ctypes.c_void_p.from_address(place).value = id(environment)
    method = _Method(
        b"compiled", engine.get_function_address(of.wrapper), METH_VARARGS | METH_KEYWORDS
    )
    # the function's self keeps alive what it needs
    function: Callable[..., Any] = _new_function(method, (engine, environment, method), None)
    return function


@cache
def target() -> str:
    """Return what machine code depends on besides the function: the processor, and the versions of
    what compiles and runs it."""
    features = llvm.get_host_cpu_features().flatten()
    return repr(
        (
            llvm.get_process_triple(),
            llvm.get_host_cpu_name(),
            features,
            _loads_svml(),
            (_directory() / "_version.py").read_bytes(),
            llvmlite.__version__,
            np.__version__,
            sys.version,
        )
    )


@cache
def _loads_svml() -> bool:
    """Load Intel's library of vector functions. Return whether it is there: then Numba uses it."""
    try:
        llvm.load_library_permanently(f"libsvml.{'dylib' if sys.platform == 'darwin' else 'so'}")
    except RuntimeError:
        return False
    return True


def _machine() -> Any:
    """Return a target machine, of which LLVM wants one for each loader."""
    _initialize()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _add_symbols() -> ModuleType:
    """Make known what machine code refers to. Return the module that has environments."""
    modules = {name: _extension(name) for name in EXTENSIONS}
    for name, module in modules.items():
        for function, address in module.c_helpers.items():
            symbol = function if function.startswith("_nrt") else EXTENSIONS[name] + function
            llvm.add_symbol(symbol, address)
            if llvm.address_of_symbol(function) is None:  # functions of C's library
                llvm.add_symbol(function, address)
    llvm.add_symbol("numba_unpickle", ctypes.cast(_unpickle, ctypes.c_void_p).value)
    llvm.add_symbol("_Py_NoneStruct", id(None))
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            llvm.add_symbol(f"PyExc_{name}", id(value))
    return modules["_dynfunc"]


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def _unpickle(address: int, size: int, _checksum: int) -> Any:
    """Return an object that machine code contains, such as the class of an exception. Numba's own
    function of this name imports Numba."""
    return _unpickled(ctypes.string_at(address, size))


@cache
def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - of this program


def _extension(name: str) -> ModuleType:
    """Load one of Numba's extension modules without importing Numba."""
    whole = f"numba.{name}"
    if whole in sys.modules:
        return sys.modules[whole]
    *packages, _ = name.split(".")
    spec = PathFinder.find_spec(whole, [str(_directory().joinpath(*packages))])
    assert isinstance(spec, ModuleSpec) and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _directory() -> Path:
    """Return the directory of Numba's package."""
    spec = find_spec("numba")  # without importing it
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
