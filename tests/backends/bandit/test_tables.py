"""Logits from parameters, and the optimizers, against torch's own."""

import math

import numpy as np
import pytest
import torch

from advsweep.backends.bandit.bandits import PARAMETERS, fresh_moments
from advsweep.backends.bandit.random_draws import RandomDraws
from advsweep.backends.bandit.sampling import BanditSampler
from advsweep.backends.bandit.tables import (
    Logits,
    Policy,
    ShiftedPolicy,
    exact_metrics,
)
from advsweep.backends.bandit.update import copy_active, next_state
from advsweep.backends.models import Table
from advsweep.backends.randomness import Stream
from advsweep.config.settings import AdamW, Sgd
from advsweep.errors import ConfigError
from advsweep.tasks.bandit import Bandit
from advsweep.tasks.base import Problem


def _base(**options):
    """The base policy's logits, of one run."""
    return torch.from_numpy(Bandit(**options).arms.logits).float()[None]


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (Sgd(lr=0.3), torch.optim.SGD, {}),
        (Sgd(lr=0.3, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
        (AdamW(lr=0.3), torch.optim.AdamW, {"weight_decay": 0.0}),
        (
            AdamW(lr=0.3, beta1=0.7, beta2=0.8, eps=0.01, weight_decay=0.1),
            torch.optim.AdamW,
            {"betas": (0.7, 0.8), "eps": 0.01, "weight_decay": 0.1},
        ),
    ],
)
def test_optimizers_move_as_those_of_torch(ours, theirs, options):
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(3, 4, generator=generator)
    weight = parameters.clone().requires_grad_()
    optimizer = theirs([weight], lr=0.3, **options)
    # A run that makes no steps stands beside the one that does.
    both = torch.stack([parameters, parameters])
    rates, active = torch.full((2, 1, 1), 0.3), torch.tensor([True, False])
    state, origin = {PARAMETERS: both, **fresh_moments(ours, both)}, torch.zeros_like(both)
    for _ in range(5):
        gradient = torch.randn(3, 4, generator=generator)
        weight.grad = gradient.clone()
        optimizer.step()
        moved = next_state(ours, state, torch.stack([gradient, gradient]), rates, origin)
        copy_active(moved, state, active)
        assert torch.allclose(both[0], weight, atol=1e-5)
    assert torch.equal(both[1], parameters)
    assert all((memory[1] == 0).all() for name, memory in state.items() if name != PARAMETERS)


def test_the_base_policy_is_where_parameters_begin():
    base = _base()
    for table in (Table(), Table(rank=4)):
        logits = Logits(table, base)
        assert torch.equal(logits.of(logits.origin()), base)


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_prompts_overlap_as_much_as_they_are_to(overlap):
    logits = Logits(Table(rank=8, overlap=overlap), _base(prompts_per_level=40))
    features = logits.of(torch.eye(8, 64)[None]).sub(logits.base)[0, :, :8]
    cosines = features @ features.T
    assert torch.allclose(cosines.diagonal(), torch.ones(len(cosines)))
    apart = cosines[~torch.eye(len(cosines), dtype=torch.bool)]
    # Own directions have a mean cosine of 0, to about 1 / 280.
    assert apart.mean().item() == pytest.approx(overlap, abs=0.02)


def test_a_map_of_rank_1_is_refused():
    with pytest.raises(ConfigError, match="rank: expected 0 or at least 2, got 1"):
        Table(rank=1)


@pytest.fixture
def logits():
    """Two prompts with five behaviours."""
    return torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_entropy_and_certainty():
    # π = 3/4, 1/4: H = 2 ln 2 - (3/4) ln 3, KL(uniform ‖ π) = ½ ln(2/3) + ½ ln 2.
    policy = Policy.of(torch.tensor([[math.log(3), 0.0]]).double())
    assert policy.entropies.item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))
    expected = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert policy.certainties().item() == pytest.approx(expected)


@pytest.mark.parametrize("behaviours", [2, 3, 16, 60, 64, 65, 80, 256])
def test_however_many_behaviours_there_are_all_have_their_share(behaviours):
    """Some of them have none, at the ends of rows and of stretches within them too."""
    generator = torch.Generator().manual_seed(behaviours)
    logits = 2 * torch.randn(3, behaviours, generator=generator)
    logits[0, ::3] = -torch.inf
    logits[1, behaviours // 2 :] = -torch.inf
    policy = Policy.of(logits)
    count = 100_000
    grid = (torch.arange(count) + 0.5) / count
    edges = torch.tensor([0.0, 1 - 2.0**-24])
    actions = policy.sample(torch.cat((grid, edges)).expand(3, -1))
    assert (policy.log_probs(actions) > -torch.inf).all()
    shares = torch.stack([torch.bincount(a, minlength=behaviours) for a in actions[:, :count]])
    # Sums of float32 are off by some 1e-7 in each place.
    assert torch.allclose(shares / count, policy.probabilities, atol=2.5e-5)


TEMPERATURES = torch.tensor([1.0, 0.7, 2.0])[:, None, None]


@pytest.mark.parametrize("size", [0.0, 0.1, 5.0, 50.0, 1e4])
def test_shifted_exponentials_are_a_softmax(size):
    """However far logits rise above those of the base policy."""
    generator = torch.Generator().manual_seed(0)
    base = 3 * torch.randn(3, 5, 21, generator=generator)
    logits = base + size * torch.randn(3, 5, 21, generator=generator)
    policy = ShiftedPolicy(logits, (base / TEMPERATURES).amax(-1, keepdim=True), TEMPERATURES)
    expected = Policy.of(logits.double(), TEMPERATURES.double())
    grid = ((torch.arange(400) + 0.5) / 400).expand(3, 5, -1)
    actions = policy.sample(grid)
    assert (expected.probabilities.gather(-1, actions) > 1e-6).all()
    assert (actions == expected.sample(grid)).double().mean() > 0.99
    scale = 1 + logits.abs().max()
    for found, wanted in [
        (policy.log_probs(actions), expected.log_probs(actions)),
        (policy.probabilities, expected.probabilities),
        (policy.log, expected.log),
        (policy.entropies, expected.entropies),
        (policy.certainties(), expected.certainties()),
    ]:
        assert torch.allclose(found.double(), wanted, atol=2e-6 * scale)
    assert (policy.entropies >= 0).all()


BEFORE = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]]).double().log()
AFTER = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4]]).double().log()
CORRECT = torch.tensor([[True, True, False], [False, True, False]])


def quantities(before, after, correct, ks):
    [found] = exact_metrics(Policy(before[None]), Policy(after[None]), correct[None], ks)
    return found


def test_quantities_by_hand():
    found = quantities(BEFORE, AFTER, CORRECT, (1, 2))
    # Solve rates are 0.8 and 0.1 after the step.
    assert found["exact/pass@1"] == pytest.approx(0.45)
    assert found["exact/pass@2"] == pytest.approx((0.96 + 0.19) / 2)

    def entropy(*policy):
        return -sum(p * math.log(p) for p in policy)

    after = (entropy(0.5, 0.3, 0.2) + entropy(0.5, 0.1, 0.4)) / 2
    before = (entropy(0.5, 0.25, 0.25) + entropy(0.2, 0.4, 0.4)) / 2
    assert found["exact/entropy"] == pytest.approx(after)
    assert found["exact/entropy_change"] == pytest.approx(after - before)
    # Correct ones have the shares 5/8 and 3/8 of the first prompt; the second has but one.
    assert found["exact/correct_modes"] == pytest.approx((math.exp(entropy(5 / 8, 3 / 8)) + 1) / 2)
    assert [found[f"exact/probability_{i}"] for i in range(3)] == pytest.approx([0.5, 0.2, 0.3])


def test_the_predicted_entropy_change_is_the_first_order():
    direction = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.0, -1.0]]).double()
    errors = []
    for size in (1e-2, 1e-3):
        after = torch.log_softmax(BEFORE.double() + size * direction, dim=1)
        found = quantities(BEFORE.double(), after, CORRECT, ())
        policy, step = BEFORE.double().exp(), size * direction
        means = (policy * step).sum(dim=1), (policy * BEFORE).sum(dim=1)
        covariance = (policy * step * BEFORE).sum(dim=1) - means[0] * means[1]
        assert found["exact/entropy_predicted"] == pytest.approx(-covariance.mean().item())
        errors.append(abs(found["exact/entropy_change"] - found["exact/entropy_predicted"]))
        assert errors[-1] < 0.2 * abs(found["exact/entropy_change"])
    # What is left is of second order.
    assert errors[1] < errors[0] / 50


STEPS = (1, 2, 31, 32, 33, 64, 100)


def noise(seed=0):
    return RandomDraws(seed, seed, group_size=3, population=5)


def test_a_step_has_its_numbers_from_whatever_step_one_comes():
    going = noise()
    for step in STEPS:
        for stream in (Stream.ROLLOUTS, Stream.REFERENCE):
            found = going.of_step(stream, step, 0, 4)
            assert found.shape == (4, 3)
            assert np.array_equal(found, noise().of_step(stream, step, 0, 4))
        assert np.array_equal(
            going.of_step(Stream.PROMPTS, step, 0, 4), noise().of_step(Stream.PROMPTS, step, 0, 4)
        )


def test_no_two_uses_share_numbers():
    uses = [(stream, step, draw) for stream in (3, 5) for step in STEPS for draw in (0, 1)]
    drawn = [noise(seed).of_step(Stream(s), t, d, 4) for seed in (0, 1) for s, t, d in uses]
    assert len({numbers.tobytes() for numbers in drawn}) == 2 * len(uses)
    assert min(map(np.min, drawn)) >= 0
    assert max(map(np.max, drawn)) < 1
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.05)


def test_prompts_come_once_before_any_comes_again():
    orders = set()
    for step in STEPS:
        for draw in (0, 1):
            assert sorted(noise().of_step(Stream.PROMPTS, step, draw, 5)) == [0, 1, 2, 3, 4]
            twice = noise().of_step(Stream.PROMPTS, step, draw, 8)
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
