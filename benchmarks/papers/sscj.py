"""Naeem, Weber, Dobbie, Lutteroth: SSCJ: A Semi-Stream Cache Join using a Front-Stage Cache Module
(2013)."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.common import cost, data_sets, time_claims, time_points
from benchmarks.papers.layouts import (
    LITTLE,
    MUCH,
    over_memory,
    over_relation,
    over_skew,
    over_skew_claims,
    stated,
)
from benchmarks.papers.model import Claim, Experiment, Plot, ratio, times

PAPER = "SSCJ (2013)"
FOUR = ("sscj", "hybridjoin", "r-meshjoin", "meshjoin")
BOTH = FOUR[:2]
INDEX = "R's index is clustered here; the paper's need not be"
SCANS = (("r-meshjoin", "R-MESHJOIN"), ("meshjoin", "MESHJOIN"))


def _than_meshjoin(**where: Any) -> tuple[Claim, ...]:
    return tuple(
        times(f"SSCJ is significantly faster than {title}", "sscj", other, None, **where)
        for other, title in SCANS
    )


EXPERIMENTS = (
    Experiment(
        "sscj-memory",
        PAPER,
        "Fig. 4(a)",
        "service rate over M, 1% to 10% of R, Zipf 1",
        over_memory,
        FOUR,
        (
            times(
                "SSCJ is 3 times as fast as HYBRIDJOIN with M = 1% of R",
                "sscj",
                "hybridjoin",
                3,
                memory_percent=1.0,
                stated=stated("Fig. 4(a)", LITTLE, *BOTH, 3),
                reading=INDEX,
            ),
            times(
                "SSCJ is 4.5 times as fast with M = 10% of R",
                "sscj",
                "hybridjoin",
                4.5,
                memory_percent=10.0,
                stated=stated("Fig. 4(a)", MUCH, *BOTH, 4.5),
                reading=INDEX,
            ),
            *_than_meshjoin(),
        ),
        (Plot("Service rate over memory", "memory_percent"),),
        headline="3 times HYBRIDJOIN, M = 1% of R",
    ),
    Experiment(
        "sscj-relation",
        PAPER,
        "Fig. 4(b)",
        "service rate over |R|, M = 10% of the largest",
        over_relation,
        FOUR,
        (
            times(
                "SSCJ is up to 3 times as fast as HYBRIDJOIN at every |R|",
                "sscj",
                "hybridjoin",
                3,
                stated=stated("Fig. 4(b)", MUCH, *BOTH, 3, at_most=True),
                reading=INDEX,
            ),
            *_than_meshjoin(),
        ),
        (Plot("Service rate over |R|", "master_tuples"),),
        headline="up to 3 times HYBRIDJOIN over |R|",
    ),
    Experiment(
        "sscj-skew",
        PAPER,
        "Fig. 4(c)",
        "service rate over the stream's skew, M = 10% of R",
        over_skew,
        FOUR,
        (
            times(
                "SSCJ is 3 times as fast as HYBRIDJOIN at skew 1",
                "sscj",
                "hybridjoin",
                3,
                skew=1.0,
                stated=stated("Fig. 4(c)", MUCH, *BOTH, 3),
                reading=INDEX,
            ),
            *(
                times(
                    f"SSCJ is faster than {title} even at a moderate skew",
                    "sscj",
                    other,
                    None,
                    skew=0.5,
                    reading=INDEX if other == "hybridjoin" else "",
                )
                for other, title in (("hybridjoin", "HYBRIDJOIN"), *SCANS)
            ),
            *(
                Claim(
                    f"SSCJ is slightly slower than {title} where the stream is uniform",
                    ratio("sscj", other, skew=0.0),
                    "≤ 1",
                    0.7,
                    1.0,
                    explain=True,
                )
                for other, title in SCANS
            ),
            *over_skew_claims("sscj", (("hybridjoin", "HYBRIDJOIN"), *SCANS), SCANS),
        ),
        (Plot("Service rate over skew", "skew"),),
        headline="3 times HYBRIDJOIN at skew 1",
    ),
    *data_sets(
        "sscj",
        PAPER,
        ("Fig. 4(d)", "Fig. 4(e)"),
        FOUR,
        (
            times(
                "SSCJ is remarkably faster than HYBRIDJOIN", *BOTH, None, data="tpch", reading=INDEX
            ),
            times(
                "the same where the customers order by Zipf's law",
                "sscj",
                "hybridjoin",
                None,
                data="tpch-zipf",
                reading=INDEX,
            ),
            *(
                times(
                    f"SSCJ is remarkably faster than {title}{where}", "sscj", other, None, data=data
                )
                for data, where in (("tpch", ""), ("tpch-zipf", ", with Zipf's law"))
                for other, title in SCANS
            ),
        ),
        (
            times(
                "SSCJ is remarkably faster than HYBRIDJOIN on a real data set",
                *BOTH,
                None,
                reading=INDEX,
            ),
            *(
                times(
                    f"SSCJ is remarkably faster than {title} on a real data set",
                    "sscj",
                    other,
                    None,
                )
                for other, title in SCANS
            ),
        ),
    ),
    *time_points(
        "sscj", PAPER, "Fig. 5", FOUR, time_claims("sscj", ("hybridjoin", "r-meshjoin", "meshjoin"))
    ),
    cost("sscj", PAPER, "Fig. 6", FOUR),
)
