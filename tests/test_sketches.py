"""Join sizes from sketches. Statistical tests have fixed seeds; each says how often it would fail
with others."""

from __future__ import annotations

import itertools
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from semistream.compiled import filled, njit
from semistream.errors import ConfigError, StateError
from semistream.sketches import (
    METHODS,
    AgmsSketch,
    SampledSketch,
    Sketch,
    SkimmedSketch,
    read_sketch,
)
from semistream.sketches.bounds import FAILURE, estimated_join_error, row_failure, self_join_size
from semistream.sketches.frequent import FrequentItems
from semistream.sketches.hashing import (
    BITS,
    PRIME,
    SIGNS,
    field_elements,
    multiply,
    polynomial,
    random_field_elements,
)
from semistream.sketches.sampled import EVERY
from semistream.sketches.sampled import join_size as estimated
from semistream.workloads import ZipfKeys

KEYS = np.array([0, -1, 7, 2**63 - 1, -(2**63), 2**61 - 1, 12345, 2**32], np.int64)


def small(method: str, seed: int = 0) -> Sketch:
    return AgmsSketch(70, 3, seed) if method == "agms" else SkimmedSketch(40, 3, 16, seed)


def sketch_of(
    codes, weights=1, sketch: Sketch | None = None, method: str = "skimmed", seed: int = 0
) -> Sketch:
    sketch = sketch or small(method, seed)
    sketch.update(np.asarray(codes, np.int64), weights)
    return sketch


def join_size(left, right) -> int:
    """The join's size, by a loop."""
    return sum(int(a == b) for a in left for b in right)


# ---- hash functions


@njit()
def _all_values(keys, bits, out):
    """Write the values at the keys of every polynomial over the field, one number a polynomial."""
    p = 2**bits - 1
    for n in range(p**4):
        out[n] = 0
        a, b, c, d = n // p**3, n // p**2 % p, n // p % p, n % p
        for i in range(len(keys)):
            value = polynomial(
                np.uint64(keys[i]), np.uint64(a), np.uint64(b), np.uint64(c), np.uint64(d), bits
            )
            out[n] = out[n] * p + np.int64(value)


@pytest.mark.parametrize("keys", [*itertools.combinations(range(7), 4)], ids=str)
def test_four_values_are_exactly_independent_in_a_small_field(keys):
    """Each of the 7**4 polynomials has its own four values."""
    assert len(np.unique(filled(_all_values, 7**4, np.int64, np.array(keys), 3))) == 7**4


def test_four_values_are_exactly_independent_in_a_larger_field():
    assert (
        len(np.unique(filled(_all_values, 31**4, np.int64, np.array([0, 1, 17, 30]), 5))) == 31**4
    )


# compiles
@given(st.integers(0, 2**61 - 2), st.integers(0, 2**61 - 2))
def test_products_are_those_of_the_field(a, b):
    assert int(multiply(np.uint64(a), np.uint64(b), BITS)) == a * b % (2**61 - 1)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_points_are_the_linear_function_of_a_code(codes):
    linear = random_field_elements(3, "field elements", 3)
    a, b, c = map(int, linear)
    expected = [(a * (x % 2**64 >> 32) + b * (x % 2**32) + c) % (2**61 - 1) for x in codes]
    assert field_elements(np.array(codes, np.int64), linear).tolist() == expected


def test_codes_that_are_equal_modulo_the_prime_have_points_of_their_own():
    """A plain residue would make one key of -1 and 7."""
    points = field_elements(KEYS, random_field_elements(0, "field elements", 3))
    assert len(np.unique(points)) == len(KEYS) and (points < PRIME).all()


def signs(seeds: int, keys: np.ndarray) -> np.ndarray:
    """int64[seeds, signs, keys] of AGMS sketches, each of one key."""
    found = []
    for seed in range(seeds):
        sketches = [sketch_of([k], sketch=AgmsSketch(2 * SIGNS, 1, seed)) for k in keys]
        found.append(np.stack([s.counters[0] for s in sketches], axis=1))
    return np.stack(found)


def test_signs_of_up_to_four_keys_are_independent():
    """Means of products of 200 x 120 signs, which are 0 +- 1 / sqrt(24000): all 162 within 4.5 of
    that fails with p < 0.002."""
    found = signs(200, KEYS)
    assert set(np.unique(found)) == {-1, 1}
    for size in (1, 2, 3, 4):
        for keys in itertools.combinations(range(len(KEYS)), size):
            assert abs(found[:, :, keys].prod(axis=2).mean()) < 4.5 / sqrt(found[:, :, 0].size), (
                keys
            )


def test_signs_of_neighbouring_sketches_do_not_go_together():
    """X_i(u) X_i(v) X_j(u) X_j(v) of pairs i, j: mean of 200 x C(120, 2), which are uncorrelated; p
    < 1e-5."""
    found = signs(200, KEYS[:2]).prod(axis=2)
    pairs = (found.sum(axis=1) ** 2 - found.shape[1]) / 2
    assert abs(pairs.mean()) < 4.5 * sqrt(comb(found.shape[1], 2) / len(found))


def test_buckets_are_uniform_and_independent_of_signs():
    """20,000 keys in 37 buckets with 2 signs: chi-square, p < 0.001."""
    sketch = SkimmedSketch(37, 3, 2)
    cells = np.zeros(2 * 37)
    for key in range(20_000):
        sketch.counters[:] = 0
        sketch.update(np.array([key]))
        at = int(np.flatnonzero(sketch.counters[0])[0])
        cells[2 * at + (sketch.counters[0, at] > 0)] += 1
    assert chisquare(cells).pvalue > 0.001


# ---- linearity

streams = st.lists(st.integers(-4, 30).map(lambda k: k * 2**40 + k), max_size=60)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40)
@given(a=streams, b=streams, seed=st.integers(0, 3))
def test_sketches_add_up(method, a, b, seed):
    both, first = sketch_of(a + b, method=method, seed=seed), sketch_of(a, method=method, seed=seed)
    first.merge(sketch_of(b, method=method, seed=seed))
    assert (first.counters == both.counters).all()
    assert (first.inserted, first.deleted) == (both.inserted, both.deleted)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40)
@given(a=streams, b=streams, data=st.data())
def test_deletion_undoes_insertion_in_any_order(method, a, b, data):
    steps = data.draw(st.permutations([(k, 1) for k in a + b] + [(k, -1) for k in b]))
    sketch = sketch_of(
        [k for k, _ in steps], np.array([w for _, w in steps], np.int64), method=method
    )
    assert (sketch.counters == sketch_of(a, method=method).counters).all()
    assert (sketch.inserted, sketch.deleted) == (len(a) + len(b), len(b))


@pytest.mark.parametrize("method", METHODS)
@given(a=streams, data=st.data())
@settings(max_examples=40)
def test_order_and_chunks_do_not_matter(method, a, data):
    shuffled, cut = data.draw(st.permutations(a)), data.draw(st.integers(0, len(a)))
    sketch = sketch_of(shuffled[cut:], sketch=sketch_of(shuffled[:cut], method=method))
    assert (sketch.counters == sketch_of(a, method=method).counters).all()
    weighted = sketch_of(
        list(dict.fromkeys(a)),
        np.array([a.count(k) for k in dict.fromkeys(a)], np.int64),
        method=method,
    )
    assert (sketch.counters == weighted.counters).all() and sketch.inserted == weighted.inserted


@pytest.mark.parametrize("method", METHODS)
def test_what_is_deleted_altogether_joins_nothing(method):
    left, right = sketch_of(np.arange(100), method=method), sketch_of([5, 5, 7], method=method)
    left.update(np.arange(100), -1)
    assert not left.counters.any() and left.join_size(right).value == 0


# ---- exactness


@settings(max_examples=40)
@given(a=st.lists(st.integers(-5, 5), max_size=80), b=st.lists(st.integers(-5, 5), max_size=80))
def test_a_skimmed_sketch_of_fewer_keys_than_candidates_is_exact(a, b):
    """Whatever else the memory is: here 1 bucket."""
    left, right = (sketch_of(x, sketch=SkimmedSketch(1, 3, 16)) for x in (a, b))
    assert tuple(left.join_size(right)) == (join_size(a, b), 0)


def test_one_atomic_sketch_is_the_sum_of_signed_frequencies():
    keys = [3, 3, 3, 8, 8, 11]
    sign = {k: int(sketch_of([k], sketch=AgmsSketch(1, 1)).counters[0, 0]) for k in {*keys, 12}}
    left = sketch_of(keys, sketch=AgmsSketch(1, 1))
    right = sketch_of([8, 12], sketch=AgmsSketch(1, 1))
    assert left.counters[0, 0] == sum(sign[k] for k in keys)
    assert left.join_size(right).value == sum(sign[k] for k in keys) * (sign[8] + sign[12])


@pytest.mark.parametrize("method", METHODS)
def test_one_key_is_counted_exactly(method):
    left, right = sketch_of([9] * 1000, method=method), sketch_of([9] * 70, method=method)
    assert left.join_size(right).value == 70_000


@pytest.mark.parametrize("method", METHODS)
def test_nothing_joins_nothing(method):
    assert tuple(sketch_of([], method=method).join_size(sketch_of([], method=method))) == (0, 0)
    assert sketch_of([], method=method).join_size(sketch_of([1, 2], method=method)).value == 0


def test_dense_values_are_found_with_their_frequencies():
    rng = np.random.default_rng(0)
    dense = {-17: 5000, 2**62 + 1: 3000, 123: 2000}
    codes = rng.permutation(
        np.concatenate(
            [np.full(n, k) for k, n in dense.items()] + [rng.integers(10**6, 10**9, 20_000)]
        )
    )
    found = sketch_of(codes, sketch=SkimmedSketch(200, 5, 64)).skim()
    assert found.codes.tolist() == sorted(dense)
    assert found.frequencies.tolist() == pytest.approx([dense[k] for k in sorted(dense)], abs=40)
    alone = SkimmedSketch(200, 5, 64)
    alone.update(found.codes, found.frequencies)
    assert (alone.counters == found.table).all()


@settings(max_examples=40)
@given(a=streams, b=streams, slots=st.integers(2, 8))
def test_the_weight_of_what_is_left_is_known(a, b, slots):
    sketch = sketch_of(a + b, sketch=SkimmedSketch(5, 3, slots))
    sketch.update(np.array(b, np.int64), -1)
    found = sketch.skim()
    dense = dict(zip(found.codes.tolist(), found.frequencies.tolist(), strict=True))
    left = sum(abs(a.count(k) - dense.get(k, 0)) for k in {*a, *dense})
    assert left <= found.weight <= len(a) + 2 * len(b) + sum(dense.values())


def test_a_value_that_deletions_leave_is_still_found():
    codes = np.arange(10_000)
    sketch = sketch_of(np.concatenate([codes, np.full(4000, 77)]), sketch=SkimmedSketch(200, 5, 64))
    sketch.update(codes, -1)
    assert sketch.skim().codes.tolist() == [77] and sketch.skim().frequencies.tolist() == [4000]


# ---- frequent items


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(-2, 9)), max_size=300),
    st.integers(2, 40),
    st.integers(0, 300),
)
def test_frequent_items_keep_their_promise(stream, slots, cut):
    items, merged = FrequentItems(slots), FrequentItems(slots)
    for part, into in ((stream, items), (stream[:cut], merged)):
        into.update(
            np.array([k for k, _ in part], np.int64), np.array([w for _, w in part], np.int64)
        )
    other = FrequentItems(slots)
    other.update(
        np.array([k for k, _ in stream[cut:]], np.int64),
        np.array([w for _, w in stream[cut:]], np.int64),
    )
    merged.merge(other)
    total = sum(w for _, w in stream if w > 0)
    for found in (items, merged):
        counts = dict(zip(*(x.tolist() for x in found.items()), strict=True))
        assert len(counts) <= found.capacity and found.error <= 2 * total / found.capacity
        for key in {k for k, _ in stream}:
            frequency = sum(w for k, w in stream if k == key and w > 0)
            assert frequency - found.error <= counts.get(key, 0) <= frequency


# ---- bounds


@pytest.mark.parametrize("s2", [1, 2, 3, 4, 5, 11, 12, 59])
def test_a_median_fails_as_often_as_the_binomial_distribution_says(s2):
    q = row_failure(s2, 0.05)
    assert binom.sf((s2 - 1) // 2, s2, q) == pytest.approx(0.05)


def product_variance(f2_left, f2_right, join):
    """A bound on the variance of the product of two atomic sketches (Alon, Gibbons, Matias,
    Szegedy, 1999, Lemma 4.4), and on s1 times that of a row of two hash sketches' product."""
    return f2_left * f2_right + min(join**2, f2_left * f2_right)


def published(f2_left, f2_right, s1, s2):
    """(Error, probability) as published: with V <= 2 F2 F2 and q = 1/8."""
    return 4 * sqrt(f2_left * f2_right / s1), 2 ** (-s2 / 2)


def test_bounds_by_hand():
    assert row_failure(1, 0.05) == pytest.approx(0.05)
    assert row_failure(3, 3 * 0.01 - 2 * 0.001) == pytest.approx(0.1)
    error = estimated_join_error(400, 900, 50, 100, 1, 0.1)
    assert error**2 * 10 == pytest.approx(400 * 900 + (50 + error) ** 2)
    assert estimated_join_error(400, 900, 1e6, 100, 1, 0.1) == pytest.approx(
        sqrt(2 * 400 * 900 / 10)
    )
    assert self_join_size(80, 1e9, 80, 1, 0.1) == pytest.approx(160)
    assert self_join_size(80, 99, 20, 1, 0.1) == 99


def zipf(exponent: float, seed: int, shift: int = 0, rows: int = 20_000) -> np.ndarray:
    return (ZipfKeys(5000, exponent, seed).draw(0, rows) - 1 + shift) % 5000


RUNS = 120


@pytest.mark.parametrize("shift", [0, 20])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_within_their_bounds(method, exponent, shift):
    """At least 95% of the estimates, whatever the hash functions: with 120 of them, 14 or more
    outside have p < 0.003."""
    f, g = zipf(exponent, 1), zipf(exponent, 2, shift)
    exact = int(np.bincount(f, minlength=5000) @ np.bincount(g, minlength=5000))
    outside = 0
    for seed in range(RUNS):
        left, right = (sketch_of(x, sketch=METHODS[method].for_memory(4000, seed)) for x in (f, g))
        value, bound = left.join_size(right)
        outside += abs(value - exact) > bound
    assert outside <= binom.isf(0.003, RUNS, FAILURE)


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_unbiased_and_have_the_variance_of_theory(method):
    """600 estimates of single rows: the mean within 4 standard errors (p < 1e-4); the variance at
    most that of theory, but for 4 of its own standard errors."""
    f, g = zipf(0.5, 1, rows=2000), zipf(0.5, 2, rows=2000)
    counts = [np.bincount(x, minlength=5000).astype(float) for x in (f, g)]
    exact, s1 = counts[0] @ counts[1], 60
    found = []
    for seed in range(200):
        left, right = (
            sketch_of(
                x,
                sketch=AgmsSketch(s1, 3, seed)
                if method == "agms"
                else SkimmedSketch(s1, 3, 2, seed),
            )
            for x in (f, g)
        )
        found += (
            (left.counters.astype(float) * right.counters).sum(axis=1)
            / (s1 if method == "agms" else 1)
        ).tolist()
    variance = product_variance(counts[0] @ counts[0], counts[1] @ counts[1], exact) / s1
    assert abs(np.mean(found) - exact) < 4 * sqrt(variance / len(found))
    assert np.var(found) < variance * (1 + 4 * sqrt(2 / len(found)))


def test_as_published_the_bound_holds_too():
    """s2 = 7: 4 sqrt(F2 F2 / s1) fails with p <= 0.09; of 100, 19 or more have p < 0.002."""
    f, g = zipf(1.0, 1), zipf(1.0, 2)
    counts = [np.bincount(x, minlength=5000).astype(float) for x in (f, g)]
    bound, failure = published(counts[0] @ counts[0], counts[1] @ counts[1], 50, 7)
    values = [
        sketch_of(f, sketch=AgmsSketch(50, 7, seed))
        .join_size(sketch_of(g, sketch=AgmsSketch(50, 7, seed)))
        .value
        for seed in range(100)
    ]
    assert sum(abs(v - counts[0] @ counts[1]) > bound for v in values) <= binom.isf(
        0.002, 100, failure
    )


def test_skimming_makes_estimates_better_in_the_same_memory():
    """Mean errors of 20 estimates each, skew 1.5: the basic sketch has some 30 times the error."""
    f, g = zipf(1.5, 1), zipf(1.5, 2, 20)
    exact = int(np.bincount(f, minlength=5000) @ np.bincount(g, minlength=5000))
    errors = {
        m: np.mean(
            [
                abs(
                    sketch_of(f, sketch=c.for_memory(8000, s))
                    .join_size(sketch_of(g, sketch=c.for_memory(8000, s)))
                    .value
                    - exact
                )
                for s in range(20)
            ]
        )
        for m, c in METHODS.items()
    }
    assert errors["skimmed"] < errors["agms"] / 5


# ---- memory, blobs


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory", [300, 999, 4096, 64_000, 1_000_000])
def test_a_sketch_takes_the_memory_that_it_is_given(method, memory):
    sketch = METHODS[method].for_memory(memory)
    assert 0.8 * memory < sketch.memory_bytes <= memory and sketch.counters.nbytes < memory


@pytest.mark.parametrize(
    "make, parameter",
    [
        (lambda: AgmsSketch.for_memory(100), "memory"),
        (lambda: SkimmedSketch.for_memory(299), "memory"),
        (lambda: AgmsSketch(0, 1), "s1"),
        (lambda: AgmsSketch(1, 0), "s2"),
        (lambda: SkimmedSketch(5, 4, 8), "s2"),
        (lambda: SkimmedSketch(5, 1, 8), "s2"),
        (lambda: SkimmedSketch(5, 3, 1), "slots"),
        (lambda: SkimmedSketch(2**31, 3, 8), "s1"),
    ],
)
def test_sizes_that_cannot_work_are_refused(make, parameter):
    with pytest.raises(ConfigError) as e:
        make()
    assert e.value.parameter == parameter


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=30)
@given(a=streams, b=streams, seed=st.integers(0, 2**70))
def test_a_blob_is_the_sketch(method, a, b, seed):
    sketch, other = sketch_of(a, method=method, seed=seed), sketch_of(b, method=method, seed=seed)
    sketch.update(np.array(b, np.int64), -1)
    kept = read_sketch(sketch.to_bytes())
    assert type(kept) is type(sketch) and kept.to_bytes() == sketch.to_bytes()
    assert kept.join_size(other) == sketch.join_size(other)
    kept.merge(other)
    sketch.merge(other)
    assert kept.join_size(other) == sketch.join_size(other)
    assert (kept.counters == sketch.counters).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_blob_is_no_larger_than_the_sketch(method):
    sketch = sketch_of(zipf(1.0, 1), sketch=METHODS[method].for_memory(64_000))
    assert len(sketch.to_bytes()) < 64_000


def test_a_damaged_blob_and_one_of_another_version_are_refused():
    blob = sketch_of([1, 2, 3]).to_bytes()
    for wrong in (
        blob[:-1],
        b"",
        blob[:30],
        blob.replace(b"sketch 1", b"sketch 2"),
        blob[:-5] + b"xxxxx",
    ):
        with pytest.raises(StateError, match="damaged, of another version"):
            read_sketch(wrong)


@pytest.mark.parametrize(
    "other",
    [
        small("skimmed", 1),
        small("agms"),
        SkimmedSketch(41, 3, 16),
        SkimmedSketch(40, 5, 16),
        SkimmedSketch(40, 3, 32),
    ],
    ids=["seed", "method", "s1", "s2", "slots"],
)
def test_sketches_of_other_hash_functions_are_refused(other):
    for act in (small("skimmed").merge, small("skimmed").join_size):
        with pytest.raises(StateError, match="different hash functions"):
            act(other)


def test_hash_functions_are_the_same_for_ever():
    """Blobs hold counters, and rely on it."""
    assert random_field_elements(7, "agms", 2).tolist() == [
        1921225378857255659,
        1583306137395163766,
    ]
    counters = sketch_of(range(6), sketch=SkimmedSketch(4, 3, 4, 7)).counters
    assert counters.tolist() == [[1, -3, 0, 2], [1, -1, 3, 1], [0, 0, -2, -2]]


# ---- of a sample, and beside known frequencies


def frequencies(keys, pieces: int = 3):
    """As a relation's are given: each code in one piece."""
    codes, counts = np.unique(np.asarray(keys, np.int64), return_counts=True)
    return [(codes[i::pieces], counts[i::pieces]) for i in range(pieces)]


@settings(max_examples=50)
@given(a=streams, b=streams)
def test_few_keys_beside_known_frequencies_are_exact(a, b):
    sketch = sketch_of(a, sketch=SkimmedSketch(40, 5, 256))
    assert tuple(sketch.join_size_with(frequencies(b))) == (join_size(a, b), 0)


def test_a_bound_beside_known_frequencies_holds_and_is_less():
    """With 95%: of 200 seeds, of which 10 may miss by chance, hardly any does."""
    left, right = zipf(1.0, 1), zipf(0.5, 2)
    exact, misses = int(np.bincount(left, minlength=5000) @ np.bincount(right, minlength=5000)), 0
    for seed in range(200):
        mine, other = (sketch_of(x, sketch=SkimmedSketch(100, 5, 64, seed)) for x in (left, right))
        known = mine.join_size_with(frequencies(right))
        assert known.bound < mine.join_size(other).bound
        misses += abs(known.value - exact) > known.bound
    assert misses <= 10


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3 * EVERY), max_size=20), st.integers(0, 1000))
def test_one_of_each_group_of_tuples_is_drawn_however_they_come(sizes, seed):
    sketch, begin, drawn = SampledSketch((seed,)), 0, []
    for size in sizes:
        at = sketch.draw(size)
        assert ((at >= 0) & (at < size)).all()
        drawn += (begin + at).tolist()
        begin += size
    groups = [at // EVERY for at in drawn]
    assert groups == sorted(set(groups)) and set(range(begin // EVERY)) <= set(groups)


def test_each_tuple_is_as_likely_to_be_drawn():
    times = np.zeros(2 * EVERY + 5)
    for seed in range(4000):
        sketch = SampledSketch((1, seed))
        times[sketch.draw(5)] += 1
        times[5 + sketch.draw(2 * EVERY)] += 1
    assert abs(times / 4000 - 1 / EVERY).max() < 5 * sqrt(1 / EVERY / 4000)


@pytest.mark.parametrize("failure", [0.05, 1e-6])
def test_merged_samples_tell_the_join_of_the_whole_streams(failure):
    """50 times over, of eight loads each: that all estimates are within their bounds is more than
    is asked for."""
    left, right, errors = zipf(0.8, 1), np.arange(5600) % 700, []
    exact = 8 * int((left < 700).sum())
    for run in range(50):
        whole = SampledSketch().sketch
        for load, keys in enumerate(np.array_split(left, 8)):
            part = SampledSketch((run, load))
            part.add(keys[part.draw(len(keys))])
            whole.merge(read_sketch(part.sketch.to_bytes()))
        (value, bound), most = estimated(whole, len(left), 8, frequencies(right), failure)
        assert abs(value - exact) <= bound < 2 * exact and most == 8
        errors.append(value / exact - 1)
    assert abs(np.mean(errors)) < 0.03  # none to one side


def test_an_empty_sample_expects_nothing():
    (value, bound), most = estimated(SampledSketch().sketch, 0, 0, frequencies([1, 1]))
    assert (value, bound, most) == (0, 0, 2)


def test_sketches_in_ledgers_can_be_merged_for_ever():
    """Another size, or another seed, and what is in the ledgers would be of no use."""
    sketch = SampledSketch().sketch
    assert (sketch.s1, sketch.s2, sketch.candidates.slots, sketch.seed) == (320, 15, 256, 0)
