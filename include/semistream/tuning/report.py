"""The report of a tuning sweep: a single page that needs neither a network nor another file."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from semistream.cost_models import MODELS, Costs, Frequencies, Workload
from semistream.durable import write_text
from semistream.errors import ConfigError
from semistream.joins.registry import REGISTRY
from semistream.sizing.search import format_sizes, predict, tune
from semistream.sizing.sizing_input import SizingInput
from semistream.tuning.measure import FAILED, MEASURED, Point, error, is_steady

SURFACE, CURVE = 17, 49  # predictions along each of two sizes, and along a single one
SKEWS = np.linspace(0, 1.5, 7)
SCALES = 2.0 ** np.arange(-3, 4)  # factors of M and |R| around the measured ones
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "semistream",
}
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
    "#994f00",
    "#006cd1",
    "#332288",
)


def write_report(
    path: Path,
    about: Mapping[str, Any],
    points: Sequence[Point],
    best: Mapping[int, Point],
    sizing: SizingInput,
    costs: Costs,
) -> Path:
    """Write the report and return the path of its page."""
    environment = Environment(
        loader=PackageLoader("semistream.tuning"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "format_sizes": format_sizes,
        "error": error,
        "titles": {a.name: a.title for a in REGISTRY.values()},
    }
    with rc_context(STYLE):
        plots = list(_plots(points, sizing, costs))
    errors = [abs(error(p)) for p in points if is_steady(p) and p.rate and p.predicted_rate]
    page = environment.get_template("sweep.html").render(
        about=about,
        points=points,
        best=best,
        plots=plots,
        failed=[p for p in points if p.state == FAILED],
        errors=float(np.median(errors)) if errors else None,
        unsteady=sum(p.state == MEASURED and not is_steady(p) for p in points),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def _plots(points: Sequence[Point], sizing: SizingInput, costs: Costs) -> Iterator[dict[str, str]]:
    """Yield title, SVG and caption of each plot."""
    algorithms = list(dict.fromkeys(p.algorithm for p in points))
    colour = dict(zip(algorithms, COLOURS * (1 + len(algorithms) // len(COLOURS)), strict=False))
    if any(is_steady(p) and p.predicted_rate for p in points):
        yield {
            "title": "Predicted beside measured",
            "svg": _predicted_against_measured(points, colour),
            "caption": "Service rate of every point; on the line the model is right, in "
            "the band within 10%.",
        }
    yield {
        "title": "Service rate over memory",
        "svg": _over_memory(points, sizing, costs, colour),
        "caption": "Lines: predicted at the best sizes. Dots: the best measured for a budget.",
    }
    memory = max(p.memory for p in points)
    yield {
        "title": "Service rate over |R| and skew",
        "svg": _over_workload(sizing, costs, memory, colour),
        "caption": f"Predicted for M = {memory:,} bytes and keys by Zipf's law: over |R| "
        f"with exponent 1, over the exponent with the |R| of this sweep, "
        f"{int(sizing.workload.values) * sizing.partitions:,}.",
    }
    for algorithm, budget in itertools.product(algorithms, dict.fromkeys(p.memory for p in points)):
        mine = [
            p for p in points if (p.algorithm, p.memory) == (algorithm, budget) and p.predicted_rate
        ]
        if mine:
            yield {
                "title": f"{REGISTRY[algorithm].title}, M = {budget:,} bytes",
                "svg": _sizes(mine, sizing, costs),
                "caption": "Predicted service rate over the sizes. Dots are "
                "measured, ringed is the model's best.",
            }


def _predicted_against_measured(points: Sequence[Point], colour: Mapping[str, str]) -> str:
    """Plot the predicted rate of each point against its measured rate."""
    figure, axes = figure_of(5.2, 4.4)
    known = [p for p in points if is_steady(p) and p.predicted_rate]
    for algorithm in dict.fromkeys(p.algorithm for p in known):
        mine = [p for p in known if p.algorithm == algorithm]
        axes.scatter(
            [p.rate for p in mine],
            [p.predicted_rate for p in mine],
            s=28,
            color=colour[algorithm],
            label=REGISTRY[algorithm].title,
            zorder=3,
        )
    values = [v for p in known for v in (p.rate or 0.0, p.predicted_rate)]
    low, high = min(values) / 1.5, max(values) * 1.5
    axes.plot([low, high], [low, high], color="#555", lw=1)
    axes.fill_between(
        [low, high],
        [0.9 * low, 0.9 * high],
        [1.1 * low, 1.1 * high],
        color="#555",
        alpha=0.12,
        lw=0,
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        ylim=(low, high),
        xlabel="measured, tuples/s",
        ylabel="predicted, tuples/s",
    )
    axes.legend(frameon=False)
    return svg(figure)


def _over_memory(
    points: Sequence[Point], sizing: SizingInput, costs: Costs, colour: Mapping[str, str]
) -> str:
    """Plot the predicted and the measured rates against M."""
    figure, axes = figure_of(7, 4)
    budgets = sorted({p.memory for p in points})
    over = np.unique(np.concatenate([[b * s for s in SCALES] for b in budgets]))
    for algorithm in colour:
        known = [
            (m, r)
            for m in over
            if (
                r := _rate(
                    algorithm, sizing.workload.smooth(), m / sizing.partitions, costs, sizing
                )
            )
        ]
        axes.plot(
            *_columns(known), color=colour[algorithm], lw=1.2, label=REGISTRY[algorithm].title
        )
        rates = [
            (b, max(found))
            for b in budgets
            if (
                found := [
                    p.rate for p in points if p.rate and (p.algorithm, p.memory) == (algorithm, b)
                ]
            )
        ]
        axes.plot(*_columns(rates), "o", color=colour[algorithm], ms=6)
    axes.set(xscale="log", yscale="log", xlabel="M, bytes", ylabel="tuples/s")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(figure)


def _over_workload(
    sizing: SizingInput, costs: Costs, memory: int, colour: Mapping[str, str]
) -> str:
    """Plot the predicted rates against |R|, and against the Zipf exponent of the keys."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    work, each = sizing.workload.smooth(), memory / sizing.partitions
    sizes = [max(int(work.master_tuples * scale), 1) for scale in SCALES]

    def plot(at: Any, algorithm: str, shapes: Iterable[tuple[float, int, float]]) -> None:
        """Plot the rates of an algorithm. shapes: (x, |R|, exponent) of each point."""
        rates = []
        for x, tuples, skew in shapes:
            keys = Frequencies.zipf(max(int(tuples / work.fan_out), 1), skew)
            other = replace(work, master_tuples=tuples, frequencies=keys)
            if rate := _rate(algorithm, other, each, costs, sizing):
                rates.append((x, rate))
        name, line = REGISTRY[algorithm].title, colour[algorithm]
        at.plot(*_columns(rates), color=line, lw=1.2, marker=".", label=name)

    for algorithm in colour:
        plot(left, algorithm, [(n * sizing.partitions, n, 1.0) for n in sizes])
        plot(right, algorithm, [(float(s), work.master_tuples, float(s)) for s in SKEWS])
    left.set(xscale="log", yscale="log", xlabel="|R|, tuples", ylabel="tuples/s")
    right.set(xlabel="Zipf exponent")
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(figure)


def _sizes(points: Sequence[Point], sizing: SizingInput, costs: Costs) -> str:
    """Plot the predicted rate as a curve if there is one size, as a surface if there are two."""
    algorithm, each = points[0].algorithm, points[0].memory / sizing.partitions
    kinds, work = MODELS[algorithm].sizes, sizing.workload.smooth()
    names = list(kinds)

    def rate(*sizes: float) -> float:
        return (
            predict(algorithm, work, each, costs, **dict(zip(names, sizes, strict=True))).mu
            / sizing.share
        )

    axes = []
    for name, kind in kinds.items():
        (low, high), measured = kind.bounds(work, each), [p.parameters[name] for p in points]
        first, last = max(low, min(measured) / 4), max(min(high, max(measured) * 4), *measured)
        axes.append(np.geomspace(first, last, CURVE if len(names) == 1 else SURFACE))
    return (_curve if len(names) == 1 else _surface)(points, names, axes, rate)


def _curve(
    points: Sequence[Point],
    names: Sequence[str],
    axes: Sequence[np.ndarray],
    rate: Callable[..., float],
) -> str:
    """Plot the predicted rate against one size, with the measured points."""
    figure, plot = figure_of(6, 3.4)
    known = [(x, y) for x in axes[0] if (y := rate(x)) > 0]
    plot.plot(*_columns(known), color=COLOURS[0], label="predicted")
    _dots(plot, points, lambda p: (p.parameters[names[0]],))
    plot.set(xscale="log", xlabel=names[0], ylabel="tuples/s")
    plot.set_ylim(bottom=0)
    plot.yaxis.set_major_formatter(FuncFormatter(short))
    plot.legend(frameon=False)
    return svg(figure)


def _surface(
    points: Sequence[Point],
    names: Sequence[str],
    axes: Sequence[np.ndarray],
    rate: Callable[..., float],
) -> str:
    """Plot the predicted rate against two sizes, with the measured points."""
    figure = Figure(figsize=(7, 4.8))
    figure.subplots_adjust(left=0.02, right=0.9, bottom=0.08, top=1)
    plot: Any = figure.add_subplot(projection="3d", computed_zorder=False)
    x, y = np.meshgrid(np.log10(axes[0]), np.log10(axes[1]), indexing="ij")
    z = np.array([[rate(a, b) or math.nan for b in axes[1]] for a in axes[0]])
    plot.plot_surface(x, y, z, cmap="viridis", alpha=0.75, linewidth=0.3, edgecolor="#ffffff66")
    _dots(plot, points, lambda p: tuple(math.log10(p.parameters[n]) for n in names))
    for p in (p for p in points if p.rate):  # a line from the surface to the point
        a, b = (math.log10(p.parameters[n]) for n in names)
        plot.plot([a, a], [b, b], [p.predicted_rate, p.rate], color="#cc3311", lw=0.8, zorder=4)
    plot.set(xlabel=names[0], ylabel=names[1], zlabel="tuples/s")
    plot.yaxis.labelpad = 10
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(FuncFormatter(lambda v, _: short(10**v, _)))
    plot.zaxis.set_major_formatter(FuncFormatter(short))
    plot.set_box_aspect(None, zoom=0.95)
    if plot.get_legend_handles_labels()[0]:
        plot.legend(frameon=False, loc="upper left")
    return svg(figure)


def _dots(plot: Any, points: Sequence[Point], at: Callable[[Point], tuple[float, ...]]) -> None:
    """Draw the measured points, and a ring around the point that is best according to the model.
    at: a function that returns the plotted sizes of a point."""
    measured = [p for p in points if p.rate]
    dot = {"s": 30, "color": "#cc3311", "label": "measured", "zorder": 4}
    ring = {"s": 110, "facecolors": "none", "edgecolors": "#222", "label": "the model's best"}
    for some, style in ((measured, dot), ([p for p in measured if p.best], ring | {"zorder": 5})):
        if some:
            plot.scatter(*_columns([(*at(p), p.rate or 0.0) for p in some]), **style)


def _rate(
    algorithm: str, work: Workload, memory: float, costs: Costs, sizing: SizingInput
) -> float:
    """Return the rate predicted at the best sizes; 0 if M is too small."""
    try:
        return tune(algorithm, work, memory, costs).mu / sizing.share
    except ConfigError:
        return 0.0


def figure_of(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure of this width and height in inches, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def svg(figure: Figure) -> str:
    """Return the figure as an SVG element of a page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(
        r"<metadata>.*?</metadata>", "", out.getvalue()[out.getvalue().index("<svg") :], flags=re.S
    )


def _columns(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return list(zip(*rows, strict=True)) or [(), ()]


def short(value: float, _: Any = None) -> str:
    """Format a number briefly: 12k, 3.4M."""
    for unit, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"
