"""The report's pictures, as inline SVG: what happened to the tuples, and the course of the last
loads. Each picture has a text for people who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from semistream.counted import counted
from semistream.joins.waits import in_seconds

WIDTH = 360  # of a picture, so that its text has its size on a phone
LINE = 17  # between two lines of text
BAR, LEFT, RIGHT = 12, 116, 168  # width of a bar; where the left and the right bars begin
TREND, MARGIN = 96, 22  # height of a trend's plot, and the space above and below it
LABELS = 62  # space at the right of a plot, for its numbers


def flow(of: dict[str, Any]) -> Markup:
    """Return the picture of a flow (``report._flows``): a bar of the incoming tuples, a bar for
    each result, and bands between them whose width is the number of tuples."""
    came, went = of["came"], of["went"]
    total = sum(n for _, n in came) or 1
    height = LINE * max(len(went), len(came), 4)
    left, right = _stacked(came, total, height), _stacked(went, total, height)
    shapes, at = list[Markup](), 0.0
    for (label, n), (top, size) in zip(went, right, strict=True):
        tone = _tone(label)
        start, at = at, at + height * n / total
        shapes.append(_band(start, at, top, top + size, tone))
        shapes.append(_rect(RIGHT - BAR, top, BAR, size, tone))
    shapes += [_rect(LEFT, top, BAR, size, "came") for top, size in left]
    for (label, n), y in zip(went, _lines(right, height), strict=True):
        # a tuple that was joined again is there twice
        share = f" ({n / total:.1%})" if n != total and "resolved" not in dict(came) else ""
        shapes.append(_text(RIGHT + 6, y, f"{label} {n:,}{share}"))
    for (label, n), y in zip(came, _lines(left, height), strict=True):
        shapes.append(_text(LEFT - 6, y, f"{n:,} {label}", "end"))
    words = "; ".join(f"{n:,} {label}" for label, n in (*came, *went))
    name = of["name"] or "in all"
    return _svg(height + 4, f"{name}: {words}", shapes)


def trend(of: dict[str, Any]) -> Markup:
    """Return the picture of a series (``report._trends``): a point for each load, the usual band
    behind the points, and marks on the loads outside their limits."""
    loads = of["loads"]
    values = [x for load in loads for x in (load["value"], load["low"], load["high"]) if x]
    top = 1.0 if of["form"] == "share" else max(values, default=0) or 1
    low = min(*values, 1.0, top) if of["form"] == "share" else 0.0
    low = max(low - 0.1 * (top - low), 0.0) if low < top else 0.9 * top
    width = (WIDTH - LABELS) / max(len(loads), 1)

    def y(value: float) -> float:
        clipped = min(max(value, low), top)
        return MARGIN + TREND * (1 - (clipped - low) / (top - low))

    shapes = [
        _rect(
            n * width,
            y(top if load["high"] is None else load["high"]),
            width,
            y(load["low"] or low) - y(top if load["high"] is None else load["high"]),
            "usual",
        )
        for n, load in enumerate(loads)
        if (load["low"], load["high"]) != (None, None)
    ]
    shapes += [
        _line(n * width, (n + 1) * width, y(load["median"]), "median")
        for n, load in enumerate(loads)
        if load["median"] is not None
    ]
    for n, load in enumerate(loads):
        tone = "outside" if load["outside"] else "load"
        words = f"{load['batches']}, {load['at']}: {number(load['value'], of['form'])}"
        top_of = y(load["value"])
        if of["form"] == "share":
            shape = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.5" class="{}">').format(
                (n + 0.5) * width, top_of, tone
            )
            end = Markup("</circle>")
        else:
            shape = Markup(
                '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}">'
            ).format(n * width + 1, top_of, max(width - 2, 1), y(low) - top_of + 0.5, tone)
            end = Markup("</rect>")
        shapes.append(shape + Markup("<title>{}</title>").format(words) + end)
    shapes.append(_line(0, WIDTH - LABELS, y(low), "axis"))
    last = loads[-1]
    shapes.append(_text(WIDTH - LABELS + 6, MARGIN + 4, number(top, of["form"])))
    shapes.append(_text(WIDTH - LABELS + 6, y(low) + 4, number(low, of["form"])))
    shapes.append(_text(0, 12, f"newest: {number(last['value'], of['form'])}"))
    if last["median"] is not None:
        usual = f"usual: {number(last['median'], of['form'])}"
        shapes.append(_text(WIDTH - LABELS, 12, usual, "end"))
    outside = [load for load in loads if load["outside"]]
    words = (
        f"{of['name']} of the last {counted(len(loads), 'load')}, newest "
        f"{number(last['value'], of['form'])}; outside what is expected: "
        + (", ".join(load["batches"] for load in outside) or "none")
    )
    return _svg(TREND + 2 * MARGIN - 10, words, shapes)


def number(value: float, form: str) -> str:
    """Return a value of a series as text."""
    if form == "seconds":
        return in_seconds(value)
    return f"{value:.1%}" if form == "share" else f"{value:,.0f}"


def _stacked(
    parts: Sequence[tuple[str, int]], total: int, height: float
) -> list[tuple[float, float]]:
    """Return (top, height) of each part's bar. Even small parts have a visible height."""
    gap = 3.0
    room = height - gap * (len(parts) - 1)
    sizes = [max(room * n / total, 2.0 if n else 0.5) for _, n in parts]
    scale = min(1.0, room / sum(sizes))
    tops, at = list[tuple[float, float]](), 0.0
    for size in sizes:
        tops.append((at, size * scale))
        at += size * scale + gap
    return tops


def _lines(bars: Sequence[tuple[float, float]], height: float) -> list[float]:
    """Return the vertical position of each bar's text: at the bar's middle, but below the previous
    text, and with room for the texts that follow."""
    out, at = list[float](), float("-inf")
    for n, (top, size) in enumerate(bars):
        most = height - LINE * (len(bars) - n) + LINE - 3
        at = max(min(top + size / 2 + 4, most), at + LINE, 11.0)
        out.append(at)
    return out


def _tone(label: str) -> str:
    known = {"matched": "matched", "waiting": "waits", "without a row": "without"}
    return known.get(label, "unmatched")


def _band(a: float, b: float, c: float, d: float, tone: str) -> Markup:
    x, end = LEFT + BAR, RIGHT - BAR
    middle = (x + end) / 2
    return Markup(
        '<path class="band {}" d="M{x} {a:.1f}C{m} {a:.1f} {m} {c:.1f} {e} {c:.1f}L{e} {d:.1f}'
        'C{m} {d:.1f} {m} {b:.1f} {x} {b:.1f}Z"/>'
    ).format(tone, x=x, e=end, m=middle, a=a, b=b, c=c, d=d)


def _rect(x: float, y: float, width: float, height: float, tone: str) -> Markup:
    return Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"/>').format(
        x, y, width, max(height, 0.0), tone
    )


def _line(x: float, to: float, y: float, tone: str) -> Markup:
    return Markup('<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" class="{}"/>').format(
        x, to, y, y, tone
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )


def _svg(height: float, words: str, shapes: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, words, Markup("").join(shapes)
    )
