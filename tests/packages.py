"""Environments with what is published in them, and the console command there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

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
