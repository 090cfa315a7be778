"""Join sizes from sketches. A sketch summarises a stream of keys within a given memory. It supports
insertions and deletions, and can be merged, stored and sent."""

from semistream.sketches.agms import AgmsSketch
from semistream.sketches.methods import METHODS, read_sketch
from semistream.sketches.sampled import SampledSketch
from semistream.sketches.sketch import Estimate, Sketch
from semistream.sketches.skimmed import SkimmedSketch

__all__ = [
    "METHODS",
    "AgmsSketch",
    "Estimate",
    "SampledSketch",
    "Sketch",
    "SkimmedSketch",
    "read_sketch",
]
