"""What the README, the pages beside it and those in docs/ say is so."""

import re
from itertools import chain
from pathlib import Path

from semistream.job import Job, StreamStreamJob
from semistream.joins.registry import REGISTRY
from semistream.streaming.settings import LoadSettings, StreamStreamSettings
from semistream.workloads import load_job

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {
    path: path.read_text()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    )
}
ALL = "\n".join(PAGES.values())


def test_every_algorithm_has_its_row():
    page = PAGES[ROOT / "docs" / "algorithms.md"]
    for a in REGISTRY.values():
        path = a.make.__module__.removeprefix("semistream.").replace(".", "/") + ".py"
        row = f"| [{path}](../include/semistream/{path}) | {a.paper} | {yes(a.needs_index)} |"
        assert f"\n| `{a.name}` {row}\n" in page, f"docs/algorithms.md lacks: | `{a.name}` {row}"


def yes(value):
    return "yes" if value else "no"


def test_every_setting_of_a_load_is_explained():
    for name, field in chain(
        LoadSettings.model_fields.items(), StreamStreamSettings.model_fields.items()
    ):
        assert f"| `{name}` |" in ALL and field.description in ALL, name


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for target, _, anchor in re.findall(r"\]\(([^)#:]*)(#([^)]+))?\)", text):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(path.read_text()), f"{page.name}: #{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, by GitHub's rule."""
    return {
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", text, re.M)
    }


def test_the_job_to_begin_with_is_one(tmp_path):
    page = (ROOT / "docs/how-to/own-job.md").read_text()
    (tmp_path / "sales.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.S)[1])
    job = Job.from_yaml(tmp_path / "sales.yaml")
    (role,) = job.roles
    assert role.on == {"product": "sku"} and [*role.columns] == ["name", "category"]
    assert job.stream.id == ("sale_id",)


def test_the_job_of_two_streams_is_one(tmp_path):
    page = (ROOT / "docs/two-streams.md").read_text()
    (tmp_path / "orders.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.S)[1])
    job = StreamStreamJob.from_yaml(tmp_path / "orders.yaml")
    assert job.left.unique and job.right.clustered and job.on == {"order_id": "order_id"}


def test_the_job_of_several_roles_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_HOME", str(tmp_path))
    page = (ROOT / "docs/loading.md").read_text()
    dimension, _, several = re.findall(r"```yaml\n(.*?)```", page, re.S)[:3]
    (tmp_path / "dimensions").mkdir()
    (tmp_path / "dimensions" / "airport.yaml").write_text(dimension)
    (tmp_path / "flights.yaml").write_text(several)
    job = load_job(tmp_path / "flights.yaml")
    assert len(job.roles) == 5 and {role.join_type for role in job.roles} == {"left", None}
    assert job.role("plane").dimension.unknown_member and job.role("crew").many
    assert job.role("origin").dimension == job.role("destination").dimension
    assert job.role("weather").key == ("origin", "time_hour")


def test_every_make_target_named_exists():
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)\b", ALL, re.M)) <= targets


def test_the_license_is_the_one_that_is_named():
    name, version = re.search(r"\[(Apache License), (version 2\.0)\]\(LICENSE\)", README).groups()
    assert re.match(rf"\s*{name}\s+{version}, January 2004\s", (ROOT / "LICENSE").read_text(), re.I)


def test_the_python_and_the_jdk_are_those_that_the_installation_asks_for():
    told = r"need Python (3\.\d+), and a JDK (\d+) or later that has the\s+module\s+`([a-z.]+)`"
    python, jdk, module = re.search(told, README).groups()
    bootstrap, project = (ROOT / "bootstrap.sh").read_text(), (ROOT / "pyproject.toml").read_text()
    assert re.search(r"old = v\[2\] \+ 0 < (\d+)", bootstrap)[1] == jdk
    assert re.search(r"/\^(jdk\S+)@/", bootstrap)[1].replace("\\", "") == module
    assert f"JDK {jdk} or later with the module {module}" in bootstrap
    assert f'requires-python = ">={python}"' in project and f"a Python {python})" in bootstrap
