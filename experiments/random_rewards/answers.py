"""What the answer of the study of random verdicts says of its tables, and the page's table."""

from __future__ import annotations

import page_queries

REPORT = "random_rewards/report.csv"
PROCESSORS = "random_rewards/processors.csv"
PLACEBO = "rloo (placebo)"
RATES = (2.5e-5, 5e-5, 1e-4, 2e-4)
BOUNDS = {
    "clip": ("objective.clip_low=0.2", "backend.inner_epochs=2"),
    "no_clip": ("objective.clip_low=1", "backend.inner_epochs=2"),
    "one_epoch": ("objective.clip_low=0.2", "backend.inner_epochs=1"),
}
HEADINGS = {
    "clip": "clip .2, two inner epochs",
    "no_clip": "no clip, two inner epochs",
    "one_epoch": "clip .2, one inner epoch",
}
TRUE = "true verdicts, clip .2, two inner epochs"
LEVEL = 0.05


def _conditions(bound: str, rate: float | str, estimator: str = PLACEBO) -> tuple[str, ...]:
    return (estimator, *BOUNDS[bound], f"optimizer.lr={rate}")


def settings() -> list[float]:
    """How many settings random verdicts were trained with."""
    return [len(BOUNDS) * len(RATES)]


def to_base(bound: str, rate: str, estimator: str = PLACEBO) -> list[float]:
    """The difference of a setting's pass@1 to the base's, with its interval."""
    return page_queries.difference(REPORT, *_conditions(bound, rate, estimator), "pass@1")


def ends(bound: str, rate: str) -> list[float]:
    """The pass@1 of a setting after the training."""
    return page_queries.value(REPORT, *_conditions(bound, rate), "pass@1")


def coverage(bound: str, rate: str) -> list[float]:
    """The difference of a setting's pass@32 to the base's, with its interval."""
    return page_queries.difference(REPORT, *_conditions(bound, rate), "pass@32")


def all_lower() -> list[float]:
    """No value; an error unless pass@1 is below the base's in every setting."""
    higher = [
        (bound, rate) for bound in BOUNDS for rate in RATES if to_base(bound, str(rate))[0] >= 0
    ]
    if higher:
        raise page_queries.QueryError(f"these are not below the base: {higher}")
    return []


def loss_range() -> list[float]:
    """The least and the largest loss of pass@1 over all settings."""
    changes = [to_base(bound, str(rate))[0] for bound in BOUNDS for rate in RATES]
    return [-max(changes), -min(changes)]


def verdict() -> list[page_queries.Value]:
    """Whether pass@1 differs significantly from the base's, if it does or not in all settings."""
    arms = ["&".join(_conditions(bound, rate)) for bound in BOUNDS for rate in RATES]
    return page_queries.verdict(REPORT, "pass@1", *arms)


def table() -> str:
    """pass@1 of each setting and its difference to the base's."""
    lines = [f"| | {' | '.join(page_queries.rate_text(rate, digits=1) for rate in RATES)} |"]
    lines.append(f"| :-- | {' | '.join([':--'] * len(RATES))} |")
    for bound, heading in HEADINGS.items():
        cells = [_cell(_conditions(bound, rate)) for rate in RATES]
        lines.append(f"| {heading} | {' | '.join(cells)} |")
    cells = [_cell(_conditions("clip", rate, "rloo")) for rate in RATES]
    lines.append(f"| {TRUE} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(conditions: tuple[str, ...]) -> str:
    try:
        row = page_queries.only_row(REPORT, conditions)
    except page_queries.QueryError:
        return ""
    difference = page_queries.difference_text(row, "pass@1")
    return f"{page_queries.share_text(row['pass@1'])}, {difference}"


def with_other_bits() -> list[float]:
    """How many verdicts move with the code of old processors, of how many."""
    found = page_queries.table(PROCESSORS)
    here, there = (found[f"{name}_p_adjusted"] <= LEVEL for name in ("vector", "plain"))
    return [int((here != there).sum()), len(found)]


def largest_change() -> list[float]:
    """The largest change of a difference in pass@1 with the code of old processors."""
    found = page_queries.rows(PROCESSORS, ["outcome=pass@1"])
    return [float((found["vector_difference"] - found["plain_difference"]).abs().max())]
