"""Naeem, Jamil: An Efficient Stream-based Join to Process End User Transactions in Real-Time Data
Warehousing (2014)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.papers.common import cost, data_sets, error, time_claims, time_points
from benchmarks.papers.layouts import (
    FACTORS,
    LITTLE,
    MUCH,
    R,
    around,
    everywhere,
    optimum,
    over_memory,
    over_relation,
    over_skew,
    over_skew_claims,
    stated,
    tuned,
)
from benchmarks.papers.model import Asked, Claim, Experiment, Plot, Point, times
from semistream.cost_models import Prediction, ssj

PAPER = "SSJ (2014)"
BOTH = ("ssj", "meshjoin")
MESHJOIN = (("meshjoin", "MESHJOIN"),)


def _tuning(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    return [p for a in algorithms for p in around(asked, Point(a, round(R * asked.scale), 0.05))]


def _phases(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    """Return points with different h_R, with M and d unchanged."""
    return [
        p
        for a in algorithms
        for p in around(asked, Point(a, round(R * asked.scale), 0.05), FACTORS)
        if dict(p.place)["at_disk_tuples"] == 1.0
    ]


def _calculated(asked: Asked, point: Point, prediction: Prediction) -> Mapping[str, float]:
    """Return w_N and w_S by the printed equations, with the S_n / n and the h_S of the model."""
    at = {"h_r": prediction.h_r, "r_t": asked.work(point).master_tuples}
    d = asked.work(point).partitions(prediction.sizes["disk_tuples"]).tuples
    phi, psi = ssj.factors_n(**at)
    p_n = {
        "printed": ssj.p_n(exponent=point.skew, **at),
        "logarithm": ssj.p_n_logarithm(**at),
        "power": ssj.p_n_power(phi_n=phi, psi_n=psi, **at),
    }
    theta, psi, phi = ssj.factors_s(d=d, **at)
    p_s = {
        "printed": ssj.p_s(d=d, **at),
        "power": ssj.p_s_power(d=d, theta_s=theta, psi_s=psi, phi_s=phi, **at),
    }
    return {f"w_n_{form}": ssj.w_n(p_n=p, s_n=prediction.w, n=1) for form, p in p_n.items()} | {
        f"w_s_{form}": ssj.w_s(p_s=p, h_s=prediction.h_s) for form, p in p_s.items()
    }


def _as_calculated(over: str) -> tuple[Claim, ...]:
    """Return the claims about the two phases at the model's sizes. Fig. 4(c) to (f) vary parameters
    other than h_R; the text does not name these."""
    return tuple(
        Claim(
            f"{title} is as calculated, {over}",
            partial(error, y=y, by=f"{y}_model", algorithm="ssj"),
            "good correspondence",
            0,
            0.1,
            unit="%",
            reading="Fig. 4(c) to (f); median error; up to 10% is taken as good",
        )
        for y, title in (("w_n", "w_N"), ("w_s", "w_S"))
    )


FORMS = {
    "w_n_printed": "w_N by Eq. 4 and 7",
    "w_n_logarithm": "w_N by Eq. 5 and 7",
    "w_n_power": "w_N by Eq. 6 and 7",
    "w_n_model": "w_N by the stream's frequencies",
    "w_s_printed": "w_S by Eq. 8, with h_S",
    "w_s_power": "w_S by Eq. 9 and 10",
    "w_s_model": "w_S by what misses H_R",
}
NO_FACTOR = (
    "a power law with the slopes of {0} but without a factor, so that it differs from {0} even "
    "where the slopes are taken"
)
NOTES = {
    "w_n_power": NO_FACTOR.format("Eq. 5"),
    "w_s_power": NO_FACTOR.format("Eq. 8"),
    "w_s_printed": "Eq. 8 is the probability that any stream tuple falls into a segment of R'; "
    "those in H_S are known to belong to R', so that w_S is h_S / N",
}
CHANCE = (
    "an R-cycle has w stream tuples for each iteration, of which a share of 1 / (h_R (ln |R| + "
    "0.58)) is for the least frequent tuple of H_R: 3.2 at the best sizes, 0.2 at four times that "
    "h_R. There chance decides what H_R holds: it has fewer hits than calculated "
    "(`through_cache`), and an iteration switches more"
)
SLOWER = Claim(
    "SSJ is slightly slower than MESHJOIN where the stream is uniform",
    times("", "ssj", "meshjoin", 1.0, skew=0.0).find,
    "≤ 1",
    0.7,
    1.0,
    explain=True,
)

EXPERIMENTS = (
    Experiment(
        "ssj-memory",
        PAPER,
        "Fig. 6(a)",
        "service rate over M, 1% to 10% of R, Zipf 1",
        over_memory,
        BOTH,
        (
            times(
                "SSJ is 5 times as fast as MESHJOIN with M = 1% of R",
                *BOTH,
                5,
                memory_percent=1.0,
                stated=stated("Fig. 6(a)", LITTLE, *BOTH, 5),
            ),
            times(
                "SSJ is 7 times as fast with M = 10% of R",
                *BOTH,
                7,
                memory_percent=10.0,
                stated=stated("Fig. 6(a)", MUCH, *BOTH, 7),
            ),
            *_as_calculated("over M"),
        ),
        (Plot("Service rate over memory", "memory_percent"),),
        headline="5 times MESHJOIN, M = 1% of R",
    ),
    Experiment(
        "ssj-relation",
        PAPER,
        "Fig. 6(b)",
        "service rate over |R|, M = 10% of the largest",
        over_relation,
        BOTH,
        (
            times(
                "SSJ is up to 3.5 times as fast as MESHJOIN at every |R|",
                *BOTH,
                3.5,
                stated=stated("Fig. 6(b)", MUCH, *BOTH, 3.5, at_most=True),
            ),
            *_as_calculated("over |R|"),
        ),
        (Plot("Service rate over |R|", "master_tuples"),),
        headline="up to 3.5 times MESHJOIN over |R|",
    ),
    Experiment(
        "ssj-skew",
        PAPER,
        "Fig. 6(c)",
        "service rate over the stream's skew, M = 10% of R",
        over_skew,
        BOTH,
        (
            times(
                "SSJ is 7 times as fast as MESHJOIN at skew 1",
                *BOTH,
                7,
                skew=1.0,
                stated=stated("Fig. 6(c)", MUCH, *BOTH, 7),
            ),
            times("SSJ is faster even at a moderate skew", *BOTH, None, skew=0.5),
            SLOWER,
            *over_skew_claims("ssj", MESHJOIN, MESHJOIN),
        ),
        (Plot("Service rate over skew", "skew"),),
        headline="7 times MESHJOIN at skew 1",
    ),
    *data_sets(
        "ssj",
        PAPER,
        ("Fig. 6(d)", "Fig. 6(e)"),
        BOTH,
        (
            times("SSJ is remarkably faster than MESHJOIN", *BOTH, None, data="tpch"),
            times(
                "the same where the customers order by Zipf's law", *BOTH, None, data="tpch-zipf"
            ),
        ),
        (
            times(
                "SSJ is remarkably faster than MESHJOIN on a real, many-to-many data set",
                *BOTH,
                None,
            ),
        ),
    ),
    Experiment(
        "ssj-tuning",
        PAPER,
        "Fig. 2, 5",
        "service rate on a grid over d and h_R, M = 5% of R",
        _tuning,
        ("ssj",),
        (
            tuned("disk_tuples", "2.5%", 0.025),
            tuned("cache_tuples", "0.65%", 0.0065),
            everywhere(CHANCE, "chance decides what so large an H_R holds"),
            optimum("disk_tuples"),
            optimum("cache_tuples"),
        ),
        (
            Plot("Service rate over d and h_R", "disk_tuples", second="cache_tuples"),
            Plot(
                "Tuning of the disk buffer", "disk_tuples", log="x", only={"at_cache_tuples": 1.0}
            ),
            Plot("Tuning of H_R", "cache_tuples", log="x", only={"at_disk_tuples": 1.0}),
        ),
        beside=False,
        headline="calculated rate off by 2.5%",
    ),
    Experiment(
        "ssj-phases",
        PAPER,
        "Fig. 4",
        "w_N and w_S calculated and measured over h_R, M = 5% of R",
        _phases,
        ("ssj",),
        tuple(
            Claim(
                f"{what} is as measured",
                partial(error, y=by[:3], by=by),
                "good correspondence",
                0,
                0.1,
                unit="%",
                note=NOTES.get(by, ""),
                reading="median error; up to 10% is taken as good",
            )
            for by, what in FORMS.items()
        ),
        (
            Plot(
                "w_N over h_R",
                "cache_tuples",
                "w_n",
                models=("printed", "logarithm", "power", "model"),
                log="x",
            ),
            Plot(
                "w_S over h_R", "cache_tuples", "w_s", models=("printed", "power", "model"), log="x"
            ),
        ),
        beside=False,
        figures=_calculated,
    ),
    *time_points("ssj", PAPER, "Fig. 7", BOTH, time_claims("ssj", ("meshjoin",))),
    cost("ssj", PAPER, "Fig. 8", BOTH),
)
