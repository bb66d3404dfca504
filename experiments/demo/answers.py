"""What README.md says of the demo."""

from __future__ import annotations

import page_queries
import pandas as pd

REPORT = "demo/report.csv"


def runs() -> list[float]:
    """How many runs the demo has: the seeds of each trained row."""
    return [float(_trained()["n"].sum())]


def estimators() -> list[float]:
    return [len(_trained())]


def tests() -> list[float]:
    """How many differences the correction of the report is over."""
    table = page_queries.table(REPORT)
    columns = [name for name in table.columns if name.endswith("_p_adjusted")]
    return [int(table[columns].notna().sum().sum())]


def not_significant(arm: str, outcome: str) -> list[float]:
    """No value; an error if a difference is significant."""
    if page_queries.verdict(REPORT, outcome, arm) != ["not significant"]:
        raise page_queries.QueryError(f"{outcome} of {arm} is significant")
    return []


def _trained() -> pd.DataFrame:
    table = page_queries.table(REPORT)
    return table[~table["estimator"].isin(["base", "guess"])]
