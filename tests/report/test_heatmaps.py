"""Heat maps: a number over two swept keys, and which cells may be the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.draw import draw_page
from advsweep.report.figures.heatmaps import find_candidates
from advsweep.report.figures.registry import collect
from advsweep.statistics import student_t_interval

RATES = (1e-4, 2e-4, 1e-3)
SIZES = (4, 16)


def heatmap(lab: Any, **options: Any) -> Chart:
    runs = lab.store.runs.select(newest_first=False)
    return collect("heatmap", FigureData(lab.store, NamedRuns(runs, "demo", "demo")), **options)


@pytest.fixture
def grid(lab: Any) -> Any:
    """Two estimators over three rates and two group sizes, three seeds each; psr lacks a cell.

    Of 32 samples to each of two problems, grpo has more right at the middle rate and with larger
    groups. The cells of psr have equal means, and differ on every seed.
    """
    lab.samples = 32
    for seed, luck in enumerate((0, 1, 3)):
        for place, rate in enumerate(RATES):
            for size in SIZES:
                right = 8 + (4 if place == 1 else 0) + (6 if size == 16 else 0) + luck
                keys = {"optimizer__lr": rate, "group_size": size}
                lab.run("grpo", seed, solved=(right, right + seed % 2), **keys)
                if (rate, size) != (1e-3, 16):
                    lab.run("psr", seed, solved=(10, 3 * ((seed + place) % 3)), **keys)
    return lab


def test_a_cell_has_the_mean_of_its_seeds_and_its_interval(grid: Any) -> None:
    drawn = heatmap(grid)
    assert drawn.title == "demo: p@1 over lr and group_size"
    assert [panel.title for panel in drawn.panels] == ["grpo", "psr"]
    [cell] = [
        r
        for r in drawn.records
        if (r["row"], r["optimizer.lr"], r["group_size"]) == ("grpo", 2e-4, 16)
    ]
    # 18, 19 and 21 of 32, and for the second problem one more with the second seed.
    scores = [36 / 64, 39 / 64, 42 / 64]
    mean, low, high, n = student_t_interval(scores)
    assert (cell["mean"], cell["n"]) == (pytest.approx(mean), n)
    assert (cell["low"], cell["high"]) == pytest.approx((low, high))


def test_values_are_in_numeric_order_and_empty_cells_say_missing(grid: Any) -> None:
    grid.run("grpo", 0, solved=(8, 8), optimizer__lr=2e-5, group_size=16)
    drawn = heatmap(grid)
    panel = drawn.panels[1]
    assert [*panel.x_ticks.values()] == ["2e-05", "0.0001", "0.0002", "0.001"]
    assert [*panel.y_ticks.values()] == ["4", "16"]
    psr = [record for record in drawn.records if record["row"] == "psr"]
    missing = [(r["optimizer.lr"], r["group_size"]) for r in psr if r["mean"] is None]
    assert missing == [(2e-5, 4), (2e-5, 16), (1e-3, 16)]
    page = draw_page([drawn])
    texts = [[text.get_text() for text in axes.texts] for axes in page.axes]
    assert texts[1].count("missing") == 3
    # A cell of one seed has no interval, and says how many seeds it has.
    assert "0.250\nn=1" in texts[0]
    assert "3 seeds where a cell says no n" in " ".join(drawn.notes)
    assert page.axes[-1].get_ylabel() == "p@1"


def frames(chart: Chart) -> list[list[str]]:
    """The styles of the frames of each panel."""
    page = draw_page([chart])
    return [
        [p.get_linestyle() for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
        for axes in page.axes[: len(chart.panels)]
    ]


def test_the_best_cell_is_framed_as_far_as_the_seeds_tell(grid: Any) -> None:
    drawn = heatmap(grid)
    best = [r for r in drawn.records if r["row"] == "grpo" and r["may_be_best"]]
    assert [(r["optimizer.lr"], r["group_size"]) for r in best] == [(2e-4, 16)]
    solid, dashed = frames(drawn)
    assert solid == ["-"]
    # A panel without frames, and a note that says so.
    assert dashed == []
    assert "in a panel without frames no cell can be told from the best" in " ".join(drawn.notes)


def test_one_seed_frames_nothing(lab: Any) -> None:
    for size in (4, 8):
        for rate in (0.1, 0.2):
            lab.run("grpo", solved=(size // 4, 1), group_size=size, optimizer__lr=rate)
    drawn = heatmap(lab)
    assert all(record["may_be_best"] for record in drawn.records)
    assert frames(drawn) == [[]]
    assert "one seed each, so there are no intervals" in drawn.notes


def test_a_number_without_a_better_direction_is_not_framed(grid: Any) -> None:
    drawn = heatmap(grid, metrics=["entropy/answer"])
    assert not any(record["may_be_best"] for record in drawn.records)
    assert "neither high nor low values are better" in " ".join(drawn.notes)
    assert draw_page([drawn]).axes[-1].get_ylabel() == "H ans, nats"


HIGHER, LOWER = MetricDirection.HIGHER, MetricDirection.LOWER


@pytest.mark.parametrize(
    ("scores", "direction", "candidates"),
    [
        # Differences of .1 on every seed but for a little noise.
        ([(0.5, 0.6, 0.7), (0.4, 0.501, 0.6), (0.3, 0.4, 0.501)], HIGHER, {0}),
        ([(0.5, 0.6, 0.7), (0.4, 0.501, 0.6), (0.3, 0.4, 0.501)], LOWER, {2}),
        # The first two differ by chance, the last is clearly worse.
        ([(0.5, 0.6, 0.7), (0.52, 0.59, 0.68), (0.1, 0.21, 0.3)], HIGHER, {0, 1}),
        # A seed each: nothing can be told.
        ([(0.5,), (0.1,)], HIGHER, {0, 1}),
        ([(0.5, 0.6), (0.1, 0.2)], MetricDirection.NEITHER, set()),
        ([], HIGHER, set()),
    ],
)
def test_candidates_are_what_no_test_tells_from_the_best(
    scores: list[tuple[float, ...]], direction: MetricDirection, candidates: set[int]
) -> None:
    cells = {(0, i): dict(enumerate(values)) for i, values in enumerate(scores)}
    assert {at[1] for at in find_candidates(cells, direction)} == candidates


def test_the_truly_best_cell_is_among_the_candidates() -> None:
    """In at least 95 % of tables with a best cell, here one of six that are truly equal."""
    rng = np.random.default_rng(0)
    tables = 300
    found = 0
    for _ in range(tables):
        seeds = rng.normal(0, 0.1, 4)
        cells = {
            (0, i): dict(enumerate((0.5 + seeds + rng.normal(0, 0.03, 4)).tolist()))
            for i in range(6)
        }
        found += (0, 0) in find_candidates(cells, HIGHER)
    # 95 % less three standard errors.
    assert found / tables > 0.95 - 3 * (0.95 * 0.05 / tables) ** 0.5


def test_the_keys_and_their_axes_can_be_chosen(grid: Any) -> None:
    drawn = heatmap(grid, x="group_size", y="optimizer.lr")
    assert (drawn.panels[0].x_label, drawn.panels[0].y_label) == ("group_size", "lr")
    # One key is enough where the other follows.
    assert heatmap(grid, y="optimizer.lr").panels[0].x_label == "group_size"
    # Estimators are an axis too; what else varies makes panels.
    drawn = heatmap(grid, x="optimizer.lr", y="estimator")
    assert [*drawn.panels[0].y_ticks.values()] == ["grpo", "psr"]
    assert [panel.title for panel in drawn.panels] == ["group_size=4", "group_size=16"]


def test_the_estimator_is_the_second_key_where_one_other_varies(lab: Any) -> None:
    for size in (4, 8, 16):
        for estimator in ("grpo", "fade"):
            lab.run(estimator, group_size=size)
    panel = heatmap(lab).panels[0]
    assert (panel.x_label, panel.y_label) == ("group_size", "estimator")


def test_rows_without_one_of_the_keys_are_named(grid: Any) -> None:
    for delta in (0.3, 0.6):
        grid.run("asym_grpo", estimator__delta=delta, optimizer__lr=1e-4, group_size=4)
    drawn = heatmap(grid, x="optimizer.lr", y="estimator.delta")
    assert [panel.title for panel in drawn.panels] == ["asym_grpo"]
    assert "without a value of optimizer.lr or estimator.delta: grpo" in " ".join(drawn.notes)


REFUSED = {
    "one key": ({"size": (8,)}, {}, "over two keys that vary, got 1 (optimizer.lr) in demo; "),
    "no key": ({"size": (8,), "rates": (0.1,)}, {}, "got none in demo; choose two with --x KEY"),
    "three keys": (
        {"steps": (1, 2)},
        {},
        "got 3 (group_size, steps, optimizer.lr) in demo; choose two with --x KEY --y KEY",
    ),
    "the same key": ({}, {"x": "group_size", "y": "group_size"}, "both name 'group_size'"),
    "a key of seeds": ({"seeds": (0, 1)}, {"x": "seed"}, "whose runs differ in 'seed'"),
    "too many values": ({"size": range(2, 32)}, {}, "at most 24 values of a key, got 30 of"),
    "a key of no row": ({}, {"x": "grup_size"}, "did you mean 'group_size'"),
    "no such number": ({}, {"metrics": ["pass@9"]}, "no run of demo has a number 'pass@9'"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_is_no_heat_map_is_refused_in_a_line(mistake: str, lab: Any) -> None:
    runs, options, message = REFUSED[mistake]
    for size in runs.get("size", (4, 8)):
        for rate in runs.get("rates", (0.1, 0.2)):
            for steps in runs.get("steps", (20,)):
                for seed in runs.get("seeds", (0,)):
                    lab.run("grpo", seed, group_size=size, optimizer__lr=rate, steps=steps)
    with pytest.raises((ReportError, NotFoundError)) as refused:
        heatmap(lab, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
