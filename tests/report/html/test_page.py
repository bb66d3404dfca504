"""The page in a browser: what can be clicked does what it says; nothing asks a network."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

from advsweep.printable import printable
from advsweep.report.html import render_page
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.statistics import student_t_interval

# Every test opens a page in Chromium.
pytestmark = pytest.mark.slow

Visit = Callable[[str], Page]


def _render(store, sweep="demo"):
    return render_page(build_report(store, ReportRequest(sweep)), store)


@pytest.fixture
def page(demo, visit: Visit) -> Page:
    return visit(_render(demo.store))


def _column(table: Locator, place: int, body: int = 0) -> list[str]:
    rows = table.locator(f"tbody >> nth={body}").locator("tr:not(.details)")
    return [row.locator("th, td").nth(place).text_content() or "" for row in rows.all()]


def _chart(page: Page, number: int = 0) -> Locator:
    return page.locator("svg.chart").nth(number)


def _domain(chart: Locator) -> dict[str, list[float]]:
    return json.loads(chart.get_attribute("data-domain") or "")


def _labels(chart: Locator) -> list[str]:
    groups = chart.locator("g.series").all()
    return list(dict.fromkeys(group.get_attribute("data-label") or "" for group in groups))


def test_tables_sort_by_numbers_and_names_both_ways(page):
    table = page.locator("#report table").first
    assert _column(table, 0, body=0) == ["base"]
    assert _column(table, 0, body=1) == ["grpo", "fade", "rloo"]
    header = table.get_by_role("columnheader", name="ACR end")
    place = table.locator("thead tr:last-child th").all_inner_texts().index("ACR end")
    # The last 10 of 20 steps: grpo 0.3, 0.4 and 0.5; fade and rloo 0.1 each.
    for order, names in [("ascending", ["fade", "rloo", "grpo"]), ("descending", None)]:
        header.get_by_role("button").click()
        assert header.get_attribute("aria-sort") == order
        names = names or ["grpo", "fade", "rloo"]
        assert _column(table, 0, body=1) == names, _column(table, place, body=1)
    by_name = table.get_by_role("columnheader", name="estimator")
    by_name.get_by_role("button").press("Enter")
    assert _column(table, 0, body=1) == ["fade", "grpo", "rloo"]
    assert header.get_attribute("aria-sort") == "none"


def test_zoom_by_drag_and_back(page):
    chart = _chart(page)
    whole = _domain(chart)
    assert whole["x"] == [1, 20]
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    for restore in (page.get_by_role("button", name="reset zoom").first.click, chart.dblclick):
        page.mouse.move(box["x"] + 0.4 * box["width"], middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], middle, steps=3)
        page.mouse.up()
        along = _domain(chart)
        assert whole["x"][0] < along["x"][0] < along["x"][1] < whole["x"][1]
        restore()
        assert _domain(chart) == whole


def test_bands_of_shares_end_where_shares_do(lab, constant, visit: Visit):
    for seed in (0, 1):
        lab.run("grpo", seed, points=constant(collapse__acr=seed))
    page = visit(_render(lab.store))
    page.get_by_label("each run").check()
    chart = _chart(page)

    def heights(kind: str) -> set[str]:
        paths = [path.get_attribute("d") or "" for path in chart.locator(f"path.{kind}").all()]
        return {y for path in paths for y in re.findall(r" (\d+\.\d)", path)}

    # The seeds have 0 and 1; the band of their mean would reach from -5.9 to 6.9.
    assert len(heights("run")) == 2
    assert heights("band") == heights("run")


def test_the_menu_and_the_legend_choose_what_is_drawn(page):
    chart = _chart(page)
    menu = page.get_by_label("metric of figure 1")
    before = chart.locator("path.mean").first.get_attribute("d")
    assert menu.input_value() == "ACR"
    menu.select_option("H tok")
    assert chart.locator("path.mean").first.get_attribute("d") != before
    assert _domain(chart)["y"][1] > 1.5
    assert _labels(chart) == ["grpo", "fade", "rloo"]
    legend = page.get_by_role("group", name="Rows shown")
    fade = legend.get_by_role("button", name="fade")
    fade.click()
    assert fade.get_attribute("aria-pressed") == "false"
    assert all("fade" not in _labels(c) for c in page.locator("svg.chart").all())
    fade.click(modifiers=["Shift"])
    assert _labels(chart) == ["fade"]
    legend.get_by_role("button", name="none").click()
    assert _labels(chart) == []
    legend.get_by_role("button", name="all").click()
    assert _labels(chart) == ["grpo", "fade", "rloo"]
    assert chart.locator("path.run").count() == 0
    page.get_by_label("each run").check()
    assert chart.locator("path.run").count() == 7
    # A row of one seed has no band.
    assert chart.locator("path.band").count() == 2
    page.get_by_label("95 % bands").uncheck()
    assert chart.locator("path.band").count() == 0


def test_curves_run_over_steps_rollouts_or_seconds_and_on_logarithmic_axes(page):
    chart = _chart(page)
    axis = page.locator("#axis")
    # No run has recorded the seconds of its parts.
    options = axis.locator("option").evaluate_all("all => all.map(o => o.value)")
    assert options == ["steps", "rollouts"]
    assert _domain(chart)["x"] == [1, 20]
    axis.select_option("rollouts")
    # 4 prompts x 8 rollouts a step.
    assert _domain(chart)["x"] == [32, 640]
    assert chart.locator("text.label").text_content() == "rollouts drawn"
    before = _domain(chart)["y"]
    page.get_by_label("log x").check()
    assert _domain(chart)["x"] == pytest.approx([math.log10(32), math.log10(640)])
    assert chart.locator(".tick-x").all_text_contents() == ["50", "100", "200", "500"]
    page.get_by_label("log y").check()
    low, high = _domain(chart)["y"]
    # ACR is 0.1 at the least.
    assert low < -1 < math.log10(0.5) < high
    page.get_by_label("log y").uncheck()
    assert _domain(chart)["y"] == before


def test_a_curve_has_no_point_that_a_logarithmic_axis_cannot_show(lab, visit: Visit):
    values = [0.0, 0.01, 0.1, 1.0, -1.0, 0.1]
    for seed in range(2):
        points = [("loss/kl", step, value) for step, value in enumerate(values)]
        lab.run("grpo", seed, points=points, solved=None)
    page = visit(_render(lab.store))
    path = _chart(page).locator("path.mean")
    assert len(re.findall("[ML]", path.get_attribute("d") or "")) == 6
    for switch in ("log x", "log y"):
        page.get_by_label(switch).check()
    # Steps 1, 2 and 3, and a point at 5.
    assert re.findall("[ML]", path.get_attribute("d") or "") == ["M", "L", "L", "M"]
    assert _chart(page).locator("circle.point").count() == 1


def test_what_differs_between_two_configs(demo, visit: Visit):
    demo.run("grpo", 0, group_size=4, optimizer__lr=0.5)
    page = visit(_render(demo.store))
    one, other = page.locator("#one"), page.locator("#other")

    def differences() -> list[list[str]]:
        lines = page.locator("#difference tbody tr").all()
        return [line.locator("th, td").all_text_contents() for line in lines]

    assert differences() == [["estimator", "grpo", "fade"]]
    assert page.locator("#differing").text_content() == "1 of 6 keys differ"
    other.select_option(index=3)
    # The seeds of the first row differ.
    lines = [["group_size", "8", "4"], ["optimizer.lr", "–", "0.5"], ["seed", "varies", "0"]]
    assert differences() == lines
    for menu, run in ((one, 2), (other, 3)):
        name = menu.locator("option", has_text=f"run {run}: grpo").text_content()
        menu.select_option(name)
    assert differences() == [["seed", "1", "2"]]
    other.select_option(one.input_value())
    assert differences() == []


def test_tab_reaches_every_switch_and_shows_where_it_is(page):
    names = ["bands", "each", "axis", "log-x", "log-y", "smooth", "filter", "one", "other"]
    seen: dict[str, tuple[str, bool]] = {}
    page.locator("#legend button").last.focus()
    for _ in range(200):
        page.keyboard.press("Tab")
        name, style, is_seen = page.evaluate(
            """() => {
              const own = document.activeElement;
              const { top, bottom, left, width } = own.getBoundingClientRect();
              const at = document.elementFromPoint(left + width / 2, (top + bottom) / 2);
              return [own.id, getComputedStyle(own).outlineStyle, own.contains(at)];
            }"""
        )
        seen[name] = style, is_seen
        if name == "other":
            break
    assert {name: seen.get(name) for name in names} == dict.fromkeys(names, ("solid", True))


def test_what_is_pointed_at_is_read_out(page):
    chart = _chart(page)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 100)
    # At the last step: grpo 0.3, 0.4 and 0.5, so that it is 0.4 ± 4.303 * 0.1 / √3 = 0.248.
    text = page.locator(".readout:visible").inner_text()
    assert "training step 20" in text
    assert "0.40 ±0.25" in text


def test_columns_are_drawn_over_each_other_with_a_point_for_each_run(page):
    chart = page.locator("#panels figure", has=page.get_by_label("upwards")).locator("svg.chart")
    assert page.get_by_label("upwards").input_value() == "p@1"
    assert page.get_by_label("along").input_value() == "ACR 1-20"
    assert _labels(chart) == ["grpo", "fade", "rloo"]
    assert [g.locator("circle").count() for g in chart.locator("g.series").all()] == [3, 3, 1]
    # Run 1: 2 of 4 samples of one problem of two; its ACR is 0.4, then 0.3.
    point = chart.locator("circle").first
    point.scroll_into_view_if_needed()
    point.hover()
    text = page.locator(".readout:visible").inner_text()
    assert text.splitlines() == ["ACR 1-20 0.35", "grpo, run 1", "0.25"]
    before = point.get_attribute("cx")
    page.get_by_label("along").select_option("H tok end")
    assert chart.locator("circle").first.get_attribute("cx") != before


def test_a_run_opens_to_its_config_and_where_it_was_made(page):
    runs = page.locator("#runs")
    button = runs.locator("button.open").nth(3)
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    details = runs.locator("tr.details")
    text = details.inner_text()
    for word in ("estimator\nfade", "group_size\n8", "git.commit\n0123456789abcdef", "A CPU"):
        assert word in text
    assert "packages.torch\n2.13.0" in text
    # Stays below its run, however the table is sorted.
    runs.get_by_role("columnheader", name="seed").get_by_role("button").click()
    assert details.evaluate("d => d.previousSibling.querySelector('button').dataset.run") == "4"
    button = runs.locator("button[data-run='4']")
    button.click()
    assert details.count() == 0


def test_runs_are_filtered_by_words_of_their_row_or_config(page):
    filter_ = page.get_by_label("filter")
    filter_.fill("FADE group_size=8")
    assert page.locator("#matching").text_content() == "3 of 7 runs"
    assert page.locator("#runs tbody tr:not([hidden])").count() == 3
    filter_.fill("nothing like it")
    assert page.locator("#runs tbody tr:not([hidden])").count() == 0


def _paper(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_page_follows_the_system_and_paper_is_white_without_controls(page):
    assert _paper(page) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert _paper(page) != "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    assert _paper(page) == "rgb(255, 255, 255)"
    assert not page.locator(".controls").first.is_visible()
    assert page.locator("#report table").first.is_visible()


HOSTILE = (
    "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt=1'>&amp;\u2028\"'"
)


def test_no_text_of_a_store_becomes_markup(lab, constant, visit):
    for seed in range(2):
        for size in (8, 4):
            for name in (HOSTILE, "other"):
                points = constant(reward__mean=0.5, collapse__acr=seed * len(name) / 1000)
                config = {"task__name": name, "group_size": size}
                lab.run("grpo", seed, sweep=HOSTILE, points=points, **config)
    page = visit(_render(lab.store, HOSTILE))
    assert page.evaluate("window.hurt") is None
    # Characters that end a line or turn its direction are escaped.
    assert page.locator("h1").text_content() == printable(HOSTILE)
    assert printable(HOSTILE) in (page.locator("#forests").text_content() or "")
    assert printable(HOSTILE) in (page.locator(".facts").text_content() or "")
    page.locator("#other").select_option(index=1)
    assert printable(HOSTILE) in page.locator("#difference td").all_text_contents()
    page.locator("button.open").first.click()
    assert printable(HOSTILE) in page.locator("tr.details dd").all_text_contents()
    page.mouse.move(300, 700)
    assert page.evaluate("window.hurt") is None
    assert page.locator("img").count() == 0


def test_bands_in_the_browser_are_those_of_the_statistics(page):
    runs = [[0.1, 0.5, np.nan], [0.3, 0.5, 2.0], [0.2, np.nan, np.nan]]
    given = [[None if np.isnan(value) else value for value in run] for run in runs]
    columns = [[v for v in column if not np.isnan(v)] for column in zip(*runs, strict=True)]
    got = page.evaluate(
        """given => {
          const b = meanAndBand(given.map(numbers), 3);
          return [b.y, b.low, b.high].map((own) => own.map(String));
        }""",
        given,
    )
    expected = np.transpose([student_t_interval(column)[:3] for column in columns])
    np.testing.assert_allclose(np.array(got, dtype=float), expected, rtol=1e-4)


def test_many_rows_are_chosen_and_long_curves_thinned(lab, visit):
    rng = np.random.default_rng(0)
    for number in range(20):
        variant, seed = divmod(number, 2)
        points = [("reward/mean", step, value) for step, value in enumerate(rng.random(300), 1)]
        lab.run(("grpo", "fade")[variant % 2], seed, points=points, optimizer__lr=1 + variant)
    page = visit(_render(lab.store))
    assert page.locator("#matching").text_content() == "20 runs"
    assert len(_labels(_chart(page))) == 8
    assert _chart(page).locator("path.band").count() == 0
    page.get_by_label("show rows with these words").fill("FADE lr=2")
    assert _labels(_chart(page)) == ["fade lr=2"]
    assert "curves are thinned" in page.locator("#figure-notes").inner_text()
    page.get_by_role("button", name="all", exact=True).click()
    assert len(_labels(_chart(page))) == 10
    header = page.locator("#runs").get_by_role("columnheader", name="mean reward")
    header.get_by_role("button").click()
    place = page.locator("#runs thead th").all_text_contents().index("mean reward")
    values = page.evaluate(
        "i => [...document.querySelectorAll('#runs tbody tr')].map(r => +r.cells[i].dataset.value)",
        place,
    )
    assert values == sorted(values)
    page.get_by_label("filter").fill("fade seed=1")
    assert page.locator("#matching").text_content() == "5 of 20 runs"
