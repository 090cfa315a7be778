"""The kernels of an algorithm, compiled and loaded before a stream comes."""

import pyarrow as pa

from semistream.master.memory import MemoryRelation
from semistream.sizing import open_join

ROWS = 2000


def precompile(algorithm: str) -> None:
    """Run an algorithm once on integer keys and once on strings."""
    for keys in (range(ROWS), [f"key {i}" for i in range(ROWS)]):
        r = pa.table(
            {
                "k": keys,
                "name": [f"name {i}" for i in range(ROWS)],
                "price": [i / 2 for i in range(ROWS)],
            }
        )
        s = pa.record_batch(
            {
                "id": range(ROWS),
                "k": [keys[i * i % 40] for i in range(ROWS)],
                "note": ["note"] * ROWS,
            }
        )
        join = open_join(
            algorithm,
            memory=150_000,
            stream=s.schema,
            master=MemoryRelation("r", r, ["k"], 100),
            on=[("k", "k")],
        )
        for _ in range(8):
            for _ in join.process(s):
                pass
        for _ in join.drain():
            pass
