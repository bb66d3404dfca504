"""Objectives that are plain functions in a file of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs, Objective
from advsweep.objectives.functions import check_named
from advsweep.sweep.planning.plan import make_plan

CLIPPED = """
import torch

def loss(ratios, advantages, clip=0.2):
    clipped = ratios.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratios * advantages, clipped * advantages)
"""

Make = Callable[..., Objective]


@pytest.fixture
def make(write_code: Callable[..., str]) -> Make:
    def made(text: str, **options: object) -> Objective:
        return OBJECTIVES.build(OBJECTIVES.resolve(write_code(text)), **options)

    return made


def inputs() -> LossInputs:
    """Two rollouts, the second of one token beside a number that nothing may read."""
    nan = float("nan")
    return LossInputs(
        log_probs=torch.tensor([[-1.0, -2.0], [-0.5, nan]], requires_grad=True),
        old_log_probs=torch.tensor([[-1.5, -2.0], [-0.4, nan]]),
        completion_mask=torch.tensor([[True, True], [True, False]]),
        advantages=torch.tensor([1.0, -1.0]),
        rollouts=2,
        tokens=3,
    )


def loss_and_gradient(objective: Objective) -> tuple[torch.Tensor, torch.Tensor]:
    given = inputs()
    loss = objective.loss(given).loss
    loss.backward()
    assert given.log_probs.grad is not None
    return loss.detach(), given.log_probs.grad


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_a_function_trains_as_the_objective_that_it_copies(make: Make, aggregation: str) -> None:
    """With the ratio exp(0.5) > 1.1 the first token's gradient is 0, in both."""
    own = make(CLIPPED, clip=0.1, aggregation=aggregation)
    ours = OBJECTIVES.build("clipped", clip_low=0.1, clip_high=0.1, aggregation=aggregation)
    check_named(own)
    for mine, theirs in zip(loss_and_gradient(own), loss_and_gradient(ours), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert loss_and_gradient(own)[1][0, 0] == 0
    assert own.skips_exactly == ours.skips_exactly
    assert own.moves_alone == ours.moves_alone


def test_a_loss_without_advantages_reads_all_rollouts(make: Make) -> None:
    own = make("def loss(log_probs, advantages): return -log_probs * (advantages + 1)")
    check_named(own)
    assert not own.skips_exactly
    assert own.moves_alone


def test_runs_side_by_side_have_the_losses_that_they_have_alone(make: Make) -> None:
    own = make(CLIPPED)
    one = inputs()
    names = ("log_probs", "old_log_probs", "completion_mask", "advantages")
    stacked = replace(one, **{n: torch.stack((getattr(one, n), getattr(one, n))) for n in names})
    assert own.loss(stacked).loss.tolist() == [own.loss(one).loss.item()] * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("(ratios * advantages).sum()", r":2: loss: expected a loss per token, .* got \[\]"),
        ("ratios * advantages / ratios.sum()", r":2: loss: .* their own rollout alone"),
        ("ratios.detach() * advantages", r":2: loss: expected a loss with a gradient"),
        ("ratios * advantages / 0", r":2: loss: expected a finite loss"),
        ("ratios * advantages * torch.rand(())", r":2: loss: .* the same loss for the same"),
        ("ratios.nothing()", r":3: it raised AttributeError"),
    ],
)
def test_an_unusable_loss_is_refused_before_training(make: Make, body: str, message: str) -> None:
    own = make(f"import torch\ndef loss(ratios, advantages):\n    return {body}\n")
    with pytest.raises(ConfigError, match=rf"^idea\.py{message}"):
        check_named(own)


def test_an_unknown_parameter_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"^idea\.py:1: loss: .*'ratio' is no input; .*'ratios'"):
        make("def loss(ratio, advantages): return ratio * advantages")


def test_a_plan_takes_it_and_tries_it(write_code: Callable[..., str]) -> None:
    fake = ("backend=tiny", "steps=2", "seed=0")
    [planned] = make_plan([*fake, f"objective={write_code(CLIPPED)}", "objective.clip=0.3"]).runs
    assert planned.config["objective"]["clip"] == 0.3
    assert planned.run.sources["objective"].name == "idea"
    broken = write_code(CLIPPED.replace("return -", "return 1j * "), "broken.py")
    with pytest.raises(ConfigError, match=r"broken\.py:"):
        make_plan([*fake, f"objective={broken}"])
