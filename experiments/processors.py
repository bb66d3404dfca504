"""Compare the verdicts of trainings that differ in nothing but chance: other bits, other seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

OUTCOMES = ("pass@1", "pass@32[above=guess]", "entropy/right_rarefied")
PARTS = {"difference": "_difference", "low": "_difference_low", "high": "_difference_high"}
PARTS |= {"p_adjusted": "_p_adjusted"}
LEVEL = 0.05


def compare(
    tables: Mapping[str, pd.DataFrame], keys: Sequence[str], outcomes: Sequence[str] = OUTCOMES
) -> pd.DataFrame:
    """Join the differences in the primary outcomes of several reports.

    Args:
        tables: reports as CSV has them, by the name of their training.
        keys: the columns that name an arm.
        outcomes: those that the reports test.

    Returns:
        a row per outcome and arm, with columns such as `plain_low` for each training.
    """
    joined = None
    for name, table in tables.items():
        found = _differences(table, name, keys=keys, outcomes=outcomes)
        joined = found if joined is None else joined.merge(found, on=["outcome", *keys])
    assert joined is not None
    return joined


def _differences(
    table: pd.DataFrame, name: str, *, keys: Sequence[str], outcomes: Sequence[str]
) -> pd.DataFrame:
    parts = []
    for outcome in outcomes:
        found = table[[*keys, *(outcome + end for end in PARTS.values())]].copy()
        found.columns = [*keys, *(f"{name}_{part}" for part in PARTS)]
        parts.append(found.dropna(subset=[f"{name}_p_adjusted"]).assign(outcome=outcome))
    return pd.concat(parts)


def moved(found: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Return which differences are significant in some of the trainings, and not in others."""
    significant = found[[f"{name}_p_adjusted" for name in names]] <= LEVEL
    return significant.any(axis=1) & ~significant.all(axis=1)
