"""Kernels say of each array what it has and whether it is read or written, and do as they say."""

import ast
import re
from pathlib import Path

import pytest

import semistream

PACKAGE = Path(semistream.__file__).parent
LINE = re.compile(r"(in/out|in|out) {2,}(.*)")
ARRAY = re.compile(r"(?:^|[,;] )(\w+),? (?:u?int\d+|float64|bool|integers|of any type)\b")


def kernels():
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.parent.name == "stream_joins":  # another form, in its own words
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and "njit" in map(
                ast.unparse, (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
            ):
                yield pytest.param(node, id=f"{file.relative_to(PACKAGE)}:{node.name}")


def told(docstring):
    """Names of arrays by direction."""
    arrays, direction = {"in": set(), "in/out": set(), "out": set()}, None
    for line in docstring.split("\n"):
        if found := LINE.fullmatch(line.strip()):
            direction, line = found.groups()
        elif not line.startswith("        "):
            direction = None
        if direction:
            arrays[direction] |= set(ARRAY.findall(line.strip()))
    return arrays


@pytest.mark.parametrize("kernel", [*kernels()])
def test_a_kernel_names_its_arrays(kernel):
    parameters, used, written = {a.arg for a in kernel.args.args}, set(), set()
    for node in ast.walk(kernel):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            (written if isinstance(node.ctx, ast.Store) else used).add(node.value.id)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "len":
            used |= {ast.unparse(a) for a in node.args}
    arrays = told(ast.get_docstring(kernel, clean=False) or "")
    assert (used | written) & parameters <= set().union(*arrays.values()) <= parameters
    assert written & parameters <= arrays["out"] | arrays["in/out"]
    assert not arrays["in"] & written
