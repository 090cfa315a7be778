"""The contracts of ``pyproject.toml`` on who imports whom."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINT = (
    "import sys; sys.path.insert(0, 'include'); from importlinter.cli import lint_imports; "
    "sys.exit(lint_imports(no_logo=True, no_cache=True))"
)


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=directory, capture_output=True, text=True, check=False
    )


def test_a_package_imports_only_those_below_it_and_no_files_import_each_other():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_an_import_upwards_and_a_cycle_are_found_also_inside_functions(tmp_path):
    shutil.copytree(ROOT / "include" / "semistream", tmp_path / "include" / "semistream")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, module in (("joins/spec.py", "sizing.plan"), ("master/relation.py", "master.memory")):
        with open(tmp_path / "include" / "semistream" / file, "a") as code:
            code.write(f"\n\ndef _() -> None:\n    import semistream.{module}\n")
    with open(tmp_path / "include" / "semistream" / "master" / "memory.py", "a") as code:
        code.write("\n\nimport semistream.master.relation\n")
    done = lint(tmp_path)
    assert done.returncode == 1 and "Contracts: 0 kept, 2 broken" in done.stdout, done.stdout
