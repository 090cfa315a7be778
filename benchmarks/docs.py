"""The figures in README and docs, written from the result files: python -m benchmarks docs

A page has figures only between two marks, `<!-- results: NAME … -->` and `<!-- end -->`. NAME is a
file of benchmarks/results without its suffix. Options choose what is shown of it:

- `peers=A,B` and `cases=TEXT`: only these rows;
- `best=PEER`: one row a case, of that peer beside the best of the others;
- `extra=A,B`: these figures of each row, in the place of its rate;
- `chosen`: how often each algorithm was chosen, and how right that was.

In the place of NAME, `compared` gives each row of COMPARED, and `experiments` has options of its
own: `behind=ALGORITHM` for the points at which another algorithm is faster, `paper=PREFIX` for a
paper's experiments, one row each, `claims=PREFIX` for all of a paper's claims, `contradictions` for
the settings of which a paper states different figures. Below a table are the commit at which it was
measured, and what has changed since.
"""

from __future__ import annotations

import ast
import csv
import functools
import json
import math
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.papers import EXPERIMENTS, Experiment
from benchmarks.papers.contradictions import contradictions
from benchmarks.papers.findings import ONE_SLICE
from benchmarks.papers.kept import KEPT, RESULTS
from benchmarks.papers.model import Claim
from benchmarks.papers.report import shown
from benchmarks.verdicts import Verdict, ratio_of
from semistream.joins import REGISTRY
from semistream.sketches import METHODS
from semistream.stream_joins import REGISTRY as STREAM_JOINS

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"<!-- results: (\S+)(.*?) -->\n.*?<!-- end -->", re.S)
# text that looks like a measured figure
FIGURE = re.compile(
    r"[\d.,]*\d( million| billion)? "
    r"((tuples|rows|keys)(/s| a second)|times as (fast|many|large)|ns a key)"
)
SETTING = ("data", "master_tuples", "memory_percent", "skew", "rate")  # of an experiment's points
EQUATIONS = ("-cost", "-phases", "-eq6")  # experiments on single equations
APP = "include/semistream/streaming"  # what benchmarks of the whole app also run
FILES = {
    "sinks": [f"{APP}/sinks", "include/semistream/warehouse/dialects"],
    **{name: [APP] for name in ("spark", "scale-out", "workers", "budget", "start", "latency")},
    "console": [
        "include/semistream/files",
        "include/semistream/master",
        "include/semistream/parquet_encoding.py",
    ],
    **{name: [APP, "include/semistream/files"] for name in ("flink", "nexmark")},
    "pathway": ["include/semistream/files"],
    "stream-stream": ["include/semistream/stream_joins", APP],
    "star": [
        "include/semistream/joins",
        "include/semistream/sizing",
        "include/semistream/files",
        APP,
    ],
}


class Compared(NamedTuple):
    """A peer of a benchmark beside another, in words of a user."""

    what: str
    beside: str
    name: str  # of the result file
    ours: str  # peers
    other: str
    case: str = ""  # how the case begins


JOIN, APP_NAME = "`semistream join`", "the Spark app"
STATIC, CASE = "Spark's stream-static join", "R=20,000,000 M=10% batch="
COMPARED = tuple(
    Compared(*c)
    for c in (
        (f"{APP_NAME}, R of 2 million", STATIC, "spark-2m-full", "auto", "spark, as is"),
        ("the same", "the same with R cached", "spark-2m-full", "auto", "spark, R cached"),
        (f"{APP_NAME}, R of 20 million", STATIC, "spark-full", "auto", "spark, as is"),
        (f"{APP_NAME}, R of 100 million", STATIC, "spark-100m-full", "auto", "spark, as is"),
        (
            f"{JOIN}, R of 500,000",
            "Flink's streaming join",
            "flink-small",
            "semistream join",
            "flink, streaming join",
            "R=",
        ),
        (
            "the same",
            "Flink's lookup join",
            "flink-small",
            "semistream join",
            "flink, lookup join",
            "R=",
        ),
        (
            "the same",
            "Flink's batch join",
            "flink-small",
            "semistream join",
            "flink, batch join",
            "R=",
        ),
        (
            f"{APP_NAME}, the same",
            "Flink's batch join",
            "flink-small",
            "semistream, spark app",
            "flink, batch join",
            "R=",
        ),
        (
            f"{JOIN}, Nexmark's query 13, 10,000 keys",
            STATIC,
            "nexmark-small",
            "semistream join",
            "spark, stream-static join",
            "q13, 10,000 keys",
        ),
        (
            f"{APP_NAME}, the same",
            STATIC,
            "nexmark-small",
            "semistream, spark app",
            "spark, stream-static join",
            "q13, 10,000 keys",
        ),
        (
            f"{JOIN}, the same, 20 million keys",
            STATIC,
            "nexmark-small",
            "semistream join",
            "spark, stream-static join",
            "q13, 20,000,000",
        ),
        (
            f"{APP_NAME}, the same",
            STATIC,
            "nexmark-small",
            "semistream, spark app",
            "spark, stream-static join",
            "q13, 20,000,000",
        ),
        (
            f"{JOIN}, CSV files, R of 200,000",
            "Pathway",
            "pathway-small",
            "semistream join",
            "pathway",
        ),
        (
            f"{JOIN}, R of 200,000, 1 core, cold",
            "DuckDB",
            "console-small",
            "elevatorjoin, from files",
            "duckdb",
            "R=200,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            "the same",
            "Polars, without a limit",
            "console-small",
            "elevatorjoin, from files",
            "polars",
            "R=200,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            f"{JOIN}, R of 2 million, 1 core, cold",
            "DuckDB",
            "console-small",
            "elevatorjoin, from files",
            "duckdb",
            "R=2,000,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            "the same, the snapshot ready",
            "DuckDB",
            "console-small",
            "elevatorjoin, ready",
            "duckdb",
            "R=2,000,000 S=2,000,000 M=25 MB, 1 core",
        ),
        (
            "the operator, micro-batches of 100,000",
            "DuckDB, R sorted",
            "duckdb-full",
            "elevatorjoin",
            "duckdb, sorted",
            f"{CASE}100,000 columns",
        ),
        (
            "the operator, micro-batches of a million",
            "DuckDB, R sorted",
            "duckdb-full",
            "elevatorjoin",
            "duckdb, sorted",
            f"{CASE}1,000,000 columns",
        ),
        (
            "the same",
            "look-ups in SQLite",
            "anchors-full",
            "elevatorjoin",
            "sqlite",
            f"{CASE}1,000,000",
        ),
        (
            "the operator, M of 1% of R",
            "a hash join, all of R in memory",
            "memory-full",
            "elevatorjoin",
            "hash join, all of R",
            "R=20,000,000 M=1%",
        ),
        (
            "the operator, M of 10% of R",
            "the same",
            "memory-full",
            "elevatorjoin",
            "hash join, all of R",
            "R=20,000,000 M=10%",
        ),
        (
            "the SQLite sink",
            "ADBC's ingestion",
            "sinks-small",
            "semistream",
            "adbc_ingest",
            "sqlite",
        ),
        (
            "the MariaDB sink",
            "LOAD DATA, file ready",
            "sinks-small",
            "semistream",
            "LOAD DATA, file ready",
            "mariadb",
        ),
        ("the Delta sink", "`write_deltalake`", "sinks-full", "semistream", "write_deltalake"),
        (
            "restart, a million tuples wait",
            "Spark's own start",
            "start-small",
            "all wait",
            "spark's own start",
            "restart",
        ),
    )
)


class NoHistory(Exception):
    """The source tree has no git, or not the commits of its results."""


def write() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))


def filled(page: str) -> str:
    """Return the page with its blocks filled from the result files."""
    return BLOCK.sub(
        lambda m: f"<!-- results: {m[1]}{m[2]} -->\n{block(m[1], m[2])}<!-- end -->", page
    )


def unmarked(page: str) -> list[str]:
    """Return figures of a page that are in no block. Text between code fences does not count."""
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
            "paper": of_paper,
            "claims": claims_of_paper,
            "contradictions": contradicted,
        }[kind](value)
    if (RESULTS / f"{name}.jsonl").exists():
        rows = _rows(name)
        table = (
            _best(rows, options["best"])
            if "best" in options
            else _extra(rows, options)
            if "extra" in options
            else _chosen(rows)
            if "chosen" in options
            else _shares(rows)
            if any("share" in r for r in rows)
            else _table(rows, options)
        )
        return "\n".join(["", *table, "", about_rows(rows), ""])
    return claims_of(name) if (RESULTS / f"{name}.txt").exists() else "Not measured yet.\n"


# ---- results of benchmarks


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def _some(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return the rows that have results, of the peers and cases that the options `peers` and
    `cases` select."""
    peers = options["peers"].split(",") if "peers" in options else [r["peer"] for r in rows]
    return [
        r
        for r in rows
        if r["peer"] in peers
        and options.get("cases", "") in r["case"]
        and ("rate" in r or r["note"].startswith("cannot run"))
    ]


def _table(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> list[str]:
    lines = [
        "| case | peer | a second | times the baseline | 95% interval | resident MB | remarks |",
        "| --- | --- | --: | --: | --- | --: | --- |",
    ]
    for r in _some(rows, options):
        ratio = f"{r['ratio']:.3g}" if r.get("ratio") is not None else ""
        lines.append(
            f"| {r['case']} | {r['peer']} | {_rate(r)} | {ratio} | {_interval(r)} | "
            f"{_resident(r)} | {r['note']} |"
        )
    return lines


def _extra(rows: Sequence[Mapping[str, Any]], options: Mapping[str, str]) -> list[str]:
    names = options["extra"].split(",")
    lines = [f"| case | peer | {' | '.join(names)} |", "| --- | --- " + "| --: " * len(names) + "|"]
    return lines + [
        f"| {r['case']} | {r['peer']} | " + " | ".join(f"{r['extra'][n]:.3g}" for n in names) + " |"
        for r in _some(rows, options)
    ]


def _chosen(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one row an algorithm: at how many settings it was chosen, and its rate there over that
    of the fastest algorithm."""
    lines = [
        "| chosen | settings | the fastest there | within a quarter of it | least rate over "
        "the fastest's |",
        "| --- | --: | --: | --: | --: |",
    ]
    for algorithm, count in Counter(r["peer"] for r in rows).most_common():
        ratios = [r["ratio"] for r in rows if r["peer"] == algorithm]
        lines.append(
            f"| {algorithm} | {count} | {sum(x >= 1 for x in ratios)} | "
            f"{sum(x >= 0.8 for x in ratios)} | {min(ratios):.2f} |"
        )
    return lines


def compared() -> str:
    """Return a row for each of COMPARED: the ratio of our rate to the peer's in the same
    repetitions, and the peak resident memory of both."""
    lines = [
        "",
        "| what | beside | times as fast | 95% interval | resident MB, and the other's |",
        "| --- | --- | --: | --- | --: |",
    ]
    old = dict[str, None]()  # a dict keeps the order
    for c in COMPARED:
        rows = {r["peer"]: r for r in _rows(c.name) if r["case"].startswith(c.case)}
        ours, other = rows[c.ours], rows[c.other]
        ratio = ratio_of(ours["rates"], other["rates"])
        interval = f"{ratio.low:.3g}–{ratio.high:.3g}" if len(ours["rates"]) > 1 else "one run"
        undecided = ", not decided" if ratio.verdict is Verdict.NOT_DECIDED else ""
        lines.append(
            f"| {c.what} | {c.beside} | {ratio.value:.3g} | {interval}{undecided} | "
            f"{_resident(ours)}, {_resident(other)} |"
        )
        if _flaws_of(rows.values()):
            old[c.name] = None
    told = ["", f"**To be measured again**, as the code has changed since: {', '.join(old)}."]
    return "\n".join([*lines, *(told if old else []), ""])


def _resident(row: Mapping[str, Any]) -> str:
    return f"{row['rss_peak'] / 1e6:,.0f}" if row.get("rss_peak") else ""


def _best(rows: Sequence[Mapping[str, Any]], ours: str) -> list[str]:
    """Return one row a case: the best other peer, the ratio of the rate of `ours` to its rate, and
    which peers had not settled and thus may be faster."""
    lines = [
        f"| case | {ours}, a second | best of the others | a second | {ours}, times the best "
        f"| 95% interval | not settled |",
        "| --- | --: | --- | --: | --: | --- | --- |",
    ]
    for case in dict.fromkeys(r["case"] for r in rows):
        mine = [r for r in rows if r["case"] == case and "rate" in r]
        [own] = [r for r in mine if r["peer"] == ours]
        best = max((r for r in mine if r is not own), key=lambda r: r["ratio"])
        other = {
            "verdict": best["verdict"],
            "ratio_low": best["ratio_high"],
            "ratio_high": best["ratio_low"],
        }
        unsettled = [r["peer"] for r in mine if not r["settled"]]
        turned = {k: 1 / v if isinstance(v, float) else v for k, v in other.items()}
        lines.append(
            f"| {case} | {_rate(own)} | {best['peer']} | {_rate(best)} | "
            f"{1 / best['ratio']:.3g} | {_interval(turned)} | {', '.join(unsettled)} |"
        )
    return lines


def _shares(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of caches: one row a case, one column a policy, in percent of the stream."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for r in rows:
        if "share" in r:
            found.setdefault(r["case"], []).append(r)
    policies = [r["peer"] for r in next(iter(found.values()))][1:]
    lines = [
        f"| case | tuples in H_R | H_R | {' | '.join(policies)} |",
        "| --- " + "| --: " * (2 + len(policies)) + "|",
    ]
    for case, mine in found.items():
        shares = (
            f"{100 * r['share']:.2f}"
            + (f" ± {100 * r['share_interval']:.2f}" if r["share_interval"] is not None else "")
            for r in mine
        )
        lines.append(f"| {case} | {mine[0]['capacity']:,} | {' | '.join(shares)} |")
    return lines


def _rate(row: Mapping[str, Any]) -> str:
    if "rate" not in row:
        return ""
    return f"{row['rate']:,.0f}" if row["rate"] >= 100 else f"{row['rate']:.3g}"


def _interval(row: Mapping[str, Any]) -> str:
    """Return the interval of the ratio, or of the rate if there is no baseline. A ratio whose
    interval contains 1 is not decided."""
    if row.get("ratio_low") is None:
        wide = row.get("rate_interval")
        return f"± {wide:,.0f} a second" if wide is not None else ""
    if row["ratio_low"] == row["ratio_high"]:
        return ""
    undecided = ", not decided" if row["verdict"] == "not decided" else ""
    return f"{row['ratio_low']:.3g}–{row['ratio_high']:.3g}{undecided}"


def about_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    first = rows[0]
    return _measured(
        first["command"],
        first["commit"],
        f"{first['processor']}, {first['cores']} cores",
        _flaws_of(rows),
    )


def _flaws_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    first, *_ = rows = list(rows)
    return _changes(
        first["commit"],
        first["dirty"],
        {r["peer"] for r in rows},
        FILES.get(first["benchmark"], []),
    )


def _made(command: str) -> str:
    """Return the make command for a recorded one, also for one by a name of then."""
    papers = re.sub(r"^(python -m benchmarks\.papers|semistream experiments) ", "", command)
    if papers != command:
        return f'make papers ARGS="{papers}"'
    words = command.removeprefix("python -m benchmarks ")
    scale = re.search(r" ?--scale (\S+)", words)
    rest = words.replace(scale[0], "") if scale else words
    return "make bench" + (f" SCALE={scale[1]}" if scale else "") + f' ARGS="{rest.strip()}"'


# ---- results of experiments


def claims_of(name: str) -> str:
    """Return an experiment's claims, from its text file."""
    machine, _, command, _, *lines = (RESULTS / f"{name}.txt").read_text().splitlines()
    found = _points(RESULTS / f"{name}.csv")
    at, changed = _commit(RESULTS / f"{name}.txt")
    flaws = _changes(at, changed, {r["algorithm"] for r in found}, [])
    text = "\n".join(["```", *(line for line in lines if line), "```", ""])
    return f"{text}\n{_measured(command.removeprefix('$ '), at, machine, flaws)}\n"


def of_paper(prefix: str) -> str:
    """Return a paper's experiments, one row each: the first claim, and how many others have
    which verdict."""
    lines = [
        "",
        "| experiment, figure | claim | measured | verdict | reason | other claims |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    found = _kept_claims(prefix)
    for experiment, claims in found:
        (claim, kept), *others = claims
        verdicts = Counter(k["verdict"] for _, k in others)
        told = ", ".join(f"{n} {v}" for v, n in verdicts.items())
        lines.append(
            _escaped(f"| {_titled(experiment)} | {claim.text} | {_claim(kept)} | {told} |")
        )
    return "\n".join([*lines, *_again(found), ""])


def claims_of_paper(prefix: str) -> str:
    """Return the claims of a paper, one row each."""
    lines = [
        "",
        "| experiment, figure | claim | measured | verdict | reason |",
        "| --- | --- | --- | --- | --- |",
    ]
    found = _kept_claims(prefix)
    lines += [
        _escaped(f"| {_titled(e)} | {claim.text} | {_claim(kept)} |")
        for e, claims in found
        for claim, kept in claims
    ]
    return "\n".join([*lines, *_again(found), ""])


def _kept_claims(prefix: str) -> list[tuple[Experiment, list[tuple[Claim, dict[str, Any]]]]]:
    """Return the claims of a paper's experiments and what is kept of each, without our own aims,
    claims about single equations, and results that cannot distinguish R-MESHJOIN from MESHJOIN:
    those are only in the experiments' files."""
    found = []
    for e in (e for e in EXPERIMENTS.values() if e.name.startswith(f"{prefix}-")):
        path = KEPT / f"{e.name}.json"
        known = json.loads(path.read_text())["claims"] if path.exists() else []
        by_text = {c["claim"]: c for c in known}
        if not e.name.endswith(EQUATIONS):
            claims = [(c, by_text.get(c.text, UNMEASURED)) for c in e.claims if not c.aim]
            found.append((e, [(c, k) for c, k in claims if ONE_SLICE not in k["brief"]]))
    return found


UNMEASURED = {"measured": None, "verdict": Verdict.NOT_MEASURED, "brief": ""}


def _again(experiments: Iterable[tuple[Experiment, object]]) -> list[str]:
    """Return the mark below a table of several experiments' results, if there is any."""
    changed, dirty = set[str](), False
    for path in (KEPT / f"{e.name}.txt" for e, _ in experiments):
        if path.exists():
            at, was_dirty = _commit(path)
            changed |= {
                a
                for a in {r["algorithm"] for r in _points(path.with_suffix(".csv"))}
                if _changes(at, False, [a], [])
            }
            dirty |= was_dirty
    return _again_by(changed, dirty)


def _again_by(changed: Iterable[str], dirty: bool = False) -> list[str]:
    flaws = [f"today's {', '.join(sorted(changed))}, which changed since"] if changed else []
    flaws += ["a commit, as some were of changed files"] if dirty else []
    return ["", f"**To be measured again**: by {'; '.join(flaws)}."] if flaws else []


def _titled(experiment: Experiment) -> str:
    return f"{experiment.name}, {experiment.figure.removeprefix('Fig. ')}"


def _escaped(line: str) -> str:
    return line.replace("|R|", r"\|R\|")


def _claim(claim: Mapping[str, Any]) -> str:
    """Return a claim's measured number, verdict and reason as text."""
    if claim["measured"] is None:
        return "– | not measured yet | "
    measured = shown(claim["measured"], claim["unit"], claim["interval"] or 0)
    if full := claim.get("full"):
        there = shown(full["measured"], claim["unit"], full["interval"])
        verdict = "not settled" if "not settled" in full["told"] else full["verdict"]
        measured += f"; paper's size: {there}, {verdict}"
    return f"{measured} | {claim['verdict']} | {claim['brief']}"


def contradicted(_: str = "") -> str:
    lines = ["", "| paper | setting | ratio of | stated |", "| --- | --- | --- | --- |"]
    for c in contradictions():
        stated = "; ".join(map(str, c.stated))
        lines.append(_escaped(f"| {c.paper} | {c.at} | {c.about} | {stated} |"))
    return "\n".join([*lines, ""])


def behind(ours: str) -> str:
    """Return the points of experiments at which another algorithm is faster, by the means over all
    repetitions. The interval of the ratio is that of two independent means."""
    lines = [
        "",
        "| experiment | data | M, % of R | skew | fastest | of its rate |",
        "| --- | --- | --: | --: | --- | --- |",
    ]
    changed = set[str]()
    for path in sorted(KEPT.glob("*.csv")):
        points: dict[tuple[str, ...], dict[str, Mapping[str, str]]] = {}
        for r in _points(path):
            if r.get("mu") and not any(k.startswith("at_") and r[k] for k in r):
                at = tuple(r[k] for k in SETTING)
                points.setdefault(at, {})[r["algorithm"]] = r
        for (data, _, memory, skew, rate), rows in sorted(
            points.items(), key=lambda p: (p[0][0], *map(float, p[0][1:]))
        ):
            best = max(rows, key=lambda a: float(rows[a]["mu"]))
            if ours in rows and best != ours and float(rate) == 0:
                ratio = float(rows[ours]["mu"]) / float(rows[best]["mu"])
                changed |= {
                    a
                    for a in (ours, best)
                    if _changes(*_commit(path.with_suffix(".txt")), (a,), [])
                }
                half = ratio * math.hypot(
                    *(float(rows[a]["mu_interval"]) / float(rows[a]["mu"]) for a in (ours, best))
                )
                undecided = ", not decided" if ratio + half >= 1 else ""
                lines.append(
                    f"| {path.stem} | {data} | {float(memory):g} | {float(skew):g} | "
                    f"{best} | {ratio:.2f} ± {half:.2f}{undecided} |"
                )
    return "\n".join([*lines, *_again_by(changed), ""])


def _commit(path: Path) -> tuple[str, bool]:
    """Return the commit at which an experiment was measured, and whether files had changed."""
    at = path.read_text().splitlines()[1].removeprefix("commit ").split(",")[0]
    return at.split()[0].split("-")[0], "change" in at


def _points(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _measured(command: str, commit: str, machine: str, flaws: Sequence[str]) -> str:
    again = f" **To be measured again**: by {'; '.join(flaws)}." if flaws else ""
    processor = machine.split(", Linux", maxsplit=1)[0]
    return f"`{_made(command)}` at commit {commit}, {processor}.{again}"


# ---- what has changed since


def _changes(commit: str, dirty: bool, peers: Iterable[str], further: Sequence[str]) -> list[str]:
    known = REGISTRY.keys() | METHODS.keys() | STREAM_JOINS.keys()
    changed = sorted(
        {n for n in peers if n in known and any(has_changed(commit, f) for f in own_files(n))}
        | {f for f in further if has_changed(commit, f)}
    )
    found = [f"today's {', '.join(changed)}, which changed since"] if changed else []
    return found + (["a commit, as it was of changed files"] if dirty else [])


@functools.cache
def own_files(name: str) -> tuple[str, ...]:
    """Return the file of an algorithm, and those of the parts that no other algorithm uses."""
    if name in STREAM_JOINS:
        return ("include/semistream/stream_joins",)
    if name not in REGISTRY:
        return (_path(METHODS[name].__module__),)
    contract = "semistream.joins.contract"
    algorithms = {a.make.__module__ for a in REGISTRY.values()}
    # SSJ inherits CMESHJOIN's loop, and Tuned X-HYBRIDJOIN that of X-HYBRIDJOIN
    own = algorithms.intersection(k.__module__ for k in REGISTRY[name].make.__mro__)
    others = {part for m in (contract, *algorithms) if m not in own for part in _parts(m)}
    parts = {part for m in own for part in _parts(m)}
    return tuple(_path(m) for m in (*sorted(own), *sorted(parts - others)))


@functools.cache
def _parts(module: str) -> frozenset[str]:
    """Return the modules of the joins' package that a module of it imports."""
    tree = ast.parse((ROOT / _path(module)).read_text())
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    algorithms = {a.make.__module__ for a in REGISTRY.values()}
    return frozenset(
        n
        for n in names - algorithms
        if n.startswith("semistream.joins.") and (ROOT / _path(n)).is_file()
    )


def _path(module: str) -> str:
    plain = f"include/{module.replace('.', '/')}"
    return f"{plain}.py" if (ROOT / f"{plain}.py").exists() else f"{plain}/__init__.py"


@functools.cache
def has_changed(commit: str, path: str) -> bool:
    """Return whether the code of a file, or of a file in a directory, differs from that at a
    commit. Formatting, comments and docstrings do not count.

    Raises NoHistory.
    """
    if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise NoHistory(f"the commit {commit} of a result is not known here")
    there = _git("ls-tree", "-r", "--name-only", commit, path) or ""
    here = ROOT / path
    files = {f for f in there.split() if f.endswith(".py")} | {
        str(f.relative_to(ROOT)) for f in ([here] if here.is_file() else here.rglob("*.py"))
    }
    return any(_said(_git("show", f"{commit}:{f}")) != _said(_text(ROOT / f)) for f in files)


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _said(text: str | None) -> str | None:
    if text is None:
        return None
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)


def _git(*words: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", ROOT, *words], capture_output=True, text=True, check=True
        ).stdout
    except OSError as e:
        raise NoHistory(str(e)) from None
    except subprocess.CalledProcessError:
        return None
