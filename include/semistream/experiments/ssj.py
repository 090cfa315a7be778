"""Naeem, Jamil: An Efficient Stream-based Join to Process End User Transactions in Real-Time Data Warehousing (2014)."""

from __future__ import annotations

from collections.abc import Sequence

from semistream.experiments.common import cost, data_sets, time_points
from semistream.experiments.layouts import R, around, lost, over_memory, over_relation, over_skew
from semistream.experiments.model import Asked, Claim, Experiment, Plot, Point, times

PAPER = "SSJ (2014)"
BOTH = ("ssj", "meshjoin")


def _tuning(asked: Asked, algorithms: Sequence[str]) -> list[Point]:
    return [p for a in algorithms for p in around(asked, Point(a, round(R * asked.scale), 0.05))]


SLOWER = Claim("SSJ is slightly slower than MESHJOIN where the stream is uniform",
               times("", "ssj", "meshjoin", 1.0, skew=0.0).find, "≤ 1", 0.7, 1.0, explain=True)

EXPERIMENTS = (
    Experiment("ssj-memory", PAPER, "Fig. 6(a)", "service rate over M, 1% to 10% of R, Zipf 1", over_memory, BOTH, (
        times("SSJ is 5 times as fast as MESHJOIN with M = 1% of R", *BOTH, 5, memory_percent=1.0),
        times("SSJ is 7 times as fast with M = 10% of R", *BOTH, 7, memory_percent=10.0)),
        (Plot("Service rate over memory", "memory_percent"),)),
    Experiment("ssj-relation", PAPER, "Fig. 6(b)", "service rate over |R|, M = 10% of the largest", over_relation, BOTH, (
        times("SSJ is up to 3.5 times as fast as MESHJOIN at every |R|", *BOTH, 3.5),),
        (Plot("Service rate over |R|", "master_tuples"),)),
    Experiment("ssj-skew", PAPER, "Fig. 6(c)", "service rate over the stream's skew, M = 10% of R", over_skew, BOTH, (
        times("SSJ is 7 times as fast as MESHJOIN at skew 1", *BOTH, 7, skew=1.0), SLOWER),
        (Plot("Service rate over skew", "skew"),)),
    *data_sets("ssj", PAPER, ("Fig. 6(d)", "Fig. 6(e)"), BOTH, (
        times("SSJ is remarkably faster than MESHJOIN", *BOTH, None, data="tpch"),
        times("the same where the customers order by Zipf's law", *BOTH, None, data="tpch-zipf")), (
        times("SSJ is remarkably faster than MESHJOIN on a real, many-to-many data set", *BOTH, None),)),
    Experiment("ssj-tuning", PAPER, "Fig. 2, 5", "service rate on a grid over d and h_R, M = 5% of R", _tuning, ("ssj",), (
        Claim("The model's d is within 2.5% of the measured optimum", lambda rows: lost(rows, "disk_tuples"), "2.5%", 0, 0.025,
              unit="%"),
        Claim("The model's h_R is within 0.65% of the measured optimum", lambda rows: lost(rows, "cache_tuples"), "0.65%", 0,
              0.0065, unit="%")),
        (Plot("Service rate over d and h_R", "disk_tuples", second="cache_tuples"),
         Plot("Tuning of the disk buffer", "disk_tuples", log="x", only={"at_cache_tuples": 1.0}),
         Plot("Tuning of H_R", "cache_tuples", log="x", only={"at_disk_tuples": 1.0})), beside=False),
    *time_points("ssj", PAPER, "Fig. 7", BOTH, (
        Claim("The processing time of SSJ is significantly smaller than MESHJOIN's",
              times("", "meshjoin", "ssj", None, y="processing_time", rate=0.0).find, "more than 1", 1.0),
        Claim("The waiting time of SSJ is significantly smaller than MESHJOIN's",
              times("", "meshjoin", "ssj", None, y="waiting_time", rate=lambda r: r > 0).find, "more than 1", 1.0))),
    cost("ssj", PAPER, "Fig. 8", BOTH),
)
