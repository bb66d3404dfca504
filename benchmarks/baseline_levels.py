"""How often tests err if the baseline spreads more than the arms, by how the spread is estimated.

    python benchmarks/baseline_levels.py > benchmarks/baseline_levels.csv

All arms ran the same seeds and are compared with the baseline, which spreads 1, 1.5 or 2 times as
much as each of them. docs/error_rates.md has the table, and why reports have the first rule:

    reports    `pool_spread`: one spread of all arms, but those that the F test sets apart
    baseline   the baseline's own variance: that of its contrast with the mean of the arms, added to
               the arms' pooled one, with the degrees of freedom of Satterthwaite
    each       each of the two arms' own variance, likewise
    twice      reports' rule with the mean of the baseline and its A/A arm as the baseline
    own        the paired t-test of each difference by its own spread
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

from advsweep.statistics import pool_spread

TIMES = 2_000
RATIOS = (1.0, 1.5, 2.0)
ARMS = (4, 8, 17)
SEEDS = (3, 5, 8)
POWER_AT = 2.8
"""The true difference, in its standard errors; one that is known would show it in 80 %."""

FIELDS = ("arms", "seeds", "baseline", "rule", "level", "power")
Errors = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of each arm but the baseline: the difference, its standard error, and degrees of freedom."""


def own(table: np.ndarray) -> Errors:
    differences = table[1:] - table[0]
    n = table.shape[1]
    error = np.sqrt(differences.var(axis=1, ddof=1) / n)
    return differences.mean(axis=1), error, np.full(len(differences), n - 1.0)


def reports(table: np.ndarray) -> Errors:
    difference, error, df = own(table)
    found = pool_spread(table)
    if found is not None and not found.wider[0]:
        alike = ~found.wider[1:]
        error[alike] = found.pooled.sd / np.sqrt(table.shape[1])
        df[alike] = found.pooled.df
    return difference, error, df


def baseline(table: np.ndarray) -> Errors:
    difference, error, df = own(table)
    n = table.shape[1]
    found = pool_spread(table[1:])
    if found is None:
        return difference, error, df
    alike = ~found.wider
    arms = alike.sum()
    # Contrasts of the baseline with the arms are independent of the residuals among the arms.
    contrast = (table[0] - table[1:][alike].mean(axis=0)).var(ddof=1)
    pooled = (found.pooled.sd**2 / 2) * (1 - 1 / arms)
    total = contrast + pooled
    error[alike] = np.sqrt(total / n)
    df[alike] = total**2 / (contrast**2 / (n - 1) + pooled**2 / found.pooled.df)
    return difference, error, df


def each(table: np.ndarray) -> Errors:
    difference, error, df = own(table)
    n = table.shape[1]
    found = pool_spread(table)
    for arm in range(1, len(table)):
        others = [i for i in range(1, len(table)) if i != arm]
        if found is not None:
            others = [i for i in others if not found.wider[i]]
        if len(others) < 2:
            continue
        rest = table[others] - table[others].mean(axis=1, keepdims=True)
        rest = rest - rest.mean(axis=0)
        rest_df = (len(others) - 1) * (n - 1)
        shared = 2 * (rest**2).sum() / rest_df / len(others)
        mean = table[others].mean(axis=0)
        parts = [(table[i] - mean).var(ddof=1) for i in (0, arm)]
        total = sum(parts) - shared
        if total > 0:
            error[arm - 1] = np.sqrt(total / n)
            spread = sum(part**2 for part in parts) / (n - 1) + shared**2 / rest_df
            df[arm - 1] = total**2 / spread
    return difference, error, df


def twice(table: np.ndarray, again: np.ndarray) -> Errors:
    both = np.concatenate([table[:1], again[None], table[1:]])
    n = table.shape[1]
    differences = table[1:] - both[:2].mean(axis=0)
    error = np.sqrt(differences.var(axis=1, ddof=1) / n)
    df = np.full(len(differences), n - 1.0)
    found = pool_spread(both)
    if found is not None and not found.wider[:2].any():
        alike = ~found.wider[2:]
        # The variance of a mean of two runs is half that of one.
        error[alike] = found.pooled.sd * np.sqrt(0.75 / n)
        df[alike] = found.pooled.df
    return differences.mean(axis=1), error, df


RULES = {"reports": reports, "baseline": baseline, "each": each, "own": own}


def shares(
    arms: int, seeds: int, ratio: float, times: int, rules: Sequence[str] = (*RULES, "twice")
) -> dict[str, tuple[float, float]]:
    """Return by rule the share of differences of 0, and of true differences, with p below .05."""
    rng = np.random.default_rng([arms, seeds, int(2 * ratio)])
    spread = np.array([ratio, *[1.0] * arms])[:, None]
    shift = POWER_AT * np.sqrt((1 + ratio**2) / seeds)
    found: dict[str, list[tuple[float, float]]] = {rule: [] for rule in rules}
    for _ in range(times):
        # A seed's shift of all arms cancels in every rule.
        table = spread * rng.normal(size=(arms + 1, seeds))
        again = ratio * rng.normal(size=seeds)
        for rule in rules:
            errors = twice(table, again) if rule == "twice" else RULES[rule](table)
            found[rule].append((_share(*errors), _share(errors[0] + shift, *errors[1:])))
    return {rule: tuple(np.mean(own, axis=0)) for rule, own in found.items()}


def _share(difference: np.ndarray, error: np.ndarray, df: np.ndarray) -> float:
    return float((2 * stdtr(df, -np.abs(difference) / error) < 0.05).mean())


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(FIELDS)
    for arms in ARMS:
        for seeds in SEEDS:
            for ratio in RATIOS:
                for rule, (level, power) in shares(arms, seeds, ratio, TIMES).items():
                    numbers = (f"{100 * level:.1f}", f"{100 * power:.0f}")
                    writer.writerow((arms, seeds, f"{ratio:g}", rule, *numbers))
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
