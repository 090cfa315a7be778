"""What bootstrap.sh decides, in a copy of the project's outermost files with programs that only
pretend."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "bootstrap.sh",
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-docs.lock",
    "requirements-tools.lock",
    "pyproject.toml",
)
JDK = '#!/bin/sh\necho "java.base@{version}"\necho "{module}@{version}"\n'


@pytest.fixture
def project(tmp_path):
    for name in PARTS:
        shutil.copy(ROOT / name, tmp_path)
    program(tmp_path / "bin/id", "echo 1000")
    return tmp_path


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make_ready(project):
    """As after a complete run."""
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/bin/python").symlink_to(sys.executable)
    key = hashlib.sha256(b"".join((project / p).read_bytes() for p in PARTS)).hexdigest()
    (project / ".venv/.ready").write_text(f"{key}@{project}")
    (project / ".venv/kernels").write_text(f"{hashlib.sha256().hexdigest()}  -\n")  # of no files


def run(project, *arguments, **environment):
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "JAVA_HOME")}
    inherited["PATH"] = f"{project / 'bin'}:{inherited['PATH']}"
    return subprocess.run(
        ["sh", "bootstrap.sh", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        env=inherited | {k: str(v) for k, v in environment.items()},
    )


def java_home(project):
    line = next(
        x for x in (project / ".venv/environment").read_text().splitlines() if "JAVA_HOME" in x
    )
    return line.split("'")[1]


def test_nothing_happens_when_everything_is_there(project):
    make_ready(project)
    assert run(project).returncode == 0
    before = (project / ".venv/environment").stat().st_mtime_ns
    program(project / ".venv/bin/uv", "exit 9")
    done = run(project)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (project / ".venv/environment").stat().st_mtime_ns == before


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_file_installs_anew(part, project):
    make_ready(project)
    with (project / part).open("a") as f:
        f.write("\n# changed\n")
    (project / ".venv/bin/python").unlink()
    done = run(project, PYTHON="/bin/false")
    assert done.returncode == 1 and "Python 3.11" in done.stderr


def test_a_python_that_does_not_suit_is_refused(project):
    old = program(project / "bin/python-old", "exit 1")
    done = run(project, PYTHON=old)
    assert done.returncode == 1 and str(old) in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr


def test_a_python_without_venv_is_explained(project):
    bare = program(project / "bin/python-bare", 'case "$2" in *ensurepip*) exit 1;; esac')
    done = run(project, PYTHON=bare)
    assert done.returncode == 1 and "apt-get install python3-venv" in done.stderr
    assert not (project / ".venv").exists()


@pytest.mark.parametrize(
    "version, module, taken",
    [
        ("17.0.1", "jdk.incubator.vector", True),
        ("25", "jdk.incubator.vector", True),
        ("21.0.2", "java.sql", False),
        ("11.0.2", "jdk.incubator.vector", False),
    ],
)
def test_the_jdk_named_is_taken_when_it_suits(version, module, taken, project):
    make_ready(project)
    program(project / "jdk/bin/java", JDK.format(version=version, module=module))
    assert run(project, JAVA_HOME=project / "jdk").returncode == 0
    assert (java_home(project) == str(project / "jdk")) is taken


def test_a_jdk_that_has_gone_is_replaced(project):
    make_ready(project)
    program(project / "jdk/bin/java", JDK.format(version="17", module="jdk.incubator.vector"))
    run(project, JAVA_HOME=project / "jdk")
    shutil.rmtree(project / "jdk")
    assert run(project).returncode == 0 and Path(java_home(project), "bin/java").exists()


def test_kernels_are_compiled_at_set_up_and_again_when_they_or_their_compiler_change(project):
    make_ready(project)
    (project / ".venv/bin/python").unlink()
    calls = project / "calls"
    program(project / ".venv/bin/python", f'case "$*" in *precompile*) echo "$*" >> {calls};; esac')
    file = project / "include/semistream/joins/kernels.py"
    file.parent.mkdir(parents=True)
    for text in ("@njit\ndef f(x): ...\n", "@njit\ndef f(x): ...\n", "@njit\ndef f(y): ...\n"):
        file.write_text(text)
        (project / "include/semistream/other.py").write_text(f"# {calls.exists()}")
        assert run(project).returncode == 0
    (project / "include/semistream/machine_code.py").write_text("# makes another code of them\n")
    assert run(project).returncode == run(project).returncode == 0
    assert calls.read_text().splitlines() == ["-m semistream.streaming.precompile"] * 3
