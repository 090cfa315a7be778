"""The figures in README and docs, written from the result files: python -m benchmarks docs

A page has figures only between two marks, `<!-- results: NAME … -->` and `<!-- end -->`. NAME is a
file of benchmarks/results without its suffix. Options choose what is shown of it:

- `peers=A,B` and `cases=TEXT`: only these rows;
- `best=PEER`: one row a case, of that peer beside the best of the others;
- `extra=A,B`: these figures of each row, in the place of its rate; `A:TEXT` heads the column TEXT;
- `latency`: a sentence on the latency of one row;
- `chosen`: how often each algorithm was chosen, and how right that was;
- `slower`: the settings at which another algorithm was faster than the chosen one.

In the place of NAME, `compared` gives each row of COMPARED, and `experiments` has options of its
own: `behind=ALGORITHM` for the points at which another algorithm is faster,
`behind-in-short=ALGORITHM` for their number and the lowest ratio, `paper=PREFIX` for a paper's
experiments, one row each, `claims=PREFIX` for all of a paper's claims, `only=PREFIX` for these on
the page about this paper, `contradictions` for the settings of which a paper states different
figures. Below a table are the commit at which it was measured, and what has changed
since.
"""

from __future__ import annotations

import re
import shlex

from benchmarks.changes import ROOT
from benchmarks.experiment_tables import (
    all_of_paper,
    behind,
    behind_in_short,
    claims_of,
    claims_of_paper,
    contradicted,
    of_paper,
)
from benchmarks.papers.kept import RESULTS
from benchmarks.result_tables import compared, of_rows, rows_of

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"<!-- results: (\S+)(.*?) -->\n.*?<!-- end -->", re.S)
# text that looks like a measured figure
FIGURE = re.compile(
    r"[\d.,]*\d( million| billion)? "
    r"((tuples|rows|keys)(/s| a second)|times as (fast|many|large)|ns a key)"
)


def write() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))


def outdated() -> list[str]:
    """Return the pages that `write` would change. Raises NoHistory."""
    return [str(p.relative_to(ROOT)) for p in PAGES if filled(p.read_text()) != p.read_text()]


def filled(page: str) -> str:
    """Return the page with its blocks filled in from the result files."""
    return BLOCK.sub(
        lambda m: f"<!-- results: {m[1]}{m[2]} -->\n{block(m[1], m[2])}<!-- end -->", page
    )


def unmarked(page: str) -> list[str]:
    """Return the figures of a page that are in no block. Text between code fences does not
    count."""
    plain = re.sub(r"```.*?```", "", BLOCK.sub("", page), flags=re.S)
    return [m[0] for m in FIGURE.finditer(plain)]


def block(name: str, arguments: str) -> str:
    options = dict(word.partition("=")[::2] for word in shlex.split(arguments))
    if name == "compared":
        return compared()
    if name == "experiments":
        [(kind, value)] = options.items()
        return {
            "behind": behind,
            "behind-in-short": behind_in_short,
            "paper": of_paper,
            "only": all_of_paper,
            "claims": claims_of_paper,
            "contradictions": contradicted,
        }[kind](value)
    if (RESULTS / f"{name}.jsonl").exists():
        return of_rows(rows_of(name), options)
    return claims_of(name) if (RESULTS / f"{name}.txt").exists() else "Not measured yet.\n"
