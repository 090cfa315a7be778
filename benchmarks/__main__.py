"""Semistream compared with its peers: python -m benchmarks [NAME …]

A small form takes a few minutes (the default); --scale full runs everything. Each benchmark prints
its table and writes NAME-SCALE.jsonl, with one row for each peer and everything on which the
figures depend. A wrong answer fails the run. Four commands measure nothing: "docs" writes the
results into the pages of docs/, "docs check" fails where a page is not as it would write it, "keep
DIRECTORY" copies the results of the papers' experiments (python -m benchmarks.papers), and
"verdicts [NAME …]" judges those results again.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import docs
from benchmarks.changes import NoHistory
from benchmarks.data import Files
from benchmarks.harness import Bench, Unavailable, WrongAnswer, change
from benchmarks.papers import kept

BENCHMARKS = {
    "memory": "memory",
    "grid": "grid",
    "caches": "caches",
    "console": "console",
    "duckdb": "duckdb_join",
    "anchors": "anchors",
    "spark": "spark_join",
    "scale-out": "scale_out",
    "sinks": "sinks",
    "start": "start_up",
    "commands": "commands",
    "latency": "latency",
    "workers": "workers",
    "budget": "budget",
    "stream-stream": "stream_stream",
    "elevatorjoin-ablation": "elevatorjoin_ablation",
    "flink": "flink_join",
    "pathway": "pathway_join",
    "nexmark": "nexmark",
    "choice": "choice",
    "star": "star",
    "late": "late",
}  # name: module
RUNS = {"smallest": 2, "small": 3, "full": 5}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all"
    )
    parser.add_argument("--list", action="store_true", help="what each measures, and its settings")
    parser.add_argument("--scale", choices=RUNS, default="small", help="[%(default)s]")
    parser.add_argument(
        "--runs",
        type=int,
        help="of each peer [" + ", ".join(f"{s}: {n}" for s, n in RUNS.items()) + "]",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value for a setting; repeat it",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "semistream-benchmarks",
        help="where data files are made, once [%(default)s]",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "results",
        help="where results go [%(default)s]",
    )
    a = parser.parse_args(argv)
    if a.names == ["docs"]:
        docs.write()
        return 0
    if a.names == ["docs", "check"]:
        return _check_pages()
    if a.names[:1] == ["keep"] and len(a.names) == 2:
        print("\n".join(kept.keep(Path(a.names[1]))))
        return 0
    if a.names[:1] == ["verdicts"]:
        kept.judge_again(a.names[1:], a.data / "experiments")
        return 0
    if unknown := [n for n in a.names if n not in BENCHMARKS]:
        parser.error(f"no benchmark is called {unknown[0]}: {', '.join(BENCHMARKS)}")
    modules = {
        n: importlib.import_module(f"benchmarks.{BENCHMARKS[n]}") for n in a.names or BENCHMARKS
    }
    if a.list:
        for name, module in modules.items():
            print(
                f"{name}: {module.__doc__}\n  "
                + "\n  ".join(
                    f"{f.name}={getattr(module.SCALES[a.scale], f.name)}"
                    for f in dataclasses.fields(module.Settings)
                )
                + "\n"
            )
        return 0
    changes = dict(pair.split("=", 1) for pair in a.set)
    known = {f.name for m in modules.values() for f in dataclasses.fields(m.Settings)}
    if unknown := sorted(changes.keys() - known):
        parser.error(f"--set {unknown[0]}: no such setting; see --list")
    bench = Bench(a.scale, a.runs or RUNS[a.scale], Files(a.data.absolute()), a.output)
    failed = False
    for name, module in modules.items():
        bench.say(f"{name}, {a.scale}")
        try:
            module.run(bench, change(module.SCALES[a.scale], changes))
        except Unavailable as e:
            bench.add(name, "-", "-", {"note": f"cannot run: {e}"})
        except WrongAnswer as e:
            bench.say(f"WRONG ANSWER: {e}")
            failed = True
        finally:
            shutil.rmtree(bench.files.runs, ignore_errors=True)
    return int(failed)


def _check_pages() -> int:
    try:
        pages = docs.outdated()
    except NoHistory as e:
        print(f"the pages' figures are not checked: {e}")
        return 0
    if pages:
        print(f"{', '.join(pages)}: write the figures anew, by python -m benchmarks docs")
    return int(bool(pages))


if __name__ == "__main__":
    sys.exit(main())
