"""Figures that compare arms: forest plots, numbers over rates, and frontiers."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.text import Text

from advsweep.errors import ConfigError, NotFoundError, ReportError
from advsweep.report.data.filters import parse_where
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.draw import draw_page
from advsweep.report.figures.registry import collect
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest


@pytest.fixture
def arms(lab: Any) -> Any:
    """Three seeds of five rows, of 16 samples of two problems each; a_grae is far below.

    Dr. GRPO is an A/A arm by its config.
    """
    lab.samples = 16
    for seed, more in enumerate((0, 1, 3)):
        lab.run("rloo", seed, solved=(8 + more, 4))
        lab.run("psr", seed, solved=(10 + more, 4 + seed % 2))
        lab.run("grpo", seed, solved=(9 + more, 4 - seed % 2))
        lab.run("a_grae", seed, solved=(0, seed % 2))
        lab.run("dr_grpo", seed, solved=(8 + more, 4 + seed % 2), control__name="aa")
    return lab


def forest(lab: Any, where: str = "", task: str | None = None, **options: Any) -> Chart:
    runs = lab.store.runs.select(newest_first=False)
    filters = parse_where(where) if where else ()
    data = FigureData(lab.store, NamedRuns(runs, "demo", "demo"), filters, task)
    return collect("forest", data, **options)


def test_differences_are_those_of_the_report(arms: Any) -> None:
    drawn = forest(arms)
    # A quarter of 16 samples supports pass@4; the task of these problems is not above guessing.
    assert [panel.title for panel in drawn.panels] == ["p@1", "p@4", "H right"]
    assert drawn.title == "demo: differences to rloo"
    found = {(r["row"], r["outcome"]): r for r in drawn.records}
    # Two seeds of a_grae have no right answer.
    assert len(found) == len(build_report(arms.store, ReportRequest("demo")).primary) == 11
    check_against_report(arms, found)
    # pass@1 of psr is (2 + seed % 2) / 32 higher: 2, 3, 2 of 32.
    assert found["psr", "pass@1"]["difference"] == pytest.approx(7 / 96)


def check_against_report(arms: Any, found: dict[tuple[str, str], dict[str, Any]]) -> None:
    report = build_report(arms.store, ReportRequest("demo"))
    for one in report.primary:
        record = found[report.rows[one.row].group["estimator"], one.column.name]
        for end in ("difference", "low", "high", "n"):
            assert record[end] == getattr(one.comparison, end)
        assert record["p_adjusted"] == one.p_adjusted


def test_rows_are_sorted_with_a_a_rows_on_top(arms: Any) -> None:
    drawn = forest(arms)
    labels = drawn.panels[0].rows or []
    assert [label.split()[0] for label in labels] == ["dr_grpo", "psr", "grpo", "a_grae"]
    assert "Diamonds: A/A rows" in flat(drawn)
    assert {r["row"] for r in drawn.records if r["control"]} == {"dr_grpo (A/A)"}
    texts = {text.get_text() for text in draw_page([drawn]).findobj(match=Text)}
    assert {"grpo", "dr_grpo (A/A)", "psr"} <= texts


def test_a_row_far_from_the_others_is_an_arrow_at_the_end_of_the_axis(arms: Any) -> None:
    for seed, more in enumerate((0, 1, 3)):
        for estimator in ("asym_grpo", "opo", "power_alpha"):
            arms.run(estimator, seed, solved=(9 + more, 4 - seed % 2))
    drawn = forest(arms)
    panel = drawn.panels[0]
    [arrow] = [series for series in panel.series if series.style.marker == "<"]
    assert panel.x_limits is not None
    found = {r["row"]: r for r in drawn.records if r["outcome"] == "pass@1"}
    assert found["a_grae"]["difference"] < panel.x_limits[0] < arrow.x.item() < 0
    assert "At an arrow, off the axis of p@1: a_grae -0.406." in flat(drawn)
    near = [r for row, r in found.items() if row != "a_grae"]
    assert all(panel.x_limits[0] < r["low"] < r["high"] < panel.x_limits[1] for r in near)


def test_margins_are_shaded(arms: Any) -> None:
    drawn = forest(arms, margin=("0.02", "entropy/right=0.1"))
    assert [panel.span for panel in drawn.panels] == [(-m, m) for m in (0.02, 0.02, 0.1)]
    assert "margin of equivalence (p@1 0.02, p@4 0.02, H right 0.1)" in flat(drawn)
    for text in ("0", "x", "pass@2=0.1", "-0.1", "pass@1=nan"):
        with pytest.raises(ConfigError, match="--margin: expected a positive NUMBER, or OUTCOME"):
            forest(arms, margin=(text,))


def flat(chart: Chart) -> str:
    return chart.caption.replace("\n", " ")


def test_rows_may_be_compared_with_their_bases_and_in_other_columns(arms: Any) -> None:
    drawn = forest(arms, baseline="base", metrics=("pass@2",))
    assert drawn.title == "demo: differences to base"
    # The base solves one sample of 32.
    records = {record["row"].split()[0]: record for record in drawn.records}
    assert records["rloo"]["outcome"] == "pass@2"
    # The sweep does not declare it, so that its differences have no test.
    assert "Described without a test: p@2" in flat(drawn)
    assert "Filled" not in flat(drawn)
    assert set(records) == {"rloo", "psr", "grpo", "a_grae", "dr_grpo"}


def test_what_cannot_be_compared_is_refused(arms: Any) -> None:
    with pytest.raises(ReportError, match="no two rows, or too many; --baseline names one"):
        forest(arms, where="estimator=psr")
    with pytest.raises(ReportError, match="compared with rloo: expected two seeds of each"):
        forest(arms, where="seed=0")
    with pytest.raises(NotFoundError, match="--baseline: no row has estimator=lroo"):
        forest(arms, baseline="lroo")
    with pytest.raises(ReportError, match=r"own task; without --task, --metric 'pass@1\[other\]'"):
        forest(arms, task="other")


T2 = 4.302652729911275  # Student's t of 2 degrees of freedom, at 97.5 %


def chart_of(lab: Any, figure: str, **options: Any) -> Any:
    data = FigureData(lab.store, NamedRuns(lab.store.runs.select(newest_first=False), "demo"))
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
    assert chart.panels[0].y_label == "H right, nats"
    assert {record["step"] for record in chart.records} == {5, 10, 15, None}
    assert "Only evaluations of 4 samples per problem" in chart.caption.replace("\n", " ")
    # pass@k does not depend on the number of samples.
    chart = chart_of(lab, "frontier", metrics=("pass@2",))
    assert {record["step"] for record in chart.records} == {0, 5, 10, 15, 20, None}
