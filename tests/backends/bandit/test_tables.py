"""Logits from parameters, and the optimizers, against torch's own."""

import pytest
import torch

from advsweep.backends.bandit.tables import Logits
from advsweep.backends.bandit.update import PARAMETERS, fresh_moments, move
from advsweep.backends.models import Table
from advsweep.config.settings import AdamW, Sgd
from advsweep.errors import ConfigError
from advsweep.tasks.bandit import Bandit


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
        move(ours, torch.stack([gradient, gradient]), state, rates, origin, active)
        assert torch.allclose(both[0], weight, atol=1e-5)
    assert torch.equal(both[1], parameters)
    assert all((memory[1] == 0).all() for name, memory in state.items() if name != PARAMETERS)


def test_the_base_policy_is_where_parameters_begin():
    base = _base()
    for table in (Table(), Table(rank=4)):
        logits = Logits(table, base)
        assert torch.equal(logits.of(logits.origin()), base)


def test_a_shared_map_pulls_gradients_back_as_autograd_does():
    logits = Logits(Table(rank=4), _base())
    assert logits.origin().shape == (1, 4, 64)
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(logits.base.shape, generator=generator)
    parameters = torch.randn(1, 4, 64, generator=generator, requires_grad=True)
    (expected,) = torch.autograd.grad((logits.of(parameters) * gradient).sum(), parameters)
    assert torch.allclose(logits.pull_back(gradient), expected, atol=1e-5)


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
