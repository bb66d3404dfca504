"""How large a figure and its letters are: a page to look at, or a column of a paper.

A page has the title and the caption of each figure. A paper has both in its own text, so that its
figures are panels and legend alone, as wide as a column, with letters that are readable there.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advsweep.report.figures.chart import Chart, Panel

COLUMN = 3.25  # inches: a column of NeurIPS, ICML or ACL is 3.25 to 3.35 wide, a text 5.5 to 6.75

CAPTION = 7.5  # points
_LINE = CAPTION * 1.3 / 72  # inches
_SAMPLE = 7  # letters of a legend's sample


@dataclass(frozen=True)
class Layout:
    """Sizes of a figure.

    Attributes:
        width: inches.
        is_paper: whether it goes without title and caption.
        letter: inches of a letter of the legend.
        panel_letter: inches of a letter of a panel's title.
        cell_size: points of the numbers in a heat map.
        scale: of lines and markers.
        settings: of matplotlib.
    """

    width: float = 8.0
    is_paper: bool = False
    letter: float = 0.068
    panel_letter: float = 0.068
    cell_size: float = 7.5
    scale: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def legend_letters(self) -> int:
        """The letters of a label that fit next to its sample."""
        return int((self.width - 0.3) / self.letter) - _SAMPLE

    def columns_of(self, chart: Chart) -> int:
        """Return how many panels of a figure stand side by side."""
        if not self.is_paper:
            return chart.columns
        # Names of rows, and the colours of a heat map, take a panel of their own.
        has_sides = any(panel.rows is not None or panel.cells for panel in chart.panels)
        narrowest = 2.6 if has_sides else 1.5
        return max(1, min(chart.columns, int(self.width / narrowest)))

    def lines_of(self, chart: Chart) -> list[list[Panel]]:
        """Return the panels in lines; the first of each names its rows."""
        columns = self.columns_of(chart)
        panels = list(chart.panels)
        return [panels[i : i + columns] for i in range(0, len(panels), columns)]

    def row_labels(self, chart: Chart, panel: Panel) -> Sequence[str] | None:
        """Return the names of a panel's rows; those of the first panel where none is beside it."""
        if panel.rows is None or not self.is_paper:
            return panel.rows
        rows = panel.rows
        if self.columns_of(chart) == 1:
            rows = chart.panels[0].rows or rows
        letters = int(self.width / 3 / self.panel_letter)
        return [textwrap.fill(row, letters) for row in rows]

    def panel_title(self, chart: Chart, panel: Panel) -> str:
        """Return a panel's title in lines that fit above it."""
        if not self.is_paper:
            return panel.title
        letters = int((self.width / self.columns_of(chart) - 0.4) / self.panel_letter)
        return textwrap.fill(panel.title, letters)

    def panel_height(self, chart: Chart, panel: Panel) -> float:
        """Return the inches of a panel."""
        if not self.is_paper:
            return panel.height
        width = self.width / self.columns_of(chart)
        title = 0.12 * self.panel_title(chart, panel).count("\n")
        rows = self.row_labels(chart, panel)
        if rows is not None:
            return 0.6 + title + sum(0.16 + 0.1 * row.count("\n") for row in rows)
        if panel.cells is not None:
            return 0.65 + title + 0.36 * max(len(panel.cells.values), 2)
        return min(panel.height, 0.25 + title + 0.62 * width)

    def heights(self, chart: Chart) -> tuple[float, float]:
        """Return the inches of title, panels and legend, and those of the caption."""
        lines = self.lines_of(chart)
        height = sum(max(self.panel_height(chart, panel) for panel in line) for line in lines)
        if not self.is_paper:
            height += 0.4
        if chart.labels:
            height += self.legend_height(chart.labels)
        if self.is_paper:
            return height, 0.02
        return height, (chart.caption.count("\n") + 2) * _LINE

    def legend_height(self, labels: Sequence[str]) -> float:
        """Return the inches of a legend."""
        # A label that needs several lines has a row of its own.
        more = sum(textwrap.fill(label, self.legend_letters).count("\n") for label in labels)
        rows = math.ceil(len(labels) / self.legend_columns(labels)) + more
        height = 0.1 + 0.2 * rows
        return 0.8 * height if self.is_paper else height

    def legend_columns(self, labels: Sequence[str]) -> int:
        """Return in how many columns a legend has its labels."""
        fitting = (self.legend_letters + _SAMPLE) // (max(map(len, labels)) + _SAMPLE)
        columns = max(1, min(fitting, len(labels)))
        # Columns that the rows do not need would leave the last row nearly empty.
        return math.ceil(len(labels) / math.ceil(len(labels) / columns))


PAGE = Layout()


def paper(width: float = COLUMN) -> Layout:
    """Return the layout of a figure of a paper.

    Args:
        width: inches.
    """
    return Layout(
        width=width,
        is_paper=True,
        letter=0.056,
        panel_letter=0.058,
        cell_size=6.0,
        scale=0.75,
        settings={
            "font.size": 7.5,
            "axes.titlesize": 7.5,
            "axes.labelsize": 7.5,
            "legend.fontsize": 7.0,
            "xtick.labelsize": 6.5,
            "ytick.labelsize": 6.5,
            "axes.linewidth": 0.6,
            "grid.linewidth": 0.5,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "axes.labelpad": 2.0,
            "hatch.linewidth": 0.5,
        },
    )
