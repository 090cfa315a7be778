"""The commands of the how-tos and of the examples run as they stand, and print what the pages say.

A block of shell is run, one of YAML is written to the file that its first line names. Each line of
a block of text is in what the shell block before it printed; … stands for anything. A block behind
`<!-- shown only: REASON -->` is not run.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:<!-- shown only: (?P<reason>.+?) -->\n\s*)?"
    r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
# pages that go on where the one before ended
CHAINS = {
    "retail": ("start.md", "how-to/unmatched.md", "how-to/day-again.md", "how-to/delta.md"),
    "first job": ("first-job.md",),
    "sales": ("how-to/own-job.md", "how-to/alerts.md", "how-to/upgrade.md"),
    "flights": ("how-to/join-files.md", "how-to/second-dimension.md"),
    "mysql": ("how-to/mysql.md",),
    "orders": ("../examples/orders/README.md",),
    "outbox": ("../examples/outbox/README.md",),
}
NEVER_RUN = {"how-to/cluster.md"}  # all of its blocks need a cluster
RUN = [page for pages in CHAINS.values() for page in pages]


class Block(NamedTuple):
    kind: str
    text: str
    reason: str | None


def blocks(page: str) -> list[Block]:
    return [
        Block(m["kind"], re.sub(rf"^{m['indent']}", "", m["text"], flags=re.M), m["reason"])
        for m in BLOCK.finditer((DOCS / page).read_text())
    ]


@pytest.fixture
def clone(tmp_path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chain", CHAINS)
def test_the_commands_of_a_page_do_what_it_says(chain, clone, request):
    environment = {k: v for k, v in os.environ.items() if k != "SEMISTREAM_HOME"}
    environment["WAREHOUSE_URL"] = (
        request.getfixturevalue("mariadb").fresh() if chain == "mysql" else ""
    )
    for page in CHAINS[chain]:
        printed = ""
        for block in blocks(page):
            if block.reason:
                continue
            if block.kind == "sh":
                printed = run(block.text, clone, environment)
            elif block.kind == "yaml":
                name = re.match(r"# (\S+\.yaml)\n", block.text)
                assert name, f"{page}: the first line does not name a file:\n{block.text}"
                (clone / name[1]).write_text(block.text)
            elif block.kind == "text":
                for line in block.text.splitlines():
                    assert is_in(line, printed), f"{page}: {line!r} is not in:\n{printed}"


def run(script: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{script}\nfailed:\n{done.stdout}"
    return done.stdout


def is_in(line: str, printed: str) -> bool:
    """Whether a line is a part of what was printed, apart from the lines of tables and blanks."""
    pattern = ".*".join(re.escape(without_lines(part)) for part in line.split("…"))
    text = "\n".join(map(without_lines, printed.splitlines()))
    return re.search(pattern, text) is not None


def without_lines(text: str) -> str:
    return " ".join(re.sub("[\u2500-\u257f]+", " ", text).split())


def test_every_block_is_run_or_says_why_not():
    pages = {f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md")}
    commands = {page: [b for b in blocks(page) if b.kind in ("sh", "yaml")] for page in pages}
    assert {page for page, found in commands.items() if found} == {
        page for page in [*RUN, *NEVER_RUN] if page.startswith("how-to/")
    }
    left_out = [b for found in commands.values() for b in found if b.reason]
    assert 0 < len(left_out) < len([b for found in commands.values() for b in found]) / 3
    for page in pages:
        text = (DOCS / page).read_text()
        assert len(re.findall(r"^ *```", text, re.M)) == 2 * len(blocks(page)), page
        assert {b.kind for b in blocks(page)} <= {"sh", "yaml", "text"}, page


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/README.md")), ids=str)
def test_the_commands_of_every_example_are_run(path):
    """Either the example's page is run, or its commands are those of a page that is."""
    page = f"../examples/{path.parent.name}/README.md"
    (block,) = (b for b in blocks(page) if b.kind == "sh")
    run = {line for of in RUN for b in blocks(of) if not b.reason for line in b.text.splitlines()}
    for line in block.text.splitlines():
        assert line in run or line.startswith("export "), line
