"""Findings, forest plots and figures of the page, in a browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page

from advsweep.report.data.columns import parse_column
from advsweep.report.html import render_page
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest

# Every test opens a page in Chromium.
pytestmark = pytest.mark.slow

Visit = Callable[[str], Page]
LONG = "a_long_name_" * 8


@pytest.fixture
def page(lab, constant, visit: Visit) -> Page:
    """Three estimators with two group sizes and three seeds; fade has the lowest ACR."""
    for size in (4, 8):
        for seed in range(3):
            for name, acr in [("grpo", 0.5), ("fade", 0.3), ("rloo", 0.7)]:
                points = constant(
                    collapse__acr=acr + size / 100 + seed / 50 * (1 if name == "grpo" else -1),
                )
                solved = (4, 1) if name == "fade" else (3, seed)
                lab.run(name, seed, points=points, solved=solved, group_size=size)
    columns = ["collapse/acr", "pass@1"]
    report = build_report(
        lab.store,
        ReportRequest(
            "demo",
            columns=columns,
            baseline="grpo",
            outcomes=[parse_column(name) for name in columns],
        ),
    )
    return visit(render_page(report, lab.store))


def _figure(page: Page, title: str) -> Locator:
    return page.locator("#panels > figure", has_text=title)


def test_the_page_begins_with_what_holds(page):
    assert page.locator("section").first.get_attribute("id") == "findings"
    findings = page.locator(".findings li")
    outcomes = ["better", "worse"] * 2
    assert findings.evaluate_all("all => all.map(li => li.dataset.outcome)") == outcomes
    # The six arms are one design. From the means of arm and seed those of grpo deviate by .02667 at
    # the first and last seed, the other four by .01333: 4 · .02667² + 8 · .01333² = .0042667 with
    # (6 - 1)(3 - 1) = 10 degrees of freedom. A difference has the sd √(2 · .00042667) = .02921, and
    # the interval .24 ± 2.228 · .02921/√3 = .24 ± .0376.
    text = findings.first.inner_text()
    assert text == "fade, group_size=4 against grpo: better ACR, -0.240 [-0.278, -0.202]."
    assert "6 differences: 2 primary outcomes x 4 arms, less 2 without a test" in page.inner_text(
        "body"
    )


def test_a_forest_has_a_line_for_each_row_and_a_menu_of_columns(page):
    forest = page.locator("#forests figure").first
    assert forest.locator("select").input_value() == "ACR"
    assert "lower is better" in forest.inner_text()
    lines = forest.locator(".line[data-outcome]")
    assert [line.get_attribute("data-outcome") for line in lines.all()] == ["better", "worse"] * 2
    zero, dot = (lines.first.locator(f".{part}").bounding_box() for part in ("zero", "dot"))
    # The difference of fade is negative: its point is left of 0, in its track.
    assert dot["x"] + dot["width"] / 2 < zero["x"]
    forest.locator("select").select_option("p@1")
    assert "higher is better" in forest.inner_text()
    outcomes = [line.get_attribute("data-outcome") for line in lines.all()]
    assert outcomes == ["not significant", "same for every seed"] * 2


@pytest.mark.parametrize(("media", "width"), [("screen", 400), ("screen", 640), ("print", 700)])
def test_nothing_is_wider_than_a_phone_or_a_sheet(lab, constant, visit: Visit, media, width):
    for name in ("grpo", "fade"):
        for seed in range(2):
            points = constant(**{f"collapse__m{i}": 0.1 + seed / 10 for i in range(12)})
            lab.run(name, seed, points=points, model__name=LONG, group_size=8)
            lab.run(name, seed, points=points, model__name=LONG[1:], group_size=4)
    columns = ["pass@1", *(f"collapse/m{i}" for i in range(9))]
    report = build_report(lab.store, ReportRequest("demo", columns=columns))
    page = visit(render_page(report, lab.store))
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(media=media)
    page.wait_for_function("document.querySelector('svg.chart').clientWidth < innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    if media == "screen":
        scrolled = page.locator("#report .scroll").first
        assert scrolled.evaluate("s => s.scrollWidth > s.clientWidth")
    else:
        assert not page.locator("#runs .controls").is_visible()
