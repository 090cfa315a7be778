"""What CONTRIBUTING.md names exists, and every package has its line there."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
NAMED = re.findall(r"\[`([\w.]+)`\]\((\w[^)#]*)\)", PAGE)  # a name, and the file that has it


def defined(body, within=""):
    """Yield the names of functions, classes with their methods, and constants."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield within + node.name
            if isinstance(node, ast.ClassDef):
                yield from defined(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (within + target.id for target in targets if isinstance(target, ast.Name))


def test_every_name_is_defined_in_the_file_that_it_links():
    for name, path in NAMED:
        file = ROOT / path
        if file.is_file() and name != file.stem:
            assert name in set(defined(ast.parse(file.read_text()).body)), f"{path}: {name}"


def test_every_class_and_constant_is_linked():
    assert not re.findall(r"(?<!\[)`[A-Z][\w.]+`", PAGE)


def test_every_package_of_the_layers_has_its_line():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [name for layer in contract["contracts"][0]["layers"] for name in layer.split(" | ")]
    rooms = {
        name: path
        for name, path in NAMED
        if path.startswith("include/semistream/") and name == Path(path).stem
    }
    for name in layers:
        path = f"include/semistream/{name}"
        wanted = f"{path}/" if (ROOT / path).is_dir() else f"{path}.py"
        assert rooms.get(name) == wanted, f"CONTRIBUTING.md lacks a line of {name}"


def test_the_commands_name_tests_that_exist():
    commands = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S))
    named = re.findall(r"tests/\w+\.py", commands)
    assert named and all((ROOT / path).exists() for path in named), named
