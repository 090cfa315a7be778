"""Auctions and their bids, as in PJoin's example (Ding, Mehta, Rundensteiner, Heineman, section
1.1): each item is opened once, and the end of its auction is a row among the bids.

The numbers are those of Nexmark's generator: 46 bids to three auctions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

AUCTIONS, BIDS = 15_000, 230_000
START = 1_767_225_600_000_000  # us: 2026-01-01
SECOND = 1_000_000
LONGEST = 200  # s that an auction may last; one is opened a second


def auctions_and_bids() -> tuple[pa.Table, pa.Table]:
    """Return the auctions and the bids, both in the order of their times. A row of the bids whose
    `closed` is set is not a bid, but ends its auction."""
    rng = np.random.default_rng(2004)
    ids = np.arange(AUCTIONS)
    opened = START + ids * SECOND
    ends = opened + rng.integers(10 * SECOND, LONGEST * SECOND, AUCTIONS)
    left = pa.table(
        {
            "auction": ids,
            "seller": rng.integers(0, 1000, AUCTIONS),
            "category": pa.array(rng.integers(10, 15, AUCTIONS), pa.int32()),
            "opened_at": pa.array(opened, pa.timestamp("us")),
        }
    )
    of = rng.integers(0, AUCTIONS, BIDS)
    at = opened[of] + (rng.random(BIDS) * (ends - opened)[of]).astype(np.int64)
    price = np.rint(100 * 10 ** (3 * rng.random(BIDS))).astype(np.int64)
    bids = pa.table(
        {
            "bid_id": np.arange(BIDS),
            "auction": of,
            "bidder": rng.integers(0, 5000, BIDS),
            "price": price,
            "bid_at": pa.array(at, pa.timestamp("us")),
            "closed": pa.nulls(BIDS, pa.bool_()),
        }
    )
    closings = pa.Table.from_pydict(
        {"auction": ids, "closed": [True] * AUCTIONS, "bid_at": pa.array(ends, pa.timestamp("us"))}
    )
    rows = pa.concat_tables([bids, closings], promote_options="default")
    order = np.argsort(np.concatenate([at, ends]), kind="stable")
    return left, rows.take(pa.array(order)).select(bids.column_names)
