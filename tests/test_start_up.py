"""What commands import and compile before they do their work."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from console import JOIN, put, write
from semistream.imports import put_off, without
from semistream.joins.registry import REGISTRY
from sink_loads import Loader

HEAVY = {"numba", "numpy", "pyarrow", "pandas", "scipy", "sqlalchemy"}


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        (["--help"], HEAVY | {"pydantic", "rich", "yaml"}),
        (["--version"], HEAVY | {"pydantic"}),
        (["join", "--help"], HEAVY),
        (["join-streams", "--help"], HEAVY),
        (["tune", "--help"], HEAVY),
    ],
)
def test_help_imports_nothing_that_it_does_not_need(command, unused):
    code = (
        "import sys\nfrom semistream.cli import main\ntry:\n    main()\n"
        "finally:\n    print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.returncode == 0 and not unused & set(done.stdout.splitlines())


# R is small, or the cost models choose
@pytest.mark.parametrize(("memory", "models"), [("64MB", {"numpy.random"}), ("100KB", set())])
def test_a_join_imports_nothing_that_it_does_not_need(memory, models, tmp_path):
    put(
        "k,a\n" + "".join(f"key {i % 1500},{i}\n" for i in range(3000)),
        "k,v\n" + "".join(f"key {i},{i / 4}\n" for i in range(1000)),
        tmp_path,
    )
    code = (
        "import atexit, sys\nfrom semistream.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n'))\nsys.exit(main())"
    )
    for _ in ("compiles", "loads what was compiled"):
        done = subprocess.run(
            [sys.executable, "-c", code, *JOIN, "o.parquet", "--memory", memory],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    unused = {
        "scipy.linalg",
        "scipy.optimize",
        "scipy.special",
        "cffi",
        "yaml",
        *HEAVY - {"numpy", "pyarrow", "scipy"},
        *models,
    }
    assert done.returncode == 0 and "matched" in done.stdout
    assert unused.intersection(done.stdout.splitlines()) == set()


# The names of the files of machine code that the set-up reads, or writes where they are not there
# yet; a process that finds those files only; and one that notes which others it reads or writes.
NAMES = """
import runpy
from semistream import compiled
read, names = compiled._File.read, set()
compiled._File.read = lambda file: names.add(file._name) or read(file)
runpy.run_module("semistream.streaming.precompile", run_name="__main__")
print(*names)
"""
ONLY = """
import sys
from semistream import compiled
read, names = compiled._File.read, set(open("names").read().split())
compiled._File.read = lambda file: read(file) if file._name in names else None
"""
NOTE = """
from semistream import compiled
read, names = compiled._File.read, set(open({0!r} + "names").read().split())
def noting(file):
    if file._name not in names:
        print(file._name, file=open({0!r} + "others", "a"))
    return read(file)
compiled._File.read = noting
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_compiled_at_set_up_is_all_that_a_join_and_a_load_need(tmp_path):
    """Nothing is compiled anew where the installation has done so."""
    with open(tmp_path / "names", "wb") as names:
        subprocess.run([sys.executable, "-c", NAMES], check=True, cwd=tmp_path, stdout=names)
    _load_star(tmp_path)
    assert not (tmp_path / "others").exists(), (tmp_path / "others").read_text()
    random = np.random.default_rng(4)
    numbers = {"k": random.integers(0, 5000, 40_000), "n": np.arange(40_000)}
    pq.write_table(pa.table(numbers), tmp_path / "s.parquet")
    pq.write_table(
        pa.table({"k": np.arange(4000), "v": np.arange(4000) / 3}), tmp_path / "m.parquet"
    )
    put(
        "a,k\n" + "".join(f"{i},key {i % 900}\n" for i in range(9000)),
        "k,v\n" + "".join(f"key {i // 2},{i}\n" for i in range(1500)),
        tmp_path,
    )
    write(
        tmp_path / "star.yaml",
        "stream: s.csv\nunmatched: u.csv\ndimensions:\n"
        "  number: {path: m.parquet, on: {a: k}, join_type: left}\n"
        "  text: {path: m.csv, on: k, columns: {v: w}, many: true}\n",
    )
    code = ONLY + (
        "import itertools\nfrom semistream.cli import main\n"
        "for algorithm, kind in itertools.product(sys.argv[1:], ('csv', 'parquet')):\n"
        "    assert main(['join', '--algorithm', algorithm, '--stream', 's.' + kind,\n"
        "                 '--master', 'm.' + kind, '--on', 'k', '--out', 'o.parquet',\n"
        "                 '--memory', '200KB', '--unmatched', 'u.csv']) == 0\n"
        "assert main(['join', '--config', 'star.yaml', '--out', 'o.parquet']) == 0\n"
        "for algorithm, kind in itertools.product(('pjoin', 'xjoin'), ('csv', 'parquet')):\n"
        "    assert main(['join-streams', '--algorithm', algorithm, '--left', 's.' + kind,\n"
        "                 '--right', 'm.' + kind, '--on', 'k', '--out', 'o.parquet',\n"
        "                 '--memory', '2MB']) == 0\n"
        "assert 'numba' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *REGISTRY], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_a_package_is_left_out_in_one_thread_only():
    """Spark is started in another thread, and asks which packages there are."""
    with without("not_there"), ThreadPoolExecutor(1) as other:
        with pytest.raises(ImportError, match="not_there is not to be imported here"):
            find_spec("not_there")
        assert other.submit(find_spec, "not_there").result() is None
    assert find_spec("not_there") is None


def test_a_module_that_is_put_off_is_loaded_when_something_of_it_is_used(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("put_off_here", "loaded_here"):
        (tmp_path / f"{name}.py").write_text(f"from pathlib import Path\nPath('{name}').touch()")
    monkeypatch.chdir(tmp_path)
    with put_off("put_off_here"):
        put_off_here, _ = map(import_module, ("put_off_here", "loaded_here"))
    assert not Path("put_off_here").exists() and Path("loaded_here").exists()
    assert put_off_here.Path is Path and Path("put_off_here").exists()


@pytest.mark.slow
def test_a_proof_loads_neither_statistics_nor_charts_nor_spark(tmp_path):
    """Great Expectations would."""
    loader = Loader(f"sqlite:///{tmp_path / 'warehouse.db'}", tmp_path)
    loader.load(range(1))
    loader.engine.dispose()
    code = (
        "import atexit, sys\nfrom semistream.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, sep='\\n'))\nsys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", "sales"],
        capture_output=True,
        text=True,
        env=os.environ
        | {"SEMISTREAM_HOME": str(tmp_path / "var"), "WAREHOUSE_URL": str(loader.engine.url)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    unused = {"scipy.stats._stats_py", "altair.vegalite", "pyspark", "numba"}
    assert unused.intersection(done.stdout.splitlines()) == set()


def _load_star(directory: Path) -> None:
    """Load, as a user would, a stream whose dimensions have keys that are numbers and texts, one of
    which is late. Every process notes which machine code the set-up has not left."""
    write(directory / "sitecustomize.py", NOTE.format(f"{directory}/"))
    (directory / "sales").mkdir()
    write(directory / "number.csv", "k,v\n" + "".join(f"{i},{i / 2}\n" for i in range(90)))
    write(directory / "text.csv", "k,v\n" + "".join(f"key {i},{i}\n" for i in range(80)))
    write(
        directory / "job.yaml",
        "name: sales\nstream: {format: csv, path: sales, id: [id]}\nfact_table: facts\n"
        "dimensions:\n"
        "  number: {path: number.csv, on: n=k, columns: {v: half}}\n"
        "  text: {path: text.csv, on: t=k, late: resolve}\n",
    )
    environment = os.environ | {"PYTHONPATH": str(directory), "SEMISTREAM_HOME": "var"}
    for first in (0, 500):
        rows = "".join(f"{i},{i % 90},key {i % 90}\n" for i in range(first, first + 500))
        write(directory / "sales" / f"{first}.csv", "id,n,t\n" + rows)
        command = [sys.executable, "-m", "semistream.cli", "load", "job.yaml"]
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        write(directory / "text.csv", "k,v\n" + "".join(f"key {i},{i}\n" for i in range(85)))
