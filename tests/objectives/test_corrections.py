"""Corrections of the sampler's mismatch: weights, rejected tokens, presets, metrics, errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs
from advsweep.objectives.corrections import PRESETS

# The trainer's own weights are none.
NO_ROWS = {"rollouts", "tokens", "parts", "weights", "choice"}

# Ratios of the old policy to the sampler; log 2 - log 8 + log 0.5 is the log of 1/8.
SAMPLED = [[2.0, 0.125, 0.5], [1.0, 4.0]]


def sampled(make_inputs: Any, ratios: list[list[float]] = SAMPLED, **changes: Any) -> LossInputs:
    """Rows with w = 1, advantages 1 and -1, and the old policy's ratios to the sampler."""
    ones = [[1.0] * len(row) for row in ratios]
    width = max(map(len, ratios))
    # Padding, which nothing may read.
    padded = [[math.log(r) for r in row] + [math.nan] * (width - len(row)) for row in ratios]
    inputs = make_inputs(ones, [1.0, -1.0][: len(ratios)])
    sampler = inputs.old_log_probs - torch.tensor(padded, dtype=torch.float64)
    return replace(inputs, sampler_log_probs=sampler, **changes)


def build(correction: str, name: str = "clipped", **options: Any) -> Any:
    options = {f"correction_{key}": value for key, value in options.items()}
    return OBJECTIVES.build(name, correction=correction, aggregation="token_mean", **options)


@pytest.mark.parametrize(
    ("correction", "options", "expected"),
    [
        ("disabled", {}, [[1, 1, 1], [1, 1]]),
        ("token_truncate", {}, [[2, 0.125, 0.5], [1, 3]]),
        ("token_truncate", {"low": 0.25, "high": 1.5}, [[1.5, 0.25, 0.5], [1, 1.5]]),
        ("token_mask", {}, [[2, 0.125, 0.5], [1, 0]]),
        ("decoupled_token_icepop", {}, [[2, 0, 0.5], [1, 4]]),
        # Of whole rollouts: 2/16 and 4.
        ("sequence_truncate", {}, [[0.125] * 3, [3, 3]]),
        ("sequence_mask", {}, [[0.125] * 3, [0, 0]]),
        ("decoupled_seq_is", {}, [[0.125] * 3, [2, 2]]),
        ("sequence_mask", {"low": 0.5, "high": 5}, [[0, 0, 0], [4, 4]]),
        # A bound of 3 is [1/3, 3]. Rejected tokens have no loss.
        ("disabled", {"reject": {"token_k1": 3}}, [[1, 0, 1], [1, 0]]),
        # k1 bounds the ratio of the sampler to the trainer: 1/2, 8, 2; 1, 1/4.
        ("disabled", {"reject": {"token_k1": [0.3, 9]}}, [[1, 1, 1], [1, 0]]),
        # k2: 0.24, 2.16, 0.24; 0, 0.96. Sums 2.64 and 0.96, means 0.88 and 0.48.
        ("disabled", {"reject": {"token_k2": 1}}, [[1, 0, 1], [1, 1]]),
        ("disabled", {"reject": {"seq_sum_k2": 1}}, [[0, 0, 0], [1, 1]]),
        ("disabled", {"reject": {"seq_mean_k2": 0.5}}, [[0, 0, 0], [1, 1]]),
        ("disabled", {"reject": {"seq_max_k2": 1}}, [[0, 0, 0], [1, 1]]),
        # k3: 0.31, 1.20, 0.19; 0, 1.61.
        ("disabled", {"reject": {"token_k3": 1.5}}, [[1, 1, 1], [1, 0]]),
        ("disabled", {"reject": {"seq_max_k3": 1.5}}, [[1, 1, 1], [0, 0]]),
        # Geometric means of the sampler's ratios: 2 and 1/2. All criteria must hold.
        ("disabled", {"reject": {"seq_mean_k1": [0.6, 3]}}, [[1, 1, 1], [0, 0]]),
        ("token_mask", {"reject": {"seq_mean_k1": 3, "token_k2": 1}}, [[2, 0, 0.5], [1, 0]]),
    ],
)
def test_weights_and_rejected_tokens_by_hand(
    correction: str,
    options: dict[str, Any],
    expected: list[list[float]],
    make_inputs: Any,
    gradient: Any,
) -> None:
    # With w = 1, the gradient of a token is -weight * A over the 5 tokens, rejected or not.
    found = gradient(build(correction, **options), sampled(make_inputs))
    assert found[0].tolist() == pytest.approx([-weight / 5 for weight in expected[0]])
    assert found[1].tolist() == pytest.approx([weight / 5 for weight in expected[1]] + [0])


def test_rejected_tokens_are_not_of_their_rollouts_length(make_inputs: Any) -> None:
    inputs = sampled(make_inputs)
    objective = replace(
        build("disabled", reject={"token_k1": 3}), aggregation="seq_mean_token_mean"
    )
    # Two of three tokens and one of two stay: (1/2) (-2/2 + 1/1).
    assert objective.loss(inputs).loss.item() == pytest.approx(0.0)
    # A rollout that is rejected as a whole still counts: (1/2) (-3/3).
    objective = replace(objective, correction_reject={"seq_mean_k1": [0.6, 3]})
    assert objective.loss(inputs).loss.item() == pytest.approx(-0.5)


def test_bypass_corrects_from_the_policy_in_training(make_inputs: Any, gradient: Any) -> None:
    inputs = sampled(make_inputs)
    moved = (inputs.log_probs.detach() + math.log(1.5)).requires_grad_()
    inputs = replace(inputs, log_probs=moved, old_log_probs=torch.full_like(moved, math.nan))
    # The ratios to the sampler are 3, .1875, .75 and 1.5, 6: with A = 1 the first is clipped.
    found = gradient(build("bypass_ppo_clip"), inputs)
    assert found[0].tolist() == pytest.approx([0, -0.1875 / 5, -0.75 / 5])
    assert found[1].tolist() == pytest.approx([1.5 / 5, 6 / 5, 0])
    # Without a ratio in the loss they are its weights.
    found = gradient(build("bypass_pg_token_icepop", "cross_entropy"), inputs)
    assert found[0].tolist() == pytest.approx([-3 / 5, 0, -0.75 / 5])
    assert found[1].tolist() == pytest.approx([1.5 / 5, 0, 0])


def test_the_mismatch_is_measured_at_tokens_with_an_advantage(make_inputs: Any) -> None:
    inputs = sampled(make_inputs)
    metrics = build("token_mask", reject={"token_k2": 1}).loss(inputs).metrics
    # k3 = r - 1 - log r: the mean of .307, 1.204, .193, 0, 1.614.
    k3 = [r - 1 - math.log(r) for row in SAMPLED for r in row]
    assert metrics["sampler/kl"].item() == pytest.approx(sum(k3) / 5)
    assert metrics["sampler/ratio_max"].item() == pytest.approx(4)
    # 1/8 is rejected, 4 has a weight of 0.
    assert metrics["sampler/masked"].item() == pytest.approx(2 / 5)
    assert metrics["sampler/truncated"].item() == 0
    inputs = replace(inputs, advantages=torch.tensor([1.0, 0.0]))
    metrics = build("token_truncate", high=1.5).loss(inputs).metrics
    assert metrics["sampler/kl"].item() == pytest.approx(sum(k3[:3]) / 3)
    assert metrics["sampler/ratio_max"].item() == pytest.approx(2)
    assert metrics["sampler/truncated"].item() == pytest.approx(1 / 3)
    # Without a correction it is that of the policy in training.
    metrics = OBJECTIVES.build("clipped").loss(inputs).metrics
    assert metrics["sampler/ratio_max"].item() == pytest.approx(2)
    assert "sampler/masked" not in metrics
    # Minibatches without a token that has an advantage, or without a rollout.
    collapsed = replace(inputs, advantages=torch.zeros(2))
    rows = {n: v[:0] for n, v in vars(inputs).items() if isinstance(v, torch.Tensor)}
    for nothing in (collapsed, replace(inputs, **rows)):
        metrics = build("token_mask").loss(nothing).metrics
        found = {name: value.item() for name, value in metrics.items() if "sampler" in name}
        assert len(found) == 4
        assert all(map(math.isnan, found.values()))


@pytest.mark.parametrize("correction", PRESETS)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_a_sampler_that_is_the_trainer_changes_nothing(
    correction: str, random_inputs: Any, gradient: Any, seed: int
) -> None:
    name = "cross_entropy" if "_pg_" in correction else "clipped"
    inputs = random_inputs(seed)
    inputs = replace(inputs, old_log_probs=inputs.log_probs.detach())
    same = replace(inputs, sampler_log_probs=inputs.old_log_probs)
    assert torch.equal(gradient(build(correction, name), same), gradient(build("none", name), same))
    # vLLM does not score every token.
    unknown = replace(same, sampler_log_probs=torch.full_like(inputs.old_log_probs, math.nan))
    assert torch.equal(
        gradient(build(correction, name), unknown), gradient(build("none", name), inputs)
    )


@pytest.mark.parametrize("correction", ["decoupled_seq_is_rs", "decoupled_token_icepop"])
def test_skipped_rollouts_and_other_runs_change_nothing(
    correction: str, random_inputs: Any, gradient: Any
) -> None:
    objective = build(correction, reject={"token_k3": 0.05})
    runs = [random_inputs(seed) for seed in range(3)]
    for run in runs:
        run.advantages[1::2] = 0.0
    tensors = {n: [vars(run)[n] for run in runs] for n in vars(runs[0]) if n not in NO_ROWS}
    together = LossInputs(
        **{name: torch.stack(of_runs).detach() for name, of_runs in tensors.items()},
        rollouts=5,
        tokens=torch.tensor([run.tokens for run in runs]),
    )
    together.log_probs.requires_grad_()
    losses = objective.loss(together)
    (slopes,) = torch.autograd.grad(losses.loss.sum(), together.log_probs)
    for index, run in enumerate(runs):
        alone = objective.loss(run)
        assert torch.equal(losses.loss[index], alone.loss)
        assert torch.equal(slopes[index], gradient(objective, run))
        rows = {name: of_runs[index][::2] for name, of_runs in tensors.items()}
        rows["log_probs"] = rows["log_probs"].detach().requires_grad_()
        part = replace(run, **rows)
        torch.testing.assert_close(objective.loss(part).loss, alone.loss)
        torch.testing.assert_close(gradient(objective, part), slopes[index][::2])
        for name, value in alone.metrics.items():
            assert torch.equal(losses.metrics[name][index], value), name
            torch.testing.assert_close(objective.loss(part).metrics[name], value)


@pytest.mark.parametrize("name", ["clipped", "cross_entropy", "dro", "gmpo", "kl_cov", "vespo"])
def test_weights_of_the_trainer_do_what_those_of_a_correction_do(
    name: str, random_inputs: Any, gradient: Any
) -> None:
    inputs = random_inputs(4)
    assert inputs.sampler_log_probs is not None
    ratios = (inputs.old_log_probs - inputs.sampler_log_probs).exp()
    given = replace(inputs, sampler_log_probs=None, weights=ratios.clamp(max=1.1))
    ours = OBJECTIVES.build(name, correction="token_truncate", correction_high=1.1)
    theirs = OBJECTIVES.build(name)
    torch.testing.assert_close(theirs.loss(given).loss, ours.loss(inputs).loss)
    torch.testing.assert_close(gradient(theirs, given), gradient(ours, inputs))
    plain = replace(given, weights=None)
    assert not torch.allclose(gradient(theirs, plain), gradient(theirs, given))


@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("options", [{}, {"reject": {"seq_sum_k3": 1}}, {"weight": "sequence"}])
def test_ratios_beyond_float32_are_finite(
    gap: float, options: dict[str, Any], make_inputs: Any, gradient: Any
) -> None:
    inputs = make_inputs([[1.0, 1.0]], [1.0])
    inputs = replace(inputs, sampler_log_probs=inputs.old_log_probs - gap)
    small = {
        n: v.float() for n, v in vars(inputs).items() if getattr(v, "is_floating_point", bool)()
    }
    log_probs = small["log_probs"].detach().requires_grad_()
    inputs = replace(inputs, **{**small, "log_probs": log_probs})
    objective = build("disabled", **{"weight": "token", **options})
    assert gradient(objective, inputs).isfinite().all()
    assert all(value.isfinite() for value in objective.loss(inputs).metrics.values())


def test_identities_have_the_values_and_not_the_names() -> None:
    plain = OBJECTIVES.build("clipped")
    assert not [key for key in plain.identity() if key.startswith("correction")]
    verl, trl = build("decoupled_token_is"), build("token_truncate", high=2)
    assert verl.identity() == trl.identity() != build("token_truncate").identity()
    one, both = (build("disabled", reject={"token_k1": bound}) for bound in (2, [0.5, 2]))
    assert one.identity() == both.identity()
    for objective in (plain, verl, trl, one):
        assert OBJECTIVES.build(objective.plain()) == objective
    assert (plain.needs_sampler, plain.recomputes_old) == (False, False)
    assert (verl.needs_sampler, verl.recomputes_old) == (True, True)
    bypass = build("bypass_ppo_clip")
    assert (bypass.needs_sampler, bypass.recomputes_old) == (True, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correction": "token_msk"}, "correction: no .* 'token_msk'; did you mean 'token_mask'"),
        ({"correction_high": 2}, "correction_high: expected null with correction=none, got 2"),
        (
            {"correction": "decoupled_geo_rs", "correction_low": 0.5},
            "correction_low: expected null without weights, got 0.5",
        ),
        ({"correction": "token_mask", "correction_high": 0.5}, "correction_high: expected >= 1"),
        ({"correction": "token_mask", "correction_low": 2}, "correction_low: expected >= 0 and <="),
        ({"correction": "bypass_pg_is"}, "correction: expected one without weights with correctio"),
        (
            {"correction": "disabled", "correction_reject": {"seq_max_k1": 2}},
            "correction_reject: no statistic has the name 'seq_max_k1'",
        ),
        *(
            ({"correction": "disabled", "correction_reject": {name: bounds}}, f"{name}: {expected}")
            for name, bounds, expected in [
                ("token_k1", [2, 3], r"expected \[low, high\] with 0 < low <= 1 <= high"),
                ("token_k1", [0, 3], r"expected \[low, high\]"),
                ("seq_sum_k1", 0.5, r"expected \[low, high\]"),
                ("seq_mean_k3", -1, "expected a number above 0"),
                ("seq_mean_k3", [0, 1], "expected a number above 0"),
                ("token_k2", "1", "expected a number above 0, got '1'"),
                ("token_k2", math.nan, "expected a number above 0"),
            ]
        ),
    ],
)
def test_corrections_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.build({"name": "clipped", **options}, where="objective")
