"""The settings of a load: what is refused, what a command line keeps, and what stays secret."""

import argparse
from pathlib import Path

import pytest
import yaml

from loads import SmallLoad
from semistream.errors import ConfigError
from semistream.paths import Paths
from semistream.streaming.settings import LoadSettings


@pytest.mark.parametrize(
    "values, parameter",
    [
        ({"trigger": "often"}, "trigger"),
        ({"app": "a/b"}, "app"),
        ({"partitions": -1}, "partitions"),
        ({"memroy": "1"}, "memroy"),
    ],
)
def test_wrong_settings_are_named(values, parameter):
    with pytest.raises(ConfigError) as e:
        LoadSettings.load({"job": "tpch", **values})
    assert e.value.parameter == parameter


def test_settings_survive_the_command_line(tmp_path):
    settings = LoadSettings.load(
        {
            "job": "jobs/sales.yaml",
            "trigger": "5s",
            "sink": "delta",
            "source_options": {"a": "b=c"},
            "memory": "1MB",
            "algorithm": "ssbj",
            "parameters": {"disk_tuples": 128},
        }
    )
    parser = argparse.ArgumentParser()
    LoadSettings.add_arguments(parser)
    again = LoadSettings.from_arguments(parser.parse_args(settings.to_arguments()))
    assert again.model_dump() | {"parameters": 0} == settings.model_dump() | {"parameters": 0}
    assert settings.trigger == "5 seconds" and settings.sink == str(Path("delta").absolute())
    assert settings.name() == "sales"
    assert settings.directory(Paths(home=tmp_path)) == tmp_path / "checkpoints" / "sales"


JAAS = "kafka.sasl.jaas.config"
SECRET = 'PlainLoginModule required username="u" password="hush-hush";'


@pytest.mark.parametrize(
    "name, value",
    [
        (JAAS, SECRET),
        ("kafka.ssl.keystore.password", "hush-hush"),
        ("accessKey", "hush-hush"),
        ("url", "mysql+pymysql://u:hush-hush@h/d"),
    ],
)
def test_a_secret_is_refused_where_others_could_read_it(name, value):
    with pytest.raises(ConfigError, match="source_options_file") as refused:
        LoadSettings.load({"job": "tpch", "source_options": {name: value}})
    assert name in str(refused.value) and "hush-hush" not in str(refused.value)


def test_secrets_of_a_source_come_from_a_file_that_its_owner_alone_may_read(tmp_path):
    file = tmp_path / "secrets.yaml"
    file.write_text(yaml.safe_dump({JAAS: SECRET, "rows": 5}))
    settings = LoadSettings.load(
        {
            "job": "sales",
            "source_options": {"url": "mysql://u@h/d"},
            "source_options_file": str(file),
        }
    )
    job = settings.applied(SmallLoad(tmp_path / "home", "sqlite://").job)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        job.stream.all_options()
    file.chmod(0o600)
    assert job.stream.all_options() == {JAAS: SECRET, "rows": "5", "url": "mysql://u@h/d"}
    for told in (job.to_ledger(), repr(job), *settings.to_arguments()):
        assert "hush-hush" not in told
    for wrong in (f"{JAAS}: [hush-hush", "- hush-hush", f"{JAAS}: {{hush-hush: 1}}"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="must be a YAML mapping") as refused:
            job.stream.all_options()
        assert "hush-hush" not in str(refused.value)
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        job.stream.all_options()
