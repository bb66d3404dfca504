"""Figures that compare rows: differences to a baseline, early collapse, and two swept keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from advsweep.errors import ConfigError, FitError, NotFoundError, ReportError, nearest
from advsweep.printable import printable_line
from advsweep.report.data.columns import find_outcome, parse_column
from advsweep.report.data.runs import MISSING, is_key, known_keys, show_key, value_of
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData, Replicates
from advsweep.report.figures.style import COLOURS, GREY, RowStyle, label_rows
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.types import Difference
from advsweep.statistics import regress
from advsweep.tasks.controls import AA
from advsweep.writing import show, show_interval

_AA = f"({AA.title})"
FIRST = 100
"""The number of steps that count as early."""


def forest(
    data: FigureData,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
    margin: Sequence[str] = (),
) -> chart.Chart:
    """Draw differences to the baseline (--baseline) in the primary outcomes.

    `--margin` shades a margin of equivalence: a number for every pass@k, or OUTCOME=NUMBER.
    """
    # The differences are those of the report, so that figure and table cannot disagree.
    if data.task is not None:
        raise ReportError(
            "primary outcomes are of the runs' own task; without --task, "
            f"--metric 'pass@1[{data.task}]' names one of another"
        )
    report = data.report(metrics or None, baseline)
    if report.baseline is None:
        raise ReportError(f"{data.name} has no two rows, or too many; --baseline names one")
    rows = [place for place, row in enumerate(report.rows) if not row.is_base]
    texts, remarks = label_rows([report.rows[row].group for row in rows])
    named = dict(zip(rows, texts, strict=True))
    found = [parse_column(name) for name in metrics] or report.outcomes
    outcomes = {
        column.name: {named[d.row]: d for d in own}
        for column in found
        if column and (own := [d for d in report.differences if find_outcome(column, [d.column])])
    }
    differences = [(name, label, d) for name, own in outcomes.items() for label, d in own.items()]
    if not differences:
        raise ReportError(
            f"no row of {data.name} can be compared with {report.baseline}: expected two "
            "seeds of each"
        )
    others = {d.baseline for _, _, d in differences}
    against = named.get(others.pop(), report.baseline) if len(others) == 1 else report.baseline
    margins = _margins(margin, list(outcomes))
    first = next(iter(outcomes.values()))

    def place(label: str) -> tuple[bool, float]:
        """Sort A/A rows to the top, and the others by the first outcome."""
        own = first.get(label)
        return _AA not in label, math.inf if own is None else -own.comparison.difference

    labels = sorted(dict.fromkeys(label for _, label, _ in differences), key=place)
    differences.sort(key=lambda one: (list(outcomes).index(one[0]), labels.index(one[1])))
    return chart.Chart(
        title=f"{data.name}: differences to {against}",
        notes=[*_forest_notes(differences, margins, report.family), *remarks],
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
            for name, label, one in differences
        ],
        panels=[
            _forest_panel(name, own, labels, margins.get(name, 0.0), is_named=own is first)
            for name, own in outcomes.items()
        ],
        columns=len(outcomes),
    )


def _forest_panel(
    name: str,
    differences: Mapping[str, Difference],
    labels: Sequence[str],
    margin: float,
    *,
    is_named: bool,
) -> chart.Panel:
    """Draw the differences in an outcome."""
    series = []
    for label, one in differences.items():
        found, y = one.comparison, labels.index(label)
        colour, marker = (COLOURS[1], "D") if _AA in label else (COLOURS[0], "o")
        # Without a test p is NaN.
        style = RowStyle(colour, marker, int(not one.p_adjusted <= LEVEL))
        ends = {"x_low": [found.low], "x_high": [found.high]}
        series.append(chart.Series("", style, [found.difference], [y], chart.POINTS, **ends))
    ends_of_all = [
        end for d in differences.values() for end in (d.comparison.low, d.comparison.high)
    ]
    # 0 and the margin stay in view, so that small differences look small.
    wide = 1.2 * margin or max(map(abs, ends_of_all)) / 4 or 1.0
    low, high = min(*ends_of_all, -wide), max(*ends_of_all, wide)
    pad = 0.05 * (high - low)
    return chart.Panel(
        title=name,
        series=series,
        x_label="difference",
        rows=labels if is_named else [""] * len(labels),
        x_limits=(low - pad, high + pad),
        guides=[("x", 0.0)],
        span=(-margin, margin) if margin else None,
        height=0.5 + 0.21 * len(labels),
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
    differences: Sequence[tuple[str, str, Difference]], margins: Mapping[str, float], family: str
) -> list[str]:
    found = [one for _, _, one in differences]
    counts = sorted({one.comparison.n for one in found})
    paired = "paired by seed, " if all(one.comparison.paired for one in found) else ""
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    notes = [f"means with 95 % intervals, {paired}over {seeds} seeds, as in the report"]
    if any(one.is_primary for one in found):
        notes.append(f"filled: p of at most {LEVEL} after Benjamini-Hochberg over {family}")
    tested = {name for name, _, one in differences if one.is_primary}
    if described := dict.fromkeys(name for name, _, _ in differences if name not in tested):
        notes.append(f"described without a test: {', '.join(described)}")
    if margins:
        listed = ", ".join(f"{name} {margin:g}" for name, margin in margins.items())
        notes.append(f"shaded: the margin of equivalence ({listed})")
    if any(_AA in label for _, label, _ in differences):
        notes.append("diamonds: A/A rows, which repeat the baseline and show the noise")
    return notes


def acr(data: FigureData) -> chart.Chart:
    """Draw final pass@1 over the ACR of the first 100 steps, a point per run, with R².

    It is AVSPO's regression.
    """
    early, final = data.values(f"collapse/acr@first{FIRST}"), data.values(data.on_task("pass@1"))
    points: dict[str, list[chart.Record]] = {}
    styles = {}
    for row in data.rows:
        label, styles[label] = data.point_style(row)
        for run in row.runs:
            if run.id in early and run.id in final:
                point = {"row": label, "seed": run.seed}
                point |= {"acr": early[run.id], "pass@1": final[run.id]}
                points.setdefault(label, []).append(point)
    every = [point for own in points.values() for point in own]
    xs, ys = ([point[name] for point in every] for name in ("acr", "pass@1"))
    fit, refused = None, None
    try:
        fit = regress(xs, ys)
    except FitError as error:
        refused = str(error)
    fields = {
        **chart.estimate_fields(fit, "slope", "intercept", "r_squared"),
        "p_value": None if fit is None else fit.p_value,
        "n": None if fit is None else fit.n,
        "refused": refused,
    }
    notes = ["a point for each run"]
    if (shortest := min(run.steps for run in data.runs)) < FIRST:
        notes.append(f"runs of fewer than {FIRST} steps count with all of them ({shortest})")
    series, title = [], ""
    if fit is None:
        notes.append(f"no line: {refused}")
    else:
        notes.append(
            "line of least squares, with the 95 % band of its mean as of independent points; "
            "seeds of one row are alike, so that the band is narrower than it should be"
        )
        pad = 0.03 * (max(xs) - min(xs))
        places = np.linspace(min(xs) - pad, max(xs) + pad, 60)
        band = fit.band(places)
        series.append(chart.Series("", RowStyle(GREY, "o"), places, band[0], chart.FIT, *band[1:]))
        r2, slope = fit.r_squared, fit.slope
        title = (
            f"R² = {r2.value:.2f} [{r2.low:.2f}, {r2.high:.2f}], slope {slope.value:.2f} "
            f"[{slope.low:.2f}, {slope.high:.2f}], p = {fit.p_value:.2g}, {fit.n} runs"
        )
    for label, own in points.items():
        x, y = ([point[name] for point in own] for name in ("acr", "pass@1"))
        series.append(chart.Series(label, styles[label], x, y, chart.POINTS))
    return chart.Chart(
        title=f"{data.name}: early collapse and final accuracy",
        notes=notes,
        records=[point | fields for point in every],
        panels=[
            chart.Panel(
                title=title,
                series=series,
                x_label=f"ACR, mean over the first {FIRST} steps",
                y_label="pass@1 after training",
                height=3.1,
            )
        ],
    )


def heatmap(
    data: FigureData, x: str | None = None, y: str | None = None, metric: str | None = None
) -> chart.Chart:
    """Draw a number (--metric) over two swept keys (--x)."""
    metric = metric or data.on_task("pass@1")
    x, y = _heat_keys(data, x, y)
    values = data.values(metric)
    # The one row of each cell: rows that differ in a third key are no replicates.
    rows: dict[tuple[str, str], Replicates] = {}
    for row in data.rows:
        found = [value_of(row.runs[0], key) for key in (y, x)]
        if MISSING in found or not any(run.id in values for run in row.runs):
            continue
        at = json.dumps(found[0]), json.dumps(found[1])
        if rows.setdefault(at, row) is not row:
            raise ReportError(
                f"the runs with {x}={at[1]} and {y}={at[0]} differ in other keys as well "
                f"({rows[at].label}; {row.label}): draw fewer runs, alike but for {x} and {y}"
            )
    # As JSON, since lists are values as well.
    cells = chart.means(
        pd.DataFrame(
            [
                (*at, values[run.id])
                for at, row in rows.items()
                for run in row.runs
                if run.id in values
            ],
            columns=["y", "x", "value"],
        ),
        "y",
        "x",
    )
    ys, xs = (sorted(cells[axis].unique(), key=_order) for axis in "yx")
    means = np.full((len(ys), len(xs)), np.nan)
    texts, records = {}, []
    for cell in sorted(cells.itertuples(), key=lambda cell: (ys.index(cell.y), xs.index(cell.x))):
        place = ys.index(cell.y), xs.index(cell.x)
        means[place] = cell.mean
        texts[place] = f"{show(cell.mean)}\nn = {cell.n}"
        if cell.n > 1:
            mean, half = show_interval(cell.mean, (cell.high - cell.low) / 2)
            texts[place] = f"{mean} ±{half}\nn = {cell.n}"
        numbers = {"mean": cell.mean, "low": cell.low, "high": cell.high, "n": cell.n}
        records.append({y: json.loads(cell.y), x: json.loads(cell.x), "metric": metric, **numbers})
    x_ticks, y_ticks = (
        {i: printable_line(show_key(json.loads(text))) for i, text in enumerate(own)}
        for own in (xs, ys)
    )
    return chart.Chart(
        title=f"{data.name}: {metric} over {x} and {y}",
        notes=chart.seeds_note(cells["n"], "intervals"),
        records=records,
        panels=[
            chart.Panel(
                cells=chart.Cells(values=means, texts=texts, label=metric),
                x_label=x,
                y_label=y,
                x_ticks=x_ticks,
                y_ticks=y_ticks,
                height=0.6 + 0.62 * max(len(ys), 2),
            )
        ],
    )


def _heat_keys(data: FigureData, x: str | None, y: str | None) -> tuple[str, str]:
    """Return the two given keys, or the two that vary."""
    swept = list(dict.fromkeys(key for row in data.rows for key in row.group))
    swept = [key for key in swept if len({json.dumps(row.group.get(key)) for row in data.rows}) > 1]
    given = list(dict.fromkeys(key for key in (x, y) if key is not None))
    for key in given:
        if not is_key(data.runs, key):
            hint = nearest(key, known_keys(data.runs))
            raise NotFoundError(f"no run of {data.name} has a key '{key}'; {hint}")
    found = given + [key for key in swept if key not in given]
    if len(found) < 2 or (len(found) > 2 and y is None):
        raise ReportError(
            f"a heat map is of two keys that vary: name them with --x KEY,KEY; in {data.name} "
            f"there is {', '.join(swept) or 'none'}"
        )
    return (found[0], found[1]) if given else (found[1], found[0])


def _order(text: str) -> tuple[bool, float, str]:
    """Sort numbers by value, and words after them."""
    value = json.loads(text)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, text
