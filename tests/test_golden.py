"""Each algorithm on an example worked by hand: the state after every iteration, and what the
iteration gave.

Stream and master tuples are written by their keys, partitions {..}, chunks [..], H_R as
key:frequency. In H_S and H_R a tuple takes v_S = 8 (id) + 1 (nulls) + 21 (key, links, table) = 30
and v_R = 8 (payload) + 1 (nulls) + 4 (link) = 13 bytes; a cached join value takes v_E = 36 bytes
beside its tuples.
"""

import pyarrow as pa

from semistream.master.memory import MemoryRelation
from semistream.sizing import open_join

V_S, V_R, V_E = 30, 13, 36


def disk_buffer(tuples):
    return tuples * (8 + 8 + 8)  # key, payload, key code


def start(algorithm, memory, keys, disk_tuples, **parameters):
    """R has these keys in this order; payload: ten times the key, and one more for each
    duplicate."""
    payload = [10 * k + keys[:i].count(k) for i, k in enumerate(keys)]
    master = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(payload, pa.int64())})
    stream = pa.schema([("id", pa.int64()), ("k", pa.int64())])
    return open_join(
        algorithm,
        memory=memory,
        stream=stream,
        master=MemoryRelation("r", master, ["k"]),
        on=[("k", "k")],
        parameters={"disk_tuples": disk_tuples} | parameters,
    )


def step(join, keys):
    """Give the join these stream tuples; (payloads joined, keys unmatched), sorted."""
    chunk = pa.record_batch(
        {"id": pa.array(range(len(keys)), pa.int64()), "k": pa.array(keys, pa.int64())}
    )
    return gave(join.process(chunk))


def gave(outputs):
    joined, unmatched = [], []
    for o in outputs:
        joined += o.joined["v"].to_pylist()
        unmatched += o.unmatched["k"].to_pylist()
    return sorted(joined), sorted(unmatched)


def iterations(join):
    """(w_N, w_S, disk tuples, waiting, cached, R-cycles) of each."""
    return [
        (i.w_n, i.w_s, i.disk_tuples, i.waiting, i.cached, i.r_cycles)
        for i in join.stats.iterations
    ]


def h_r(cache):
    """Join values and frequencies."""
    return dict(zip(cache.keys.tolist(), cache.frequencies.tolist(), strict=True))


def test_meshjoin():
    """R = {1 2} {3 4} {5 6}, b = 2, N = 3, H_S has 6 places, w = 2.

    it.  chunk  partition  joined  H_S and Q behind it  unmatched
    1    1 3    {1 2}      1       [1 3]
    2    5 1    {3 4}      3       [1 3] [5 1]
    3    9 2    {5 6}      5       [5 1] [9 2]          the first chunk has met all of R and goes
    4    4 2    {1 2}      1 2 2   [9 2] [4 2]
    5    drain  {3 4}      4       [4 2] []             9
    6           {5 6}              [] []
    """
    join = start("meshjoin", disk_buffer(2) + 6 * V_S, [1, 2, 3, 4, 5, 6], 2)
    assert step(join, [1, 3]) == ([10], [])
    assert step(join, [5, 1]) == ([30], [])
    assert step(join, [9, 2]) == ([50], [])
    assert step(join, [4, 2]) == ([10, 20, 20], [])
    assert gave(join.drain()) == ([40], [9])
    assert iterations(join) == [
        (0, 0, 2, 2, 0, 0),
        (0, 0, 2, 4, 0, 0),
        (0, 2, 2, 4, 0, 1),
        (0, 2, 2, 4, 0, 1),
        (0, 2, 2, 2, 0, 1),
        (0, 2, 2, 0, 0, 2),
    ]


def test_r_meshjoin():
    """R = {1 2 | 3 4} {5 6 | 7 8}, b = 4, q = 2, N q = 4, H_S has 8 places, w = 2.

    it.  chunk  read       slice  joined  H_S and Q behind it  unmatched
    1    1 3    {1 2 3 4}  1 2    1       [1 3]
    2    2 3               3 4    3 3     [1 3] [2 3]
    3    8 1    {5 6 7 8}  5 6            [1 3] [2 3] [8 1]
    4    7 9               7 8    8 7     [2 3] [8 1] [7 9]    the first chunk has met all four
                                                               slices
    5    drain  {1 2 3 4}  1 2    2 1     [8 1] [7 9] []
    6                      3 4            [7 9] [] []
    7           {5 6 7 8}  5 6            [] [] []             9
    """
    join = start("r-meshjoin", disk_buffer(4) + 8 * V_S, [1, 2, 3, 4, 5, 6, 7, 8], 4, slices=2)
    assert step(join, [1, 3]) == ([10], [])
    assert step(join, [2, 3]) == ([30, 30], [])
    assert step(join, [8, 1]) == ([], [])
    assert step(join, [7, 9]) == ([70, 80], [])
    assert gave(join.drain()) == ([10, 20], [9])
    assert iterations(join) == [
        (0, 0, 4, 2, 0, 0),
        (0, 0, 0, 4, 0, 0),
        (0, 0, 4, 6, 0, 0),
        (0, 2, 0, 6, 0, 1),
        (0, 2, 4, 4, 0, 1),
        (0, 2, 0, 2, 0, 1),
        (0, 2, 4, 0, 0, 1),
    ]


def test_r_meshjoin_with_one_slice_is_meshjoin():
    keys = [1, 2, 3, 4, 5, 6]
    memory = disk_buffer(2) + 6 * V_S
    joins = [start("meshjoin", memory, keys, 2), start("r-meshjoin", memory, keys, 2, slices=1)]
    for join in joins:
        step(join, [1, 3, 5, 1, 9, 2, 4])
        gave(join.drain())
    assert iterations(joins[0]) == iterations(joins[1])


def test_cmeshjoin():
    """R = {1 2} {3 4} {5 6}, b = 2, N = 3, H_S has 6 places, w_S = 2; h_R = 2, switching buffer 1,
    threshold 2.

    it.  stream   hits  chunk  partition  in H_S  H_R behind it  H_S and Q    what happened
    1    1 1            1 1    {1 2}      1 1     1:2            [1 1]        f(1) = 2: SWITCH
    2    1 4 4    1     4 4    {3 4}      4 4     1:3 4:2        [1 1] [4 4]  f(4) = 2: SWITCH
    3    4 6 9    4     6 9    {5 6}      6       1:1 4:1        [4 4] [6 9]  R-cycle: H_R is full,
                                                                              halve
    4    2 2            2 2    {1 2}      2 2     1:1 2:2        [6 9] [2 2]  f(2) = 2 > 1: 4 goes
    5    4 1 2 3  1 2   4 3    {3 4}      4 3     1:2 2:3        [2 2] [4 3]  9 is unmatched
    6    drain                 {5 6}              1:1 2:1        [4 3] []     R-cycle: an eviction:
                                                                              threshold 3
    7                          {1 2}              1:1 2:1        [] []
    """
    join = start(
        "cmeshjoin",
        disk_buffer(2) + 3 * (V_R + V_E) + 6 * V_S,
        [1, 2, 3, 4, 5, 6],
        2,
        cache_tuples=2,
        threshold=2,
    )
    cache = join.h_r.cache
    assert step(join, [1, 1]) == ([10, 10], [])
    assert h_r(cache) == {1: 2}
    assert step(join, [1, 4, 4]) == ([10, 40, 40], [])
    assert h_r(cache) == {1: 3, 4: 2}
    assert step(join, [4, 6, 9]) == ([40, 60], [])
    assert (h_r(cache), join.h_r.threshold) == ({1: 1, 4: 1}, 2)
    assert step(join, [2, 2]) == ([20, 20], [])
    assert h_r(cache) == {1: 1, 2: 2}
    assert step(join, [4, 1, 2, 3]) == ([10, 20, 30, 40], [9])
    assert h_r(cache) == {1: 2, 2: 3}
    assert gave(join.drain()) == ([], [])
    assert (h_r(cache), join.h_r.threshold) == ({1: 1, 2: 1}, 3)
    assert iterations(join) == [
        (0, 0, 2, 2, 1, 0),
        (1, 0, 2, 4, 2, 0),
        (1, 2, 2, 4, 2, 1),
        (0, 2, 2, 4, 2, 1),
        (2, 2, 2, 4, 2, 1),
        (0, 2, 2, 2, 2, 2),
        (0, 2, 2, 0, 2, 2),
    ]


def test_ssj():
    """R = {1 2} {3 4} {5 6}, b = 2, N = 3, H_S has 6 places, w_S is at most 2; h_R = 3, switching
    buffer 1, threshold 4.

    The disk phase begins when the stream buffer is empty, here at each line.

    it.  stream  hits  chunk  partition  in H_S  H_R behind it  H_S and Q  what happened
    1    5             5      {1 2}                             [5]
    2    3 3           3 3    {3 4}      3 3                    [5] [3 3]  f(3) = 2 < 4
    3    6             6      {5 6}      5 6                    [3 3] [6]  R-cycle: not full:
                                                                           threshold 2
    4    3             3      {1 2}                             [6] [3]
    5    3             3      {3 4}      3 3     3:2            [3] [3]    f(3) = 2: SWITCH
    6    3 3     3 3          {5 6}              3:2            [3] []     3:4, R-cycle: halve,
                                                                           threshold 1
    7    1             1      {1 2}      1       3:2 1:1        [] [1]     f(1) = 1: SWITCH
    8    drain                {3 4}              3:2 1:1        [1] []
    9                         {5 6}              3:1 1:0        [] []      R-cycle: halve, threshold
                                                                           stays 1
    -    1       1                               3:1 1:1                   nothing waits: the disk
                                                                           rests
    """
    join = start(
        "ssj",
        disk_buffer(2) + 4 * (V_R + V_E) + 6 * V_S,
        [1, 2, 3, 4, 5, 6],
        2,
        cache_tuples=3,
        threshold=4,
    )
    frequent = join.h_r
    assert step(join, [5]) == ([], [])
    assert step(join, [3, 3]) == ([30, 30], [])
    assert (step(join, [6]), frequent.threshold) == (([50, 60], []), 2)
    assert step(join, [3]) == ([], [])
    assert (step(join, [3]), h_r(frequent.cache)) == (([30, 30], []), {3: 2})
    assert (step(join, [3, 3]), h_r(frequent.cache), frequent.threshold) == (
        ([30, 30], []),
        {3: 2},
        1,
    )
    assert (step(join, [1]), h_r(frequent.cache)) == (([10], []), {3: 2, 1: 1})
    assert (gave(join.drain()), h_r(frequent.cache), frequent.threshold) == (
        ([], []),
        {3: 1, 1: 0},
        1,
    )
    assert (step(join, [1]), h_r(frequent.cache)) == (([10], []), {3: 1, 1: 1})
    assert iterations(join) == [
        (0, 0, 2, 1, 0, 0),
        (0, 0, 2, 3, 0, 0),
        (0, 1, 2, 3, 0, 1),
        (0, 2, 2, 2, 0, 1),
        (0, 1, 2, 2, 1, 1),
        (2, 1, 2, 1, 1, 2),
        (0, 1, 2, 1, 2, 2),
        (0, 0, 2, 1, 2, 2),
        (0, 1, 2, 0, 2, 3),
    ]


def test_ssbj():
    """R = {1 2 2} {2 3 4}, b = 3, N = 2, in the rate form: each line is one chunk.

    Cache inequality: m v_R + v_E < n v_S. With n = 2 waiting tuples it holds for m = 1 (49 < 60),
    and for the absent 7 with m = 0 (36 < 60), but not for the three master tuples of 2 (75 > 60).

    it.  stream       hits  partition  in H_S       H_R        waiting  what happened
    1    2 3                {1 2 2}    2 2                     2        rc = 2
    2    4                  {2 3 4}    2 3 4                   1        rc = 3
    3    3                  {1 2 2}                            1
    4    2 2 1 1 7 7        {2 3 4}    3 2 2                   6        rc = 4, incrementing:
                                                                        1, 2, 7 wait twice
    5    3                  {1 2 2}    2 2 2 2 1 1             1        s_count 1:1, 2:2;
                                                                        both 7 are unmatched
    6    1 1 2 2 7 7        {2 3 4}    3 2 2                   6        s_count 2:3; rc = 5,
                                                                        switching: 1 and 7, not 2
    7    4                  {1 2 2}    1 1 2 2 2 2             1        1:10 to the switching
                                                                        buffer; both 7 unmatched
    8    2                  {2 3 4}    4 2          1:12 7:12  1        rc = 6, phase-out;
                                                                        f_count = 2 in 6 cycles each
    9    1 7 3        1 7   {1 2 2}    2 2          1:13 7:13  1        7 is unmatched at once
    10   4                  {2 3 4}    3 4          1:13 7:13  1        rc = 7
    ...  3, 4, 3, 4, 3                                                  rc = 8, 9
    16   4                  {2 3 4}    3 4          7:0        1        rc = 10, eviction:
                                                                        f_count / 10 = 1.3,
                                                                        1: 49 >= 1.3 v_S goes,
                                                                        7: 36 < 39 stays
    17   1 7          7     {1 2 2}    1            7:1        1
    18   drain              {2 3 4}                 7:1        0
    """
    candidates = 64 * 26
    join = start("ssbj", disk_buffer(3) + candidates + 720, [1, 2, 2, 2, 3, 4], 3, form="rate")
    assert step(join, [2, 3]) == ([20, 21], [])
    assert step(join, [4]) == ([22, 30, 40], [])
    assert step(join, [3]) == ([], [])
    assert step(join, [2, 2, 1, 1, 7, 7]) == ([22, 22, 30], [])
    assert (join.rc, sorted(join.candidates.keys)) == (4, [1, 2, 7])
    assert step(join, [3]) == ([10, 10, 20, 20, 21, 21], [7, 7])
    assert step(join, [1, 1, 2, 2, 7, 7]) == ([22, 22, 30], [])
    assert (join.rc, sorted(join.candidates.keys)) == (5, [1, 7])
    assert step(join, [4]) == ([10, 10, 20, 20, 21, 21], [7, 7])
    assert join.h_r.staged.tuples == 1
    assert step(join, [2]) == ([22, 40], [])
    assert (join.rc, h_r(join.h_r)) == (6, {1: 12, 7: 12})
    assert step(join, [1, 7, 3]) == ([10, 20, 21], [7])
    assert step(join, [4]) == ([30, 40], [])
    for key, joined in ((3, []), (4, [30, 40]), (3, []), (4, [30, 40]), (3, [])):
        assert step(join, [key]) == (joined, [])
    assert (join.rc, h_r(join.h_r)) == (9, {1: 13, 7: 13})
    assert step(join, [4]) == ([30, 40], [])
    assert (join.rc, h_r(join.h_r)) == (10, {7: 0})
    assert step(join, [1, 7]) == ([10], [7])
    assert (gave(join.drain()), h_r(join.h_r)) == (([], []), {7: 1})
    assert iterations(join) == [
        (0, 0, 3, 2, 0, 0),
        (0, 2, 3, 1, 0, 1),
        (0, 1, 3, 1, 0, 1),
        (0, 1, 3, 6, 0, 2),
        (0, 6, 3, 1, 0, 2),
        (0, 1, 3, 6, 0, 3),
        (0, 6, 3, 1, 0, 3),
        (0, 1, 3, 1, 1, 4),
        (2, 1, 3, 1, 1, 4),
        (0, 1, 3, 1, 1, 5),
        *((0, 1, 3, 1, 1, cycle) for cycle in (5, 6, 6, 7, 7)),
        (0, 1, 3, 1, 0, 8),
        (1, 1, 3, 1, 0, 8),
        (0, 1, 3, 0, 0, 9),
    ]
