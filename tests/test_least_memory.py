"""What an operator needs is known when it is opened: the amount that a refusal names works, to the
end of the join."""

import numpy as np
import pyarrow as pa
import pytest

import oracle
from semistream.errors import NotEnoughMemory
from semistream.joins import REGISTRY
from semistream.master.bucket_writer import choose_page_tuples
from semistream.master.memory import MemoryRelation
from semistream.master.publish import publish_snapshot
from semistream.master.snapshot import open_snapshot
from semistream.sizing import open_join

TUPLES = 800
FORMS = [
    pytest.param(a.name, p, id=f"{a.name}{''.join(f' {v}' for v in p.values())}")
    for a in REGISTRY.values()
    for p in (
        [{"form": "fixed"}, {"form": "rate"}] if "form" in a.parameters.model_fields else [{}]
    )
]


def uniform(random):
    return random.integers(0, TUPLES + 50, 1000), lambda i: "n" * (i % 9), lambda k: f"v{k}"


def skewed(random):
    return random.zipf(1.3, 1000) % TUPLES, lambda i: "n" * (i % 9), lambda k: f"v{k}"


def equal(random):
    return np.full(1000, 7), lambda i: "n", lambda k: f"v{k}"


def long_strings(random):
    """Short strings first; then one in 50 is larger than the memory's smallest amounts."""
    return (
        random.integers(0, TUPLES, 600),
        lambda i: "n" * (90_000 if i > 400 and i % 50 == 0 else i % 9),
        lambda k: f"v{k}",
    )


def wide_master(random):
    return random.zipf(1.3, 700) % TUPLES, lambda i: "n", lambda k: "w" * (400 if k % 7 else 9000)


def make(kind):
    keys, note, name = kind(np.random.default_rng(11))
    stream = pa.table(
        {
            "id": range(len(keys)),
            "k": pa.array(keys, pa.int64()),
            "note": [note(i) for i in range(len(keys))],
        }
    )
    return stream, pa.table(
        {"k": pa.array(range(TUPLES), pa.int64()), "v": [name(k) for k in range(TUPLES)]}
    )


@pytest.fixture(scope="module", params=["in memory", "snapshot"])
def relation(request, tmp_path_factory):
    made = {}

    def of(kind, master):
        if kind not in made:
            if request.param == "in memory":
                made[kind] = MemoryRelation("r", master, ["k"], 50)
            else:
                root = tmp_path_factory.mktemp(kind.__name__)
                publish_snapshot(
                    master.to_batches(),
                    master.schema,
                    root,
                    "r",
                    ["k"],
                    bucket_count=4,
                    page_tuples=16,
                )
                made[kind] = open_snapshot(root)
        return made[kind]

    return of


@pytest.mark.parametrize(("algorithm", "parameters"), FORMS)
@pytest.mark.parametrize(
    "kind", [uniform, skewed, equal, long_strings, wide_master], ids=lambda k: k.__name__
)
def test_the_amount_that_a_refusal_names_works(algorithm, parameters, kind, relation):
    stream, master = make(kind)
    r = relation(kind, master)

    def joined(memory):
        join = open_join(
            algorithm,
            memory=memory,
            stream=stream.schema,
            master=r,
            on=[("k", "k")],
            parameters=parameters,
        )
        out = [o for b in stream.to_batches(max_chunksize=350) for o in join.process(b)]
        out += join.drain()
        assert join.stats.memory_peak <= memory
        assert (
            oracle.rows(o.joined for o in out),
            oracle.rows(o.unmatched for o in out),
        ) == expected

    expected = oracle.join(stream.to_pylist(), master.to_pylist(), [("k", "k")], ["v"], "inner")
    refused, named = set(), set()
    for memory in (1, 5000, 20_000, 35_000, 50_000, 65_000, 95_000, 200_000):
        try:
            joined(memory)
        except NotEnoughMemory as e:
            assert e.parameter == "memory" and e.value == memory and e.least > memory
            refused.add(memory)
            named.add(e.least)
    for least in named:
        joined(least)
        with pytest.raises(NotEnoughMemory):
            open_join(
                algorithm,
                memory=least // 2,
                stream=stream.schema,
                master=r,
                on=[("k", "k")],
                parameters=parameters,
            )
    assert 200_000 not in refused


def test_wide_rows_have_pages_of_fewer_so_that_a_small_memory_has_some(tmp_path):
    n = 20_000
    wide = pa.table({"k": np.arange(n), "text": pa.array([f"{i:0900d}" for i in range(n)])})
    manifest = publish_snapshot(
        wide.to_batches(), wide.schema, tmp_path, "r", ["k"], bucket_count=4
    )
    assert manifest.page_tuples == 128
    stream = pa.table({"id": np.arange(500), "k": np.arange(500) * 40}).to_batches()[0]
    for algorithm in ("meshjoin", "hybridjoin", "elevatorjoin", "ssbj"):
        join = open_join(
            algorithm,
            memory=500_000,
            stream=stream.schema,
            master=open_snapshot(tmp_path),
            on=[("k", "k")],
        )
        outputs = [*join.process(stream), *join.drain()]
        assert sum(o.joined.num_rows for o in outputs) == 500 and join.stats.memory_peak <= 500_000


@pytest.mark.parametrize(
    ("rows", "row_bytes", "page"),
    [
        (1_000_000, 116, 1024),
        (1_000_000, 16, 1024),
        (1_000_000, 900, 128),
        (100_000, 10**6, 64),
        (100_000_000, 900, 8192),
        (800, 30, 64),
        (8_000, 30, 256),
        (0, 1, 64),
    ],
)
def test_a_page_is_as_large_as_reads_like_it_and_as_small_as_the_memory_may_be(
    rows, row_bytes, page
):
    assert choose_page_tuples(rows, row_bytes) == page
