"""The hash table of distinct key codes."""

import numpy as np
import pytest

from semistream.joins.key_table import (
    GOLDEN,
    GROUP,
    KeyTable,
    build,
    distinct,
    find,
    insert,
    mix,
    table_size,
    tag,
)


def unmixed(hashes):
    """The key codes with these hashes, uint64[n]."""
    inverse = np.uint64(pow(int(GOLDEN), -1, 1 << 64))
    h = hashes * inverse
    h ^= (h >> np.uint64(29)) ^ (h >> np.uint64(58))
    return (h * inverse).view(np.int64)


@pytest.mark.parametrize("n", [0, 1, GROUP - 1, GROUP, 5000])
def test_each_key_is_found_and_no_other(n):
    codes = np.random.default_rng(n).permutation(np.arange(-n, n))
    keys = codes[:n]
    found = KeyTable(keys).find(codes)
    assert (found[:n] == np.arange(n)).all() and (found[n:] == -1).all()


def test_keys_with_one_tag_are_told_apart():
    """Hashes that differ in their high bits only, so little that they lead to the same place."""
    codes = unmixed(np.arange(200, dtype=np.uint64) << np.uint64(32) | np.uint64(7))
    assert {tag(mix(code)) for code in codes} == {7}
    found = KeyTable(codes[::2].copy()).find(codes)
    assert (found[::2] == np.arange(100)).all() and (found[1::2] == -1).all()


def test_keys_are_added_to_a_table():
    keys = np.random.default_rng(1).permutation(np.arange(3000))
    table, found = np.empty(table_size(2400), np.int64), np.empty(4000, np.int32)
    build(table, keys[:1000].copy())
    for known, count in ((1000, 1001), (1001, 1001), (1001, 3000)):
        insert(table, keys[:count].copy(), known)
        find(np.arange(4000), table, keys, found)
        assert (found >= 0).sum() == count and (found[keys[:count]] == np.arange(count)).all()


@pytest.mark.parametrize("values", [1, 3, 1000, 10**9])
def test_the_different_numbers_are_found_in_their_order(values):
    numbers = np.random.default_rng(values).integers(0, values, 2000)
    for some in (numbers, np.sort(numbers), numbers[:0]):
        different, index = np.empty(len(some), np.int64), np.empty(len(some), np.int32)
        count = distinct(some, np.empty(len(some) + 1, np.int32), different, index)
        assert different[:count].tolist() == list(dict.fromkeys(some.tolist()))
        assert (different[index] == some).all()
