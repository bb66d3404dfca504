"""The losses of frameworks on numbers by hand; their own functions are in tests/integrations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from advsweep.objectives import OBJECTIVES

# Rows: A = 1 with ratios 1.5, 1.1; A = -2 with ratio .5; l₀ = -1.5, so that
# l = -1.5 + log w = -1.0945, -1.4047; -2.1931.
L = [-1.5 + math.log(w) for w in (1.5, 1.1, 0.5)]
Q = math.exp(-1.5)
S = [1 / (1 + math.exp(-x)) for x in (0.5, 0.1, 1.05 * -0.5)]
W = 1.5 * 1.1


@pytest.mark.parametrize(
    ("spec", "expected", "share"),
    [
        # Weights min(w, 5): 1.5, 1.1; .5
        ({"name": "cispo"}, (-1.5 * L[0] - 1.1 * L[1] + 2 * 0.5 * L[2]) / 3, 0),
        # clip(w, .8, 1.2): 1.2, 1.1; .8. Two of three are clipped.
        (
            {"name": "cispo", "clip_low": 0.2, "clip_high": 0.2},
            (-1.2 * L[0] - 1.1 * L[1] + 2 * 0.8 * L[2]) / 3,
            2 / 3,
        ),
        # p - q = .5 q = .1116, .0223; -.1116: the first and the last are beyond .1.
        ({"name": "dppo", "clip_low": 0.1, "clip_high": 0.1}, -1.1 * L[1] / 3, 2 / 3),
        # The weight of the first is at most 1.2; nothing is beyond .2.
        (
            {"name": "dppo", "cap": 1.2},
            (-1.2 * L[0] - 1.1 * L[1] + 2 * 0.5 * L[2]) / 3,
            0,
        ),
        # 4/τ σ(τ (w - 1)) with τ = 1, 1.05.
        ({"name": "sapo"}, (-2 * (S[0] + S[1]) + 2 * 4 / 1.05 * S[2]) / 2, None),
        # Log-ratios within ±.4: .4, .0953; -.6931 counts as -.4, as A < 0.
        (
            {"name": "gmpo"},
            (-math.exp((0.4 + math.log(1.1)) / 2) + 2 * math.exp(-0.4)) / 2,
            2 / 3,
        ),
        # φ(W) = e^λ W^k e^(-λ W): k = 2, λ = 3 for A > 0; k = 3, λ = 2 for A < 0.
        (
            {"name": "vespo"},
            (
                -(W**2) * math.exp(3 - 3 * W) * (L[0] + L[1])
                + 2 * 0.5**3 * math.exp(2 - 2 * 0.5) * L[2]
            )
            / 3,
            None,
        ),
        # Weight 1 for A > 0, min(1, .5) for A < 0.
        ({"name": "topr"}, (-L[0] - L[1] + 2 * 0.5 * L[2]) / 2, 0),
        # -A l + β/2 d², d = .4055, .0953; -.6931.
        (
            {"name": "dro", "beta": 0.5, "aggregation": "token_sum"},
            -L[0] - L[1] + 2 * L[2] + sum(0.25 * math.log(w) ** 2 for w in (1.5, 1.1, 0.5)),
            None,
        ),
        # d² = .1644, .0091, .4805; means of the least are .0091, .0867 and .218.
        ({"name": "m2po", "threshold": 0.1}, (-1.5 - 1.1) / 3, 1 / 3),
        ({"name": "m2po", "threshold": 1e-3}, -1.1 / 3, 2 / 3),
        # All three lead away from the sampler: d² = .1644, .0091, .4805 have the mean .218. Sums of
        # min(d², τ²) are .027 for τ² = .0091, .338 for .1644 and .654 for .4805; the threshold
        # .12 allows .36, so that τ² = .1644: w is at most 1.5 and at least 1/1.5.
        (
            {"name": "m2po", "rule": "released", "threshold": 0.12},
            (-1.5 - 1.1 + 2 / 1.5) / 3,
            2 / 3,
        ),
        # Below .027 = 3 · .009 there is none: all three are clipped at 1.
        ({"name": "m2po", "rule": "released", "threshold": 0.008}, (-1 - 1 + 2) / 3, 1),
        # The mean is not above the threshold.
        ({"name": "m2po", "rule": "released", "threshold": 0.22}, (-1.5 - 1.1 + 1) / 3, 0),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_worked_values(
    spec: dict[str, Any], expected: float, share: float | None, make_inputs: Any
) -> None:
    inputs = make_inputs([[1.5, 1.1], [0.5]], [1.0, -2.0])
    output = OBJECTIVES.build(spec).loss(inputs)
    assert output.loss.item() == pytest.approx(expected, abs=1e-12)
    if share is None:
        assert "loss/clip_fraction" not in output.metrics
    else:
        assert output.metrics["loss/clip_fraction"].item() == pytest.approx(share)


def released_bound(squares: list[float], threshold: float) -> float:
    """τ of M2PO's released rule, by trying each square."""
    if not squares or sum(squares) <= threshold * len(squares):
        return math.inf
    fitting = [
        bound
        for bound in squares
        if sum(min(square, bound) for square in squares) < threshold * len(squares)
    ]
    return math.sqrt(max(fitting, default=0.0))


@pytest.mark.parametrize("threshold", [1e-4, 0.04, 0.3])
@pytest.mark.parametrize("seed", range(8))
def test_m2po_as_released_clips_what_leads_away(
    seed: int, threshold: float, random_inputs: Any, gradient: Any
) -> None:
    inputs = random_inputs(seed, rows=6, width=9)
    objective = OBJECTIVES.build("m2po", rule="released", threshold=threshold)
    changes = (inputs.log_probs - inputs.old_log_probs).detach()
    leads_away = (changes * inputs.token_advantages > 0) & inputs.completion_mask
    bound = released_bound(changes[leads_away].square().tolist(), threshold)
    clipped = leads_away & (changes.abs() >= bound * (1 - 1e-12))
    slopes = gradient(objective, inputs)
    # Clipped tokens have no gradient, all others that of w A: -w A / N.
    expected = -changes.exp() * inputs.token_advantages / inputs.tokens
    expected = expected.where(inputs.completion_mask & ~clipped, 0.0)
    assert torch.allclose(slopes, expected, rtol=1e-10, atol=1e-14)
    share = objective.loss(inputs).metrics["loss/clip_fraction"].item()
    assert share == pytest.approx(clipped.sum().item() / inputs.tokens)


def test_the_gradient_of_weighted_losses_is_the_weight(make_inputs: Any, gradient: Any) -> None:
    inputs = make_inputs([[6.0, 0.5]], [2.0])
    found = gradient(OBJECTIVES.build("cispo"), inputs)
    # -min(w, 5) A / 2, beyond the bound too.
    assert found.tolist() == [pytest.approx([-5.0, -0.5])]


def test_covariances_choose_tokens(make_inputs: Any, gradient: Any) -> None:
    # A - mean A = ±2; l - mean l = ±.5 log 4 = ±.6931. So c = 1.386, -1.386; -1.386, 1.386.
    inputs = make_inputs([[1.0, 0.25], [1.0, 0.25]], [2.0, -2.0])
    objective = OBJECTIVES.build("kl_cov", fraction=0.5, penalty=10.0)
    # -w A, and 10 |d| where c is largest: at d = 0 and d = log .25 = -1.386.
    output = objective.loss(inputs)
    expected = (-2 - 0.5 + 2 + 0.5 + 10 * math.log(4)) / 4
    assert output.loss.item() == pytest.approx(expected)
    assert output.metrics["loss/cov_fraction"].item() == 0.5
    # The clip has stopped the token with A = -2 and w = .25 < .8; the other one is drawn.
    objective = OBJECTIVES.build("clip_cov", fraction=1.0)
    output = objective.loss(inputs)
    assert output.metrics["loss/cov_fraction"].item() == 0.25
    assert (gradient(objective, inputs) != 0).tolist() == [[False, True], [True, False]]


def test_a_draw_is_repeated_and_as_large_as_asked(random_inputs: Any) -> None:
    inputs = random_inputs(3, rows=40, width=25)
    objective = OBJECTIVES.build("clip_cov", fraction=0.02, cov_low=0.0, cov_high=99.0)
    first, second = objective.loss(inputs), objective.loss(inputs)
    assert first.loss.item() == second.loss.item()
    drawn = first.metrics["loss/cov_fraction"].item() * inputs.tokens
    assert drawn == pytest.approx(math.floor(0.02 * inputs.tokens))


def test_a_draw_takes_sure_tokens_as_often_as_others(make_inputs: Any, gradient: Any) -> None:
    """Models are sure of most tokens: log π is -1e-6, and where it rounds to 0 it is equal."""
    kinds = 400 * [0.0, -1e-6, -3.0]
    inputs = make_inputs([[1.0] * 1200] * 2, [1.0, -1.0])
    log_probs = torch.tensor([kinds, kinds], dtype=torch.float64)
    inputs = replace(inputs, log_probs=log_probs.requires_grad_(), old_log_probs=log_probs.detach())
    objective = OBJECTIVES.build("clip_cov", fraction=0.1, cov_low=-99.0, cov_high=99.0)
    drawn = gradient(objective, inputs) == 0
    assert drawn.sum() == 240
    # Means of 80 with σ < 9.
    for kind in range(3):
        assert 53 <= drawn[:, kind::3].sum() <= 107


def test_masks_take_tokens_out_of_the_loss_alone(make_inputs: Any) -> None:
    inputs = make_inputs([[1.0, 1.1], [0.5, 0.9], [0.9, 1.0]], [1.0, -1.0, -1.0])
    # mean_t(l₀ - l) is .399 in the second row and .053 in the third; the first has A > 0.
    # Token losses: -1, -1.1; (.8, .9), dropped; .9, 1, over all six tokens.
    near = OBJECTIVES.build("clipped", aggregation="token_mean", off_policy_mask_threshold=0.1)
    assert near.loss(inputs).loss.item() == pytest.approx((-1 - 1.1 + 0.9 + 1) / 6)
    # The third of the six with the most entropy: at or above .6 of [.1 ... .6], which is .433.
    entropies = torch.tensor([[0.1, 0.6], [0.2, 0.5], [0.3, 0.4]], dtype=torch.float64)
    inputs = replace(inputs, entropies=entropies)
    high = OBJECTIVES.build(
        "clipped", aggregation="token_mean", top_entropy_quantile=1 / 3, entropy_coef=0.5
    )
    # The bonus is the mean of .6 and .5.
    assert high.loss(inputs).loss.item() == pytest.approx((-1.1 + 0.9) / 6 - 0.5 * 0.55)
