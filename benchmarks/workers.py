"""What passing operators between Python workers, and sharing decoded tuples, are worth: the app
with and without each.

Without one of them, the app runs from a copy of its source in which it is switched off: a worker
then restores the saved state of a partition that it did not run last, or decodes all files of a
micro-batch by itself.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import semistream
from benchmarks.data import MASTER_BYTES, Stream
from benchmarks.harness import Bench
from benchmarks.spark_join import App, AppPeer, Case

# File, what it has, and what is put in its place.
OPERATORS = ("operators.py", "        return fetch(key)\n", "        return None\n")
TUPLES = ("parquet.py", "    if batch is None or ", "    if True or ")
WITHOUT = {"both": (), "no operators passed": (OPERATORS,), "no tuples shared": (TUPLES,),
           "neither": (OPERATORS, TUPLES)}


@dataclass(frozen=True)
class Settings:
    master: int = 1_000_000  # R_t
    share: float = 30.0  # M, percent of R
    batch: int = 200_000  # tuples of a micro-batch
    batches: int = 15
    warm_up: int = 5
    algorithm: str = "elevatorjoin"
    driver_memory: str = "2g"
    cores: int = 2


SCALES = {"smallest": Settings(master=50_000, batch=20_000, batches=4, warm_up=2),
          "small": Settings(), "full": Settings(master=20_000_000, share=10.0, batch=1_000_000)}


def run(bench: Bench, s: Settings) -> None:
    memory = int(s.share / 100 * s.master * MASTER_BYTES)
    case = Case(bench.files, Stream(s.master), s.batch, s.batches, s.warm_up, s.driver_memory,
                f"local[{s.cores},4]")
    case.make()
    peers = {name: Without(App(case, s.algorithm, memory), name) for name in WITHOUT}
    bench.compare("workers", f"R={s.master:,} M={memory / 1e6:,.0f}MB batch={s.batch:,}", peers,
                  "neither")


@dataclass(frozen=True)
class Without:
    """The app without what ``WITHOUT`` says of a name."""

    of: App
    name: str

    def __call__(self) -> AppPeer:
        source = self.of.case.files.runs / f"source {self.name}"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(Path(semistream.__file__).parent, source / "semistream",
                        ignore=shutil.ignore_patterns("__pycache__"))
        for file, present, other in WITHOUT[self.name]:
            path = source / "semistream" / "streaming" / "workers" / file
            text = path.read_text()
            if present not in text:
                raise ValueError(f"{path} has not: {present}")
            path.write_text(text.replace(present, other))
        return AppPeer(self.of, {"PYTHONPATH": str(source)})
