"""Nexmark's bids, as its generator draws them, and the bounded side input of its query 13.

Of 50 events one is a person, three are auctions and 46 are bids, at 10,000 events a second. Half of
the bids are for the hot auction, the first of the last hundred opened; the others are for one of
the auctions that are open or will open soon. Three quarters are by the hot bidder. Every value is a
function of the bid's number, so that a batch is the same wherever it begins. Columns that the query
does not read are omitted. Because not all peers can join on an expression, `key` is the bid's
`auction mod N`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import STEP, Answer, Files, Stream
from semistream.master.publish import publish_snapshot

EVENTS, BIDS, AUCTIONS = 50, 46, 3  # in an epoch, which also has one person
HOT = 100  # one auction, and one person, of so many is hot
LEAD = 10  # auctions with bids, and people who bid, before they are created
ACTIVE_PEOPLE = 1000
FIRST_ID = 1000
FIRST_TIME = 1_436_918_400_000  # ms since the epoch, of event 0
EVENTS_PER_MS = 10
BID = pa.schema(
    [(name, pa.int64()) for name in ("key", "id", "auction", "bidder", "price", "date_time")]
)
SIDE = pa.schema([("key", pa.int64()), ("value", pa.string())])


def random_words(ids: np.ndarray, salt: int) -> np.ndarray:
    """Return a random 64-bit word for each id, by SplitMix64: uint64[n]."""
    z = (ids.astype(np.uint64) * np.uint64(8) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def below(words: np.ndarray, limits: np.ndarray | int) -> np.ndarray:
    """Return numbers from 0 up to the limits, which are exclusive."""
    return (words % np.asarray(limits).astype(np.uint64)).astype(np.int64)


@dataclass(frozen=True)
class Bids(Stream):
    """The stream of bids 0, 1, 2, …; ``master`` is N, the number of keys of the side input."""

    in_flight: int = 100  # auctions

    def batch(self, first: int, rows: int) -> pa.RecordBatch:
        ids = np.arange(first, first + rows, dtype=np.int64)
        epoch = ids // BIDS
        auction = self.auctions(ids, AUCTIONS * epoch + AUCTIONS - 1) + FIRST_ID
        price = 100 * 10 ** (6 * (random_words(ids, 4) >> np.uint64(11)) * 2.0**-53)
        event = EVENTS * epoch + EVENTS - BIDS + ids % BIDS
        columns = (
            auction % self.master,
            ids,
            auction,
            bidders(ids, epoch) + FIRST_ID,
            np.rint(price).astype(np.int64),
            FIRST_TIME + event // EVENTS_PER_MS,
        )
        return pa.record_batch([pa.array(c) for c in columns], schema=BID)

    def auctions(self, ids: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the bids' auctions, counted from 0. last: the newest auction at the time of each
        bid."""
        oldest = np.maximum(last - self.in_flight, 0)
        usual = oldest + below(random_words(ids, 1), last - oldest + 1 + LEAD)
        return np.where(below(random_words(ids, 0), 2) > 0, last // HOT * HOT, usual)

    def expected(self, tuples: int) -> Answer:
        answer = Enriched()
        for first in range(0, tuples, STEP):
            bids = self.batch(first, min(STEP, tuples - first))
            answer.add(bids.append_column("value", pa.array(side_values(bids["key"].to_numpy()))))
        return answer


def bidders(ids: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the bids' people, counted from 0. last: the newest person at the time of each bid."""
    active = np.minimum(last + 1, ACTIVE_PEOPLE)
    usual = last + 1 - active + below(random_words(ids, 3), active + LEAD)
    return np.where(below(random_words(ids, 2), 4) > 0, last // HOT * HOT + 1, usual)


def side_values(keys: np.ndarray) -> np.ndarray:
    """Return the side input's value of each key, as a number; the side input stores it as text."""
    return below(random_words(keys, 5), 10**15)


def side_batches(keys: int) -> Iterator[pa.RecordBatch]:
    """Yield the side input in the order of its keys, which are 0 to N - 1."""
    for first in range(0, keys, STEP):
        numbers = np.arange(first, min(first + STEP, keys))
        texts = pa.array(side_values(numbers)).cast(pa.string())
        yield pa.record_batch([pa.array(numbers), texts], schema=SIDE)


class Enriched(Answer):
    """The answer of the join of bids with the side input: the number of rows, and the sum of a hash
    of each row."""

    def _add(self, batch: pa.RecordBatch) -> None:
        hashes = np.zeros(batch.num_rows, np.uint64)
        for name in (*BID.names[1:], "value"):
            words = batch.column(name).cast(pa.int64()).to_numpy().view(np.uint64)
            hashes = (hashes ^ words) * np.uint64(0xD1B54A32D192ED03)
            hashes ^= hashes >> np.uint64(29)
        self.rows += batch.num_rows
        self.checksum = (self.checksum + int(hashes.sum(dtype=np.uint64))) % 2**64


@dataclass(frozen=True)
class SideFiles(Files):
    """Files with the side input in place of R."""

    def snapshot(self, tuples: int, schema: pa.Schema) -> Path:
        return self.made(
            f"snapshot-side-{tuples}",
            lambda at: publish_snapshot(side_batches(tuples), SIDE, at, "master", ["key"]),
        )

    def master_parquet(self, tuples: int, schema: pa.Schema) -> Path:
        def make(at: Path) -> None:
            at.mkdir()
            with pq.ParquetWriter(at / "part-00000.parquet", SIDE) as writer:
                for batch in side_batches(tuples):
                    writer.write_batch(batch)

        return self.made(f"side-{tuples}.parquet", make)
