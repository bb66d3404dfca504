"""The figure of the turns of episodes: their collapse and the error of their credit, by number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

import pandas as pd

from advsweep.errors import NotFoundError, ReportError
from advsweep.names import CREDIT_ERROR, TURNS_COLLAPSED
from advsweep.report.data.columns import label_column, range_of
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData

# The most turns that each have their tick.
_TICKS = 12


def turns(data: FigureData) -> chart.Chart:
    """Draw collapse and credit error of each turn of an episode, means over the training."""
    styles = {row.label: row.style for row in data.distinct_rows()}
    tables = {name: _tabulate(data, name) for name in (TURNS_COLLAPSED, CREDIT_ERROR)}
    recorded = {name: table for name, table in tables.items() if len(table)}
    if not recorded:
        raise ReportError(
            f"no run of {data.name} has episodes of several turns; a task that has is task=walks"
        )
    panels = []
    for name, table in recorded.items():
        lines = chart.lines(table, styles, "turn")
        numbers = sorted(set(table["turn"]))
        panels.append(
            chart.Panel(
                title=label_column(name),
                series=lines,
                x_label="turn",
                x_ticks={turn: str(turn) for turn in numbers} if len(numbers) <= _TICKS else None,
                y_limits=chart.limits(lines, range_of(name)),
                within=range_of(name),
                height=3.0,
            )
        )
    every = pd.concat([table.assign(metric=name) for name, table in recorded.items()])
    counts = every.groupby(["metric", "row"])["n"].max()
    notes = chart.seeds_note(counts, "bands")
    notes.append("of each run the mean over the steps in which a group came to the turn")
    columns = ["metric", "row", "turn", "mean", "low", "high", "n"]
    return chart.Chart(
        title=f"{data.name}: turns of episodes",
        notes=notes,
        make_records=lambda: every[columns].to_dict("records"),
        panels=panels,
        columns=len(panels),
    )


def _tabulate(data: FigureData, metric: str) -> pd.DataFrame:
    """Return the mean over seeds of a metric for each `row` and `turn` that has it."""
    of_turn = re.compile(re.escape(metric) + r"/turn_([0-9]{1,6})")
    values = []
    for name in data.metric_names:
        match = of_turn.fullmatch(name)
        if match is None:
            continue
        of_runs: Mapping[int, float] = {}
        with suppress(NotFoundError):  # it is not a number anywhere
            of_runs = data.values(name)
        for row in data.rows:
            for run in row.runs:
                if run.id in of_runs:
                    values.append((row.label, int(match[1]), of_runs[run.id]))
    return chart.means(pd.DataFrame(values, columns=["row", "turn", "value"]), "row", "turn")
