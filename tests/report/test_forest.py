"""The forest plot: differences to the baseline, A/A rows and margins."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.text import Text

from advsweep.errors import ConfigError, NotFoundError, ReportError
from advsweep.report import build_report
from advsweep.report.data.runs import parse_where
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.draw import draw_page
from advsweep.report.figures.registry import collect


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
    data = FigureData(lab.store, runs, "demo", filters, task, sweep="demo")
    return collect("forest", data, **options)


def test_differences_are_those_of_the_report(arms: Any) -> None:
    drawn = forest(arms)
    # A quarter of 16 samples supports pass@4; the task of these problems is not above guessing.
    assert [panel.title for panel in drawn.panels] == ["pass@1", "pass@4", "entropy/right"]
    assert drawn.title == "demo: differences to rloo"
    found = {(r["row"], r["outcome"]): r for r in drawn.records}
    # Two seeds of a_grae have no right answer.
    assert len(found) == len(build_report(arms.store, "demo").primary) == 11
    check_against_report(arms, found)
    # pass@1 of psr is (2 + seed % 2) / 32 higher: 2, 3, 2 of 32.
    assert found["psr", "pass@1"]["difference"] == pytest.approx(7 / 96)


def check_against_report(arms: Any, found: dict[tuple[str, str], dict[str, Any]]) -> None:
    report = build_report(arms.store, "demo")
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


def test_margins_are_shaded(arms: Any) -> None:
    drawn = forest(arms, margin=("0.02", "entropy/right=0.1"))
    assert [panel.span for panel in drawn.panels] == [(-m, m) for m in (0.02, 0.02, 0.1)]
    assert "margin of equivalence (pass@1 0.02, pass@4 0.02, entropy/right 0.1)" in flat(drawn)
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
    assert "Described without a test: pass@2" in flat(drawn)
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
