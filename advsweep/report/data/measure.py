"""A number for each run and column, from the store's points and evaluations."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from advsweep.report.data.columns import Column
from advsweep.report.data.cutoffs import CutoffSteps
from advsweep.report.data.run_data import RunData


def measure(
    data: RunData, columns: Iterable[Column], at: CutoffSteps | None = None
) -> pd.DataFrame:
    """Return a line per run, by its id, and a number per column; NaN where it has none.

    Args:
        at: where each run is compared; None for the end of the training.

    Raises:
        NotFoundError: no run has the curve that a column's cutoff is a value of.
    """
    numbers = {column.name: pd.Series(column.values(data, at)) for column in columns}
    return pd.DataFrame(numbers, index=pd.Index(data.ids), dtype=float)
