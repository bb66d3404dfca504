"""Distributions of solve rates."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.errors import AdvsweepError, FitError
from advsweep.statistics.solve_rates import fit_solve_rates


def expected(group_size, prompts, *components):
    """How many prompts have each count, rounded."""
    k = np.arange(group_size + 1)
    shares = sum(w * scipy.stats.betabinom.pmf(k, group_size, a, b) for w, a, b in components)
    return np.round(prompts * shares)


def drawn(group_size, prompts, *components, seed=0):
    rng = np.random.default_rng(seed)
    which = rng.choice(len(components), size=prompts, p=[w for w, _, _ in components])
    shapes = np.array(components)[which]
    counts = rng.binomial(group_size, rng.beta(shapes[:, 1], shapes[:, 2]))
    return np.bincount(counts, minlength=group_size + 1)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 5), st.floats(0.2, 5), st.sampled_from([4, 8, 16, 64]))
def test_recovers_the_beta_that_made_the_histogram(alpha, beta, group_size):
    histogram = expected(group_size, 10**9, (1, alpha, beta))
    found = fit_solve_rates(histogram, resamples=1)
    assert (found.alpha.value, found.beta.value) == pytest.approx((alpha, beta), rel=1e-3)


@pytest.mark.slow
def test_intervals_hold_the_true_parameters():
    held = np.zeros(2)
    for seed in range(40):
        found = fit_solve_rates(drawn(8, 300, (1, 0.5, 1.5), seed=seed), resamples=60)
        held += [
            found.alpha.low <= 0.5 <= found.alpha.high,
            found.beta.low <= 1.5 <= found.beta.high,
        ]
    # Of 40 intervals of 95 % fewer than 33 hold it once in ten thousand.
    assert (held >= 33).all()


def test_chi_square_by_hand():
    histogram = drawn(8, 400, (1, 2.0, 2.0))
    found = fit_solve_rates(histogram)
    due = 400 * found.shares
    assert (due > 5).all()
    assert found.chi_square == pytest.approx(((histogram - due) ** 2 / due).sum())
    assert found.degrees == 9 - 1 - 2
    assert found.p_value == pytest.approx(scipy.stats.chi2.sf(found.chi_square, 6))
    assert found.sse == pytest.approx(((histogram / 400 - found.shares) ** 2).sum())


def test_counts_that_few_prompts_have_are_pooled():
    histogram = np.array([40, 20, 10, 7, 4, 1])
    found = fit_solve_rates(histogram, resamples=1)
    due = 82 * found.shares
    assert (due[:4] > 5).all()
    assert (due[4:] < 5).all()
    assert due[4:].sum() < 5  # so that they join the count before
    seen, due = (np.append(x[:3], x[3:].sum()) for x in (histogram, due))
    assert found.chi_square == pytest.approx(((seen - due) ** 2 / due).sum())
    assert found.degrees == 4 - 1 - 2
    found = fit_solve_rates(drawn(64, 200, (1, 0.5, 2.0)), resamples=1)
    assert 0 < found.degrees < 64 - 2
    few = fit_solve_rates([9, 2, 1, 1], resamples=1)
    assert few.degrees == 0
    assert np.isnan(few.p_value)


def test_an_interval_runs_away_where_the_shapes_do():
    # Little more spread than chance has it.
    found = fit_solve_rates([6, 15, 25, 25, 17, 7, 4, 1, 0])
    assert 1 < found.beta.low < found.beta.value < 1e4
    assert found.alpha.high == found.beta.high == np.inf


@pytest.mark.parametrize(
    ("histogram", "reason"),
    [
        ([3, 2, 2, 1], "8 prompts: a fit needs at least 10"),
        ([0] * 9, "0 prompts"),
        ([50, 0, 0, 0, 30], "2 of the counts 0 to 4 occur: a fit of 2 parameters needs more"),
        ([0, 0, 80, 0, 0], "1 of the counts 0 to 4 occur"),
        # Binomial(4, 1/2): as one rate has it.
        ([10, 40, 60, 40, 10], r"no more than chance has it \(p = 0.46\): one rate, 0.5, fits"),
        ([1000, 1, 1, 1, 1000], "runs away: prompts are solved never or always"),
    ],
)
def test_prompts_that_support_no_fit_are_refused_with_the_reason(histogram, reason):
    with pytest.raises(FitError, match=reason):
        fit_solve_rates(histogram)


@pytest.mark.parametrize("histogram", [[1.5, 3, 4], [-1, 3, 4], [7], [np.nan, 3, 4]])
def test_what_is_no_histogram_is_refused(histogram):
    with pytest.raises(AdvsweepError, match="how many prompts had each number"):
        fit_solve_rates(histogram)
