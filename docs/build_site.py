"""Build the site of the documentation: python -m docs.build_site [DIRECTORY]

The pages of docs/ are copied, together with the generated reference, and Zensical builds the site
from them. A link that leads out of docs/ leads to a copy of that file in the site. The build fails
if a link leads nowhere, or if a page would need the network.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from docs.reference_pages import pages

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "zensical.toml"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE = {".py": "python", ".yaml": "yaml", ".txt": "text", ".csv": "text", ".toml": "toml"}


class Unsound(Exception):
    """The site cannot be built, or is not complete."""


def main(argv: list[str]) -> int:
    target = Path(argv[0]) if argv else ROOT / "var" / "site"
    try:
        count = build(ROOT, target)
    except Unsound as e:
        print(e, file=sys.stderr)
        return 1
    print(f"{count} pages in {target}. To read them: python -m http.server --directory {target}")
    return 0


def build(root: Path, target: Path) -> int:
    """Build the site of root/docs in `target`, which is replaced. Return the number of pages.
    Raises Unsound."""
    with tempfile.TemporaryDirectory(prefix="semistream-site-") as directory:
        stage = Path(directory)
        _stage(root, stage / "docs")
        shutil.copy(root / CONFIG, stage)
        config = tomllib.loads((root / CONFIG).read_text())
        listed = set(_listed(config["project"]["nav"]))
        for page in (stage / "docs").rglob("*.md"):
            name = page.relative_to(stage / "docs").as_posix()
            if name not in listed and not name.startswith("source/"):
                raise Unsound(f"{name} is not in `nav` of {CONFIG}")
        done = subprocess.run(
            [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean"],
            cwd=stage,
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
            raise Unsound(said.partition("Traceback")[0])
        site = stage / "site"
        if faults := [*_faults(site)]:
            raise Unsound("\n".join(faults))
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(site, target)
    return len([*target.rglob("*.html")])


def _listed(nav: Any) -> Iterator[str]:
    """Return the paths of the pages that a navigation lists."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(part)


def _stage(root: Path, target: Path) -> None:
    shutil.copytree(root / "docs", target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, text in pages().items():
        (target / "reference" / name).write_text(text)
    staged = {file: target / file.relative_to(root / "docs") for file in root.glob("docs/**/*.md")}
    staged[root / "CHANGELOG.md"] = target / "changelog.md"
    for file in root.glob("examples/**/README.md"):
        name = "index" if file.parent.name == "examples" else file.parent.name
        staged[file] = target / "examples" / f"{name}.md"
    for file, page in staged.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(_with_copies(file, page, staged, root, target))


def _with_copies(file: Path, page: Path, staged: dict[Path, Path], root: Path, target: Path) -> str:
    """Return the text of a Markdown file for its page in `target`: links to other Markdown files
    lead to their pages, links out of docs/ to copies in `target`. Raises Unsound."""

    def moved(link: re.Match[str]) -> str:
        path = Path(posixpath.normpath(file.parent / link[3]))
        if path in staged:
            new = staged[path]
        elif path.is_dir():
            return link[2]  # which has no page
        elif not path.is_file() or path.suffix == ".md":
            raise Unsound(f"{file.relative_to(root)}: {link[3]} is no page of the site")
        elif path.is_relative_to(root / "docs"):
            new = target / path.relative_to(root / "docs")
        else:
            new = _copy(path, target / "source" / path.relative_to(root))
        return f"{link[1]}[{link[2]}]({posixpath.relpath(new, page.parent)}{link[4] or ''})"

    return LINK.sub(moved, file.read_text())


def _copy(file: Path, new: Path) -> Path:
    """Copy a file; a text file becomes a page. Return the path of the copy."""
    new.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix not in CODE:
        shutil.copy(file, new)
        return new
    page = new.with_name(f"{new.name}.md")
    page.write_text(
        f"---\nsearch:\n  exclude: true\nhide:\n  - navigation\n---\n# {new.name}\n\n"
        f"````{CODE[file.suffix]}\n{file.read_text().rstrip()}\n````\n"
    )
    return page


class _Page(HTMLParser):
    """The ids of a page, its links, and the addresses that it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {str(given[of]) for of in ("id", "name") if given.get(of)}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif given.get("src"):
            self.loaded.append(str(given["src"]))
        elif tag == "link" and given.get("rel") != "canonical" and given.get("href"):
            self.loaded.append(str(given["href"]))


def _faults(site: Path) -> Iterator[str]:
    """Return the faults in the links of a site, and everything that the site would load from
    elsewhere."""
    all_pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in all_pages.items():
        name = path.relative_to(site)
        for address in page.loaded:
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                yield f"{name} loads {address}"
        for address in (*page.links, *page.loaded):
            if urlsplit(address).scheme or path.name == "404.html":
                continue
            to, anchor = urldefrag(unquote(address))
            file = Path(posixpath.normpath(path.parent / to)) if to else path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                yield f"{name}: {address} does not exist"
            elif anchor and file in all_pages and anchor not in all_pages[file].ids:
                yield f"{name}: {address} has no such heading"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
