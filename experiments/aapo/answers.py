"""What the documents say of the study of AAPO."""

from __future__ import annotations

import page_queries


def verdict() -> list[str]:
    """Whether any arm differs significantly from GRPO in pass@1."""
    adjusted = page_queries.table("aapo/report.csv")["pass@1_p_adjusted"].dropna()
    return ["significant" if (adjusted <= page_queries.LEVEL).any() else "not significant"]
