"""What the answer of the study of a real model says of its tables."""

from __future__ import annotations

import page_queries

RATES = "real_model/rates.csv"


def ends_at_rate(rate: str) -> list[float]:
    """The rate, and the least and the largest pass@1 of the tuning at it."""
    values = page_queries.rows(RATES, [f"optimizer.lr={rate}"])["pass@1"]
    return [float(rate), float(values.min()), float(values.max())]


def steps() -> list[float]:
    return [float(page_queries.table("real_model/runs.csv")["step"].max())]


def widest() -> list[float]:
    """The largest half width of the intervals of PSR's, power weights' and the A/A difference."""
    arms = ("psr", "power_alpha", "rloo (A/A)")
    widths = [page_queries.half_width("real_model/report.csv", arm, "pass@1")[0] for arm in arms]
    return [max(float(width) for width in widths)]


def ends_between(rate: str) -> list[float]:
    """The least and the largest pass@1 of the tuning at a rate."""
    return ends_at_rate(rate)[1:]


def estimators() -> list[float]:
    """How many estimators the tuning has."""
    names = page_queries.table(RATES)["estimator"].unique()
    return [len([name for name in names if name != "base"])]
