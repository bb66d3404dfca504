"""How often tests of differences that are 0 call one, by how the spread is estimated.

    python benchmarks/spread_levels.py > levels.md

Methods ran the same seeds, and are compared with the first of them. docs/error_rates.md has
the table. The four tests at 5 %:

    own         the paired t-test of each difference by its own spread
    moderated   that of limma (Smyth, 2004), whose prior is estimated from the differences; its
                degrees of freedom are at most those of the pooled variance of differences that
                share a baseline, 4 m / (m + 3) (seeds - 1) for m of them
    block       a randomised block ANOVA of all methods
    screened    `pool_spread`: the same without methods whose spread differs; what reports use

A 95 % interval misses its true value as often as its test errs, so that coverage is one minus the
share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import digamma, polygamma, stdtr

from advsweep.statistics import compare_paired, pool_spread

TIMES = 4_000
POWER_AT = 3.0
"""The difference whose power is shown, in standard deviations of a run's residual."""

CASES: Mapping[str, tuple[float, float]] = {
    "all alike": (1.0, 1.0),
    "last arm x 3": (1.0, 3.0),
    "last arm x 10": (1.0, 10.0),
    "baseline x 10": (10.0, 1.0),
}
"""The spread of the baseline and of the last arm, where that of the others is 1."""


def simulate(arms: int, seeds: int, baseline: float, last: float, times: int) -> np.ndarray:
    """Return [times, arms + 1, seeds] values; a seed shifts all methods alike."""
    rng = np.random.default_rng([arms, seeds, int(baseline), int(last)])
    spread = np.array([baseline, *[1.0] * (arms - 1), last])[:, None]
    shifts = rng.normal(0, 3, (times, 1, seeds))
    return shifts + spread * rng.normal(size=(times, arms + 1, seeds))


def own(table: np.ndarray) -> np.ndarray:
    return np.array([compare_paired(arm, table[0]).p_value for arm in table[1:]])


def screened(table: np.ndarray) -> np.ndarray:
    found = pool_spread(table)
    pools = [
        None if found is None or found.wider[0] or wider else found.pooled
        for wider in (found.wider[1:] if found is not None else [True] * (len(table) - 1))
    ]
    return np.array(
        [
            compare_paired(arm, table[0], pooled=pooled).p_value
            for arm, pooled in zip(table[1:], pools, strict=True)
        ]
    )


def block(table: np.ndarray) -> np.ndarray:
    residual = table - table.mean(axis=1, keepdims=True)
    residual -= residual.mean(axis=0)
    arms, seeds = len(table) - 1, table.shape[1]
    df = arms * (seeds - 1)
    error = np.sqrt(2 * (residual**2).sum() / df / seeds)
    return _two_sided((table[1:] - table[0]).mean(axis=1) / error, df)


def moderated(table: np.ndarray) -> np.ndarray:
    differences = table[1:] - table[0]
    m, seeds = differences.shape
    df = seeds - 1
    variances = differences.var(axis=1, ddof=1)
    logs = np.log(variances) - digamma(df / 2) + np.log(df / 2)
    excess = logs.var(ddof=1) - polygamma(1, df / 2)
    most = 4 * m / (m + 3) * df
    if excess > 0:
        prior_df = 2 * _inverse_trigamma(excess)
        prior = np.exp(logs.mean() + digamma(prior_df / 2) - np.log(prior_df / 2))
        posterior = (prior_df * prior + df * variances) / (prior_df + df)
        total = min(prior_df + df, most)
    else:
        posterior, total = np.full(m, variances.mean()), most
    return _two_sided(differences.mean(axis=1) / np.sqrt(posterior / seeds), total)


def _inverse_trigamma(value: float) -> float:
    y = 0.5 + 1 / value
    for _ in range(30):
        trigamma = polygamma(1, y)
        y += trigamma * (1 - trigamma / value) / polygamma(2, y)
    return float(y)


def _two_sided(t: np.ndarray, df: float) -> np.ndarray:
    return 2 * stdtr(df, -np.abs(t))


TESTS = {"own": own, "moderated": moderated, "block": block, "screened": screened}


def shares(tables: np.ndarray) -> dict[str, np.ndarray]:
    """Return how often each test calls the difference of each arm."""
    return {
        name: np.mean([test(table) < 0.05 for table in tables], axis=0)
        for name, test in TESTS.items()
    }


def main(arm_counts: Sequence[int] = (3, 9), seed_counts: Sequence[int] = (3, 4, 6)) -> None:
    print(f"| arms | seeds | spread | {' | '.join(TESTS)} |")
    print(f"| --: | --: | :-- | {' | '.join('--:' for _ in TESTS)} |")
    for arms in arm_counts:
        for seeds in seed_counts:
            for case, (baseline, last) in CASES.items():
                found = shares(simulate(arms, seeds, baseline, last, TIMES))
                cells = [f"{own[:-1].mean():.3f}, {own[-1]:.3f}" for own in found.values()]
                print(f"| {arms} | {seeds} | {case} | {' | '.join(cells)} |")
            tables = simulate(arms, seeds, 1.0, 1.0, TIMES // 5)
            tables[:, 1:] += POWER_AT
            cells = [f"{own.mean():.2f}" for own in shares(tables).values()]
            print(f"| {arms} | {seeds} | power | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
