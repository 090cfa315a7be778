"""The report of an experiment: one page that needs neither a network nor another file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

from benchmarks.papers.explain import SEEK, TERMS, limits, sentence
from benchmarks.papers.findings import Finding
from benchmarks.papers.model import FAILED, SYMBOLS, TITLES, Experiment, Plot, Row, having
from semistream.counted import counted
from semistream.durable import write_text
from semistream.joins import REGISTRY
from semistream.tuning.report import COLOURS, STYLE, figure_of, short, svg

DASHES = {"model": "--", "printed": ":", "expected": "-.", "logarithm": "-.", "power": (0, (1, 3))}
NAMES = {
    "model": "model",
    "printed": "as printed",
    "expected": "expected count",
    "logarithm": "by logarithms",
    "power": "by fitted powers",
}


def write_report(
    path: Path,
    experiment: Experiment,
    about: Mapping[str, Any],
    rows: Sequence[Row],
    findings: Sequence[Finding],
    wrong: Sequence[str] = (),
) -> Path:
    """Write the report and return the path of its page."""
    environment = Environment(
        loader=PackageLoader("benchmarks.papers"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "shown": shown,
        "sentence": sentence,
        "limits": limits,
        "terms": list(TERMS),
        "number": _number,
        "sizes": _sizes,
        "titles": {a.name: a.title for a in REGISTRY.values()},
        "seek": SEEK,
    }
    with rc_context(STYLE):
        plots = [
            {"title": p.title, "caption": p.caption, "svg": drawn}
            for p in experiment.plots
            if (drawn := draw(p, rows))
        ]
    page = environment.get_template(
        experiment.study.page if experiment.study else "experiment.html"
    ).render(
        experiment=experiment,
        about=about,
        rows=rows,
        findings=findings,
        plots=plots,
        wrong=wrong,
        failed=[r for r in rows if r["state"] == FAILED],
        needed=any("needed" in r for r in rows),
        several=len({r["data"] for r in rows}) > 1,
        explained=[f for f in findings if f.why],
    )
    write_text(path, page)
    return path


def claims_table(about: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table, for a terminal, of the claims in results.json."""
    table = Table(
        title=f"{about['experiment']}: {about['about']}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("claim", "claimed", "measured", "by the models", "verdict"):
        table.add_column(
            name, justify="left" if name in ("claim", "verdict") else "right", overflow="fold"
        )
    for c in claims:
        table.add_row(
            c["claim"],
            c["claimed"],
            shown(c["measured"], c["unit"], c["interval"] or 0.0),
            shown(c["predicted"], c["unit"]),
            f"{c['verdict']}{', our aim' if c.get('aim') else ''}",
        )
    return table


def claims_text(values: Mapping[str, Any]) -> str:
    """Return the claims as text, with their provenance."""
    about, sink = values["about"], StringIO()
    m, screen = about["machine"], Console(file=sink, width=150, highlight=False)
    versions = ", ".join(
        f"{k} {v}" for k, v in {"python": m["python"], **about["versions"]}.items()
    )
    screen.print(
        f"{m['processor']}, {counted(m['cores'], 'core')}, {m['memory'] / 1e9:.0f} GB, "
        f"{m['system']}\ncommit {about['commit']}"
        f"{' and changes' if about['dirty'] else ''}, {versions}",
        soft_wrap=True,
    )
    answers = "; ".join(values["wrong_answers"]) or about["answers"]
    screen.print(
        f"$ {about['command']}\nscale {about['scale']:g}; "
        f"{about['repetitions']} repetitions; {about['page_cache']}; answers: {answers}",
        soft_wrap=True,
        markup=False,
    )
    if about.get("judged"):
        screen.print(about["judged"], soft_wrap=True)
    screen.print()
    screen.print(claims_table(about, values["claims"]))
    for c in values["claims"]:
        reasons = [c["reason"], told_in_full(c)]
        if any(reasons):
            screen.print(
                f"\n{c['claim']}: {c['verdict']}. {' '.join(filter(None, reasons))}", markup=False
            )
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def told_in_full(claim: Mapping[str, Any]) -> str:
    """Describe the finding of a benchmark about the claim at the paper's own size; "" if there is
    none."""
    full = claim.get("full")
    if not full:
        return ""
    figure = shown(full["measured"], claim["unit"], full["interval"])
    return f"At the paper's own |R| and M {figure} ({full['told']}): {full['verdict']}."


def shown(number: float | None, unit: str, interval: float = 0.0) -> str:
    """Format a claim's figure."""
    if number is None:
        return "–"
    scale, digits, sign = (100, 1, "%") if unit == "%" else (1, 2, "")
    return (
        f"{scale * number:.{digits}f}"
        + (f" ± {scale * interval:.{digits}f}" if 0 < interval < math.inf else "")
        + sign
    )


def draw(plot: Plot, rows: Sequence[Row]) -> str:
    """Draw a plot as an SVG element; empty if there is nothing to show."""
    found = [
        r
        for r in having(rows, **plot.only)
        if r.get(plot.x) is not None and r.get(plot.y) is not None
    ]
    if not found:
        return ""
    if plot.x == plot.y:
        return _against(plot, found)
    if plot.second:
        return _surface(plot, found)
    # Colours are assigned over all rows, so that a series has one colour in all plots.
    return _lines(
        plot,
        found,
        dict(zip(dict.fromkeys(r["series"] for r in rows), cycle(COLOURS), strict=False)),
    )


def _lines(plot: Plot, rows: Sequence[Row], colours: Mapping[str, str]) -> str:
    figure, axes = figure_of(7, 3.8)
    over_time = isinstance(rows[0][plot.x], list)
    for series, colour in colours.items():
        mine = [r for r in rows if r["series"] == series]
        if not mine:
            continue
        if over_time:
            for r in mine:
                values = [math.nan if y is None else y for y in r[plot.y]]
                axes.plot(r[plot.x], values, color=colour, lw=1.4, label=series)
            continue
        mine.sort(key=lambda r: r[plot.x])
        at = [r[plot.x] for r in mine]
        axes.errorbar(
            at,
            [r[plot.y] for r in mine],
            [r.get(f"{plot.y}_interval") or 0.0 for r in mine],
            color=colour,
            marker="o",
            ms=4,
            lw=1.4,
            capsize=2,
            label=series,
        )
        for model in plot.models:
            known = [
                (r[plot.x], r[f"{plot.y}_{model}"])
                for r in mine
                if r.get(f"{plot.y}_{model}") is not None
            ]
            if known:
                axes.plot(*zip(*known, strict=True), linestyle=DASHES[model], color=colour, lw=1)
    for model in plot.models:
        if any(f"{plot.y}_{model}" in r for r in rows):
            axes.plot([], [], linestyle=DASHES[model], color="#555", lw=1, label=NAMES[model])
    _name(plot, axes, plot.y)
    return svg(figure)


def _against(plot: Plot, rows: Sequence[Row]) -> str:
    """Draw modelled against measured values, and return the plot's markup."""
    figure, axes = figure_of(4.6, 3.8)
    for model, colour in zip(plot.models, COLOURS, strict=False):
        axes.scatter(
            [r[plot.x] for r in rows],
            [r[f"{plot.y}_{model}"] for r in rows],
            s=18,
            color=colour,
            label=NAMES[model],
            zorder=3,
        )
    values = [r[plot.x] for r in rows] + [r[f"{plot.y}_{m}"] for r in rows for m in plot.models]
    ends = min(values) / 1.3, max(values) * 1.3
    axes.plot(ends, ends, color="#555", lw=1)
    axes.fill_between(
        ends, [0.9 * e for e in ends], [1.1 * e for e in ends], color="#555", alpha=0.12, lw=0
    )
    axes.set(
        xlabel=f"measured {TITLES[plot.x]}",
        ylabel=f"calculated {TITLES[plot.y]}",
        xlim=ends,
        ylim=ends,
    )
    axes.set(xscale="log", yscale="log")
    axes.legend(frameon=False)
    return svg(figure)


def _surface(plot: Plot, rows: Sequence[Row]) -> str:
    """Draw a table of colours: measured values on the left, the model's on the right."""
    xs, ys = (sorted({r[k] for r in rows}) for k in (plot.x, plot.second))
    figure, (left, right) = figure_of(9, 3.6, 1, 2)
    for axes, key, title in (
        (left, plot.y, "measured"),
        (right, f"{plot.y}_model", "by the model"),
    ):
        z = np.full((len(ys), len(xs)), np.nan)
        for r in rows:
            z[ys.index(r[plot.second]), xs.index(r[plot.x])] = r[key]
        image = axes.imshow(z, origin="lower", aspect="auto", cmap="viridis")
        for (i, j), value in np.ndenumerate(z):
            if not np.isnan(value):
                dark = value < (np.nanmin(z) + np.nanmax(z)) / 2
                best = value == np.nanmax(z)
                axes.text(
                    j,
                    i,
                    short(value),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                    weight="bold" if best else "normal",
                )
        axes.set(
            xticks=range(len(xs)),
            xticklabels=[short(x) for x in xs],
            yticks=range(len(ys)),
            yticklabels=[short(y) for y in ys],
            xlabel=TITLES[plot.x],
            ylabel=TITLES[plot.second],
            title=title,
        )
        axes.grid(False)
        figure.colorbar(image, ax=axes, format=FuncFormatter(short))
    return svg(figure)


def _name(plot: Plot, axes: Any, y: str) -> None:
    axes.set(xlabel=TITLES.get(plot.x, plot.x), ylabel=TITLES.get(y, y))
    if "x" in plot.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_formatter(NullFormatter())
    if "y" in plot.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(short))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _number(value: float | None) -> str:
    """Format a number: with separators if it is large, with three significant digits if it is
    small."""
    if value is None or np.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _sizes(parameters: Mapping[str, Any]) -> str:
    """Format sizes with the papers' symbols."""
    return ", ".join(
        f"{SYMBOLS.get(k, k)} {v:,}" if not isinstance(v, str) else f"{k} {v}"
        for k, v in parameters.items()
    )
