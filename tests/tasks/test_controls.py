"""What controls make of verdicts and of seeds, and how reports name them."""

from __future__ import annotations

import numpy as np
import pytest

from advsweep.tasks.controls import AA, Noise, Placebo, titled

MANY = 20_000


def test_a_placebo_draws_at_the_base_rate_of_each_problem_whatever_the_answer() -> None:
    rates = np.repeat([0.1, 0.6], MANY)
    right, wrong = np.ones(2 * MANY), np.full(2 * MANY, np.nan)
    of_right, of_wrong = (
        Placebo().verdicts(verdicts, np.random.default_rng(1), rates) for verdicts in (right, wrong)
    )
    assert np.array_equal(of_right, of_wrong)
    assert set(of_right) == {0.0, 1.0}
    # Standard errors are .0021 and .0035.
    assert of_right[:MANY].mean() == pytest.approx(0.1, abs=0.01)
    assert of_right[MANY:].mean() == pytest.approx(0.6, abs=0.015)


def test_a_given_rate_takes_the_place_of_the_bases() -> None:
    placebo = Placebo(rate=0.25)
    assert (placebo.base_samples, Placebo().base_samples) == (0, 512)
    drawn = placebo.verdicts(np.zeros(MANY), np.random.default_rng(2), np.nan)
    assert drawn.mean() == pytest.approx(0.25, abs=0.015)


def test_noise_turns_verdicts_over_at_its_two_rates() -> None:
    verdicts = np.repeat([1.0, 0.0, np.nan], MANY)
    noise = Noise(false_positives=0.05, false_negatives=0.3)
    right, wrong, unscorable = np.split(noise.verdicts(verdicts, np.random.default_rng(3), 0.0), 3)
    assert right.mean() == pytest.approx(0.7, abs=0.015)
    assert wrong.mean() == pytest.approx(0.05, abs=0.01)
    assert np.isnan(unscorable).all()
    inverted = Noise(false_positives=1.0, false_negatives=1.0)
    assert inverted.verdicts(np.array([1.0, 0.0]), np.random.default_rng(4), 0.0).tolist() == [0, 1]


def test_repetitions_have_seeds_of_their_own() -> None:
    seeds = {AA(copy=copy).rollout_seed(seed) for copy in (1, 2, 3) for seed in range(50)}
    assert len(seeds) == 150
    assert AA().rollout_seed(0) == AA(copy=1).rollout_seed(0)
    assert not seeds & set(range(50))


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (None, "grpo"),
        ({"name": "none"}, "grpo"),
        ({"name": "aa", "copy": 1}, "grpo (A/A)"),
        ({"name": "placebo"}, "grpo (placebo)"),
        ({"name": "noise"}, "grpo (verifier noise)"),
        ({"name": "of a later version"}, "grpo (of a later version)"),
    ],
)
def test_reports_name_the_control(node: object, name: str) -> None:
    assert titled("grpo", {} if node is None else {"control": node}) == name
