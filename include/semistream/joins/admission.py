"""The path of stream tuples from the stream buffer into H_S."""

from __future__ import annotations

import time
from collections.abc import Generator

import numpy as np

from semistream.joins.disk_partition import expand, tuples_of
from semistream.joins.output import NO_MATCH, JoinOutput, Output, portions
from semistream.joins.statistics import JoinStatistics
from semistream.joins.stream_buffer import StreamBuffer
from semistream.joins.stream_table import NO_LIMIT, StreamTable

LONG_ROWS = 256  # the most rows of a joined batch of tuples that are too long for H_S


def enter(
    h_s: StreamTable, buffer: StreamBuffer, statistics: JoinStatistics, most: int = NO_LIMIT
) -> int:
    """Move as many tuples as fit, and at most `most`, from the buffer into H_S and Q. Return their
    number. The number is 0 if the first tuple does not even fit into an empty H_S."""
    now = time.perf_counter()
    count = h_s.admit(buffer, most)
    statistics.waited_seconds += count * (now - buffer.arrived)
    statistics.paper_times.enter(count)
    buffer.drop(count)
    return count


def fill(
    h_s: StreamTable, buffer: StreamBuffer, output: Output, most: int = NO_LIMIT
) -> Generator[JoinOutput, None, bool]:
    """READ stream tuples into H_S and Q until `most` have entered or H_S is full. Return True then,
    and False if the buffer ran empty first.

    Tuples that are too long for an empty H_S are joined directly from the buffer, through R's
    index.
    """
    while len(buffer):
        count = enter(h_s, buffer, output.statistics, most)
        if count == most or (len(buffer) and h_s.live):
            return True
        if len(buffer):
            yield from join_long(buffer, output)
    return False


def join_long(buffer: StreamBuffer, output: Output) -> Generator[JoinOutput, None, None]:
    """Join the buffer's tuples that are at least as long as its first one, which does not fit into
    an empty H_S, and remove them. This reads all partitions that may hold their keys."""
    long = buffer.sizes >= buffer.sizes[0]
    rows = buffer.rows[long]
    keys, of = np.unique(buffer.codes[rows], return_inverse=True)
    order, number = np.argsort(of, kind="stable"), np.bincount(of)
    first_of, matched = np.cumsum(number) - number, np.zeros(len(rows), bool)
    for partition, found, index in tuples_of(output.spec, keys):
        for first, last, _ in portions(number[index], LONG_ROWS):
            which, nth = expand(number[index[first:last]])
            tuples = order[first_of[index[first:last]][which] + nth]
            stream, master, tuples = output.equal(
                buffer.get(rows[tuples]), partition.take(found[first:last][which]).columns, tuples
            )
            matched[tuples] = True
            if len(tuples):
                yield output.joined(stream, master)
    output.matched_at_once(int(matched.sum()))
    lost = rows[~matched]
    for first in range(0, len(lost), LONG_ROWS):
        yield from output.unmatched(buffer.get(lost[first : first + LONG_ROWS]), NO_MATCH)
    buffer.keep(~long)
