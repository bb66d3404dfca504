"""Figures of masses, and reproducible files."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from advsweep.errors import ReportError
from advsweep.report.figures.masses import MassCurve, draw_masses
from advsweep.report.figures.style import check_path, save

RATES = [0.1, 0.5, 0.9]


def curve(label: str, success: list[float], failure: list[float]) -> MassCurve:
    pairs = list(zip(success, failure, strict=True))
    return MassCurve(
        label=label,
        rates=RATES,
        success=success,
        failure=failure,
        total=[s + f for s, f in pairs],
        ratio=[s / f if f else math.nan for s, f in pairs],
    )


BALANCED = curve("balanced", [0.1, 0.3, 0.1], [0.1, 0.3, 0.1])
BIASED = curve("biased", [0.1, 0.2, 0.3], [0.2, 0.2, 0.2])
ONE_SIDED = curve("one-sided", [0.1, 0.2, 0.3], [0.0, 0.0, 0.0])
STEEP = curve("steep", [0.001, 0.2, 0.3], [0.5, 0.2, 0.001])


def test_a_row_for_each_with_masses_and_their_ratio():
    figure = draw_masses([BALANCED, BIASED], title="Masses")
    assert len(figure.axes) == 4
    for i, drawn in enumerate((BALANCED, BIASED)):
        masses, ratio = figure.axes[2 * i : 2 * i + 2]
        assert masses.get_title(loc="left") == drawn.label
        lines = {line.get_label(): list(line.get_ydata()) for line in masses.lines}
        assert lines == {
            "$m_S$": drawn.success, "$m_F$": drawn.failure, "$m_S + m_F$": drawn.total
        }  # fmt: skip
        assert list(ratio.lines[0].get_ydata()) == drawn.ratio
        assert all(list(line.get_xdata()) == RATES for line in masses.lines)
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 3


def test_all_in_the_same_axes():
    curves = [BALANCED, BIASED, STEEP]
    figure = draw_masses(curves, title="Masses", compare=True)
    drawn = [[list(line.get_ydata()) for line in axes.lines] for axes in figure.axes]
    assert drawn[0] == [c.success for c in curves]
    assert drawn[1] == [c.failure for c in curves]
    assert drawn[2] == [c.total for c in curves]
    assert drawn[3][:-1] == [c.ratio for c in curves]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [c.label for c in curves]
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == 3


def test_many_curves_have_distinct_styles():
    curves = [curve(str(i), [0.1] * 3, [0.1] * 3) for i in range(28)]
    lines = draw_masses(curves, title="", compare=True).axes[0].lines
    assert len({(line.get_color(), line.get_linewidth()) for line in lines}) == 28


@pytest.mark.parametrize("options", [1, 8])
def test_long_names_stay_within_the_figure(options, tmp_path):
    option = "base={name:grpo,std:sample,tolerance:0.0"
    names = [" ".join(["a_grae", *[f"{option}{i}}}"] * options]) for i in range(4)]
    figure = draw_masses([curve(n, [0.1] * 3, [0.1] * 3) for n in names], title="", compare=True)
    save(figure, tmp_path / "a.png")
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert box.y1 < figure.axes[0].bbox.y0


@pytest.mark.parametrize("drawn", [BALANCED, BIASED, ONE_SIDED, STEEP])
def test_everything_lies_within_the_axes(drawn):
    for axes in draw_masses([drawn], title="").axes:
        low, high = axes.get_ylim()
        for line in axes.lines:
            values = [y for y in line.get_ydata() if math.isfinite(y)]
            # A logarithmic axis of ratios ends at 1/100 and 100.
            assert all(low <= max(y, 0.01) and min(y, 100) <= high for y in values)


def test_the_axis_of_ratios():
    def scale(drawn: MassCurve) -> str:
        return draw_masses([drawn], title="").axes[1].get_yscale()

    assert [scale(c) for c in (BALANCED, BIASED, ONE_SIDED, STEEP)] == [*["linear"] * 3, "log"]
    ratio = draw_masses([ONE_SIDED], title="").axes[1]
    assert [text.get_text() for text in ratio.texts] == ["undefined: $m_F = 0$"]
    # Some without a ratio do not keep the others from theirs.
    both = draw_masses([ONE_SIDED, STEEP], title="", compare=True).axes[3]
    assert both.get_yscale() == "log"
    assert not both.texts


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_the_same_figure_is_the_same_file(suffix, tmp_path):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        save(draw_masses([BALANCED, BIASED], title="Masses", compare=True), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert len(first) > 5000


def test_styles_of_the_user_do_not_matter(tmp_path):
    import matplotlib as mpl

    save(draw_masses([BALANCED], title=""), tmp_path / "a.svg")
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black", "font.size": 30}):
        save(draw_masses([BALANCED], title=""), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    ET.parse(tmp_path / "a.svg")


def test_invalid_paths_are_refused(tmp_path):
    with pytest.raises(ReportError, match=r"ending in .png, .svg, .pdf, got '.gif'"):
        check_path(tmp_path / "a.gif")
    with pytest.raises(ReportError, match="there is no folder"):
        check_path(tmp_path / "nowhere" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ReportError, match="cannot be written"):
        save(draw_masses([BALANCED], title=""), tmp_path / "folder.png")
