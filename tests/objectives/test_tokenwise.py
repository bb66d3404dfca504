"""What objectives share: aggregation, KL penalty, entropy bonus, padding, skipped rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs, Objective

AGGREGATIONS: list[dict[str, Any]] = [
    {"aggregation": "seq_mean_token_mean"},
    {"aggregation": "token_mean"},
    {"aggregation": "constant", "max_tokens": 7},
    {"aggregation": "seq_sum_token_mean"},
    {"aggregation": "seq_mean_token_sum"},
    {"aggregation": "token_sum"},
]
KINDS: list[dict[str, Any]] = [
    *({"name": name} for name in OBJECTIVES.names() if name != "clipped"),
    {"name": "clipped", "ratio": "sequence"},
    {"name": "sapo", "ratio": "sequence"},
    {"name": "dppo", "divergence": "kl", "clip_low": 0.01, "clip_high": 0.01},
    {"name": "clip_cov", "cov_low": -0.1, "fraction": 0.1},
    {"name": "clipped", "off_policy_mask_threshold": 0.05},
    {"name": "clipped", "top_entropy_quantile": 0.4},
    {"name": "clipped", "correction": "decoupled_token_icepop"},
    {"name": "cross_entropy", "correction": "bypass_pg_is"},
    {"name": "gmpo", "correction": "token_truncate"},
    {"name": "vespo", "correction": "sequence_truncate"},
]


@pytest.fixture(
    params=[*({"name": "clipped", **aggregation} for aggregation in AGGREGATIONS), *KINDS],
    ids=lambda spec: "-".join(str(value) for value in spec.values()),
    scope="session",
)
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    values: dict[str, Any] = request.param
    return values


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_penalty_and_bonus_equal_naive_loops(
    spec: dict[str, Any], random_inputs: Any, seed: int
) -> None:
    """Whatever the token losses are, the rest comes on top of them."""
    inputs = random_inputs(seed)
    plain = OBJECTIVES.build(spec).loss(inputs)
    output = OBJECTIVES.build(spec, kl_coef=0.1, entropy_coef=0.01).loss(inputs)
    penalties: list[list[float]] = []
    entropies: list[float] = []
    for i, row in enumerate(inputs.completion_mask.tolist()):
        tokens = [t for t, on in enumerate(row) if on]
        ds = [(inputs.reference_log_probs - inputs.log_probs)[i, t].item() for t in tokens]
        penalties.append([math.exp(d) - d - 1 for d in ds])
        entropies += [inputs.entropies[i, t].item() for t in tokens]
    kl = {
        "seq_mean_token_mean": sum(sum(row) / len(row) for row in penalties) / inputs.rollouts,
        "token_mean": sum(map(sum, penalties)) / inputs.tokens,
        "constant": sum(map(sum, penalties)) / (inputs.rollouts * 7),
        "seq_sum_token_mean": sum(sum(row) / len(row) for row in penalties),
        "seq_mean_token_sum": sum(map(sum, penalties)) / inputs.rollouts,
        "token_sum": sum(map(sum, penalties)),
    }[OBJECTIVES.build(spec).aggregation]
    if share := spec.get("top_entropy_quantile"):
        least = torch.tensor(entropies, dtype=torch.float64).quantile(1 - share).item()
        entropies = [entropy for entropy in entropies if entropy >= least]
    bonus = 0.01 * sum(entropies) / len(entropies)
    assert output.metrics["loss/kl"].item() == pytest.approx(kl, rel=1e-9)
    assert output.metrics["loss/policy"] == plain.loss
    assert output.loss.item() == pytest.approx(plain.loss.item() + 0.1 * kl - bonus, abs=1e-9)


# The gradient of a token of two with log-ratio 100, for A = 1 and A = -1.
FAR = {
    # Clipped, or with the ratio held at e^40.
    "adaptive_clipped": (0, 0),
    "clip_cov": (0, 0),
    "clipped": (0, 0),
    "gmpo": (0, 0),
    "m2po": (0, 0),
    # The gate is shut; φ(e^20) = 0.
    "sapo": (0, 0),
    "vespo": (0, 0),
    # -w A / 2 with the weight at its bound: 1 + 4, and 20, but p - q = 1 is beyond it for A = 1.
    "cispo": (-2.5, 2.5),
    "dppo": (0, 10),
    "cross_entropy": (-0.5, 0.5),
    # A sum over tokens; min(1, W) = 1.
    "topr": (-1, 1),
    # (β d - A) / 2
    "dro": (49.5, 50.5),
}


@pytest.mark.parametrize("name", OBJECTIVES.names())
@pytest.mark.parametrize("change", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_ratios_beyond_float32_have_the_gradient_of_the_formula(
    name: str, change: float, advantage: float
) -> None:
    # exp(100) is infinite in float32, and times an advantage or a gradient of 0 it would be NaN.
    log_probs = torch.full((1, 2), min(change, 0.0), requires_grad=True)
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=torch.full((1, 2), min(-change, 0.0)),
        completion_mask=torch.ones(1, 2, dtype=torch.bool),
        advantages=torch.tensor([advantage]),
        rollouts=1,
        tokens=2,
        reference_log_probs=torch.full((1, 2), -1.0),
    )
    loss = OBJECTIVES.build(name).loss(inputs).loss
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    if change > 0 and advantage and name in FAR:
        assert gradient.tolist() == [[FAR[name][advantage < 0]] * 2]
    for estimator in ("k1", "k2", "k3", "abs", "low_var_kl"):
        for source in ("estimate", "straight_through", "importance"):
            objective = OBJECTIVES.build(
                name, kl_coef=0.1, kl_estimator=estimator, kl_gradient=source
            )
            loss = objective.loss(inputs).loss
            (gradient,) = torch.autograd.grad(loss, log_probs)
            assert loss.isfinite()
            assert gradient.isfinite().all()


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_padding_changes_nothing(
    spec: dict[str, Any], random_inputs: Any, gradient: Any, seed: int
) -> None:
    """More padding, and whatever stands in it."""
    objective = OBJECTIVES.build(spec, kl_coef=0.1, entropy_coef=0.01)
    inputs = random_inputs(seed)

    def pad(values: Tensor) -> Tensor:
        hidden = values.masked_fill(~inputs.completion_mask, torch.nan)
        return torch.nn.functional.pad(hidden, (0, 3), value=-torch.inf)

    padded = replace(
        inputs,
        log_probs=pad(inputs.log_probs).detach().requires_grad_(),
        old_log_probs=pad(inputs.old_log_probs),
        sampler_log_probs=pad(inputs.sampler_log_probs),
        completion_mask=torch.nn.functional.pad(inputs.completion_mask, (0, 3)),
        reference_log_probs=pad(inputs.reference_log_probs),
        entropies=pad(inputs.entropies),
    )
    first, second = objective.loss(inputs), objective.loss(padded)
    torch.testing.assert_close(second.loss, first.loss)
    torch.testing.assert_close(dict(second.metrics), dict(first.metrics))
    width = inputs.log_probs.shape[1]
    torch.testing.assert_close(gradient(objective, padded)[:, :width], gradient(objective, inputs))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), skipped=st.sets(st.integers(0, 4), max_size=5))
def test_skipping_rollouts_without_advantage_is_exact(
    spec: dict[str, Any], random_inputs: Any, gradient: Any, seed: int, skipped: set[int]
) -> None:
    objective = OBJECTIVES.build(spec)
    if not objective.skips_exactly:
        pytest.skip("it needs every rollout")
    full = random_inputs(seed)
    full.advantages[sorted(skipped)] = 0.0
    kept = [i for i in range(5) if i not in skipped]
    part = replace(
        full,
        log_probs=full.log_probs.detach()[kept].requires_grad_(),
        old_log_probs=full.old_log_probs[kept],
        sampler_log_probs=full.sampler_log_probs[kept],
        completion_mask=full.completion_mask[kept],
        advantages=full.advantages[kept],
    )
    first, second = objective.loss(full), objective.loss(part)
    torch.testing.assert_close(second.loss, first.loss)
    torch.testing.assert_close(dict(second.metrics), dict(first.metrics), equal_nan=True)
    whole = gradient(objective, full)
    torch.testing.assert_close(gradient(objective, part), whole[kept])
    assert (whole[sorted(skipped)] == 0).all()


@pytest.mark.parametrize("name", OBJECTIVES.names())
@pytest.mark.parametrize(
    ("values", "skips", "reference", "entropy"),
    [
        ({}, True, False, False),
        ({"kl_coef": 0.1}, False, True, False),
        ({"entropy_coef": 0.1}, False, False, True),
        ({"top_entropy_quantile": 0.5}, False, False, True),
        ({"off_policy_mask_threshold": 0.5}, True, False, False),
    ],
)
def test_declares_what_it_needs(
    name: str,
    values: dict[str, float],
    skips: bool,
    reference: bool,
    entropy: bool,
    random_inputs: Any,
) -> None:
    objective = OBJECTIVES.build(name, **values)
    needs_all = {"clip_cov", "dro", "kl_cov", "m2po"}
    assert objective.skips_exactly is (skips and name not in needs_all)
    assert objective.needs_reference is reference
    assert objective.needs_entropy is entropy
    inputs = random_inputs(2)
    if not reference:
        inputs = replace(inputs, reference_log_probs=None)
    if not entropy:
        inputs = replace(inputs, entropies=None)
    metrics = objective.loss(inputs).metrics
    assert ("loss/kl" in metrics) is reference


@pytest.mark.parametrize("name", OBJECTIVES.names())
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"aggregation": "token_means"}, "objective.aggregation: .*did you mean 'token_mean'"),
        (
            {"aggregation": "seq_mean_token_mean", "max_tokens": 5},
            "objective.max_tokens: expected null with aggregation=seq_mean_token_mean, got 5",
        ),
    ],
)
def test_aggregations_that_do_not_fit_are_refused(
    name: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.build({"name": name, **values}, where="objective")


@pytest.mark.parametrize("name", OBJECTIVES.names())
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "low_var_kl"])
@pytest.mark.parametrize("source", ["estimate", "straight_through", "importance"])
def test_says_whether_it_moves_the_base_model_without_advantages(
    name: str, estimator: str, source: str, random_inputs: Any, gradient: Any
) -> None:
    objective = OBJECTIVES.build(name, kl_coef=0.1, kl_estimator=estimator, kl_gradient=source)
    inputs = random_inputs(5)
    base = inputs.log_probs.detach()
    inputs = replace(
        inputs,
        old_log_probs=base,
        reference_log_probs=base,
        advantages=torch.zeros_like(inputs.advantages),
    )
    assert bool((gradient(objective, inputs) != 0).any()) is objective.moves_alone
    assert OBJECTIVES.build(name, entropy_coef=0.1).moves_alone
    assert not OBJECTIVES.build(name).moves_alone


def test_a_loss_of_rollouts_is_not_aggregated_over_tokens() -> None:
    message = "objective.aggregation: expected seq_mean_token_mean or .*, got token_mean"
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.build({"name": "gmpo", "aggregation": "token_mean"}, where="objective")


@pytest.mark.parametrize("key", [{"kl_estimator": "k1"}, {"kl_gradient": "importance"}])
def test_settings_of_a_penalty_that_is_not_there_are_refused(key: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"expected .* with kl_coef=0, as"):
        OBJECTIVES.build({"name": "clipped", **key})


@pytest.mark.parametrize("name", sorted({*OBJECTIVES.names()} - {"gmpo"}))
def test_a_constant_that_nobody_gave_is_the_length_of_completions(
    name: str, random_inputs: Callable[..., LossInputs]
) -> None:
    objective = OBJECTIVES.build({"name": name, "aggregation": "constant"})
    with pytest.raises(ConfigError, match="max_tokens: expected >= 1 with aggregation=constant"):
        objective.loss(random_inputs(2))
    fitted = objective.for_completions(7)
    given = OBJECTIVES.build({"name": name, "aggregation": "constant", "max_tokens": 7})
    assert fitted == given
    assert given.for_completions(512) is given
    other = OBJECTIVES.build(name)
    assert other.for_completions(512) is other


# The trainer's own weights are none.
NO_ROWS = {"rollouts", "tokens", "parts", "weights", "choice"}


def in_dtype(inputs: LossInputs, dtype: torch.dtype) -> LossInputs:
    numbers = vars(inputs).keys() - NO_ROWS - {"completion_mask"}
    return replace(inputs, **{name: vars(inputs)[name].to(dtype) for name in numbers})


def stacked(runs: Sequence[LossInputs]) -> LossInputs:
    """Minibatches of one shape side by side, with a number of rollouts and tokens each."""
    return LossInputs(
        **{
            name: torch.stack([torch.as_tensor(vars(run)[name]).detach() for run in runs])
            for name in vars(runs[0])
            if name not in ("weights", "choice")
        }
    )


def outcome_of(objective: Objective, inputs: LossInputs) -> dict[str, Tensor]:
    """Loss, metrics and gradients."""
    log_probs = inputs.log_probs.detach().requires_grad_()
    assert inputs.entropies is not None
    entropies = inputs.entropies.detach().requires_grad_()
    output = objective.loss(replace(inputs, log_probs=log_probs, entropies=entropies))
    by_log_probs, by_entropies = torch.autograd.grad(
        output.loss.sum(), (log_probs, entropies), materialize_grads=True
    )
    return {"loss": output.loss, "g": by_log_probs, "h": by_entropies, **output.metrics}


@pytest.mark.parametrize("values", [{}, {"kl_coef": 0.1, "entropy_coef": 0.01}], ids=["", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 6), (19, 3), (67, 1)])
def test_a_run_of_a_stack_has_the_bits_it_has_alone(
    spec: dict[str, Any],
    values: dict[str, Any],
    dtype: torch.dtype,
    rows: int,
    width: int,
    random_inputs: Any,
) -> None:
    """Of several, of one, and as a minibatch without leading axes."""
    objective = OBJECTIVES.build(spec, **values)
    runs = [in_dtype(random_inputs(seed, rows, width), dtype) for seed in range(5)]
    together = outcome_of(objective, stacked(runs))
    assert together["loss"].shape == (5,)
    for index, run in enumerate(runs):
        alone, stack_of_one = outcome_of(objective, run), outcome_of(objective, stacked([run]))
        for name, found in together.items():
            assert torch.equal(found[index], stack_of_one[name][0]), name
            assert torch.equal(found[index], alone[name]), name


@pytest.mark.parametrize("objective", OBJECTIVES.names())
def test_a_pass_without_a_rollout_has_a_loss_of_0(objective: str, random_inputs: Any) -> None:
    inputs = random_inputs(3)
    nothing = {n: v[:0] for n, v in vars(inputs).items() if n not in NO_ROWS}
    loss = OBJECTIVES.build(objective, entropy_coef=0.1, top_entropy_quantile=0.2).loss(
        replace(inputs, **nothing)
    )
    assert loss.loss.item() == 0


def test_rollouts_without_a_token_add_nothing(spec: dict[str, Any], random_inputs: Any) -> None:
    """So runs that keep different numbers of rollouts fit into one stack."""
    objective = OBJECTIVES.build(spec, kl_coef=0.1, entropy_coef=0.01)
    full = random_inputs(7)
    kept = torch.tensor([True, False, True, True, False])
    rollouts = int(kept.sum())
    masked = replace(
        full,
        completion_mask=full.completion_mask & kept[:, None],
        log_probs=full.log_probs.detach().masked_fill(~kept[:, None], -torch.inf),
        rollouts=rollouts,
    )
    rows = {name: value[kept] for name, value in vars(full).items() if name not in NO_ROWS}
    part = LossInputs(**rows, rollouts=rollouts, tokens=full.tokens)
    first, second = outcome_of(objective, masked), outcome_of(objective, part)
    for name in ("g", "h"):
        assert (first[name][~kept] == 0).all()
        first[name] = first[name][kept]
    torch.testing.assert_close(first, second)
