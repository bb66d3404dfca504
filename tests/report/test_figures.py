"""Figures of masses, and reproducible files."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace

import pytest

from advsweep.errors import ReportError
from advsweep.report.figures.advantages import draw_masses
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.draw import check_path, draw_page, write

RATES = [0.1, 0.5, 0.9]


def masses(**curves: tuple[Sequence[float], Sequence[float]]) -> Chart:
    return draw_masses(
        {
            label: [
                (p, (s, f, s + f, s / f if f else math.nan))
                for p, s, f in zip(RATES, *pairs, strict=True)
            ]
            for label, pairs in curves.items()
        },
        "Masses",
    )


BALANCED = ([0.1, 0.3, 0.1], [0.1, 0.3, 0.1])
BIASED = ([0.1, 0.2, 0.3], [0.2, 0.2, 0.2])
ONE_SIDED = ([0.1, 0.2, 0.3], [0.0, 0.0, 0.0])
STEEP = ([0.001, 0.2, 0.3], [0.5, 0.2, 0.001])


def test_each_quantity_has_a_panel_with_a_line_for_each_estimator():
    chart = masses(one=BALANCED, other=BIASED)
    assert [panel.title for panel in chart.panels] == ["m_S", "m_F", "m_S + m_F", "m_S / m_F"]
    assert [list(own.y) for own in chart.panels[0].series] == [BALANCED[0], BIASED[0]]
    assert [list(own.y) for own in chart.panels[1].series] == [BALANCED[1], BIASED[1]]
    assert list(chart.panels[3].series[1].y) == pytest.approx([0.5, 1, 1.5])
    assert chart.labels == ["one", "other"]


def test_the_axis_of_ratios_is_logarithmic_where_they_are_far_from_1():
    scales = [masses(a=own).panels[3].y_scale for own in (BALANCED, BIASED, ONE_SIDED, STEEP)]
    assert scales == [*["linear"] * 3, "log"]
    # Some without a ratio do not keep the others from theirs.
    assert masses(a=ONE_SIDED, b=STEEP).panels[3].y_scale == "log"


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_axes_have_numbers_and_no_formulas(scale):
    chart = masses(a=STEEP)
    chart.panels[:] = [replace(chart.panels[0], x_scale=scale, y_scale=scale, x_limits=None)]
    (axes,) = draw_page([chart]).axes
    axes.figure.canvas.draw()
    texts = [text.get_text() for text in axes.get_xticklabels() + axes.get_yticklabels()]
    assert {float(text.replace("\N{MINUS SIGN}", "-")) for text in texts if text}


def test_long_names_stay_within_the_figure():
    option = "base={name:grpo,std:sample,tolerance:0.0"
    names = [" ".join(["a_grae", *[f"{option}{i}}}"] * 8]) for i in range(4)]
    figure = draw_page([masses(**dict.fromkeys(names, BALANCED))])
    figure.draw_without_rendering()
    (legend,) = (own for part in figure.findobj() for own in getattr(part, "legends", ()))
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert box.y1 < figure.axes[0].bbox.y0


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_the_same_figure_is_the_same_file(suffix, tmp_path):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        write([masses(a=BALANCED, b=BIASED)], path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert len(first) > 5000


def test_styles_of_the_user_do_not_matter(tmp_path):
    import matplotlib as mpl

    write([masses(a=BALANCED)], tmp_path / "a.svg")
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black", "font.size": 30}):
        write([masses(a=BALANCED)], tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    ET.parse(tmp_path / "a.svg")


def test_invalid_paths_are_refused(tmp_path):
    with pytest.raises(ReportError, match=r"ending in .png, .svg, .pdf, got '.gif'"):
        check_path(tmp_path / "a.gif")
    with pytest.raises(ReportError, match="there is no folder"):
        check_path(tmp_path / "nowhere" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ReportError, match="cannot be written"):
        write([masses(a=BALANCED)], tmp_path / "folder.png")
