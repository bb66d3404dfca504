"""Figures of the page: the numbers that its script draws, from the figures of `advsweep plot`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.claims.sentences import judge_difference
from advsweep.report.data.columns import Column
from advsweep.report.data.filters import show_key
from advsweep.report.figures.chart import Options
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.pass_at_k import Levels, PassAtK
from advsweep.report.figures.solve_rates import Difficulty, SolveRates
from advsweep.report.figures.style import label_of
from advsweep.report.html.page_data import collect_curves, round_off
from advsweep.report.tables.comparison import name_group
from advsweep.report.tables.layout import show_difference
from advsweep.report.tables.types import Report, Row
from advsweep.statistics.intervals import Band

if TYPE_CHECKING:
    from jaxtyping import Float


def collect_figures(data: FigureData, columns: Sequence[Column]) -> dict[str, Any]:
    """Returns the data of the page's figures.

    Args:
        columns: the columns of the report's table, which the page can draw over each other.
    """
    return {
        "rows": _collect_rows(data),
        "curves": collect_curves(data),
        "passk": _unless_refused(_collect_pass_at_k, data),
        "columns": _collect_columns(data, columns),
        "levels": _unless_refused(_collect_levels, data),
        "difficulty": _unless_refused(_collect_difficulty, data),
        "solved": _unless_refused(_collect_solved_groups, data),
    }


def collect_differences(report: Report) -> list[dict[str, Any]]:
    """Return the lines of a forest plot for each column, with what each difference says.

    Columns are in the report's order: the primary outcomes first, as the page shows the first few.
    """
    return [
        {
            "name": column.header,
            "better": column.direction.value,
            "primary": any(column is outcome for outcome in report.family.outcomes),
            "lines": [
                {
                    "label": label_row(report.rows[d.row]),
                    "mean": round_off(d.comparison.difference),
                    "low": round_off(d.comparison.low),
                    "high": round_off(d.comparison.high),
                    "text": " ".join(show_difference(d.comparison)),
                    "p_adjusted": round_off(d.p_adjusted),
                    "outcome": judge_difference(d),
                }
                for d in report.differences
                if d.column is column
            ],
        }
        for column in dict.fromkeys(d.column for d in report.differences)
    ]


def label_row(row: Row) -> str:
    """Names a row of a report as the figures do: `fade h_star=0.5, group_size=8`."""
    return label_of(row.group) if "estimator" in row.group else name_group(row.group)


def _unless_refused(
    collect: Callable[[FigureData], dict[str, Any]], data: FigureData
) -> dict[str, Any]:
    """Returns the numbers of a figure, or as `refused` why there are none."""
    try:
        return collect(data)
    except (NotFoundError, ReportError) as error:
        return {"refused": str(error)}


def _collect_pass_at_k(data: FigureData) -> dict[str, Any]:
    """Returns the lines of pass@k over k with their laws."""
    chart = PassAtK.collect(data, Options())
    return {
        "ks": chart.ks.tolist(),
        "notes": list(chart.notes),
        "lines": [
            {
                "label": line.label,
                **_band(line.band),
                "n": int(line.band.n.max()),
                "law": None
                if line.law is None
                else [round_off(e.value) for e in (line.law.a, line.law.b, line.law.c)],
            }
            for line in chart.lines
        ],
    }


def _collect_levels(data: FigureData) -> dict[str, Any]:
    """Returns pass@k of each row by difficulty level, for the least k and the largest."""
    chart = Levels.collect(data, Options())
    return {
        "levels": [
            f"level {level}, {count} problem{'s' * (count > 1)}"
            for level, count in zip(chart.levels, chart.problems, strict=True)
        ],
        "ks": sorted({bars.k for bars in chart.bars}),
        "bars": [{"label": bars.label, "k": bars.k, **_band(bars.band)} for bars in chart.bars],
    }


def _collect_difficulty(data: FigureData) -> dict[str, Any]:
    """Returns a histogram of the problems' solve rates for each row, with its fitted laws."""
    chart = Difficulty.collect(data, Options())
    return {
        "notes": list(chart.notes),
        "panels": [
            {
                "label": panel.label,
                "counts": [*panel.bins.tolist(), len(panel.histogram)],
                "samples": panel.samples,
                "shares": _rounded(panel.binned(panel.histogram / panel.problems)),
                "laws": [
                    _rounded(panel.binned(law.fit.shares())) if law.fit is not None else None
                    for law in panel.laws
                ],
            }
            for panel in chart.panels
        ],
    }


def _collect_solved_groups(data: FigureData) -> dict[str, Any]:
    """Returns the share of groups with each number of successes over the training."""
    chart = SolveRates.collect(data, Options())
    return {
        "notes": list(chart.notes),
        "panels": [
            {
                "label": panel.label,
                "size": panel.group_size,
                "steps": panel.steps.tolist(),
                # Colours tell no more than three digits apart.
                "shares": [
                    [None if math.isnan(share) else round(share, 3) for share in window]
                    for window in panel.shares.T.tolist()
                ],
            }
            for panel in chart.panels
        ],
    }


def _collect_columns(data: FigureData, columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Returns the value of each run after its training, for each column that any run has."""
    collected = []
    for column in columns:
        try:
            values = data.values(column.name)
        except (NotFoundError, ReportError):
            continue
        runs = {str(run_id): round_off(value) for run_id, value in values.items()}
        collected.append({"name": column.name, "runs": runs})
    return collected


def _collect_rows(data: FigureData) -> list[dict[str, Any]]:
    """Returns the label, style and runs of each row; after them bases, floors and models."""
    rows: list[dict[str, Any]] = [
        {
            "label": row.label,
            "colour": row.style.colour,
            "variant": row.style.variant,
            "runs": [run.id for run in row.runs],
            "keys": {key: _plain(value) for key, value in row.group.items()},
        }
        for row in data.rows
    ]
    try:
        untrained = [(row.label, row.style) for row in data.untrained]
        untrained += [(row.label, row.style) for row in data.floors]
    except ReportError:
        untrained = []
    return rows + [
        # Their black would be invisible on a dark page.
        {
            "label": label,
            "colour": "var(--ink)",
            "variant": style.variant,
            "runs": [],
            "keys": {},
        }
        for label, style in untrained
    ]


def _rounded(values: Float[np.ndarray, " points"]) -> list[float | None]:
    return [round_off(value) for value in values.tolist()]


def _band(band: Band) -> dict[str, list[float | None]]:
    return {name: _rounded(getattr(band, name)) for name in ("mean", "low", "high")}


def _plain(value: Any) -> float | str:
    """Returns the value of a config key as a number, by which the page sorts, or as text."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else show_key(value)
