"""What the axis of a figure is called.

The only place where an axis of a column gets its text; pictures and the page have it from here. The
names of rows and arms are made by `report.data.labels`.
"""

from __future__ import annotations

from advsweep.report.data.columns import parse_column

# Units that an axis names: a share needs none, and a reward has that of its task.
_NAMED_UNITS = ("nats", "seconds", "tokens")


def label_axis(name: str) -> str:
    """Return the text of an axis that shows a column, such as `answer entropy, nats`.

    A column that selects a task, problems or a cutoff is called by its name, which says so.
    """
    column = parse_column(name)
    if column is None or column.source.entry is None:
        return name
    entry = column.source.entry
    window = column.window
    label = name
    if name == entry.name:
        label = entry.axis or name
    elif window is not None and window.kind == "first" and name == f"{entry.name}@{window}":
        label = f"{entry.axis or entry.name}, mean over the first {window.value:.0f} steps"
    keeps_unit = window is None or window.keeps_unit
    if keeps_unit and entry.unit in _NAMED_UNITS:
        return f"{label}, {entry.unit}"
    return label
