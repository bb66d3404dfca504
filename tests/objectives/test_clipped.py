"""The clipped objective: values by hand, gradients, denominators, and naive loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from advsweep.errors import ConfigError
from advsweep.objectives.base import LossInputs
from advsweep.objectives.clipped import Clipped
from advsweep.objectives.registry import OBJECTIVES

VARIANTS: list[dict[str, Any]] = [
    {"aggregation": aggregation, "ratio": ratio, "max_tokens": max_tokens}
    for aggregation, max_tokens in [
        ("seq_mean_token_mean", None),
        ("token_mean", None),
        ("constant", 7),
    ]
    for ratio in ("token", "sequence")
]


def make_inputs(ratios: list[list[float]], advantages: list[float], **changes: Any) -> LossInputs:
    """Rows of ratios π/π₀, ragged, as log-probabilities padded on the right."""
    width = max(map(len, ratios))
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in ratios])
    padded = [[math.log(w) for w in row] + [0.0] * (width - len(row)) for row in ratios]
    old = torch.full((len(ratios), width), -1.5, dtype=torch.float64)
    log_probs = (old + torch.tensor(padded, dtype=torch.float64)).requires_grad_()
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=old,
        completion_mask=mask,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        rollouts=len(ratios),
        tokens=int(mask.sum()),
    )
    return replace(inputs, **changes)


def random_inputs(seed: int, rows: int = 5, width: int = 6) -> LossInputs:
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    old = -1.0 + noise(0.3)
    return LossInputs(
        log_probs=(old + noise(0.3)).requires_grad_(),
        old_log_probs=old,
        completion_mask=mask,
        advantages=noise(1.0)[:, 0],
        rollouts=rows,
        tokens=int(mask.sum()),
        reference_log_probs=old + noise(0.3),
        entropies=noise(1.0).exp().requires_grad_(),
    )


def gradient(objective: Clipped, inputs: LossInputs) -> Tensor:
    (found,) = torch.autograd.grad(objective.loss(inputs).loss, inputs.log_probs)
    return found


# Rows: A = 1 with ratios 1.5, 1.1; A = -2 with ratio 0.5. Token losses with clip .2/.2:
#   -min(1.5, 1.2) = -1.2, -min(1.1, 1.1) = -1.1, -min(-1, -1.6) = 1.6
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (-1.15 + 1.6) / 2),
        ({"aggregation": "token_mean"}, (-1.2 - 1.1 + 1.6) / 3),
        ({"aggregation": "constant", "max_tokens": 10}, (-1.2 - 1.1 + 1.6) / 20),
        ({"clip_high": 0.28}, ((-1.28 - 1.1) / 2 + 1.6) / 2),
        ({"clip_low": 0.6, "clip_high": "inf"}, ((-1.5 - 1.1) / 2 + 1.0) / 2),
        # Sequence ratios: sqrt(1.5 * 1.1) = 1.28452 -> 1.2, and .5 -> .8.
        ({"ratio": "sequence"}, (-1.2 + 1.6) / 2),
        ({"ratio": "sequence", "clip_high": 0.3}, (-math.sqrt(1.65) + 1.6) / 2),
    ],
)
def test_goldens(values: dict[str, Any], expected: float) -> None:
    inputs = make_inputs([[1.5, 1.1], [0.5]], [1.0, -2.0])
    output = Clipped.build(values).loss(inputs)
    assert output.loss.item() == pytest.approx(expected, abs=1e-12)
    assert output.metrics["loss/policy"].item() == output.loss.item()
    assert not output.metrics["loss/policy"].requires_grad


def test_kl_and_entropy_golden() -> None:
    inputs = make_inputs([[1.0, 1.0], [1.0]], [1.0, -2.0])
    # d = l_ref - l: .5, 0 | -1; k3 = e^d - d - 1: .148721, 0 | .367879.
    reference = inputs.old_log_probs + torch.tensor([[0.5, 0.0], [-1.0, 9.0]])
    entropies = torch.tensor([[0.3, 0.6], [1.2, 99.0]], dtype=torch.float64)
    inputs = replace(inputs, reference_log_probs=reference, entropies=entropies)
    output = Clipped(kl_coef=0.1, entropy_coef=0.01).loss(inputs)
    kl = ((math.exp(0.5) - 1.5) / 2 + math.exp(-1.0)) / 2
    assert output.metrics["loss/kl"].item() == pytest.approx(kl, abs=1e-12)
    assert output.metrics["loss/policy"].item() == pytest.approx(0.5, abs=1e-12)
    # The entropy bonus is a mean over the three tokens: (.3 + .6 + 1.2) / 3 = .7.
    assert output.loss.item() == pytest.approx(0.5 + 0.1 * kl - 0.01 * 0.7, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.21, 1.0, False),
        (1.19, 1.0, True),
        (0.5, 1.0, True),
        (0.79, -1.0, False),
        (0.81, -1.0, True),
        (1.5, -1.0, True),
        (1.0, 0.0, False),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_vanishes_exactly_where_clipped(
    ratio: float, advantage: float, moves: bool, level: str
) -> None:
    """AVSPO's Lemma B.5: zero when A > 0 and ratio > 1 + ε, or A < 0 and ratio < 1 - ε."""
    inputs = make_inputs([[ratio, ratio]], [advantage])
    objective = Clipped.build({"ratio": level})
    grad = gradient(objective, inputs)
    expected = -ratio * advantage / 2 if moves else 0.0
    torch.testing.assert_close(grad, torch.full_like(grad, expected))
    clipped = not moves and advantage != 0
    fraction = objective.loss(inputs).metrics["loss/clip_fraction"]
    assert fraction.item() == float(clipped)


def naive_loss(objective: Clipped, inputs: LossInputs) -> float:
    """The docstring's formulas as loops over numbers."""
    policy: list[list[float]] = []
    kl: list[list[float]] = []
    entropies: list[float] = []
    assert inputs.reference_log_probs is not None
    assert inputs.entropies is not None
    for i, advantage in enumerate(inputs.advantages.tolist()):
        tokens = [t for t, on in enumerate(inputs.completion_mask[i].tolist()) if on]
        new, old = inputs.log_probs[i].tolist(), inputs.old_log_probs[i].tolist()
        logs = [new[t] - old[t] for t in tokens]
        if objective.ratio.value == "sequence":
            logs = [sum(logs) / len(logs)] * len(logs)
        low, high = 1 - objective.clip_low, 1 + objective.clip_high
        policy.append(
            [
                -min(math.exp(x) * advantage, min(max(math.exp(x), low), high) * advantage)
                for x in logs
            ]
        )
        ds = [inputs.reference_log_probs[i, t].item() - new[t] for t in tokens]
        kl.append([math.exp(d) - d - 1 for d in ds])
        entropies += [inputs.entropies[i, t].item() for t in tokens]

    def aggregate(values: list[list[float]]) -> float:
        if objective.aggregation.value == "token_mean":
            return sum(map(sum, values)) / inputs.tokens
        if objective.aggregation.value == "constant":
            assert objective.max_tokens is not None
            return sum(map(sum, values)) / (inputs.rollouts * objective.max_tokens)
        return sum(sum(row) / len(row) for row in values) / inputs.rollouts

    total = aggregate(policy) + objective.kl_coef * aggregate(kl)
    return total - objective.entropy_coef * sum(entropies) / inputs.tokens


@pytest.mark.parametrize("variant", VARIANTS)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), kl=st.sampled_from([0.0, 0.1]), bonus=st.sampled_from([0, 0.01]))
def test_equals_naive_loops(variant: dict[str, Any], seed: int, kl: float, bonus: float) -> None:
    objective = Clipped.build({**variant, "kl_coef": kl, "entropy_coef": bonus, "clip_high": 0.28})
    inputs = random_inputs(seed)
    expected = naive_loss(objective, inputs)
    assert objective.loss(inputs).loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_padding_changes_nothing(variant: dict[str, Any], seed: int) -> None:
    """More padding, and whatever stands in it."""
    objective = Clipped.build({**variant, "kl_coef": 0.1, "entropy_coef": 0.01})
    inputs = random_inputs(seed)

    def pad(values: Tensor) -> Tensor:
        hidden = values.masked_fill(~inputs.completion_mask, torch.nan)
        return torch.nn.functional.pad(hidden, (0, 3), value=-torch.inf)

    assert inputs.reference_log_probs is not None
    assert inputs.entropies is not None
    padded = replace(
        inputs,
        log_probs=pad(inputs.log_probs).detach().requires_grad_(),
        old_log_probs=pad(inputs.old_log_probs),
        completion_mask=torch.nn.functional.pad(inputs.completion_mask, (0, 3)),
        reference_log_probs=pad(inputs.reference_log_probs),
        entropies=pad(inputs.entropies),
    )
    first, second = objective.loss(inputs), objective.loss(padded)
    torch.testing.assert_close(second.loss, first.loss)
    torch.testing.assert_close(dict(second.metrics), dict(first.metrics))
    width = inputs.log_probs.shape[1]
    torch.testing.assert_close(gradient(objective, padded)[:, :width], gradient(objective, inputs))


@pytest.mark.parametrize("variant", VARIANTS)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), skipped=st.sets(st.integers(0, 4), max_size=5))
def test_skipping_rollouts_without_advantage_is_exact(
    variant: dict[str, Any], seed: int, skipped: set[int]
) -> None:
    objective = Clipped.build(variant)
    assert objective.skips_exactly
    full = random_inputs(seed)
    full.advantages[sorted(skipped)] = 0.0
    kept = [i for i in range(5) if i not in skipped]
    part = replace(
        full,
        log_probs=full.log_probs.detach()[kept].requires_grad_(),
        old_log_probs=full.old_log_probs[kept],
        completion_mask=full.completion_mask[kept],
        advantages=full.advantages[kept],
    )
    first, second = objective.loss(full), objective.loss(part)
    torch.testing.assert_close(second.loss, first.loss)
    torch.testing.assert_close(dict(second.metrics), dict(first.metrics))
    torch.testing.assert_close(gradient(objective, part), gradient(objective, full)[kept])


def test_on_policy_loss_is_minus_the_mean_advantage() -> None:
    inputs = random_inputs(0)
    inputs = replace(inputs, log_probs=inputs.old_log_probs.clone().requires_grad_())
    assert Clipped().loss(inputs).loss.item() == pytest.approx(-inputs.advantages.mean().item())


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    """-(1/N) Σ A_i (1/|o_i|) Σ_t ∇l: every token of a rollout moves alike."""
    inputs = make_inputs([[1.0, 1.0], [1.0]], [3.0, -2.0])
    assert gradient(Clipped(), inputs).tolist() == [[-0.75, -0.75], [1.0, 0.0]]


def test_entropy_bonus_raises_entropy() -> None:
    inputs = random_inputs(1)
    loss = Clipped(entropy_coef=0.01).loss(inputs).loss
    assert inputs.entropies is not None
    (grad,) = torch.autograd.grad(loss, inputs.entropies)
    assert (grad[inputs.completion_mask] < 0).all()
    assert (grad[~inputs.completion_mask] == 0).all()


@pytest.mark.parametrize(
    ("values", "skips", "reference", "entropy"),
    [
        ({}, True, False, False),
        ({"kl_coef": 0.1}, False, True, False),
        ({"entropy_coef": 0.1}, False, False, True),
    ],
)
def test_declares_what_it_needs(
    values: dict[str, float], skips: bool, reference: bool, entropy: bool
) -> None:
    objective = Clipped.build(values)
    assert objective.skips_exactly is skips
    assert objective.needs_reference is reference
    assert objective.needs_entropy is entropy
    inputs = random_inputs(2)
    if not reference:
        inputs = replace(inputs, reference_log_probs=None)
    if not entropy:
        inputs = replace(inputs, entropies=None)
    metrics = objective.loss(inputs).metrics
    assert set(metrics) == {"loss/policy", "loss/clip_fraction"} | (
        {"loss/kl"} if reference else set()
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip_low": 1.5}, "objective.clip_low: expected >= 0 and <= 1, got 1.5"),
        ({"aggregation": "token_means"}, "objective.aggregation: .*did you mean 'token_mean'"),
        ({"aggregation": "constant"}, "objective.max_tokens: expected >= 1 .*, got null"),
        ({"max_tokens": 5}, "objective.max_tokens: expected null with .*seq_mean_token_mean"),
        ({"kl": 0.1}, "objective.kl: clipped has no parameter 'kl'; "),
    ],
)
def test_bad_fields_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.build({"name": "clipped", **values}, where="objective")
