"""What the page of random verdicts on a real model says of its tables, and the page's table."""

from __future__ import annotations

import page_queries

from advsweep.statistics import compare_paired

RUNS = "random_real/runs.csv"
REPORT = "random_real/report.csv"
PLACEBO = "rloo (placebo)"
RATES = (1e-6, 1e-5)
BOUNDS = {"clip": "objective.clip_low=0.2", "no_clip": "objective.clip_low=1"}
# As the names of rows in the runs have them.
CLIPS = {"clip": "objective.clip_low=0.2", "no_clip": "objective.clip_low=1.0"}
HEADINGS = {"clip": "clip .2", "no_clip": "no clip"}


def _conditions(bound: str, rate: float | str) -> tuple[str, ...]:
    return (PLACEBO, BOUNDS[bound], f"optimizer.lr={rate}")


def trained() -> list[float]:
    """How many runs there are."""
    return [page_queries.count_runs(RUNS)]


def seeds() -> list[float]:
    """How many seeds all settings have."""
    return [page_queries.seeds_of(REPORT, PLACEBO)]


def steps() -> list[float]:
    return [page_queries.last_step(RUNS)]


def to_base(bound: str, rate: str) -> list[float]:
    """The difference of a setting's pass@1 to the base's, with its interval."""
    return page_queries.difference(REPORT, *_conditions(bound, rate), "pass@1")


def verdict(bound: str, rate: str) -> list[page_queries.Value]:
    """Whether a setting's pass@1 differs significantly from the base's."""
    return page_queries.verdict(REPORT, "pass@1", "&".join(_conditions(bound, rate)))


def neither_told(rate: str) -> list[page_queries.Value]:
    """No value; an error if pass@1 differs significantly from the base's at this rate."""
    for bound in BOUNDS:
        if verdict(bound, rate) != ["not significant"]:
            raise page_queries.QueryError(f"pass@1 at {rate} with {bound} differs from the base's")
    return []


def equal_within(bound: str, rate: str) -> list[page_queries.Value]:
    """The least margin within which a setting is equivalent to the base."""
    return page_queries.equal_within(REPORT, "pass@1", "&".join(_conditions(bound, rate)))


def along(bound: str, rate: str, step: str) -> list[float]:
    """The difference of a setting's pass@1 at a step to the base's, with its interval."""
    rows = page_queries.rows(RUNS, [f"row^={PLACEBO}", f"optimizer.lr={rate}"])
    of = rows[rows["row"].str.contains(CLIPS[bound])]
    by_step = of.pivot(index="seed", columns="step", values="pass@1")
    found = compare_paired(by_step[int(step)].to_numpy(), by_step[0].to_numpy())
    return [found.difference, found.low, found.high]


def clipped(rate: str) -> list[float]:
    """The share of tokens whose ratio the clip of .2 bounds."""
    return page_queries.value(REPORT, *_conditions("clip", rate), "loss/clip_fraction")


def table() -> str:
    """pass@1 of each setting and its difference to the base's."""
    lines = [f"| | {' | '.join(map(page_queries.rate_text, RATES))} |"]
    lines.append(f"| :-- | {' | '.join([':--'] * len(RATES))} |")
    for bound, heading in HEADINGS.items():
        cells = [_cell(_conditions(bound, rate)) for rate in RATES]
        lines.append(f"| {heading} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(conditions: tuple[str, ...]) -> str:
    row = page_queries.only_row(REPORT, conditions)
    difference = page_queries.difference_text(row, "pass@1")
    return f"{page_queries.share_text(row['pass@1'])}, {difference}"
