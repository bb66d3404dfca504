"""What the answer of the study of FADE says of its tables."""

from __future__ import annotations

import page_queries

REPORT = "fade/report.csv"
PLAIN = ("fade", "estimator.mode=full", "estimator.h_star=")


def differences() -> list[float]:
    """FADE's differences to Dr. GRPO in pass@1 and pass@32, with their intervals."""
    found: list[float] = []
    for outcome in ("pass@1", "pass@32"):
        found += [float(end) for end in page_queries.difference(REPORT, *PLAIN, outcome)]
    return found


def equal_within(outcome: str) -> list[float]:
    """The smallest margin within which FADE is equivalent to Dr. GRPO."""
    return page_queries.equal_within(REPORT, outcome, "&".join(PLAIN))


def not_excluded(gain: str) -> list[float]:
    """A gain in pass@1 that FADE's interval includes."""
    high = float(page_queries.difference(REPORT, *PLAIN, "pass@1")[2])
    if high < float(gain):
        raise page_queries.QueryError(f"the interval ends at {high}")
    return [float(gain)]
