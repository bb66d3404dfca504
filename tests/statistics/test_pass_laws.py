"""Laws of pass@k: shifted power laws and their rivals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.errors import AdvsweepError, FitError
from advsweep.report.data import evaluation_sources
from advsweep.statistics import pass_at_k
from advsweep.statistics.pass_laws import LAWS, compare_laws, fit_pass_at_k

KS = 2 ** np.arange(9)


def law(a, b, c, k=KS):
    return np.exp(-a * (k + c) ** -b)


def evaluated(problems, samples=64, seed=0, alpha=0.4, beta=1.0):
    """pass@k of each problem, whose solve rates are beta-distributed."""
    rng = np.random.default_rng(seed)
    correct = rng.binomial(samples, rng.beta(alpha, beta, problems))
    return pass_at_k(samples, correct[:, None], KS[:7])


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 4), st.floats(0.1, 1), st.floats(-0.9, 5))
def test_recovers_the_law_that_made_the_curve(a, b, c):
    found = fit_pass_at_k(KS, law(a, b, c))
    assert (found.a.value, found.b.value) == pytest.approx((a, b), rel=1e-3)
    assert found.c.value == pytest.approx(c, abs=1e-2)
    assert found.mse < 1e-12
    assert found.r_squared == pytest.approx(1)


def test_t_intervals_are_those_of_the_linearised_fit():
    noisy = law(1.5, 0.4, 0.5) + 0.003 * np.sin(np.arange(9))
    found = fit_pass_at_k(KS, noisy)

    def of_logs(k, log_a, log_b, log_first):
        return law(np.exp(log_a), np.exp(log_b), np.exp(log_first) - 1, k)

    _, covariance = scipy.optimize.curve_fit(of_logs, KS, noisy, np.log([1.5, 0.4, 1.5]))
    half = scipy.stats.t.ppf(0.975, 9 - 3) * np.sqrt(np.diag(covariance))
    highs = [found.a.high, found.b.high, found.c.high + 1]
    values = [found.a.value, found.b.value, found.c.value + 1]
    assert np.log(highs) - np.log(values) == pytest.approx(half, rel=1e-3)


@pytest.mark.slow
def test_resampled_problems_hold_what_more_problems_would_say():
    true = fit_pass_at_k(KS[:7], evaluated(20_000, seed=99).mean(axis=0))
    held = np.zeros(2)
    for seed in range(40):
        found = fit_pass_at_k(KS[:7], evaluated(100, seed=seed), resamples=40)
        held += [p.low <= t.value <= p.high for p, t in ((found.a, true.a), (found.b, true.b))]
    # Of 40 intervals of 95 % fewer than 33 hold it once in ten thousand.
    assert (held >= 33).all()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0.1, 0.2, 0.3], "3 points of pass@k: a law of 3 parameters needs more"),
        ([0.1, np.nan, 0.3, np.nan, 0.4], "3 points"),
        ([0.0] * 5, "pass@k is 0 at every k: nothing was solved"),
        ([1.0] * 5, "pass@k is 1 at every k: everything was solved"),
        ([0.3] * 5, "pass@k is 0.3 at every k: more samples solve nothing more"),
        ([0.1, 0.3, 0.2, 0.4], "falls from 0.3 at k = 2 to 0.2 at k = 4"),
        # One problem solved by one of 256 samples: k/256, which is straight.
        (KS / 256, "no shifted power law: its parameters run away"),
    ],
)
def test_curves_that_support_no_fit_are_refused_with_the_reason(values, reason):
    with pytest.raises(FitError, match=reason):
        fit_pass_at_k(KS[: len(values)], values)


@pytest.mark.parametrize(
    ("k", "values", "message"),
    [
        ([1, 2, 4, 8], [10.0, 20.0, 30.0, 40.0], r"shares in \[0, 1\]; divide percentages"),
        ([1, 2, 4], [0.1, 0.2, 0.3, 0.4], "pass@k for each of 3 k"),
        ([1, 2, 2, 4], [0.1, 0.2, 0.3, 0.4], "every k once"),
        ([0, 1, 2, 4], [0.1, 0.2, 0.3, 0.4], "k >= 1"),
    ],
)
def test_what_is_no_curve_is_refused(k, values, message):
    with pytest.raises(AdvsweepError, match=message):
        fit_pass_at_k(k, values)


K = 2.0 ** np.arange(8)

EXACT = {
    "shifted_power": np.exp(-1.5 * (K + 2) ** -0.4),
    "power": np.exp(-1.5 * K**-0.4),
    "exponential": 1 - 0.8 * np.exp(-0.05 * K),
}


@pytest.mark.parametrize("law", LAWS)
def test_a_law_fits_its_own_curve(law: str) -> None:
    fits = compare_laws(K, EXACT[law])
    assert fits[law].mse < 1e-8
    # The power law is the shifted one without a shift, so both fit its curve.
    others = {fit.mse for name, fit in fits.items() if name not in (law, "shifted_power")}
    assert min(others) > 10 * fits[law].mse


def test_parameters_are_those_of_the_formulas() -> None:
    expected = {
        "power": (1.5, 0.4),
        "exponential": (0.8, 0.05),
    }
    for law, parameters in expected.items():
        found = compare_laws(K, EXACT[law])[law].parameters
        assert found == pytest.approx(parameters, rel=1e-3)


def test_aicc_by_hand() -> None:
    """n ln(mse) + 2p + 2p(p+1)/(n-p-1) with n = 8 points and p = 3 with the spread."""
    rough = EXACT["exponential"] + 0.01 * np.array([1, -1, 1, -1, 1, -1, 0, 0])
    fit = compare_laws(K, rough)["exponential"]
    assert fit.aicc == pytest.approx(8 * math.log(fit.mse) + 6 + 24 / 4)


def test_a_curve_that_does_not_rise_is_refused() -> None:
    with pytest.raises(FitError, match="everything was solved"):
        compare_laws(K, np.ones_like(K))


def test_names() -> None:
    assert evaluation_sources.LAWS == LAWS


def test_without_resamples_the_fit_is_the_same_and_has_no_interval() -> None:
    problems = evaluated(60)
    fit = fit_pass_at_k(KS[:7], problems, resamples=0)
    with_intervals = fit_pass_at_k(KS[:7], problems)
    for estimate, other in zip(
        (fit.a, fit.b, fit.c), (with_intervals.a, with_intervals.b, with_intervals.c), strict=True
    ):
        assert estimate.value == other.value
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)
    assert (fit.mse, fit.r_squared) == (with_intervals.mse, with_intervals.r_squared)
