"""Confidence sequences: the source's martingale, coverage at any look, units."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from advsweep.statistics.sequences import MIXTURE, confidence_sequence, first_look, half_width

ALPHAS = (0.05, 0.01)


def missed(samples, mean, alpha):
    """The share of samples whose sequence excludes the mean at any look."""
    ends = [confidence_sequence(sample, alpha)[-1] for sample in samples.tolist()]
    return np.mean([not look.low <= mean <= look.high for look in ends])


@pytest.mark.parametrize("n", [4, 6, 12, 30])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_at_its_end_an_interval_has_a_likelihood_ratio_of_one_over_alpha(n, alpha):
    """Of t with a normal mixture over the mean, integrated by number."""
    if math.isinf(half_width(1.0, n, alpha)):
        assert n < first_look(alpha)
        return
    t = math.sqrt(n) * half_width(1.0, n, alpha)

    def weighted(mean):
        shifted = scipy.stats.nct.pdf(t, n - 1, math.sqrt(n) * mean)
        return shifted * scipy.stats.norm.pdf(mean, scale=MIXTURE)

    ratio = quad(weighted, -20, 20, points=[t / math.sqrt(n)], limit=200)[0]
    assert ratio / scipy.stats.t.pdf(t, n - 1) == pytest.approx(1 / alpha, rel=1e-4)


@pytest.mark.parametrize(("alpha", "least"), [(0.05, 4), (0.0084, 5), (0.0001, 7)])
def test_no_values_exclude_a_mean_before_the_first_look(alpha, least):
    assert first_look(alpha) == least
    for n in range(2, least):
        assert half_width(1e-9, n, alpha) == math.inf
    looks = confidence_sequence([1.0, *[1.0] * least], alpha)
    assert [math.isfinite(look.high) for look in looks] == [n >= least for n in range(2, least + 2)]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, size: rng.standard_normal(size),
        lambda rng, size: rng.standard_t(3, size),
        # Of two arms that are alike, differences are symmetric however skewed the arms are.
        lambda rng, size: rng.exponential(size=size) - rng.exponential(size=size),
    ],
    ids=["normal", "t3", "two exponentials"],
)
def test_a_mean_is_excluded_at_any_look_with_probability_alpha(draw, alpha):
    samples = draw(np.random.default_rng(1), (2000, 30))
    # Of 2,000, with three standard errors.
    assert missed(samples, 0.0, alpha) <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / 2000)


def test_a_fixed_interval_that_is_looked_at_misses_more_often():
    """What the sequence is for: the same looks with Student's t."""
    samples = np.random.default_rng(1).standard_normal((2000, 30))
    n = np.arange(2, 31)
    means, sds = ([f(samples[:, :k]) for k in n] for f in (_mean, _sd))
    t = np.abs(means) * np.sqrt(n)[:, None] / sds
    peeked = (t > scipy.stats.t.ppf(0.975, n - 1)[:, None]).any(axis=0).mean()
    assert peeked > 0.15 > 0.05 > missed(samples, 0.0, 0.05)


def _mean(values):
    return values.mean(axis=1)


def _sd(values):
    return values.std(axis=1, ddof=1)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20))
def test_intervals_only_tighten_and_are_never_empty(values):
    looks = confidence_sequence(values, 0.05)
    assert [look.n for look in looks] == list(range(2, len(values) + 1))
    for before, after in itertools.pairwise(looks):
        assert before.low <= after.low <= after.high <= before.high


@given(
    st.lists(st.integers(-1000, 1000), min_size=4, max_size=12),
    st.sampled_from([-8.0, 0.25, 4.0]),
    st.integers(-100, 100),
)
def test_intervals_shift_and_scale_with_the_values(values, scale, shift):
    for own, other in zip(
        confidence_sequence(values, 0.05),
        confidence_sequence([scale * value + shift for value in values], 0.05),
        strict=True,
    ):
        ends = sorted(scale * end + shift for end in (own.low, own.high))
        assert (other.low, other.high) == pytest.approx(tuple(ends), rel=1e-9, abs=1e-6)
