"""What is installed is what the lock file says, whole; and the project can be built from any
registry."""

import base64
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = [ROOT / f"requirements{which}.lock" for which in ("", "-dev", "-tools")]
RUNTIME, DEVELOPMENT, _ = [
    dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^ \\;]+)", lock.read_text(), re.M)) for lock in LOCKS
]
PINNED = DEVELOPMENT | RUNTIME


def test_pyspark_is_whole():
    files = [f for f in distribution("pyspark").files if f.suffix == ".py" and f.hash is not None]
    assert len(files) > 500
    differing = [
        str(f) for f in files if _hash(Path(f.locate()).read_bytes(), f.hash.mode) != f.hash.value
    ]
    assert not differing, (
        "not as pyspark was published, as when pyspark-client, which Airflow's Spark provider "
        f"requires, is installed beside it: {differing[:5]}"
    )
    with pytest.raises(PackageNotFoundError):
        distribution("pyspark-client")


def _hash(data, algorithm):
    return base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()


def test_installed_versions_are_those_of_the_lock():
    assert len(PINNED) > 100 and "pyspark-client" not in PINNED
    assert {n: version(n) for n in PINNED} == PINNED


def test_the_lock_has_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    runtime = [*project["project"]["dependencies"], *chain(*extras.values())]
    for asked, pinned in ((runtime, RUNTIME), (project["dependency-groups"]["dev"], DEVELOPMENT)):
        for requirement in map(Requirement, asked):
            name = canonicalize_name(requirement.name)
            if name == "semistream":  # the extra of all extras
                assert requirement.extras == set(extras) - {"all"}
            else:
                assert pinned[name] in requirement.specifier, requirement


def test_what_only_development_needs_is_in_a_lock_of_its_own():
    assert {n: v for n, v in DEVELOPMENT.items() if n in RUNTIME} == {
        n: RUNTIME[n] for n in DEVELOPMENT if n in RUNTIME
    }
    assert not {"pytest", "ruff", "mypy", "selenium", "duckdb", "hypothesis"} & set(RUNTIME)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_every_package_of_a_lock_has_hashes_and_no_address(lock):
    entries = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.M)
    assert all("--hash=sha256:" in e for e in entries if re.match(r"[A-Za-z0-9]", e))
    assert not re.search(
        r"://|^\s*-[if]\b|--(extra-)?index-url|--find-links", lock.read_text(), re.M
    )


def test_no_file_names_a_registry():
    hosts = [
        "pypi" + r"\.org",
        "python" + "hosted",
        "repo1" + r"\.maven",
        "--" + "index-url",
        "--" + "find-links",
        "art" + "ifactory",
    ]
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    found = [
        (f, m[0])
        for f in files
        if f and (ROOT / f).is_file() and f != "tests/test_environment.py"
        for m in re.finditer("|".join(hosts), (ROOT / f).read_bytes().decode(errors="ignore"))
    ]
    assert not found


def test_make_help_lists_every_target():
    targets = re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    shown = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    ).stdout
    assert {"load", "up", "down", "test", "check", "lock", "clean", "help"} <= set(targets)
    assert all(f"make {t} " in shown for t in targets if t != "setup")


@pytest.mark.slow
def test_spark_has_its_classes_from_the_archive(tmp_path):
    """As bootstrap.sh made it: .venv/spark.jsa.log says why there is none."""
    program = "from semistream.streaming.session import open_session as s; s('x').range(1).count()"
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Xlog:class+load:file={tmp_path}/classes"
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        env=os.environ | {"SPARK_SUBMIT_OPTS": options},
    )
    loaded = re.findall(
        r"\] (org\.apache\.spark\.[\w.]+) source: (.*)", (tmp_path / "classes").read_text()
    )
    assert len(loaded) > 500
    assert sum("shared objects" in source for _, source in loaded) > 0.9 * len(loaded)


OPEN = """
import sys
from semistream.streaming.session import open_context
from semistream.streaming.task import warm_up
context = open_context("x")
context.range(2, numSlices=2).foreachPartition(warm_up)
print(context._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
sys.stdin.read()
"""


def test_a_load_s_jvm_does_not_hold_the_classes_of_spark_sql():
    """In one archive they would lie among those of every load: 165 MB in place of 105 MB."""
    of_file, held = {}, ""
    with subprocess.Popen(
        [sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        mapped = Path(f"/proc/{int(program.stdout.readline())}/smaps").read_text()
        program.stdin.close()
    for line in mapped.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            held = Path(line.split(maxsplit=5)[-1]).name
        elif line.startswith("Rss:"):
            of_file[held] = of_file.get(held, 0) + 1024 * int(line.split()[1])
    archives = {name: size for name, size in of_file.items() if name.endswith(".jsa")}
    assert len(archives) == 2 and 50_000_000 < sum(archives.values()) < 130_000_000, archives


def flags(*more: str) -> dict[str, str]:
    """The flags of Spark's JVM, with a user's further options."""
    options = shlex.split(os.environ["SPARK_SUBMIT_OPTS"])
    environment = {name: v for name, v in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    text = subprocess.run(
        [
            f"{os.environ['JAVA_HOME']}/bin/java",
            *options,
            *more,
            "-XX:+PrintFlagsFinal",
            "-version",
        ],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout
    return dict(re.findall(r"^ *\w+ (\w+) += (\S*)", text, re.MULTILINE))


def test_the_second_compiler_of_sparks_jvm_waits_longer():
    assert flags()["Tier4InvocationThreshold"] == "200000"


def test_sparks_jvm_collects_in_one_thread_unless_the_user_names_a_collector():
    ours, theirs = flags(), flags("-XX:+UseG1GC", "-Xms300m")
    assert (ours["UseSerialGC"], ours["InitialHeapSize"]) == ("true", str(64 << 20))
    assert (theirs["UseG1GC"], theirs["InitialHeapSize"]) == ("true", str(300 << 20))
    assert ours["ArchiveRelocationMode"] == "0"  # else each process has a copy of the archive
    for each in (ours, theirs):  # and compiles with both compilers
        assert (each["TieredStopAtLevel"], each["ProfileInterpreter"]) == ("4", "true")
