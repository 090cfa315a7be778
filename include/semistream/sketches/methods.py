"""The kinds of sketches, and a reader for all of them."""

from semistream.errors import StateError
from semistream.sketches.agms import AgmsSketch
from semistream.sketches.sketch import Sketch, unpack
from semistream.sketches.skimmed import SkimmedSketch

METHODS: dict[str, type[Sketch]] = {s.name: s for s in (SkimmedSketch, AgmsSketch)}


def read_sketch(blob: bytes) -> Sketch:
    """Read a sketch that ``Sketch.to_bytes`` wrote. Raises StateError for a blob that is damaged or
    of another version."""
    values, words = unpack(blob)
    if values["name"] not in METHODS:
        raise StateError(
            f"the sketch is of a kind that is not known: {values['name']}. Make it "
            f"anew from its stream."
        )
    parameters = {k: v for k, v in values.items() if k not in ("name", "inserted", "deleted")}
    sketch = METHODS[values["name"]](**parameters)
    sketch._restore(words, values)
    return sketch
