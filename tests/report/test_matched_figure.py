"""Differences at equal pass@1: of a sweep's evaluations, and of a table of them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text

from advsweep.errors import ConfigError, NotFoundError, ReportError
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.draw import draw_page
from advsweep.report.figures.registry import collect
from advsweep.report.tables.matched import Matching, compare_matched
from advsweep.statistics import benjamini_hochberg, compare_paired

T2 = 4.302652729911275  # Student's t of 2 degrees of freedom, at 97.5 %


def train(
    lab: Any, estimator: str, points: dict[int, tuple[int, list[float]]], **keys: Any
) -> None:
    """Add three seeds with a value of pass@1 in percent, and one of KL for each seed."""
    for seed in range(3):
        run = lab.run(estimator, seed, solved=None, **keys)
        for step, (percent, kl) in points.items():
            subject = f"{estimator} {keys} {seed}@{step}"
            lab.evaluate(run, subject, step, (percent, percent), kl=(kl[seed], kl[seed]))


@pytest.fixture
def sweep(lab: Any) -> Any:
    """KL as the outcome, since it can be set apart from pass@1; the base is at 10 %."""
    lab.samples = 100
    start = {0: (10, [0.0, 0.0, 0.0])}
    # Along .1 of KL for each 10 %, more by .01 and .02 in the other seeds.
    early = {5: (20, [0.1, 0.11, 0.12]), 10: (30, [0.2, 0.21, 0.22])}
    later = (40, [0.3, 0.31, 0.32])
    train(lab, "grpo", start | early | {15: later, 20: (50, [0.4, 0.41, 0.42])})
    ends = {15: (28, [0.28, 0.29, 0.3]), 20: (36, [0.36, 0.38, 0.4])}
    train(lab, "psr", start | {10: (20, [0.2, 0.2, 0.2])} | ends)
    train(lab, "dr_grpo", start | early | {20: later}, control={"name": "aa"})
    train(lab, "grpo_n", start | {20: (5, [0.3, 0.3, 0.3])})
    return lab


def draw(lab: Any, **options: Any) -> Chart:
    runs = lab.store.runs.select(newest_first=False)
    data = FigureData(lab.store, NamedRuns(runs, "demo", "demo"))
    return collect("matched", data, **{"metrics": ("kl/base",), **options})


def test_runs_are_compared_at_the_lower_of_their_ends(sweep: Any) -> None:
    chart = draw(sweep)
    found = {record["row"]: record for record in chart.records}
    # grpo is at 36 % between 30 and 40: .26, .27 and .28. Differences .10, .11, .12.
    half = T2 * 0.01 / 3**0.5
    psr = found["psr"]
    assert [psr[end] for end in ("difference", "low", "high")] == pytest.approx(
        [0.11, 0.11 - half, 0.11 + half]
    )
    assert (psr["n"], psr["seeds"], psr["level"]) == (3, 3, pytest.approx(0.36))
    assert psr["gap"] == pytest.approx(0.1)
    assert psr["p_adjusted"] == pytest.approx(psr["p"])  # the only one with a spread
    # The A/A row is on grpo's curve, and so without a difference.
    again = found["dr_grpo (A/A)"]
    assert (again["control"], again["difference"], again["n"]) == (True, 0, 3)
    assert (again["level"], again["gap"]) == (pytest.approx(0.4), 0)
    texts = {text.get_text() for text in draw_page([chart]).findobj(match=Text)}
    assert {"psr at 0.36", "dr_grpo (A/A) at 0.40"} <= texts
    assert chart.title == "demo: differences to grpo at equal p@1"


def test_rows_that_never_come_to_an_equal_value_are_told_not_dropped(sweep: Any) -> None:
    chart = draw(sweep)
    fallen = next(record for record in chart.records if record["row"] == "grpo_n")
    # It ends at 5 %, below where grpo starts.
    assert (fallen["n"], fallen["seeds"]) == (0, 3)
    assert "grpo_n (0 of 3 seeds)" in chart.caption.replace("\n", " ")


def test_a_level_and_another_column_can_be_named(sweep: Any) -> None:
    found = {record["row"]: record for record in draw(sweep, at="pass@1=0.3").records}
    # psr: at .3 between 28 and 36 %: a quarter of .08, .09 and .1 further: .3, .3125, .325.
    assert found["psr"]["difference"] == pytest.approx((0.1 + 0.1025 + 0.105) / 3)
    assert found["psr"]["level"] == pytest.approx(0.3)
    # Whatever grows: pass@1 at equal KL, which psr has more of.
    found = {r["row"]: r for r in draw(sweep, metrics=("pass@1",), at="kl/base").records}
    assert found["psr"]["level"] == pytest.approx(0.38)
    # grpo has .46, .47 and .48 where its KL is that of psr's end.
    assert found["psr"]["difference"] == pytest.approx(-0.11)


def test_the_equal_column_is_no_outcome_when_it_is_named_as_one(sweep: Any) -> None:
    chart = draw(sweep, metrics=("pass@1", "kl/base"))
    assert {record["outcome"] for record in chart.records} == {"kl/base"}
    with pytest.raises(ReportError, match=r"demo has no outcome but pass@1; --metric names one"):
        draw(sweep, metrics=("pass@1",))


def test_what_cannot_be_compared_is_refused(sweep: Any) -> None:
    with pytest.raises(ReportError, match=r"no row of demo has two seeds .* an equal pass@1"):
        draw(sweep, at="pass@1=0.9")
    with pytest.raises(ConfigError, match=r"--at: expected COLUMN, or COLUMN=NUMBER, got '=0.3'"):
        draw(sweep, at="=0.3")
    with pytest.raises(ConfigError, match="--at: expected"):
        draw(sweep, at="pass@1=nan")
    with pytest.raises(NotFoundError, match="'pas@1'"):
        draw(sweep, at="pas@1")
    with pytest.raises(NotFoundError, match="--baseline: no row has estimator=ppo"):
        draw(sweep, baseline="ppo")


def test_the_p_values_of_all_rows_and_outcomes_are_adjusted_together() -> None:
    lines = []
    for row, shift in (("a", 0.0), ("b", 0.1), ("c", -0.02)):
        for seed, noise in enumerate((0.01, -0.02, 0.015, 0.0)):
            for step, x in enumerate((0.1, 0.2, 0.3, 0.4)):
                own = noise if row == "b" else noise**2
                lines.append((row, seed, step, x, 1 - x + shift + own, shift - own))
    points = pd.DataFrame(lines, columns=["row", "seed", "step", "x", "y", "z"])
    found = compare_matched(points, {"b": "a", "c": "a"}, Matching("x", ["y", "z"]))
    assert [(one.outcome, one.row) for one in found] == [
        ("y", "b"), ("y", "c"), ("z", "b"), ("z", "c"),
    ]  # fmt: skip
    expected = compare_paired(
        [0.71, 0.68, 0.715, 0.7], [0.6 + n**2 for n in (0.01, 0.02, 0.015, 0)]
    )
    assert found[0].comparison.low == pytest.approx(expected.low)
    p_values = [one.comparison.p_value for one in found if one.comparison.sd > 0]
    adjusted = [one.p_adjusted for one in found if one.comparison.sd > 0]
    assert adjusted == pytest.approx(benjamini_hochberg(p_values).tolist())
    # The order of the lines does not matter.
    again = compare_matched(points[::-1], {"b": "a", "c": "a"}, Matching("x", ["y", "z"]))
    assert [one.p_adjusted for one in again] == pytest.approx(
        [one.p_adjusted for one in found], nan_ok=True
    )
