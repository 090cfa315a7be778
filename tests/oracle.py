"""The join by plain dicts and loops: what every algorithm is compared with."""

from collections import Counter, defaultdict


def join(stream, master, on, columns, join_type="inner"):
    """(joined, unmatched) as Counters of tuples.

    stream, master: lists of dicts; on: (stream column, master column) pairs; columns: master
    columns to add.
    """
    index = defaultdict(list)
    for r in master:
        key = tuple(r[m] for _, m in on)
        if None not in key:
            index[key].append(r)
    joined, unmatched = Counter(), Counter()
    for s in stream:
        key = tuple(s[c] for c, _ in on)
        matches = [] if None in key else index.get(key, [])
        for r in matches:
            joined[(*s.values(), *(r[c] for c in columns))] += 1
        if not matches:
            unmatched[(*s.values(), "null_key" if None in key else "no_match")] += 1
            if join_type == "left":
                joined[(*s.values(), *(None for _ in columns))] += 1
    return joined, unmatched


def rows(batches):
    """A Counter of the rows of record batches or tables."""
    return Counter(tuple(r.values()) for b in batches for r in b.to_pylist())
