"""What the page of the study of a real model says of its tables, and the page's tables."""

from __future__ import annotations

import page_queries

REPORT = "real_model/report.csv"
RATES = "real_model/rates.csv"
RUNS = "real_model/runs.csv"
ARMS = ("base", "rloo", "power_alpha", "rloo (A/A)", "psr", "rloo (placebo)")
TUNED = ("rloo", "psr", "power_alpha")
NEAR_THE_BEST = (3e-6, 1e-5)


def ends_at_rate(rate: str) -> list[float]:
    """The rate, and the least and the largest pass@1 of the tuning at it."""
    values = page_queries.rows(RATES, [f"optimizer.lr={rate}"])["pass@1"]
    return [float(rate), float(values.min()), float(values.max())]


def steps() -> list[float]:
    return [page_queries.last_step(RUNS)]


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


def rate_gaps() -> list[float]:
    """The least and the largest difference between the two good rates of an estimator."""
    ends = page_queries.table(RATES).set_index(["estimator", "optimizer.lr"])["pass@1"]
    low, high = NEAR_THE_BEST
    gaps = [abs(ends[name, low] - ends[name, high]) for name in TUNED]
    return [min(gaps), max(gaps)]


def seed_gaps() -> list[float]:
    """The least and the largest difference between the two seeds of an estimator at these rates."""
    runs = page_queries.table(RUNS)
    ends = runs[(runs["sweep"] == "real-model-tuning") & (runs["step"] == steps()[0])]
    ends = ends[ends["optimizer.lr"].isin(NEAR_THE_BEST)]
    by_row = ends.groupby("row")["pass@1"]
    gaps = by_row.max() - by_row.min()
    return [float(gaps.min()), float(gaps.max())]


def along(arm: str, column: str, step: str) -> list[float]:
    """The mean over seeds of an arm's evaluations at a step."""
    runs = page_queries.table(RUNS)
    found = runs[(runs["sweep"] == "real-model") & (runs["estimator"] == arm)]
    return [float(found.loc[found["step"] == int(step), column].mean())]


def seeds_between(arm: str) -> list[float]:
    """The least and the largest pass@1 of the seeds of an arm at the end."""
    runs = page_queries.table(RUNS)
    found = runs[(runs["sweep"] == "real-model") & (runs["estimator"] == arm)]
    ends = found.loc[found["step"] == steps()[0], "pass@1"]
    return [float(ends.min()), float(ends.max())]


def table() -> str:
    """The arms of the comparison, with their rates and differences to RLOO in pass@1."""
    arms = [(arm, page_queries.only_row(REPORT, [arm])) for arm in ARMS]
    return page_queries.arms_table(arms, "pass@8")


def rates_table() -> str:
    """pass@1 of the tuning over the rates; bold: the rate that the comparison has."""
    ends = page_queries.table(RATES).set_index(["estimator", "optimizer.lr"])["pass@1"]
    rates = sorted(page_queries.table(RATES)["optimizer.lr"].dropna().unique())
    lines = [
        f"| | {' | '.join(map(page_queries.rate_text, rates))} |",
        f"| :-- |{' --: |' * len(rates)}",
    ]
    for name in TUNED:
        (chosen,) = page_queries.value(REPORT, name, "optimizer.lr")
        cells = [name]
        for rate in rates:
            text = page_queries.share_text(ends.get((name, rate), float("nan")))
            cells.append(f"**{text}**" if rate == chosen else text)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
