"""What the README and the pages in docs/ say is so."""

import re
from pathlib import Path

from semistream.config import Job
from semistream.joins.registry import REGISTRY
from semistream.streaming.settings import LoadSettings

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
ALL = "\n".join(PAGES.values())


def test_every_algorithm_has_its_row():
    for a in REGISTRY.values():
        path = a.make.__module__.removeprefix("semistream.").replace(".", "/") + ".py"
        row = f"| [{path}](include/semistream/{path}) | {a.paper} | {yes(a.needs_index)} |"
        found = re.search(rf"^\| `{a.name}`( \(default\))? {re.escape(row)}$", README, re.M)
        assert found, f"the README lacks: | `{a.name}` {row}"


def yes(value):
    return "yes" if value else "no"


def test_every_setting_of_a_load_is_explained():
    for name, field in LoadSettings.model_fields.items():
        assert f"| `{name}` |" in ALL and field.description in ALL, name


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_linked_from_the_readme():
    for page in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{page.name})" in README, page.name


def test_the_job_of_the_readme_is_one(tmp_path):
    (tmp_path / "sales.yaml").write_text(re.search(r"```yaml\n(.*?)```", README, re.S)[1])
    job = Job.from_yaml(tmp_path / "sales.yaml")
    assert job.on == {"product": "sku"} and job.columns == ("name", "category") and job.stream.id == ("sale_id",)


def test_every_make_target_named_exists():
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)\b", ALL, re.M)) <= targets
