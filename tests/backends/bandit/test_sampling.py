"""What is random in a step follows from seed and step, whatever was drawn before."""

import numpy as np
import pytest
import torch

from advsweep.backends.bandit.sampling import BanditSampler, RandomDraws
from advsweep.backends.randomness import Stream
from advsweep.tasks.base import Problem

STEPS = (1, 2, 31, 32, 33, 64, 100)


def noise(seed=0):
    return RandomDraws(seed, seed, group_size=3, population=5)


def test_a_step_has_its_numbers_from_whatever_step_one_comes():
    going = noise()
    for step in STEPS:
        for stream in (Stream.ROLLOUTS, Stream.REFERENCE):
            found = going.uniform(stream, step, 0, 4)
            assert found.shape == (4, 3)
            assert np.array_equal(found, noise().uniform(stream, step, 0, 4))
        assert np.array_equal(going.places(step, 0, 4), noise().places(step, 0, 4))


def test_no_two_uses_share_numbers():
    uses = [(stream, step, draw) for stream in (3, 5) for step in STEPS for draw in (0, 1)]
    drawn = [noise(seed).uniform(Stream(s), t, d, 4) for seed in (0, 1) for s, t, d in uses]
    assert len({numbers.tobytes() for numbers in drawn}) == 2 * len(uses)
    assert min(map(np.min, drawn)) >= 0
    assert max(map(np.max, drawn)) < 1
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.05)


def test_prompts_come_once_before_any_comes_again():
    orders = set()
    for step in STEPS:
        for draw in (0, 1):
            assert sorted(noise().places(step, draw, 5)) == [0, 1, 2, 3, 4]
            twice = noise().places(step, draw, 8)
            assert sorted(twice[:5]) == [0, 1, 2, 3, 4]
            assert len(set(twice[5:])) == 3
            orders.add(tuple(twice))
    assert len(orders) == 2 * len(STEPS)


def test_the_kl_from_the_base_is_that_of_the_policies():
    """At temperature 2: (.5, .5) from (.2, .8) is .5 log 2.5 + .5 log .625 = .2231 nats."""
    policy, base = torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [0.2, 0.8]]).log() * 2
    base[0] = 0
    problems = [Problem(id=f"{row}", prompt="", level=0, reference={"row": row}) for row in (1, 0)]
    answers = BanditSampler(policy, base).sample(problems, 3, temperature=2.0, seed=0)
    assert answers.kl_base is not None
    assert answers.kl_base.tolist() == pytest.approx([0.2231436, 0], abs=1e-6)
