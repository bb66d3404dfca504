"""What the answer of the study of PSR's speed says of its runs and tables, and the page's table."""

from __future__ import annotations

import itertools
import math

import page_queries
import pandas as pd

from advsweep.statistics import compare_paired
from advsweep.statistics.matching import read_at

RUNS = "speed/runs.csv"
DIFFICULTIES = ("hard", "easy")
ESTIMATORS = ("rloo", "psr")
RATES = ("2e-4", "4e-4")
ARMS = tuple(itertools.product(DIFFICULTIES, ESTIMATORS, RATES))
OUTCOMES = {"entropy": "entropy/right_rarefied", "pass@32": "pass@32"}
LAST_STEP = 600
LATE = 120
"""The last steps over which a run is asked whether it still gains."""


def level(difficulty: str) -> list[float]:
    """The pass@1 at which the predictions compare."""
    return page_queries.value(f"speed/matched_{difficulty}.csv", "level")


def matched(kind: str, difficulty: str, rate: str, outcome: str) -> list[float]:
    """A difference of PSR to RLOO at equal pass@1, with its interval.

    Args:
        kind: `matched` at the level of the predictions, `ends` at the lower of the ends of two
            runs, `across` for PSR at 2e-4 and RLOO at 4e-4.
    """
    row = _matched_row(kind, difficulty, rate, outcome)
    return [row["difference"], row["low"], row["high"]]


def matched_change(difficulty: str, rate: str, outcome: str) -> list[float]:
    """A difference of PSR to RLOO at the level, without its interval."""
    return matched("matched", difficulty, rate, outcome)[:1]


def matched_verdict(kind: str, difficulty: str, outcome: str, *rates: str) -> list[str]:
    """Whether PSR differs significantly from RLOO at equal pass@1: one answer for these rates."""
    rows = [_matched_row(kind, difficulty, rate, outcome) for rate in rates]
    told = {row["p_adjusted"] <= page_queries.LEVEL for row in rows}
    if len(told) != 1:
        raise page_queries.QueryError(f"PSR differs on {difficulty} prompts at some of {rates}")
    return ["significant" if told.pop() else "not significant"]


def _matched_row(kind: str, difficulty: str, rate: str, outcome: str) -> dict[str, float]:
    conditions = [f"row=psr {rate}", f"outcome={OUTCOMES[outcome]}"]
    return page_queries.only_row(f"speed/{kind}_{difficulty}.csv", conditions)


def reached(difficulty: str, estimator: str, rate: str) -> list[float]:
    """The mean step at which pass@1 first comes to the level of the predictions."""
    steps = _steps_to_level(difficulty, estimator, rate)
    return [math.fsum(steps) / len(steps)]


def share_of_steps(difficulty: str, rate: str) -> list[float]:
    """The share of RLOO's steps to the level that PSR needs, with its interval.

    The mean over the seeds of the share of each, paired.
    """
    own = _steps_to_level(difficulty, "psr", rate)
    baseline = _steps_to_level(difficulty, "rloo", rate)
    shares = [steps / others for steps, others in zip(own, baseline, strict=True)]
    found = compare_paired(shares, [0.0] * len(shares))
    return [found.difference, found.low, found.high]


def _steps_to_level(difficulty: str, estimator: str, rate: str) -> list[float]:
    """Return the step of each seed at which pass@1 first comes to the level."""
    (wanted,) = level(difficulty)
    curves = _curves(difficulty, estimator, rate)
    steps = [read_at(curve.to_numpy(), curve.index.to_numpy(), wanted).value for curve in curves]
    if any(math.isnan(step) for step in steps):
        raise page_queries.QueryError(f"{estimator} at {rate} does not come to {wanted}")
    return steps


def lost_after(difficulty: str, estimator: str, rate: str) -> list[float]:
    """How much lower pass@1 is at the end than at its largest, in the mean, with its interval."""
    curves = _curves(difficulty, estimator, rate)
    found = compare_paired(
        [float(curve.max()) for curve in curves], [float(curve.iloc[-1]) for curve in curves]
    )
    return [found.difference, found.low, found.high]


def late_gain(difficulty: str, estimator: str, rate: str) -> list[float]:
    """The gain in pass@1 over the last 120 steps, with its interval."""
    curves = _curves(difficulty, estimator, rate)
    found = compare_paired(
        [float(curve.iloc[-1]) for curve in curves],
        [float(curve.loc[LAST_STEP - LATE]) for curve in curves],
    )
    return [found.difference, found.low, found.high]


def late_steps() -> list[float]:
    """Over how many steps `late_gain` looks."""
    return [LATE]


def rise_late() -> list[float]:
    """How many arms gain in pass@1 over the last steps, of how many: intervals above 0."""
    rising = [arm for arm in ARMS if _rises(*arm)]
    return [len(rising), len(ARMS)]


def all_rise(difficulty: str) -> list[float]:
    """No value; an error unless every arm on these prompts gains over the last steps."""
    for arm in ARMS:
        if arm[0] == difficulty and not _rises(*arm):
            raise page_queries.QueryError(f"{arm} does not rise")
    return []


def _rises(difficulty: str, estimator: str, rate: str) -> bool:
    _, low, _ = late_gain(difficulty, estimator, rate)
    return low > 0


def lost_range() -> list[float]:
    """The least and the largest mean of what an arm has lost at the end."""
    losses = [lost_after(*arm)[0] for arm in ARMS]
    return [min(losses), max(losses)]


def share_range() -> list[float]:
    """The least and the largest share of RLOO's steps that PSR needs to the level."""
    pairs = itertools.product(DIFFICULTIES, RATES)
    shares = [share_of_steps(difficulty, rate)[0] for difficulty, rate in pairs]
    return [min(shares), max(shares)]


def less_diverse() -> list[float]:
    """In how many comparisons at equal rate and level PSR is significantly less diverse: all."""
    pairs = itertools.product(DIFFICULTIES, RATES)
    compared = [_matched_row("matched", difficulty, rate, "entropy") for difficulty, rate in pairs]
    for row in compared:
        if row["difference"] >= 0 or row["p_adjusted"] > page_queries.LEVEL:
            raise page_queries.QueryError(f"{row['row']} is not less diverse")
    return [len(compared)]


def less_diverse_everywhere() -> list[float]:
    """No value; an error unless PSR is significantly less diverse in each of the comparisons."""
    less_diverse()
    return []


def seeds() -> list[float]:
    """How many seeds each arm has."""
    by_arm = page_queries.table(RUNS).groupby(["sweep", "row"])["seed"].nunique()
    [number] = by_arm.unique()
    return [float(number)]


def _curves(difficulty: str, estimator: str, rate: str) -> list[pd.Series]:
    """Return pass@1 over the steps of each seed."""
    conditions = [f"sweep=speed-{difficulty}", f"estimator={estimator}", f"optimizer.lr={rate}"]
    runs = page_queries.rows(RUNS, conditions).sort_values("step")
    return [of_seed.set_index("step")["pass@1"] for _, of_seed in runs.groupby("seed")]


def table() -> str:
    """What PSR and RLOO come to, and PSR's differences at equal rate and equal pass@1."""
    headings = [
        "prompts, rate",
        "steps to the level: RLOO, PSR",
        "largest pass@1: RLOO, PSR",
        "difference",
        "entropy at the level",
        "pass@32 at the level",
        "entropy at equal ends",
        "pass@32 at equal ends",
    ]
    lines = [f"| {' | '.join(headings)} |", f"| {' | '.join([':--'] * len(headings))} |"]
    for difficulty, rate in itertools.product(DIFFICULTIES, RATES):
        lines.append(f"| {' | '.join(_cells(difficulty, rate))} |")
    return "\n".join(lines) + "\n"


def _cells(difficulty: str, rate: str) -> list[str]:
    file = f"speed/{difficulty}.csv"
    steps = [f"{reached(difficulty, name, rate)[0]:.0f}" for name in ESTIMATORS]
    rows = [page_queries.only_row(file, [name, f"optimizer.lr={rate}"]) for name in ESTIMATORS]
    largest = [page_queries.share_text(row["pass@1@max"]) for row in rows]
    psr = rows[1]
    # Descriptive: no table tests the largest pass@1, the list of claims does.
    difference = page_queries.interval_text(
        psr["pass@1@max_difference"],
        psr["pass@1@max_difference_low"],
        psr["pass@1@max_difference_high"],
        is_significant=False,
    )
    cells = [f"{difficulty}, {rate}", ", ".join(steps), ", ".join(largest), difference]
    for kind, outcome in itertools.product(("matched", "ends"), OUTCOMES):
        row = _matched_row(kind, difficulty, rate, outcome)
        text = page_queries.interval_text(
            row["difference"],
            row["low"],
            row["high"],
            is_significant=row["p_adjusted"] <= page_queries.LEVEL,
        )
        cells.append(text)
    return cells
