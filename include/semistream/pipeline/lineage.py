"""The lineage of a load as a drawing: streams and dimensions on the left, tables on the right."""

from __future__ import annotations

from typing import NamedTuple

from semistream.job import AnyJob, Job

WIDTH, HEIGHT, GAP = 220, 52, 18  # of a box; space between two boxes
BETWEEN = 90  # space between two columns of boxes
LETTERS = 30  # most characters of a line in a box


class Box(NamedTuple):
    """A box of the drawing. kind: "stream", "dimension", "load" or "table"; title, text: its two
    lines, shortened; full: both lines in full; name: the dimension's name."""

    kind: str
    title: str
    text: str
    full: str
    name: str
    x: int
    y: int

    @property
    def middle(self) -> int:
        return self.y + HEIGHT // 2


class Drawing(NamedTuple):
    """Boxes, and the lines between them as SVG paths."""

    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    width: int
    height: int


def lineage(app: str, job: AnyJob) -> Drawing:
    """Return the drawing of the streams, dimensions and tables of an app."""
    sources = [("stream", stream.format, stream.path or "", "") for stream in job.streams]
    if isinstance(job, Job):
        sources += [
            (
                "dimension",
                role.dimension.name,
                f"as {role.name} on {', '.join(role.on)}",
                role.dimension.name,
            )
            for role in job.roles
        ]
    targets = [
        ("table", job.fact_table, "facts", ""),
        ("table", "unmatched", "with the reason", ""),
    ]
    height = max(_height(len(sources)), _height(len(targets)))
    left = _column(sources, 0, height)
    (load,) = _column([("load", app, f"job {job.name}", "")], 1, height)
    right = _column(targets, 2, height)
    lines = [_line(box, load) for box in left] + [_line(load, box) for box in right]
    return Drawing((*left, load, *right), tuple(lines), 3 * WIDTH + 2 * BETWEEN, height)


def _height(boxes: int) -> int:
    return boxes * HEIGHT + (boxes - 1) * GAP


def _column(given: list[tuple[str, str, str, str]], column: int, height: int) -> list[Box]:
    top = (height - _height(len(given))) // 2
    return [
        Box(
            kind,
            _short(title),
            _short(text),
            f"{title} {text}".strip(),
            name,
            column * (WIDTH + BETWEEN),
            top + n * (HEIGHT + GAP),
        )
        for n, (kind, title, text, name) in enumerate(given)
    ]


def _short(text: str) -> str:
    """Return the end of a long text. The end of a path says more than its beginning."""
    return text if len(text) <= LETTERS else "…" + text[1 - LETTERS :]


def _line(one: Box, other: Box) -> str:
    begin, end = one.x + WIDTH, other.x
    half = (begin + end) // 2
    return f"M{begin} {one.middle}C{half} {one.middle} {half} {other.middle} {end} {other.middle}"
