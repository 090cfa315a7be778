"""The benefit of passing operators between Python workers: the app with and without it.

Without it, the app runs from a copy of its source in which the passing is switched off: a worker
then restores the saved state of a partition that it did not run last.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import semistream
from benchmarks.data import MASTER_BYTES, Stream
from benchmarks.harness import Bench
from benchmarks.spark_join import App, AppPeer, Case

# (file, a text in it, the text that replaces it)
OPERATORS = ("operators.py", "        return fetch(key)\n", "        return None\n")
WITHOUT = {"operators passed": (), "operators restored": (OPERATORS,)}


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
    partitions: tuple[int, ...] = (2, 8)  # P


SCALES = {
    "smallest": Settings(master=50_000, batch=20_000, batches=4, warm_up=2, partitions=(2,)),
    "small": Settings(),
    "full": Settings(master=20_000_000, share=10.0, batch=1_000_000),
}


def run(bench: Bench, s: Settings) -> None:
    memory = int(s.share / 100 * s.master * MASTER_BYTES)
    case = Case(
        bench.files,
        Stream(s.master),
        s.batch,
        s.batches,
        s.warm_up,
        s.driver_memory,
        f"local[{s.cores},4]",
    )
    case.make()
    for count in s.partitions:
        peers = {n: Without(App(case, s.algorithm, memory, count), n) for n in WITHOUT}
        bench.compare(
            "workers",
            f"R={s.master:,} M={memory / 1e6:,.0f}MB batch={s.batch:,} P={count}",
            peers,
            "operators restored",
        )


@dataclass(frozen=True)
class Without:
    """The app with the changes to its source that ``WITHOUT`` lists for a name."""

    of: App
    name: str

    def __call__(self) -> AppPeer:
        source = self.of.case.files.runs / f"source {self.name}"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(
            Path(semistream.__file__).parent,
            source / "semistream",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for file, present, other in WITHOUT[self.name]:
            path = source / "semistream" / "streaming" / "workers" / file
            text = path.read_text()
            if present not in text:
                raise ValueError(f"{path} has not: {present}")
            path.write_text(text.replace(present, other))
        return AppPeer(self.of, {"PYTHONPATH": str(source)})
