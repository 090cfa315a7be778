"""Naeem, Weber, Lutteroth: A Memory-Optimal Many-To-Many Semi-Stream Join.

R's keys are drawn at random with repetition, as in the paper: some have several tuples, some none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.papers.common import cost, data_sets
from benchmarks.papers.layouts import (
    LITTLE,
    MUCH,
    R,
    over_memory,
    over_relation,
    over_skew,
    over_skew_claims,
    stated,
)
from benchmarks.papers.model import (
    Asked,
    Claim,
    Experiment,
    Number,
    Plot,
    Point,
    Row,
    Stated,
    having,
    ratio,
    times,
)
from benchmarks.papers.partitions import used

PAPER = "SSBJ"
BOTH = ("ssbj", "meshjoin")
MANY = "zipf-many"
RATES = (0.02, 0.04, 0.06, 0.08)  # M of R with which MESHJOIN keeps up with the arrivals
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
BUFFERS = (1, 2, 4, 8, 16, 32)  # pages
MESHJOIN = (("meshjoin", "MESHJOIN"),)
OWN = (
    "in the operator and its model the candidates for the cache have a fiftieth of M, and H_S "
    "at least a twentieth of what it shares with H_R, whatever the cache inequality says; the "
    "paper has neither limit"
)
LIMIT = (
    "what misses the cache waits as MESHJOIN's tuples do: with a share p through the cache it "
    "can be about 1 / (1 - p) times at most"
)


def _rates(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    """Return points for (a) the rates at which MESHJOIN needs 2% to 8% of R = 20M, (b) one rate, R
    = 20M to 80M. SSBJ also runs with form "rate", in which it takes the memory that it needs."""
    n = round(20e6 * asked.scale)
    speeds = [float(round(asked.predict(Point("meshjoin", n, m, data=MANY)).mu, -2)) for m in RATES]
    fixed, found = speeds[1], []
    for a in algorithms:
        plain = Point(a, n, 0.5, needed=True, data=MANY)
        own = (
            [replace(plain, parameters=(("form", "rate"),), series="SSBJ, form rate")]
            if a == "ssbj"
            else []
        )
        for base in (plain, *own):
            found += [replace(base, rate=r, place=(("part", "a"),)) for r in speeds]
            found += [
                replace(base, tuples=k * n, rate=fixed, place=(("part", "b"), ("at", k)))
                for k in (1, 2, 3, 4)
            ]
    return found


def _needed(rows: Sequence[Row], **where: Any) -> Number | None:
    """Return MESHJOIN's memory over SSBJ's at the same rate and |R|. Both memories are found in the
    same way."""
    return ratio("meshjoin", "ssbj", "needed", **where)(
        [r for r in rows if r.get("form") != "rate"]
    )


def _switching(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    n = round(20e6 * asked.scale)
    return [
        Point(a, n, 0.01, parameters=(("switching_factor", f),), data=MANY)
        for a in algorithms
        for f in FACTORS
    ]


def _best_factor(rows: Sequence[Row]) -> Number | None:
    """Return the loss of sf = 1 against the best measured sf."""
    found = having(rows, algorithm="ssbj")
    one = [r for r in found if r["switching_factor"] == 1.0]
    if not one or len(found) < 2:
        return None
    return Number(1 - one[0]["mu"] / max(r["mu"] for r in found))


def _worse_factor(rows: Sequence[Row]) -> Number | None:
    """Return the share of the rate at sf = 1 that is lost with the best of the other factors."""
    found = having(rows, algorithm="ssbj")
    one = [r["mu"] for r in found if r["switching_factor"] == 1.0]
    if not one or len(found) < 2:
        return None
    return Number(1 - max(r["mu"] for r in found if r["switching_factor"] != 1.0) / one[0])


def _buffers(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    point = Point("ssbj", round(R * asked.scale), 0.01, data=MANY)
    page = int(asked.work(point).page_tuples)
    most = asked.memory(point) / 2 / asked.work(point).disk_tuple_bytes
    best = int(asked.predict(point).parameters["disk_tuples"])
    sizes = sorted({k * page for k in BUFFERS if k * page <= most} | {best})
    return [
        replace(point, algorithm=a, parameters=(("disk_tuples", b),))
        for a in algorithms
        for b in sizes
    ]


def _interior(rows: Sequence[Row]) -> Number | None:
    """Return the position of the best disk buffer among those measured: 0 the smallest, 1 the
    largest."""
    line = sorted(having(rows, algorithm="ssbj"), key=lambda r: r["disk_tuples"])
    if len(line) < 3:
        return None
    return Number(max(range(len(line)), key=lambda i: line[i]["mu_disk"]) / (len(line) - 1))


def _share(rows: Sequence[Row], percent: float) -> Number | None:
    found = having(rows, algorithm="ssbj", memory_percent=percent)
    return (
        Number(found[0]["through_cache"], 0.0, found[0]["through_cache_model"]) if found else None
    )


def _evenly_used(percent: float, note: str = "", short: str = "") -> Claim:
    """Return the claim on how evenly partitions are used, with M of this percentage of R. note,
    short: as of a `Claim`."""

    def spread(rows: Sequence[Row]) -> Number | None:
        found = having(rows, algorithm="ssbj", memory_percent=percent)
        return Number(found[0]["partition_spread"]) if found else None

    return Claim(
        "Every partition that SSBJ reads is joined with roughly as many stream tuples, with "
        f"M = {percent:g}% of R",
        spread,
        "roughly",
        0,
        0.25,
        unit="%",
        note=note,
        short=short,
        reading="standard deviation over the mean; up to 25% is taken as roughly",
    )


EXPERIMENTS = (
    Experiment(
        "ssbj-rate",
        PAPER,
        "Fig. 4",
        "memory needed at a given arrival rate: the least M "
        "that keeps up; and what SSBJ takes by itself (form "
        "rate)",
        _rates,
        BOTH,
        (
            Claim(
                "MESHJOIN needs 7 times the memory of SSBJ at every arrival rate, |R| = 20M",
                partial(_needed, part="a"),
                "7",
                5.25,
                8.75,
                worse=1.0,
                explain=True,
                note=LIMIT,
                short="bounded by the share cached",
            ),
            Claim(
                "7 times the memory at |R| = 20M …",
                partial(_needed, part="b", at=1),
                "7",
                5.25,
                8.75,
                worse=1.0,
                explain=True,
            ),
            Claim(
                "… and 5 times at |R| = 80M, at the same rate",
                partial(_needed, part="b", at=4),
                "5",
                3.75,
                6.25,
                worse=1.0,
                explain=True,
            ),
        ),
        (
            Plot(
                "Memory over the arrival rate",
                "rate",
                "needed",
                log="y",
                only={"part": "a"},
                caption="Form rate: a chunk is what arrived in one iteration, which costs a call "
                "each, and the memory is the most that it took.",
            ),
            Plot("Memory over |R|", "master_tuples", "needed", log="y", only={"part": "b"}),
        ),
        scale=0.03,
        least=0.025,
        beside=False,
        headline="MESHJOIN needs 7 times the memory",
    ),
    Experiment(
        "ssbj-memory",
        PAPER,
        "Fig. 5(a), 5(f)",
        "service rate, and the share through the cache, over M, 1% to 10% of R",
        partial(over_memory, data=MANY),
        BOTH,
        (
            times(
                "SSBJ is 7 times as fast as MESHJOIN with M = 1% of R",
                *BOTH,
                7,
                memory_percent=1.0,
                stated=stated("Fig. 5(a)", LITTLE, *BOTH, 7),
                reading=OWN,
            ),
            times(
                "SSBJ is 8 times as fast with M = 10% of R",
                *BOTH,
                8,
                memory_percent=10.0,
                stated=stated("Fig. 5(a)", MUCH, *BOTH, 8),
                reading=OWN,
            ),
            Claim(
                "39% of the stream go through the cache with M = 1% of R",
                partial(_share, percent=1.0),
                "39%",
                0.34,
                0.44,
                unit="%",
                reading="within 5 percentage points",
                full_size=True,
                stated=(Stated.cached("Fig. 5(f)", LITTLE, *BOTH, 0.39),),
            ),
            Claim(
                "54% with M = 9% of R and more",
                partial(_share, percent=10.0),
                "54%",
                0.49,
                0.59,
                unit="%",
                reading="within 5 percentage points",
                full_size=True,
                stated=(Stated.cached("Fig. 5(f)", MUCH, *BOTH, 0.54),),
            ),
        ),
        (
            Plot("Service rate over memory", "memory_percent"),
            Plot(
                "Share of the stream through the cache",
                "memory_percent",
                "through_cache",
                only={"algorithm": "ssbj"},
            ),
        ),
        headline="7 times MESHJOIN, M = 1% of R",
    ),
    Experiment(
        "ssbj-relation",
        PAPER,
        "Fig. 5(b)",
        "service rate over |R|, M = 10% of the largest",
        partial(over_relation, data=MANY),
        BOTH,
        (
            times(
                "SSBJ is 7 times as fast as MESHJOIN at |R| = 20M (of 100M)",
                *BOTH,
                7,
                relation_percent=20,
                reading=OWN,
            ),
            times(
                "SSBJ is 5.7 times as fast at |R| = 100M",
                *BOTH,
                5.7,
                relation_percent=100,
                stated=stated("Fig. 5(b)", MUCH, *BOTH, 5.7),
                reading=OWN,
            ),
        ),
        (Plot("Service rate over |R|", "master_tuples"),),
        headline="7 times MESHJOIN, |R| = 20M",
    ),
    Experiment(
        "ssbj-skew",
        PAPER,
        "Fig. 5(c)",
        "service rate over the stream's skew, M = 10% of R",
        partial(over_skew, data=MANY),
        BOTH,
        (
            times(
                "SSBJ is 8 times as fast as MESHJOIN at skew 1",
                *BOTH,
                8,
                skew=1.0,
                stated=stated("Fig. 5(c)", MUCH, *BOTH, 8),
                reading=OWN,
            ),
            times(
                "SSBJ is faster as soon as there is a slight skew",
                *BOTH,
                None,
                skew=0.5,
                reading=f"at skew 0.5; {OWN}",
            ),
            *over_skew_claims("ssbj", MESHJOIN, MESHJOIN),
        ),
        (Plot("Service rate over skew", "skew"),),
        headline="8 times MESHJOIN at skew 1",
    ),
    *data_sets(
        "ssbj",
        PAPER,
        ("Fig. 5(d)", "Fig. 5(e)"),
        BOTH,
        (
            times(
                "SSBJ is 3.4 times as fast as MESHJOIN with M = 1% of R",
                *BOTH,
                3.4,
                data="tpch",
                memory_percent=1.0,
                reading=OWN,
                note="TPC-H's own orders name all customers equally often",
                short="customers order equally often",
            ),
            times(
                "SSBJ is 7.4 times as fast with M = 10% of R",
                *BOTH,
                7.4,
                data="tpch",
                memory_percent=10.0,
                reading=OWN,
            ),
            times(
                "3.4 times with M = 1%, where the customers order by Zipf's law",
                *BOTH,
                3.4,
                data="tpch-zipf",
                memory_percent=1.0,
                reading=OWN,
            ),
            times(
                "7.4 times with M = 10%, where the customers order by Zipf's law",
                *BOTH,
                7.4,
                data="tpch-zipf",
                memory_percent=10.0,
                reading=OWN,
            ),
        ),
        (
            times(
                "SSBJ is faster than MESHJOIN with every M",
                *BOTH,
                None,
                note="by the cache inequality, m v_R < n v_S, a value with some 80 "
                "master tuples is cached only where the stream names it far "
                "more often in one R-cycle",
                short="some 80 master tuples a value",
                reading=OWN,
            ),
        ),
        "3.4 times MESHJOIN",
    ),
    Experiment(
        "ssbj-switching",
        PAPER,
        "Fig. 6(a)",
        "service rate over the switching factor, R = 20M, M = 1% of R",
        _switching,
        ("ssbj",),
        (
            Claim(
                "The best switching factor is 1: what it loses against the best measured",
                _best_factor,
                "0%",
                0,
                0.02,
                unit="%",
                reading="up to 2% is no difference",
            ),
            Claim(
                "With another switching factor the service rate deteriorates markedly",
                _worse_factor,
                "markedly",
                0.1,
                unit="%",
                worse=0.0,
                reading="what the best of the others loses against 1; at least 10% is taken as "
                "markedly",
            ),
        ),
        (Plot("Service rate over the switching factor", "switching_factor", log="x"),),
        scale=0.03,
        least=0.025,
        beside=False,
        headline="the best switching factor is 1",
    ),
    Experiment(
        "ssbj-disk-buffer",
        PAPER,
        "Fig. 6(b)",
        "service rate of the disk phase over the disk buffer's size, M = 1% of R",
        _buffers,
        ("ssbj",),
        (
            Claim(
                "The disk phase's service rate has an optimum between the smallest and the largest "
                "buffer",
                _interior,
                "between",
                0.01,
                0.99,
                unit="",
                reading="place of the best among the sizes measured: 0 the smallest, 1 the largest",
                note="the rate still rises, measured and by the model, at the largest buffer for "
                "which half of M has room",
                short="rises up to the largest",
            ),
        ),
        (Plot("Service rate of the disk phase", "disk_tuples", "mu_disk", log="x"),),
        scale=0.03,
        beside=False,
        headline="an optimal disk buffer, not the largest",
    ),
    Experiment(
        "ssbj-partitions",
        PAPER,
        "section 5",
        "what each partition that is read is joined with, M from 1% to 10% of R",
        partial(over_memory, data=MANY, percent=(1.0, 10.0)),
        BOTH,
        (
            _evenly_used(
                1.0,
                "with so small an M a partition meets some 40 pairs of tuples; chance alone "
                "spreads so few by a sixth, and all pairs of a value come together",
                "some 40 pairs a partition",
            ),
            _evenly_used(10.0),
        ),
        (Plot("Spread over the partitions", "memory_percent", "partition_spread", models=()),),
        beside=False,
        figures=used,
        headline="partitions are used equally",
    ),
    cost("ssbj", PAPER, "Fig. 6(c), 6(d)", BOTH, (0.0, 1.0), "zipf-many"),
)
