from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docker-compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES = COMPOSE["services"]
BIN = Path(sys.executable).parent


def airflow_commands() -> dict[str, list[str]]:
    return {name: s["command"] for name, s in SERVICES.items() if name.startswith("airflow-")}


def test_schema():
    subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE],
        check=True,
        capture_output=True,
    )


def test_no_secret_is_in_the_file():
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if (
                re.search("PASSWORD|SECRET|FERNET|URL$|SQL_ALCHEMY_CONN", key)
                and "EXECUTION_API" not in key
            ):
                assert re.search(r"\$\{\w+:\?", value), (name, key)


def test_every_secret_is_in_the_recipe():
    text = FILE.read_text()
    recipe = text[: text.index("\nname:")]
    assert all(secret in recipe for secret in re.findall(r"\$\{(\w+):\?", text))


def test_health_comes_from_an_endpoint_that_exists(airflow_environment):
    """A command of Airflow takes seconds of a processor each time; the endpoint tells of each
    component, by these names."""
    from airflow.api_fastapi.core_api.datamodels.monitor import HealthInfoResponse

    checks = {
        n: " ".join(s["healthcheck"]["test"]) for n, s in SERVICES.items() if s.get("healthcheck")
    }
    asked = re.findall(r'health\["(\w+)"\]', " ".join(checks.values()))
    assert set(asked) == {"dag_processor", "triggerer"} <= set(HealthInfoResponse.model_fields)
    assert not [n for n, check in checks.items() if "airflow jobs" in check]


def test_ports_of_this_machine_are_variables_and_on_loopback():
    published = [port for s in SERVICES.values() for port in s.get("ports", [])]
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-\d+\}:\d+", port) for port in published)


def test_all_that_python_imports_is_compiled_in_the_image(tmp_path):
    """The standard library too, whose bytecode the official image removes, and which the image's
    user may not write."""
    run = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    installs = re.findall(r"uv pip install [^&\n]+", run)
    assert len(installs) == 3
    assert all("--compile-bytecode" in i or "--editable ." in i for i in installs)
    (standard, own) = re.findall(r"python -m compileall -q ([^&]+?) *(?=&&|$)", run, re.M)
    assert set(own.split()) == {"include", "dags", "plugins", "spark_apps"}
    (library := tmp_path / "lib").mkdir()
    # of which the last two have files that are no Python 3
    for name in ("json", "lib2to3", "site-packages"):
        (library / name / "tests").mkdir(parents=True)
        (library / name / "__init__.py").write_text(
            "x = 1" if name != "site-packages" else "print 1"
        )
        (library / name / "tests" / "bad.py").write_text("print 1")
    command = re.sub(r'"\$\(.*?\)"', str(library), standard)
    subprocess.run(f"{sys.executable} -m compileall -q {command}", shell=True, check=True)
    assert {p.parts[-3] for p in library.rglob("*.pyc")} == {"json", "lib2to3"}


def test_what_numba_compiles_and_the_classes_archive_are_kept():
    text = (ROOT / "Dockerfile").read_text()
    (volume,) = [
        v.partition(":")[2] for v in SERVICES["spark-worker"]["volumes"] if v.startswith("home:")
    ]
    assert re.search(r"NUMBA_CACHE_DIR=(\S+)", text)[1].startswith(f"{volume}/")
    (made,) = re.findall(r"semistream.streaming.archive (\S+)", text)
    assert f"-XX:SharedArchiveFile=/opt/semistream/{made}" in text


def test_services_are_those_of_standalone_airflow(airflow_environment):
    """`make up` runs these commands by `airflow standalone`, `make load` the migration."""
    import inspect

    from airflow.cli.commands.standalone_command import StandaloneCommand

    started = re.findall(r'command=\["([\w-]+)"\]', inspect.getsource(StandaloneCommand.run))
    expected = {
        "airflow-init": ["airflow", "db", "migrate"],
        **{f"airflow-{c}": ["airflow", c] for c in started},
    }
    assert airflow_commands() == expected


def test_airflow_knows_the_commands_and_options(airflow_environment):
    from airflow.cli import cli_parser
    from airflow.configuration import conf

    parser = cli_parser.get_parser()
    for command in airflow_commands().values():
        assert command[0] == "airflow" and callable(parser.parse_args(command[1:]).func)
    for key in SERVICES["airflow-scheduler"]["environment"]:
        if match := re.fullmatch(r"AIRFLOW__([A-Z_]+?)__(\w+)", key):
            option = match[1].lower(), match[2].lower()
            # the one without a default
            assert conf.has_option(*option) or option == ("core", "execution_api_server_url"), key


def test_image_holds_what_the_commands_need():
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", dockerfile, re.M)
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M))
    assert sent == {path for line in copied for path in line.split()}, (
        "the image is sent what it copies, and nothing else"
    )
    assert not {p for line in copied for p in line.split()} & {"requirements-dev.lock", "tests"}
    assert all((ROOT / path).exists() for line in copied for path in line.split())
    assert {"dags", "plugins", "include", "spark_apps"} <= {
        p for line in copied for p in line.split()
    }
