"""Figures that compare rows: differences to a baseline, early collapse, and two swept keys."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from advsweep.errors import ConfigError, FitError, ReportError
from advsweep.printable import printable_line
from advsweep.report.data.columns import find_outcome, parse_column
from advsweep.report.data.runs import show_key
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.style import COLOURS, MOST_STYLES, RowStyle, choose_styles, label_rows
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.types import Difference
from advsweep.statistics import Interval, Regression, regress, student_t_interval
from advsweep.tasks.controls import AA
from advsweep.writing import show, show_interval

_AA = f"({AA.title})"
FIRST = 100
"""The number of steps that count as early."""


def forest(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw differences to the baseline with their intervals, a panel for each outcome."""
    if options.task is not None:
        raise ReportError(
            "primary outcomes are of the runs' own task; without --task, "
            f"--metric 'pass@1[{options.task}]' names one of another"
        )
    report = data.report(options.metrics or None, options.baseline)
    if report.baseline is None:
        raise ReportError(f"{data.name} has no two rows, or too many; --baseline names one")
    rows = [place for place, row in enumerate(report.rows) if not row.is_base]
    texts, remarks = label_rows([report.rows[row].group for row in rows])
    named = dict(zip(rows, texts, strict=True))
    found = [parse_column(name) for name in options.metrics] or report.outcomes
    outcomes = {
        column.name: {named[d.row]: d for d in own}
        for column in found
        if column and (own := [d for d in report.differences if find_outcome(column, [d.column])])
    }
    if not outcomes:
        raise ReportError(
            f"no row of {data.name} can be compared with {report.baseline}: expected two "
            "seeds of each"
        )
    others = {d.baseline for own in outcomes.values() for d in own.values()}
    baseline = report.baseline
    if len(others) == 1 and (other := others.pop()) in named:
        baseline = named[other]
    margins = _margins(options.margin, list(outcomes))
    first = next(iter(outcomes.values()))

    def place(label: str) -> tuple[bool, float]:
        own = first.get(label)
        return _AA not in label, math.inf if own is None else -own.comparison.difference

    labels = sorted({label: None for own in outcomes.values() for label in own}, key=place)
    height = 0.5 + 0.21 * len(labels)
    panels = [
        _forest_panel(name, own, labels, margins.get(name, 0.0), height)
        for name, own in outcomes.items()
    ]
    panels = [panels[0], *(replace(panel, rows=[""] * len(labels)) for panel in panels[1:])]
    return chart.Chart(
        title=f"{data.name}: differences to {baseline}",
        notes=[*_forest_notes(outcomes, labels, margins, report.family.text), *remarks],
        records=[
            {
                "outcome": name,
                "row": label,
                "control": _AA in label,
                "difference": one.comparison.difference,
                "low": one.comparison.low,
                "high": one.comparison.high,
                "n": one.comparison.n,
                "paired": one.comparison.paired,
                "p_adjusted": one.p_adjusted,
                "margin": margins.get(name),
            }
            for name, own in outcomes.items()
            for label in labels
            if (one := own.get(label)) is not None
        ],
        panels=panels,
        columns=len(panels),
    )


def _forest_panel(
    name: str,
    differences: Mapping[str, Difference],
    labels: Sequence[str],
    margin: float,
    height: float,
) -> chart.Panel:
    """Draw the differences in an outcome."""
    series = []
    for label, one in differences.items():
        found, y = one.comparison, labels.index(label)
        colour, marker = (COLOURS[1], "D") if _AA in label else (COLOURS[0], "o")
        # Without a test p is NaN.
        style = RowStyle(colour, marker, int(not one.p_adjusted <= LEVEL))
        series.append(
            chart.Series(
                "",
                style,
                [found.difference],
                [y],
                chart.POINTS,
                x_low=[found.low],
                x_high=[found.high],
            )
        )
    ends = np.array([[d.comparison.low, d.comparison.high] for d in differences.values()])
    wide = 1.2 * margin or float(np.abs(ends).max()) / 4 or 1.0
    low, high = min(float(ends.min()), -wide), max(float(ends.max()), wide)
    pad = 0.05 * (high - low)
    return chart.Panel(
        title=name,
        series=series,
        x_label="difference",
        rows=labels,
        x_limits=(low - pad, high + pad),
        guides=[("x", 0.0)],
        span=(-margin, margin) if margin else None,
        height=height,
    )


def _margins(texts: Sequence[str], outcomes: Sequence[str]) -> dict[str, float]:
    """Parse margins: a number for every pass@k, or OUTCOME=NUMBER.

    Raises:
        ConfigError: a text is neither, or names another outcome.
    """
    margins: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            margin = float(number)
        except ValueError:
            margin = math.nan
        named = [name] if name else [each for each in outcomes if each.startswith("pass@")]
        if not 0 < margin < math.inf or not {*named} <= {*outcomes}:
            raise ConfigError(
                f"--margin: expected a positive NUMBER, or OUTCOME=NUMBER with one of "
                f"{', '.join(outcomes)}, got {text!r}"
            )
        margins |= dict.fromkeys(named, margin)
    return margins


def _forest_notes(
    outcomes: Mapping[str, Mapping[str, Difference]],
    labels: Collection[str],
    margins: Mapping[str, float],
    family: str,
) -> list[str]:
    found = [one for own in outcomes.values() for one in own.values()]
    counts = sorted({one.comparison.n for one in found})
    paired = "paired by seed, " if all(one.comparison.paired for one in found) else ""
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    notes = [f"means with 95 % intervals, {paired}over {seeds} seeds, as in the report"]
    if any(one.is_primary for one in found):
        notes.append(f"filled: p of at most {LEVEL} after Benjamini-Hochberg over {family}")
    described = [
        name for name, own in outcomes.items() if not any(d.is_primary for d in own.values())
    ]
    if described:
        notes.append(f"described without a test: {', '.join(described)}")
    if margins:
        listed = ", ".join(f"{name} {margin:g}" for name, margin in margins.items())
        notes.append(f"shaded: the margin of equivalence ({listed})")
    if any(_AA in label for label in labels):
        notes.append("diamonds: A/A rows, which repeat the baseline and show the noise")
    return notes


def acr(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw AVSPO's regression of final accuracy on the collapse rate of the first 100 steps."""
    data.check_keys(options.by)
    early, final = f"collapse/acr@first{FIRST}", data.on_task("pass@1")
    table = data.table([early, final], options.by).rename(columns={early: "x", final: "y"})
    of_rows = options.points is chart.PointUnit.ROWS
    if of_rows:
        by_row = table.groupby("row", sort=False)
        for key in options.by:
            if (mixed := by_row[key].nunique(dropna=False) > 1).any():
                raise ReportError(
                    f"--by: expected keys that the runs of a row share, got '{key}', which "
                    f"differs among those of {mixed.idxmax()}; --points runs takes each by itself"
                )
        means = {"x": "mean", "y": "mean", **dict.fromkeys(options.by, "first")}
        table = by_row.agg(means).reset_index().assign(seed=None)
    shared = {row.label: data.point_style(row) for row in data.rows}
    table["label"] = [shared[row][0] for row in table["row"]]
    fit, refused = _regress(table)
    whole = RowStyle(chart.GREY, "o", int(bool(options.by)))
    records: list[chart.Record] = [{"key": "", "value": None, **_fit_fields(fit, refused)}]
    panels = []
    for key in options.by or ["label"]:
        names = list(table[key].dropna().unique())
        if len(names) > MOST_STYLES // 2 and options.by:
            raise ReportError(
                f"--by: the {len(names)} values of '{key}' are more than can be told apart "
                f"({MOST_STYLES // 2}); choose some with --where"
            )
        styles = (
            choose_styles(names, names) if options.by else [dict(shared.values())[n] for n in names]
        )
        series = _fitted("", whole, table, fit)
        for name, style in zip(names, styles, strict=True):
            own = table[table[key] == name]
            label = name
            if options.by:
                value = json.loads(name)
                line, why = _regress(own)
                label = f"{key} {show_key(value)}: {_words(line)}"
                records.append({"key": key, "value": value, **_fit_fields(line, why)})
                series += _fitted(label, style, own, line)
            points = chart.POINTS
            series.append(chart.Series(label, style, own["x"], own["y"], points))
        panels.append(series)
    if not options.by:
        records = [
            {"row": label, "seed": seed, "acr": x, "pass@1": y, **_fit_fields(fit, refused)}
            for label, seed, x, y in table[["label", "seed", "x", "y"]].itertuples(index=False)
        ]
    title = ""
    if fit is not None:
        ends = f"[{fit.slope.low:.2f}, {fit.slope.high:.2f}]"
        title = f"{_words(fit)} {ends}, p = {fit.p_value:.2g}, {fit.n} {options.points.value}"
    return chart.Chart(
        title=f"{data.name}: early collapse and final accuracy",
        notes=_acr_notes(data, options, refused),
        records=records,
        panels=[
            chart.Panel(
                title=title if place == 0 else "",
                series=series,
                x_label=f"ACR, mean over the first {FIRST} steps",
                y_label="pass@1 after training",
                height=2.7 if options.by else 3.1,
            )
            for place, series in enumerate(panels)
        ],
    )


def _acr_notes(data: FigureData, options: chart.Options, refused: str | None) -> list[str]:
    of_rows = options.points is chart.PointUnit.ROWS
    notes = [f"a point for each {'row, the mean of its runs' if of_rows else 'run'}"]
    shortest = min(run.steps for run in data.runs)
    if shortest < FIRST:
        notes.append(f"runs of fewer than {FIRST} steps count with all of them ({shortest})")
    which = "dashed: line of least squares through all" if options.by else "line of least squares"
    if refused is not None:
        return [*notes, f"no line: {refused}"]
    if of_rows:
        return [*notes, f"{which}, with the 95 % band of its mean"]
    return [
        *notes,
        f"{which}, with the 95 % band of its mean as of independent points; "
        "seeds of one row are alike, so that the band is narrower than it should be",
    ]


def _regress(table: pd.DataFrame) -> tuple[Regression | None, str | None]:
    try:
        return regress(table["x"], table["y"]), None
    except FitError as error:
        return None, str(error)


def _words(fit: Regression | None) -> str:
    if fit is None:
        return "no line"
    r2, slope = fit.r_squared, fit.slope
    return f"R² = {r2.value:.2f} [{r2.low:.2f}, {r2.high:.2f}], slope {slope.value:.2f}"


def _fit_fields(fit: Regression | None, refused: str | None) -> chart.Record:
    return {
        **chart.estimate_fields(fit, "slope", "intercept", "r_squared"),
        "p_value": None if fit is None else fit.p_value,
        "n": None if fit is None else fit.n,
        "refused": refused,
    }


def _fitted(
    label: str, style: RowStyle, table: pd.DataFrame, fit: Regression | None
) -> list[chart.Series]:
    """Return the line over the range of its points; of the whole with the band of its mean."""
    if fit is None:
        return []
    low, high = table["x"].min(), table["x"].max()
    x = np.linspace(low - 0.03 * (high - low), high + 0.03 * (high - low), 60)
    y, lower, upper = fit.band(x)
    band: Any = {} if label else {"low": lower, "high": upper}
    return [chart.Series(label, style, x, y, chart.FIT, **band)]


def heatmap(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw a number over two swept keys."""
    metric = options.metric or data.on_task("pass@1")
    x, y = _heat_keys(data, options)
    table = data.table([metric], [x, y]).dropna(subset=[x, y])
    groups = {row.label: row.group for row in data.rows}
    for (own_x, own_y), rows in table.groupby([x, y])["row"].unique().items():
        if len(rows) > 1:
            keys = {key for row in rows for key in groups[row]} - {x, y}
            varying = [k for k in keys if len({json.dumps(groups[r].get(k)) for r in rows}) > 1]
            raise ReportError(
                f"the runs with {x}={own_x} and {y}={own_y} differ in other keys as well "
                f"({', '.join(sorted(varying))}): draw fewer runs, alike but for {x} and {y}"
            )
    xs, ys = (sorted(table[key].unique(), key=_order) for key in (x, y))
    cells = {
        (ys.index(own_y), xs.index(own_x)): student_t_interval(values)
        for (own_x, own_y), values in table.groupby([x, y])[metric]
    }
    means = np.full((len(ys), len(xs)), np.nan)
    for place, cell in cells.items():
        means[place] = cell.mean
    heat = chart.Cells(
        x=np.arange(len(xs) + 1) - 0.5,
        y=np.arange(len(ys) + 1) - 0.5,
        values=means,
        within=(float(np.nanmin(means)), float(np.nanmax(means))),
        texts={place: _cell_text(cell) for place, cell in cells.items()},
        label=metric,
    )
    x_values, y_values = ([json.loads(text) for text in texts] for texts in (xs, ys))
    return chart.Chart(
        title=f"{data.name}: {metric} over {x} and {y}",
        notes=chart.seeds_note([cell.n for cell in cells.values()], "intervals"),
        records=[
            {y: y_values[row], x: x_values[column], "metric": metric, **cell._asdict()}
            for (row, column), cell in sorted(cells.items())
        ],
        panels=[
            chart.Panel(
                cells=heat,
                x_label=x,
                y_label=y,
                x_ticks={i: printable_line(show_key(value)) for i, value in enumerate(x_values)},
                y_ticks={i: printable_line(show_key(value)) for i, value in enumerate(y_values)},
                height=0.6 + 0.62 * max(len(ys), 2),
            )
        ],
    )


def _heat_keys(data: FigureData, options: chart.Options) -> tuple[str, str]:
    """Return the two keys of the options, or the two that vary."""
    if options.x is not None and options.x == options.y:
        raise ConfigError(f"--x and --y: expected two keys, got '{options.x}' twice")
    swept = list(dict.fromkeys(key for row in data.rows for key in row.group))
    swept = [key for key in swept if len({json.dumps(row.group.get(key)) for row in data.rows}) > 1]
    given = [key for key in (options.x, options.y) if key is not None]
    data.check_keys(given)
    free = [key for key in swept if key not in given]
    if len(given) < 2 and len(free) + len(given) != 2:
        listed = f"only {', '.join(swept) or 'nothing'}" if len(swept) < 2 else ", ".join(swept)
        raise ReportError(
            f"a heat map is of two keys that vary: name them with --x and --y; in "
            f"{data.name} {listed} {'varies' if len(swept) < 2 else 'vary'}"
        )
    y = options.y or free.pop(0)
    return options.x or free[0], y


def _order(text: str) -> tuple[bool, float, str]:
    """Sort numbers by value, and words after them."""
    value = json.loads(text)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, text


def _cell_text(cell: Interval) -> str:
    if cell.n < 2:
        return f"{show(cell.mean)}\nn = {cell.n}"
    mean, half = show_interval(cell.mean, (cell.high - cell.low) / 2)
    return f"{mean} ±{half}\nn = {cell.n}"
