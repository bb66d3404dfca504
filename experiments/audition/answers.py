"""What the answer of the study of auditions says of its tables."""

from __future__ import annotations

import functools

import numpy as np
import page_queries
import pandas as pd

AUDITIONS = "audition/auditions.csv"
CORRELATIONS = "audition/correlations.csv"
RUNS = "leaderboard/runs.csv"
LAST = 150
# The arms that weigh failures more than successes.
FAILURES = ("asym_grpo", "a_grae", "grpo_n")


@functools.cache
def _trained(difficulty: str) -> pd.Series:
    """Return pass@1 after the last step by candidate, each at its tuned rate."""
    runs = page_queries.table(RUNS)
    chosen = (runs["sweep"] == f"leaderboard-{difficulty}") & (runs["step"] == LAST)
    runs = runs[chosen & ~runs["row"].str.contains("A/A|placebo", regex=True)]
    is_batch = runs["row"].str.contains("scope=batch", regex=False)
    names = runs["estimator"].where(~is_batch, "grpo scope=batch")
    return runs["pass@1"].groupby(names).mean()


@functools.cache
def _auditions(difficulty: str) -> pd.DataFrame:
    """Return the change of the log-odds, [candidate, seed]."""
    table = page_queries.rows(AUDITIONS, [difficulty])
    return table.pivot_table(index="candidate", columns="seed", values="log_odds")


def single(*difficulties: str) -> list[float]:
    """The rank correlation of one audition's order with the trainings': the median of all."""
    medians = []
    for difficulty in difficulties:
        outcome = _trained(difficulty)
        auditions = _auditions(difficulty).loc[outcome.index]
        ranks = outcome.rank()
        each = [np.corrcoef(auditions[seed].rank(), ranks)[0, 1] for seed in auditions]
        medians.append(float(np.median(each)))
    return medians


def together(difficulty: str, step: str = str(LAST)) -> list[float]:
    """The rank correlation of the mean of all auditions with the trainings, with its interval."""
    conditions = [
        *(difficulty, "measure=log_odds", "rate=best", "arms=all", f"step={step}"),
    ]
    return page_queries.interval(CORRELATIONS, *conditions, "correlation")


def _losses(difficulty: str) -> list[float]:
    """Return how much less the first choice of each audition trains to than the best arm."""
    outcome = _trained(difficulty)
    auditions = _auditions(difficulty).loc[outcome.index]
    return [float(outcome.max() - outcome[auditions[seed].idxmax()]) for seed in auditions]


def losing_choices(difficulty: str, least: str) -> list[float]:
    """The range of the losses of at least so much, how many auditions have one, and of how many."""
    losses = _losses(difficulty)
    large = [loss for loss in losses if loss >= float(least)]
    return [min(large), max(large), len(large), len(losses)]


def largest_loss(*difficulties: str) -> list[float]:
    """The largest loss of an audition's first choice."""
    return [max(_losses(difficulty)) for difficulty in difficulties]


def failures_found(places: str) -> list[float]:
    """How many places count as last, how often they hold the arms that weigh failures more,
    and of how many.
    """
    found = total = 0
    for difficulty in ("hard", "middle", "easy"):
        auditions = _auditions(difficulty)
        for seed in auditions:
            last = auditions[seed].nsmallest(int(places)).index
            found += sum(name in last for name in FAILURES)
            total += len(FAILURES)
    return [int(places), found, total]


def worst_found() -> list[float]:
    """In how many auditions the arm that trains to the least is last, and of how many."""
    found = total = 0
    for difficulty in ("hard", "middle", "easy"):
        worst = _trained(difficulty).idxmin()
        auditions = _auditions(difficulty)
        found += sum(auditions[seed].idxmin() == worst for seed in auditions)
        total += auditions.shape[1]
    return [found, total]


def seeds() -> list[float]:
    return [page_queries.table(AUDITIONS)["seed"].nunique()]


def arms() -> list[float]:
    return [page_queries.table(AUDITIONS)["candidate"].nunique()]


def failures() -> list[float]:
    return [len(FAILURES)]


def p(difficulty: str, arms: str) -> list[float]:
    """The p of the primary correlation."""
    conditions = [difficulty, "measure=log_odds", "rate=best", f"arms={arms}", f"step={LAST}"]
    return page_queries.value(CORRELATIONS, *conditions, "p")


def of(difficulty: str, measure: str, arms: str) -> list[float]:
    """A rank correlation after the last step."""
    conditions = [difficulty, f"measure={measure}", "rate=best", f"arms={arms}", f"step={LAST}"]
    return page_queries.value(CORRELATIONS, *conditions, "correlation")


def range_of(measure: str) -> list[float]:
    """The least and the largest rank correlation of a measure over the ranges."""
    found = [of(difficulty, measure, "all")[0] for difficulty in ("hard", "middle", "easy")]
    return [min(found), max(found)]
