"""The site of the documentation: built strictly, whole, and readable without the network."""

import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from browser import find
from docs.build_site import CONFIG, ROOT, Unsound, build
from docs.reference_pages import pages
from semistream.cli.parser import COMMANDS
from semistream.job import Dimension, Job, Role, StreamSpec
from semistream.streaming.settings import LoadSettings
from semistream.warehouse.schema import metadata


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site") / "site"
    build(ROOT, target)
    return target


def test_it_has_every_page_and_its_words_are_found(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    words = (site / "search.json").read_text()
    for of in ("Repair unmatched rows", "max_open_hours", "service_rate", "--max-output-rows"):
        assert of in words, of


def test_a_reader_searches_without_the_network(site, browser):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        Thread(target=server.serve_forever).start()
        try:
            browser.get(f"http://127.0.0.1:{server.server_port}/index.html")
            find(browser, "button.md-search__button").click()
            within = "const root = document.activeElement.shadowRoot; return root && "
            box = until(browser, f"{within} root.querySelector('input')")
            box.send_keys("service_rate")
            until(browser, f"{within} root.querySelector('a[href*=\"reference/tables.html\"]')")
        finally:
            server.shutdown()
    asked = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert {urlsplit(name).netloc for name in asked} == {f"127.0.0.1:{server.server_port}"}


def until(browser, script):
    return WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(script))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_reference_has_what_the_code_has():
    """Every key, setting, column and flag has its row."""
    of = pages()
    for kind in (Job, Role, Dimension, StreamSpec):
        for name in kind.model_fields.keys() - {"name"}:
            assert f"\n| `{name}` |" in of["job-file.md"], name
    for name in LoadSettings.model_fields:
        assert f"\n| `{name}` |" in of["settings.md"], name
    for table in metadata.tables.values():
        part = of["tables.md"].partition(f"## `{table.name}`\n")[2].partition("\n## ")[0]
        for column in table.columns:
            assert f"\n| `{column.name}` |" in part, f"{table.name}.{column.name}"
    assert re.search(r"`memory_budget` .* \| M of this partition, bytes \|\n", of["tables.md"])
    for name in COMMANDS:
        assert f"\n## semistream {name}\n" in of["console.md"]
    assert re.search(r"\n\| `--max-wait WAIT` \| Most seconds that a stream", of["console.md"])


@pytest.fixture
def small(tmp_path) -> Path:
    """A clone whose documentation has one page that is written by hand."""
    clone = tmp_path / "clone"
    (clone / "docs" / "reference").mkdir(parents=True)
    (clone / "docs" / "index.md").write_text("# A small site\n")
    (clone / "docs" / "loading.md").write_text(
        "# Loading\n## Dimensions and roles\n## The tables\n[code](../code.py)\n"
    )
    (clone / "code.py").write_text("print('read me')\n")
    (clone / "CHANGELOG.md").write_text("# Changelog\n")
    listed = ["index.md", "loading.md", "changelog.md", *(f"reference/{name}" for name in pages())]
    config = re.sub(
        r"^nav = \[.*?^\]", f"nav = {listed}", (ROOT / CONFIG).read_text(), flags=re.M | re.S
    )
    (clone / CONFIG).write_text(config.replace('extra_css = ["site.css"]', ""))
    return clone


def test_a_link_to_code_leads_to_a_page_with_it(small, tmp_path):
    build(small, tmp_path / "site")
    assert 'href="source/code.py.html"' in (tmp_path / "site" / "loading.html").read_text()
    assert "read me" in (tmp_path / "site" / "source" / "code.py.html").read_text()


@pytest.mark.parametrize(
    "page, text, fault",
    [
        ("lost.md", "# Lost", "lost.md is not in `nav`"),
        ("index.md", "[there](no-page.md)", "no-page.md is no page of the site"),
        ("index.md", "[there](loading.md#no-heading)", "loading.md#no-heading"),
        ("index.md", '<img src="https://example.org/a.png">', "loads https://example.org/a.png"),
        ("index.md", '<img src="none.svg">', "index.html: none.svg does not exist"),
    ],
)
def test_what_is_unsound_is_not_built(small, tmp_path, page, text, fault):
    with (small / "docs" / page).open("a") as file:
        file.write(f"{text}\n")
    with pytest.raises(Unsound, match=re.escape(fault)):
        build(small, tmp_path / "site")
    assert not (tmp_path / "site").exists()
