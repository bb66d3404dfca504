"""What the axis of a figure is called: the label of its column, and its unit.

Pictures and the page have it from here. Labels of columns are made by `report.data.columns`, those
of rows, arms and keys by `report.data.labels`.
"""

from __future__ import annotations

from advsweep.report.data.columns import parse_column

# Units that an axis names: a share needs none, and a reward has that of its task.
_NAMED_UNITS = ("nats", "seconds", "tokens")


def label_axis(name: str) -> str:
    """Return the text of an axis that shows a column, such as `H ans, nats`."""
    column = parse_column(name)
    if column is None:
        return name
    entry = column.source.entry
    keeps_unit = column.window is None or column.window.keeps_unit
    if entry is not None and keeps_unit and entry.unit in _NAMED_UNITS:
        return f"{column.header}, {entry.unit}"
    return column.header
