"""The arguments and the action of each command. Modules that only some commands need are imported
by those."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from semistream import interrupts
from semistream.config import Places, Publishing, Settings, read_yaml
from semistream.errors import ConfigError
from semistream.progress import Progress, silent


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    """Add a command's arguments to its parser, and the function that runs the command."""
    arguments, run = _COMMANDS[name]
    arguments(parser)
    parser.set_defaults(run=run)


def _join_arguments(parser: argparse.ArgumentParser) -> None:
    from semistream.files.settings import JoinFiles

    _settings_arguments(parser, JoinFiles)


def _join_streams_arguments(parser: argparse.ArgumentParser) -> None:
    from semistream.files.join_streams import JoinStreams

    _settings_arguments(parser, JoinStreams)


def _snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    from semistream.files.settings import MasterFile

    _settings_arguments(parser, MasterFile)


def _provision_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="tpch, nycflights13, or a job's YAML file")
    parser.add_argument("--url", help="database of the job's master table [the warehouse]")
    Publishing.add_arguments(parser)
    _progress_argument(parser)


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="name of the load; by default a job's name")
    parser.add_argument("--since-last", action="store_true",
                        help="only what no verification has proven yet [everything]")
    parser.add_argument("--sample", type=int, default=1000, metavar="ROWS",
                        help="facts, and unmatched tuples, that the database joins again, drawn "
                             "anew each time [1000]")
    parser.add_argument("--job", default="", metavar="FILE",
                        help="the job's YAML file, after max_unparsable or unique_ids was changed "
                             "in it [the job as it was loaded]")


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    from semistream.tuning.settings import TuneSettings

    parser.add_argument("job", nargs="?", default=argparse.SUPPRESS,
                        help=TuneSettings.model_fields["job"].description)
    _settings_arguments(parser, TuneSettings, exclude=("job",))
    parser.add_argument("--measure", action="store_true",
                        help="run the grid's points here, and show measured beside predicted")
    parser.add_argument("--scale-out", metavar="P,P,…", type=_numbers, default=(),
                        help="what these numbers of operators would bring, for instance 1,2,4,8")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _join_size_arguments(parser: argparse.ArgumentParser) -> None:
    from semistream.pipeline.settings import JoinSizeSettings

    for name, symbol in (("left", "A"), ("right", "B")):
        parser.add_argument(name, nargs="?", metavar=symbol, default=argparse.SUPPRESS,
                            help=JoinSizeSettings.model_fields[name].description)
    _settings_arguments(parser, JoinSizeSettings, exclude=("left", "right"))
    parser.add_argument("--json", action="store_true", help="as JSON")


def _experiments_arguments(parser: argparse.ArgumentParser) -> None:
    from semistream.experiments.settings import ExperimentSettings

    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="experiments, a paper's (ssj, ssbj, sscj, x-hybridjoin, pjoin, "
                             "sketch: all of it), or all")
    parser.add_argument("--list", action="store_true", help="list them")
    _settings_arguments(parser, ExperimentSettings, progress=False)


def _algorithms_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", nargs="?", help="name of the app [all]")


def _stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="name of the app")


def _reset_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="name of the app")
    parser.add_argument("--checkpoint", type=Path,
                        help="its checkpoint [$SEMISTREAM_HOME/checkpoints/APP]")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError("must be whole numbers, separated by commas: "
                                         f"{text!r}") from None


def _settings_arguments(parser: argparse.ArgumentParser, settings: type[Settings],
                        exclude: Sequence[str] = (), progress: bool = True) -> None:
    """Add the flags of a settings class. None is required by argparse, as a --config file may have
    it."""
    settings.add_arguments(parser, exclude=exclude)
    for action in parser._actions:
        if action.required:
            action.required = False
            action.help = f"{action.help} (required)"
    parser.add_argument("--config", metavar="YAML",
                        help="file with these settings by name; flags take precedence over it")
    if progress:
        _progress_argument(parser)


def _progress_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction,
                        default=sys.stderr.isatty(),
                        help="show a progress bar on the standard error [on a terminal]")


def _settings(kind: type[Any], arguments: argparse.Namespace) -> Any:
    given = {k: v for k, v in vars(arguments).items() if k in kind.model_fields}
    values = (read_yaml(arguments.config) if arguments.config else {}) | given
    missing = [n for n, f in kind.model_fields.items() if f.is_required() and n not in values]
    if missing:
        raise ConfigError(missing[0], "must be given", None,
                          f"It means: {kind.model_fields[missing[0]].description}")
    return kind.load(values)


def _print_table(screen: Console, table: Table) -> None:
    """Print without the blanks that fill a table's lines to their full width."""
    with screen.capture() as captured:
        screen.print(table)
    print("\n".join(map(str.rstrip, captured.get().removesuffix("\n").split("\n"))))


def _join(arguments: argparse.Namespace) -> int:
    from semistream.files import JoinFiles, join_files

    settings = _settings(JoinFiles, arguments)
    with _progress(arguments.progress) as progress:
        summary = join_files(settings, progress)
    _print_summary(summary, settings)
    return 0


def _print_summary(summary: Any, settings: Any) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    shown = [
        ("rows read", f"{summary.rows_read:,}", ""),
        ("matched", f"{summary.matched:,}", ""),
        *((f"unmatched: {reason}", f"{n:,}", "")
          for reason, n in sorted(summary.unmatched.items())),
        ("output rows", f"{summary.output_rows:,}", str(settings.out)),
        ("service rate", f"{summary.service_rate:,.0f}", "tuples/s inside the join"),
        ("end to end", f"{summary.rate:,.0f}", "tuples/s with reading and writing"),
        ("through the cache", f"{summary.cache_share:.1%}",
         "of the rows, without waiting for the disk"),
        ("peak memory", f"{summary.memory_peak:,}", f"bytes, of {summary.memory_budget:,} allowed"),
        ("peak resident", f"{summary.resident_peak:,}", "bytes of the process, all in all"),
        ("R-cycles", f"{summary.r_cycles:,}", f"passes over {summary.master_rows:,} master rows"),
        ("bytes read", f"{summary.bytes_read:,}", "of the master data"),
        *((f"master rows left out: {reason}", f"{n:,}", "")
          for reason, n in sorted(summary.master_rejected.items())),
        *((f"field ignored: {name}", f"{n:,}", "values; the first rows lack it")
          for name, n in summary.ignored_fields.items()),
        ("seconds", *_seconds(summary)),
    ]
    for row in shown:
        table.add_row(*row)
    screen = Console(highlight=False, soft_wrap=True)
    _print_table(screen, table)
    if summary.reason:
        screen.print(f"auto: {summary.reason}", markup=False)
    for note in summary.notes:
        screen.print(f"note: {note}", markup=False)
    for example in summary.examples:
        screen.print(f"unparsable: {example}", markup=False)
    if summary.examples:
        screen.print("A column's type can be set: --types COLUMN=TYPE, for instance string.")


def _seconds(summary: Any) -> tuple[str, str]:
    """Return the seconds for which this process has run, and a description of them."""
    try:
        started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]  # ticks
    except OSError:  # not Linux
        return f"{summary.seconds:.1f}", f"without the program's start, with {summary.algorithm}"
    whole = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
    return (f"{whole:.1f}",
            f"in all, {whole - summary.seconds:.1f} to start, with {summary.algorithm}")


def _join_streams(arguments: argparse.Namespace) -> int:
    from semistream.files.join_streams import JoinStreams, join_streams

    settings = _settings(JoinStreams, arguments)
    with _progress(arguments.progress) as progress:
        summary = join_streams(settings, progress)
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="bold")
    for title in ("left", "right"):
        table.add_column(title, justify="right")
    sides = (summary.left, summary.right)
    shown = [("rows read", "rows_read"), ("matched", "matched"), ("punctuations", "punctuations"),
             ("purged", "purged"), ("dropped on the fly", "dropped"), ("propagated", "propagated"),
             ("most held at a time", "held_peak")]
    if any(s.forgotten for s in sides):
        shown.append(("punctuations forgotten", "forgotten"))
    for title, name in shown:
        table.add_row(title, *(f"{getattr(s, name):,}" for s in sides))
        if name == "matched":
            for reason in sorted({*sides[0].unmatched, *sides[1].unmatched}):
                counts = (f"{s.unmatched.get(reason, 0):,}" for s in sides)
                table.add_row(f"unmatched: {reason}", *counts)
    screen = Console(highlight=False, soft_wrap=True)
    _print_table(screen, table)
    screen.print(f"output rows: {summary.output_rows:,} in {settings.out}", markup=False)
    screen.print(f"relocated to disk: {summary.relocated:,} tuples; disk joins: "
                 f"{summary.disk_joins:,}")
    screen.print(f"peak memory: {summary.memory_peak:,} bytes, of {summary.memory_budget:,} "
                 "allowed")
    screen.print(f"{summary.service_rate:,.0f} tuples/s inside the join, "
                 f"{summary.rate:,.0f} end to end, {' s '.join(_seconds(summary))}")
    for name, count in summary.ignored_fields.items():
        screen.print(f"field ignored: {name}, {count:,} values", markup=False)
    for kind, texts in (("note", summary.notes), ("unparsable", summary.examples)):
        for text in texts:
            screen.print(f"{kind}: {text}", markup=False)
    return 0


def _snapshot(arguments: argparse.Namespace) -> int:
    from semistream.files import MasterFile, open_source, publish_file

    settings = _settings(MasterFile, arguments)
    source = open_source("master", settings.master, types=settings.types,
                         null_values=settings.null_values, delimiter=settings.delimiter,
                         formats=settings.formats)
    source.settle({})
    with _progress(arguments.progress) as progress:
        manifest, rejected = publish_file(settings.master, list(settings.on), settings.out, source,
                                          progress, settings.name, int(settings.memory))
    left_out = "".join(f", {n:,} left out ({reason})" for reason, n in rejected.items())
    for note in source.notes:
        print(f"note: {note}")
    print(f"{manifest.name} {manifest.version}: {manifest.tuple_count:,} rows{left_out}, "
          f"{'unique keys' if manifest.unique else 'keys with several rows'}, in {settings.out}")
    return 0


def _provision(arguments: argparse.Namespace) -> int:
    from semistream import workloads
    from semistream.provisioning import dimensions
    from semistream.warehouse import open_warehouse

    places, memory = Places.from_environment(), Publishing.from_arguments(arguments).memory
    job = workloads.load_job(arguments.job, places)
    with open_warehouse(places.warehouse_url) as engine, _progress(arguments.progress) as progress:
        workloads.prepare(job, places, progress)
        result = dimensions.provision(job, engine, progress, url=arguments.url)
        manifest, changed = dimensions.publish(job, engine, places.snapshots, progress,
                                               memory=int(memory))
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in result.reasons.items())
    print(f"dim_{job.master.name}: read {result.read:,}, inserted {result.inserted:,}, updated "
          f"{result.updated:,}, unchanged {result.unchanged:,}, rejected "
          f"{result.rejected:,}{f' ({reasons})' if reasons else ''}")
    print(f"snapshot {manifest.version}{'' if changed else ', as before'}: "
          f"{manifest.tuple_count:,} rows, in {places.snapshots / job.master.name}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from semistream.pipeline import steps

    result = steps.verify(arguments.app, Places.from_environment(), since_last=arguments.since_last,
                          sample=arguments.sample, job=arguments.job)
    print(f"{result['text']}\nReport: {result['report']}")
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    from semistream.sizing import known_costs, scale_out
    from semistream.tuning import advice
    from semistream.tuning.case import open_case
    from semistream.tuning.settings import TuneSettings

    settings, places = _settings(TuneSettings, arguments), Places.from_environment()
    with _progress(arguments.progress) as progress, open_case(settings, places, progress) as case:
        found = advice.advise(case, settings, places, arguments.measure, progress)
        plans = scale_out.scale_out(case, settings.memory, arguments.scale_out, settings.algorithms,
                                    known_costs(places.home))
    if arguments.json:
        print(json.dumps(found.as_dict()
                         | ({"scale_out": [asdict(p) for p in plans]} if plans else {}), indent=2))
        return 0
    screen = Console(highlight=False)
    for table in (*found.tables(), *scale_out.tables(plans)):
        _print_table(screen if screen.is_terminal else Console(highlight=False, width=150), table)
    return 0


def _estimate_join_size(arguments: argparse.Namespace) -> int:
    from semistream.pipeline.join_size import estimate_join_size, grouped
    from semistream.pipeline.settings import JoinSizeSettings

    settings = _settings(JoinSizeSettings, arguments)
    with _progress(arguments.progress) as progress:
        found = estimate_join_size(settings, Places.from_environment(), progress)
    if arguments.json:
        print(json.dumps(found.as_dict(), indent=2))
        return 0
    table = Table(show_header=False, box=None, pad_edge=False)
    for style, justify in (("bold", "left"), ("", "right"), ("dim", "left")):
        table.add_column(style=style, justify=justify)  # type: ignore[arg-type]
    what = "sum" if found.sum else "join size"
    if found.doubt:
        table.add_row(f"estimated {what}", "cannot tell", "")
    else:
        table.add_row(f"estimated {what}", grouped(found.estimate),
                      f"of {found.sum}, over the rows of the join" if found.sum else "rows")
    table.add_row("off by at most", grouped(found.bound),
                  f"with a probability of {found.confidence:.0%}")
    for symbol, side in (("A", found.left), ("B", found.right)):
        lost = ((side.null_keys, "without a key"), (side.unparsable, "unparsable"))
        table.add_row(f"rows of {symbol}", f"{side.rows:,}",
                      side.name + "".join(f", {n:,} {what}" for n, what in lost if n))
    table.add_row("memory", f"{found.memory_bytes:,}", f"bytes, of both sketches ({found.method})")
    table.add_row("seconds", f"{found.seconds:.1f}",
                  f"in all; {found.ns_per_key:.0f} ns a key in the sketches")
    screen = Console(highlight=False, soft_wrap=True)
    _print_table(screen, table)
    if found.doubt:
        screen.print(found.doubt, markup=False)
    for note in found.notes:
        screen.print(f"note: {note}", markup=False)
    return 0


def _experiments(arguments: argparse.Namespace) -> int:
    from semistream.experiments import EXPERIMENTS
    from semistream.experiments.findings import claims
    from semistream.experiments.report import claims_table
    from semistream.experiments.run import chosen, run
    from semistream.experiments.settings import ExperimentSettings

    screen = Console(highlight=False)
    screen = screen if screen.is_terminal else Console(highlight=False, width=150)
    if arguments.list or not arguments.names:
        table = Table(box=None, pad_edge=False, show_edge=False)
        for column in ("name", "paper", "figure", "default scale", "what"):
            table.add_column(column, overflow="fold")
        for e in EXPERIMENTS.values():
            table.add_row(e.name, e.paper, e.figure, f"{e.scale:g}", e.about)
        _print_table(screen, table)
        return 0
    settings, places = _settings(ExperimentSettings, arguments), Places.from_environment()
    command = shlex.join(["semistream", "experiments", *arguments.names, *settings.to_arguments()])

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    for experiment in chosen(arguments.names):
        try:
            result = run(experiment, settings, places, command, interrupts.interruptible(tell))
        except KeyboardInterrupt:
            print("Interrupted; what was measured is kept, and the same command goes on from "
                  "there.", file=sys.stderr)
            return 130
        if result.findings:
            _print_table(screen, claims_table(result.about, claims(result.findings)))
        for line in result.wrong:
            screen.print(f"Different answers to the same stream: {line}", style="red", markup=False)
        print(f"Report: {result.report}")
        if result.wrong or not result.measured:
            return 1
    return 0


def _algorithms(arguments: argparse.Namespace) -> int:
    from semistream.joins.registry import REGISTRY, Entry
    from semistream.stream_joins.registry import REGISTRY as STREAM_JOINS

    def entry(a: Entry, joins: str, **more: bool) -> dict[str, Any]:
        return {"name": a.name, "title": a.title, "paper": a.paper, "joins": joins, **more,
                "parameters": {n: {"default": f.get_default(call_default_factory=True),
                                   "description": f.description}
                               for n, f in a.parameters.model_fields.items()}}

    entries = [*(entry(a, "a stream and master data", needs_index=a.needs_index)
                 for a in REGISTRY.values()),
               *(entry(a, "two streams") for a in STREAM_JOINS.values())]
    if arguments.json:
        print(json.dumps(entries, indent=2, default=str))
        return 0
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("name", "joins", "needs index", r"parameters \[default]", "paper"):
        table.add_column(column, overflow="fold")
    for e in entries:
        parameters = "\n".join(f"{n} [{p['default']}]: {p['description']}"
                               for n, p in e["parameters"].items())
        index = {True: "yes", False: "no"}[e["needs_index"]] if "needs_index" in e else ""
        table.add_row(e["name"], e["joins"], index,
                      parameters.replace("[", r"\["), e["paper"])
    screen = Console(highlight=False)
    _print_table(screen if screen.is_terminal else Console(highlight=False, width=160), table)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status

    checkpoints = Places.from_environment().checkpoints
    names = [arguments.app] if arguments.app else drivers.app_names(checkpoints)
    for name in names:
        if name not in drivers.app_names(checkpoints):
            raise _unknown_app(name, checkpoints)
        status = read_status(checkpoints / name)
        if status is None:
            print(f"{name}: its status.json cannot be read; a running app writes it anew")
            continue
        print(drivers.describe(checkpoints / name, status))
    if not names:
        print(f"No app has run under {checkpoints}.")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from semistream.pipeline import drivers
    from semistream.streaming.status import read_status, request_stop

    checkpoint = Places.from_environment().checkpoints / arguments.app
    if arguments.app not in drivers.app_names(checkpoint.parent):
        raise _unknown_app(arguments.app, checkpoint.parent)
    status = read_status(checkpoint)
    if status is not None and drivers.ending(checkpoint) is not None:
        print(f"{arguments.app} is not running: {drivers.state_of(checkpoint, status)}.")
        return 0
    request_stop(checkpoint)
    print(f"{arguments.app} was asked to drain and stop; see: semistream status {arguments.app}")
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    from semistream.pipeline import steps

    places, app = Places.from_environment(), arguments.app
    checkpoint = (arguments.checkpoint or places.checkpoints / app).absolute()
    counts = steps.rows_of(app, places)
    if not counts and not checkpoint.is_dir():
        raise _unknown_app(app, places.checkpoints)
    rows = ", ".join(f"{n:,} of {table}" for table, n in counts.items()) or "no rows"
    if not arguments.yes:
        print(f"This deletes what {app} has loaded ({rows}), and {checkpoint}.")
        if not sys.stdin.isatty() or input(f"Type {app} to go on: ") != app:
            print("Nothing was deleted."
                  + ("" if sys.stdin.isatty() else " Give --yes where nobody can be asked."))
            return 1
    steps.reset(app, places, checkpoint, reports=arguments.command == "remove")
    print(f"{app}: deleted {rows}.")
    return 0


def _unknown_app(name: str, checkpoints: Path) -> ConfigError:
    from semistream.pipeline import drivers

    known = ", ".join(drivers.app_names(checkpoints)) or "none"
    return ConfigError("app", f"must have run under {checkpoints}", name,
                       f"Those that have: {known}.")


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    """Show the progress of the work that begins here. Before this, an interrupt has nothing to
    undo."""
    interrupts.raise_from_now_on()
    if not shown:
        yield interrupts.interruptible(silent)
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
               TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield interrupts.interruptible(tell)


_COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None],
                           Callable[[argparse.Namespace], int]]] = {
    "join": (_join_arguments, _join), "join-streams": (_join_streams_arguments, _join_streams),
    "snapshot": (_snapshot_arguments, _snapshot),
    "provision": (_provision_arguments, _provision), "verify": (_verify_arguments, _verify),
    "tune": (_tune_arguments, _tune),
    "estimate-join-size": (_join_size_arguments, _estimate_join_size),
    "experiments": (_experiments_arguments, _experiments),
    "algorithms": (_algorithms_arguments, _algorithms), "status": (_status_arguments, _status),
    "stop": (_stop_arguments, _stop), "reset": (_reset_arguments, _reset),
    "remove": (_reset_arguments, _reset)}
