"""The cost model of XJoin, and of PJoin without purging: the cost of state on disk.

Neither paper gives one. With or without enough memory, a tuple is joined with the tuples in memory
(c_M), and a result row is written (c_O). Tuples that do not fit into M are moved to disk (c_W). At
the end of the streams each hash bucket is joined as a block nested loop of hash tables: each tuple
of the left stream is put into one (c_D), and each of the right stream is looked up in every one
(c_D). A result row is found on disk if one of its tuples was moved before the other came, and takes
longer (c_P).

If a hash bucket of the left stream does not fit into the memory of a disk join, all other tuples
are moved to disk as well, so that the disk join has all of M: the passes over the right stream stay
1 until a hash bucket outgrows that. A bucket that is moved is a run, which has a fixed cost when it
is written and each time that it is read (c_R): the smaller M, the more runs there are of the same
tuples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semistream.stream_joins.disk_join import HeldTuples
from semistream.stream_joins.kernels import BUCKETS
from semistream.stream_joins.memory import LOAD, Directory
from semistream.stream_joins.state import FREED_SHARE, held_rows

# tuples of a run, divided by those of a stream's mean hash bucket in memory; measured with a state
# of 2 to 40 times M
RUN = 1.6


@dataclass(frozen=True)
class StreamWorkload:
    """Two finite streams. left, right: tuples; tuple_bytes: v, bytes in the memory portion, without
    the directory; values: distinct join values; results: rows of the join."""

    left: float
    right: float
    tuple_bytes: float
    values: float
    results: float

    @property
    def tuples(self) -> float:
        return self.left + self.right

    @property
    def state_bytes(self) -> float:
        """Bytes of a state that holds all tuples. Because the directory doubles in size, it is
        assumed to have sqrt(2 / LOAD) positions per value, the geometric mean between two
        doublings."""
        return self.tuples * self.tuple_bytes + self.values * Directory.POSITION * math.sqrt(
            2 / LOAD
        )


@dataclass(frozen=True)
class StateCosts:
    """Costs in seconds. c_m: join a tuple with the tuples in memory, and store it; c_o: write a
    result row; c_w: move a tuple to disk, including its part of closing the gap in memory and its
    removal at the end; c_d: read a tuple in a disk join, to index it or to look it up; c_p:
    additional cost of a result row that a disk join finds; c_r: begin to write or to read a run."""

    c_m: float
    c_o: float
    c_w: float
    c_d: float
    c_p: float
    c_r: float


@dataclass(frozen=True)
class StatePrediction:
    """A prediction. relocated: tuples moved to disk; read: tuples read by the disk join; found:
    result rows of the disk join; accesses: how many times a run is written or read; seconds: total
    time; in_memory: seconds of the same join with enough memory."""

    relocated: float
    read: float
    found: float
    accesses: float
    seconds: float
    in_memory: float

    @property
    def slowdown(self) -> float:
        return self.seconds / self.in_memory


def fitting(*, m: float, tuple_bytes: float, values: float) -> float:
    """Return the number of tuples that fit into M bytes, if `values` distinct join values are
    equally frequent. M also holds a directory with 2 * `values` positions, its size just after it
    was enlarged."""
    free, tuples = m - HeldTuples.ROW * held_rows(m), m / tuple_bytes
    for _ in range(50):
        apart = values * -math.expm1(-tuples / values)  # different values among the tuples
        tuples = free / (tuple_bytes + 2 * Directory.POSITION * apart / tuples)
    return tuples


def relocated(*, n: float, m: float, tuple_bytes: float, values: float) -> float:
    """Return how many of n tuples are relocated to disk: a whole number of state relocations, each
    of which frees the same share of M."""
    over = n - fitting(m=m, tuple_bytes=tuple_bytes, values=values)
    step = m / FREED_SHARE / tuple_bytes
    return min(max(math.ceil(over / step), 0) * step, n)


def found_on_disk(*, n: float, o: float, fitting: float) -> float:
    """Return how many of o result rows of n tuples the disk join finds. In memory a tuple meets
    only the tuples that are in memory when it comes. Until M is full these are all earlier tuples.
    Afterwards they are as many tuples as fit, less half a state relocation on average."""
    if n <= fitting:
        return 0.0
    held = fitting * (1 - 1 / (2 * FREED_SHARE))
    return o * (1 - (fitting**2 / 2 + held * (n - fitting)) / (n**2 / 2))


def runs(*, d: float, fitting: float) -> float:
    """Return the number of runs of d relocated tuples. A run is ``RUN`` times as large as a
    stream's mean hash bucket in memory, because the largest buckets are relocated."""
    return d / (RUN * fitting / (2 * BUCKETS))


def outgrown(*, n_a: float, m: float) -> bool:
    """Return whether a hash bucket is larger than the part that a disk join can hold in memory at
    once. n_a: left tuples of all buckets."""
    return n_a / BUCKETS > held_rows(m)


def passes(*, n_a: float, m: float) -> int:
    """Return how many passes over the right stream the disk join of a hash bucket needs at the end
    of the streams. n_a: left tuples of all buckets. The directory's part of M is neglected."""
    return max(math.ceil(n_a / BUCKETS / (m / HeldTuples.ROW)), 1)


def c_join(*, n: float, o: float, c_m: float, c_o: float) -> float:
    """Return n c_M + o c_O, seconds: the memory join of n tuples with o result rows."""
    return n * c_m + o * c_o


def c_disk(
    *,
    d: float,
    read: float,
    found: float,
    accesses: float,
    c_w: float,
    c_d: float,
    c_p: float,
    c_r: float,
) -> float:
    """Return d c_W + read c_D + found c_P + accesses c_R, seconds: the additional cost of d
    relocated tuples."""
    return d * c_w + read * c_d + found * c_p + accesses * c_r


def predict(work: StreamWorkload, m: float, costs: StateCosts) -> StatePrediction:
    """Predict the performance of XJoin. m: M, bytes."""
    n = work.tuples
    d = relocated(n=n, m=m, tuple_bytes=work.tuple_bytes, values=work.values)
    if d and outgrown(n_a=work.left, m=m):
        d = n
    times = passes(n_a=work.left, m=m)
    read = work.left + times * work.right if d else 0.0
    fits = fitting(m=m, tuple_bytes=work.tuple_bytes, values=work.values)
    found = found_on_disk(n=n, o=work.results, fitting=fits)
    # each run is written once, read in the passes of its stream, and read when its tuples leave
    accesses = (2 + (1 + times) / 2) * runs(d=d, fitting=fits)
    memory = c_join(n=n, o=work.results, c_m=costs.c_m, c_o=costs.c_o)
    disk = c_disk(
        d=d,
        read=read,
        found=found,
        accesses=accesses,
        c_w=costs.c_w,
        c_d=costs.c_d,
        c_p=costs.c_p,
        c_r=costs.c_r,
    )
    return StatePrediction(d, read, found, accesses, memory + disk, memory)
