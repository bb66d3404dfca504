"""Figures over learning rates: pass@1 over the rate, and accuracy against diversity."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.text import Text

from advsweep.errors import ConfigError, NotFoundError, ReportError
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.draw import draw_page
from advsweep.report.figures.registry import collect

T2 = 4.302652729911275  # Student's t of 2 degrees of freedom, at 97.5 %


def chart_of(lab: Any, figure: str, **options: Any) -> Any:
    data = FigureData(lab.store, lab.store.runs.select(newest_first=False), "demo")
    return collect(figure, data, **options)


@pytest.fixture
def rates(lab: Any) -> Any:
    """Two arms at some rates: of eight samples so many are right in the mean of two seeds."""
    for estimator, right in (("grpo", {0.1: 4, 0.2: 5, 0.4: 3}), ("psr", {0.1: 6, 0.2: 5})):
        for rate, count in right.items():
            for seed in range(2):
                more = 1 - 2 * seed
                solved = (count // 2 + more, count - count // 2)
                lab.run(estimator, seed, solved=solved, optimizer__lr=rate)
    return lab


def test_each_arm_has_a_line_over_the_rate_and_its_best(rates: Any) -> None:
    chart = chart_of(rates, "rate")
    found = {(r["row"], r["optimizer.lr"]): r for r in chart.records}
    assert {place: r["mean"] for place, r in found.items()} == pytest.approx(
        {
            ("grpo", 0.1): 4 / 8,
            ("grpo", 0.2): 5 / 8,
            ("grpo", 0.4): 3 / 8,
            ("psr", 0.1): 6 / 8,
            ("psr", 0.2): 5 / 8,
        }
    )
    assert [place for place, r in found.items() if r["chosen"]] == [("grpo", 0.2), ("psr", 0.1)]
    [panel] = chart.panels
    assert list(panel.x_ticks.values()) == ["0.1", "0.2", "0.4"]
    assert sum(len(own.y) for own in panel.series if own.mark.name == "faint") == 10
    draw_page([chart])


def test_a_lower_metric_is_best_at_its_least_mean(lab: Any, constant: Any) -> None:
    for rate, share in ((0.1, 0.2), (0.2, 0.4)):
        lab.run(points=constant(collapse__acr=share), optimizer__lr=rate)
    first, _ = chart_of(lab, "rate", metrics=("collapse/acr",)).records
    assert first["chosen"]


def test_sweeps_without_rates_are_refused(lab: Any) -> None:
    lab.run("grpo", optimizer__lr=0.1)
    with pytest.raises(ReportError, match=r"two values of 'optimizer\.lr', got none in demo"):
        chart_of(lab, "rate")
    with pytest.raises(ReportError, match="with a number as 'group_siez', got 0 in demo"):
        chart_of(lab, "rate", x="group_siez")
    with pytest.raises(ConfigError, match="--metric: expected one number, got a, b"):
        chart_of(lab, "frontier", metrics=("a", "b"))
    # The base model and the end of one rate.
    with pytest.raises(ReportError, match=r"at three or more rates and steps, got 2"):
        chart_of(lab, "frontier")


def at(lab: Any, estimator: str, rate: float, points: dict[int, tuple[int, list[float]]]) -> None:
    """Add three seeds of a run with a value of pass@1 in percent, and one of KL for each seed."""
    for seed in range(3):
        run = lab.run(estimator, seed, solved=None, optimizer__lr=rate)
        for step, (percent, kl) in points.items():
            subject = f"{estimator} {rate} {seed}@{step}"
            lab.evaluate(run, subject, step, (percent, percent), kl=(kl[seed], kl[seed]))


@pytest.fixture
def frontier(lab: Any) -> Any:
    """KL as the measure of diversity, since it can be set apart from pass@1."""
    lab.samples = 100
    at(lab, "grpo", 0.1, {10: (30, [1.0, 1.1, 1.2]), 20: (34, [0.8, 0.9, 1.0])})
    at(lab, "grpo", 0.2, {10: (32, [0.5, 0.6, 0.7]), 20: (44, [0.4, 0.5, 0.6])})
    at(lab, "psr", 0.1, {10: (20, [1.3, 1.3, 1.3]), 20: (33, [0.95, 1.07, 1.19])})
    at(lab, "psr", 0.2, {20: (40, [0.7, 0.8, 0.9])})
    return lab


def test_arms_are_compared_with_the_frontier_of_the_baseline(frontier: Any) -> None:
    chart = chart_of(frontier, "frontier", metrics=("kl/base",))
    found = {(r["row"], r["optimizer.lr"], r["step"]): r for r in chart.records}
    # 32 % with .6 is worse than 34 % with .9.
    best = [place for place, r in found.items() if place[0] == "grpo" and r["frontier"]]
    assert best == [("grpo", 0.1, 10), ("grpo", 0.1, 20), ("grpo", 0.2, 20)]
    # At 33 % the frontiers are at .85, .95 and 1.05: .10, .12 and .14 below.
    half = T2 * 0.02 / 3**0.5
    for place in (("psr", 0.1, 20), ("psr", None, None)):
        off = found[place]
        expected = (0.12, 0.12 - half, 0.12 + half, 3)
        assert (off["off"], off["low"], off["high"], off["n"]) == pytest.approx(expected)
    # 40 % lies between 34 % and 44 %, which are too far apart.
    assert found["psr", 0.2, 20]["n"] == 0
    texts = {text.get_text() for text in draw_page([chart]).findobj(match=Text)}
    assert {"grpo (baseline)", f"psr: +0.120 [{0.12 - half:+.3f}, {0.12 + half:+.3f}]"} <= texts


def test_the_baseline_of_the_frontier_can_be_named(frontier: Any) -> None:
    chart = chart_of(frontier, "frontier", metrics=("kl/base",), baseline="psr")
    assert list(dict.fromkeys(r["row"] for r in chart.records)) == ["psr", "grpo"]
    # The frontier of psr has gaps of 13 % and 7 %, in which nothing is compared.
    assert {record["n"] for record in chart.records} == {0}
    with pytest.raises(NotFoundError, match="--baseline: no row is called 'ppo'"):
        chart_of(frontier, "frontier", metrics=("kl/base",), baseline="ppo")


def test_entropies_of_equal_numbers_of_samples_are_compared(lab: Any) -> None:
    lab.samples = 8
    for rate in (0.1, 0.2):
        run = lab.run("grpo", 0, solved=(4, 4), optimizer__lr=rate)
        for step, solved in ((5, (2, 2)), (10, (3, 1)), (15, (3, 3))):
            lab.evaluate(run, f"{rate}@{step}", step, solved, n=4)
    chart = chart_of(lab, "frontier")
    assert chart.panels[0].y_label == "entropy/right"
    assert {record["step"] for record in chart.records} == {5, 10, 15, None}
    assert "Only evaluations of 4 samples per problem" in chart.caption.replace("\n", " ")
    # pass@k does not depend on the number of samples.
    chart = chart_of(lab, "frontier", metrics=("pass@2",))
    assert {record["step"] for record in chart.records} == {0, 5, 10, 15, 20, None}
