"""`python -m benchmarks.papers sketch-…`, at sizes of a test."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers import EXPERIMENTS
from benchmarks.papers.__main__ import main
from benchmarks.papers.model import MEASURED, TITLES
from benchmarks.papers.run import chosen
from benchmarks.papers.sketches import (
    DOMAIN,
    REPEATS,
    S1,
    S2,
    WORST,
    SketchPoint,
    SketchRunner,
    _mean,
    _over_draws,
    estimate_error,
    figures,
    sized,
)
from benchmarks.verdicts import half_width
from semistream.paths import Paths
from semistream.sketches import METHODS

STUDIES = chosen(["sketch"])
POINT = SketchPoint("skimmed", "zipf", 1.0, 100, 50, 11)


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> SketchRunner:
    return SketchRunner(0.002, Paths(home=tmp_path_factory.mktemp("sketches")), print)


@pytest.mark.parametrize("experiment", STUDIES, ids=[e.name for e in STUDIES])
def test_every_experiment_is_laid_out(experiment, runner):
    points = experiment.points(runner, experiment.algorithms)
    assert {p.algorithm for p in points} == set(METHODS) and len(points) == len(set(points))
    assert {k for p in experiment.plots for k in (p.x, p.y)} <= set(TITLES)
    for claim in experiment.claims:
        assert claim.find([]) is None and claim.text


def test_the_sizes_are_those_printed():
    assert (S1, S2) == ((50, 100, 150, 200, 250), (11, 23, 35, 47, 59)) and DOMAIN == 2**18
    assert [
        {p.shift for p in EXPERIMENTS[name].points(None, ("agms",))}
        for name in ("sketch-moderate", "sketch-skewed")
    ] == [{100, 200, 300}, {30, 50}]


@pytest.mark.parametrize("s1", S1)
@pytest.mark.parametrize("s2", S2)
def test_both_methods_have_the_same_memory(s1, s2):
    basic, skimmed = (sized(a, s1, s2, 0) for a in ("agms", "skimmed"))
    taken = skimmed.counters.nbytes + skimmed.candidates.memory_bytes
    assert basic.counters.nbytes - 8 * s2 < taken <= basic.counters.nbytes
    assert skimmed.s2 == basic.s2


def test_a_stream_shifted_joins_the_other(runner):
    left, right = (runner.stream(POINT, side) for side in (0, 1))
    plain = runner.stream(replace(POINT, shift=0), 1)
    assert (right.keys == (plain.keys + 99) % DOMAIN + 1).all() and len(left.keys) == 8000
    counts = [np.bincount(s.keys, minlength=DOMAIN + 1) for s in (left, right)]
    assert left.join_size(right) == counts[0] @ counts[1]


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_sketch_is_that_of_the_stream_key_by_key(algorithm, runner):
    point = replace(POINT, algorithm=algorithm)
    streamed = sized(algorithm, point.s1, point.s2, 3)
    keys = runner.stream(point, 1).keys
    for first in range(0, len(keys), 1000):
        streamed.update(keys[first : first + 1000])
    assert runner.sketch(point, 1, 3).to_bytes() == streamed.to_bytes()


@pytest.mark.parametrize(
    "estimate, error",
    [(100, 0), (150, 0.5), (50, 1), (1100, 10), (2000, 19), (9, WORST), (0, WORST), (-5, WORST)],
)
def test_errors_by_hand(estimate, error):
    assert estimate_error(estimate, 100) == pytest.approx(error)


def test_an_interval_is_over_the_draws_of_the_hash_functions():
    """The jackknife of a mean is the interval of the mean. Errors that depend on the size, but not
    on the draw, have none."""
    errors = np.random.default_rng(5).exponential(1.0, REPEATS)
    rows = [{"errors": list(errors), **figures(errors)}, {"errors": None}]
    found = _over_draws(rows, lambda rows: rows[0]["estimate_error"])
    assert found.value == pytest.approx(errors.mean())
    assert found.interval == pytest.approx(half_width(errors))
    rows = [{"errors": [e] * REPEATS, **figures(np.full(REPEATS, e))} for e in (0.5, 0.1)]
    found = _over_draws(rows, lambda rows: _mean([r["estimate_error"] for r in rows]))
    assert (found.value, found.interval) == (pytest.approx(0.05**0.5), pytest.approx(0, abs=1e-9))
    assert _over_draws([], lambda rows: None) is None


@pytest.mark.parametrize("data", ["tailnum", "times"])
def test_flights(data, runner):
    rows = [runner.run(SketchPoint(a, data, s1=50, s2=11)) for a in METHODS]
    assert [(r["state"], r["error"], r["outside"]) for r in rows] == [(MEASURED, "", 0)] * 2
    assert rows[0]["join_size"] == rows[1]["join_size"] > 1_000_000
    assert all(r["estimate_error"] < 1 for r in rows)


def test_a_point_that_fails_is_told(runner, monkeypatch):
    monkeypatch.setattr(runner, "_sketches", {})
    row = runner.run(replace(POINT, s2=4))
    assert row["state"] == "failed" and "'s2' must be an odd number" in row["error"]


@pytest.mark.slow
def test_results_claims_and_a_report(runner, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SEMISTREAM_HOME", str(runner.paths.home))
    assert main(["sketch-skewed", "--scale", "0.002", "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "almost 0" in out and "[100/100]" in err
    results = json.loads((tmp_path / "sketch-skewed" / "results.json").read_text())
    assert len(results["rows"]) == 100 and results["wrong_answers"] == []
    verdicts = {c["claim"]: c["verdict"] for c in results["claims"]}
    assert (
        verdicts["Shift 30: the basic sketch has 100 times the error of the skimmed one"]
        != "not reproduced"
    )
    assert verdicts["Estimates outside of their 95% bounds"] == "met"
    page = (tmp_path / "sketch-skewed" / "report.html").read_text()
    assert page.count("<svg") == 1 and "http" not in page.replace("http://www.w3.org", "")
    assert "118,000" in page
    assert (
        "exact join sizes are the same" in (tmp_path / "sketch-skewed" / "claims.txt").read_text()
    )


def test_the_time_of_updates(runner, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SEMISTREAM_HOME", str(runner.paths.home))
    assert (
        main(
            [
                "sketch-update",
                "--scale",
                "0.002",
                "--algorithms",
                "skimmed",
                "--output",
                str(tmp_path),
            ]
        )
        == 0
    )
    rows = json.loads((tmp_path / "sketch-update" / "results.json").read_text())["rows"]
    assert [r["memory"] <= 1000 * 4**i and r["update_ns"] > 0 for i, r in enumerate(rows, 1)] == [
        True
    ] * 5
    assert main(["sketch-update", "--algorithms", "ssbj", "--output", str(tmp_path)]) == 2
    assert "must be of skimmed, agms" in capsys.readouterr().err
