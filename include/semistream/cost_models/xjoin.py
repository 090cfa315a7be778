"""The cost model of XJoin, and of PJoin where nothing is purged: what state on disk costs.

Neither paper gives one. A tuple is joined with what is in memory (c_M) and a result row is written
(c_O), with or without enough memory. What does not fit M is moved to disk (c_W), and at the end of
the streams each hash bucket is joined as a block nested loop of hash tables: each tuple of the left
stream is put into one (c_D), and each of the right stream is looked up in every one (c_D). A row of
two tuples of which one was moved before the other came is found there, and takes longer (c_P).
Where a hash bucket of the left stream does not fit what a disk join has beside memory, all else is
moved to disk as well, so that it has all of M: the passes over the right stream stay 1 until a hash
bucket outgrows that. A bucket that is moved is a run, which takes time for itself when it is
written and each time that it is read (c_R): the smaller M, the more of them there are of the same
tuples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from semistream.stream_joins.disk_join import HeldTuples
from semistream.stream_joins.kernels import BUCKETS
from semistream.stream_joins.memory import LOAD, Directory
from semistream.stream_joins.state import FREED_SHARE, held_rows

# tuples of a run over those of a stream's mean hash bucket in memory; measured, where the state is
# 2 to 40 times M
RUN = 1.6


@dataclass(frozen=True)
class StreamWorkload:
    """Two finite streams. left, right: tuples; tuple_bytes: v, in the memory portion, without the
    directory; values: different join values; results: rows of the join."""

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
        """Of a state that holds all tuples. The directory doubles: between two times it is sqrt(2 /
        LOAD) positions a value, in the geometric mean."""
        return (self.tuples * self.tuple_bytes
                + self.values * Directory.POSITION * math.sqrt(2 / LOAD))


@dataclass(frozen=True)
class StateCosts:
    """Seconds. c_m: join a tuple with what is in memory, and store it; c_o: write a result row;
    c_w: move a tuple to disk, with the part of closing the gap in memory, and see it leave at the
    end; c_d: read a tuple in a disk join, to index it or to look it up; c_p: what a result row that
    a disk join finds takes beside c_o; c_r: begin to write or to read a run."""

    c_m: float
    c_o: float
    c_w: float
    c_d: float
    c_p: float
    c_r: float


@dataclass(frozen=True)
class StatePrediction:
    """relocated: tuples moved to disk; read: tuples read by the disk join; found: result rows of
    it; accesses: of runs, to write or to read them; seconds: of all; in memory: of the same with
    enough memory."""

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
    """Tuples that M holds, of so many different join values that come evenly: their slots, and a
    directory of twice as many positions as they have values, as large as it is made anew."""
    free, tuples = m - HeldTuples.ROW * held_rows(m), m / tuple_bytes
    for _ in range(50):
        apart = values * -math.expm1(-tuples / values)  # different values among them
        tuples = free / (tuple_bytes + 2 * Directory.POSITION * apart / tuples)
    return tuples


def relocated(*, n: float, m: float, tuple_bytes: float, values: float) -> float:
    """Tuples that go to disk of n: in steps of what one state relocation frees."""
    over = n - fitting(m=m, tuple_bytes=tuple_bytes, values=values)
    step = m / FREED_SHARE / tuple_bytes
    return min(max(math.ceil(over / step), 0) * step, n)


def found_on_disk(*, n: float, o: float, fitting: float) -> float:
    """Result rows, of o of n tuples, that the disk join finds. A tuple meets in memory what is
    there when it comes: all before it, until M is full; then as much as fits, less half of what a
    state relocation frees, on average."""
    if n <= fitting:
        return 0.0
    held = fitting * (1 - 1 / (2 * FREED_SHARE))
    return o * (1 - (fitting**2 / 2 + held * (n - fitting)) / (n**2 / 2))


def runs(*, d: float, fitting: float) -> float:
    """Of d relocated tuples. A run is ``RUN`` times as large as a stream's hash bucket in memory is
    on average, as the largest ones go."""
    return d / (RUN * fitting / (2 * BUCKETS))


def outgrown(*, n_a: float, m: float) -> bool:
    """Whether a hash bucket of n_A left tuples in all is more than a disk join holds beside
    memory."""
    return n_a / BUCKETS > held_rows(m)


def passes(*, n_a: float, m: float) -> int:
    """Over the right stream, that the disk join of a hash bucket needs for n_A left tuples in all,
    at the end of the streams (what the directory takes of M aside)."""
    return max(math.ceil(n_a / BUCKETS / (m / HeldTuples.ROW)), 1)


def c_join(*, n: float, o: float, c_m: float, c_o: float) -> float:
    """n c_M + o c_O, seconds: the memory join of n tuples with o result rows."""
    return n * c_m + o * c_o


def c_disk(*, d: float, read: float, found: float, accesses: float, c_w: float, c_d: float,
           c_p: float, c_r: float) -> float:
    """d c_W + read c_D + found c_P + accesses c_R, seconds: what d relocated tuples cost beside."""
    return d * c_w + read * c_d + found * c_p + accesses * c_r


def predict(work: StreamWorkload, m: float, costs: StateCosts) -> StatePrediction:
    """m: M, bytes."""
    n = work.tuples
    d = relocated(n=n, m=m, tuple_bytes=work.tuple_bytes, values=work.values)
    if d and outgrown(n_a=work.left, m=m):
        d = n
    times = passes(n_a=work.left, m=m)
    read = work.left + times * work.right if d else 0.0
    fits = fitting(m=m, tuple_bytes=work.tuple_bytes, values=work.values)
    found = found_on_disk(n=n, o=work.results, fitting=fits)
    # written once; read in the left stream's pass or the right one's, and as its tuples leave
    accesses = (2 + (1 + times) / 2) * runs(d=d, fitting=fits)
    memory = c_join(n=n, o=work.results, c_m=costs.c_m, c_o=costs.c_o)
    disk = c_disk(d=d, read=read, found=found, accesses=accesses, c_w=costs.c_w, c_d=costs.c_d,
                  c_p=costs.c_p, c_r=costs.c_r)
    return StatePrediction(d, read, found, accesses, memory + disk, memory)
