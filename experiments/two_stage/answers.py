"""What the documents say of the two-stage study."""

from __future__ import annotations

import page_queries


def losses() -> list[float]:
    """How much lower in pass@1 than GRPO its forms with negative advantages alone end."""
    file = "two_stage/report.csv"
    grpo = float(page_queries.value(file, "grpo", "objective.ratio=token", "pass@1")[0])
    ends = [
        float(page_queries.value(file, "grpo_n", f"objective.ratio={ratio}", "pass@1")[0])
        for ratio in ("token", "sequence")
    ]
    return sorted(grpo - end for end in ends)
