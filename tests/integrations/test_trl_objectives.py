"""Objectives and rollout policies in the importable trainer, against TRL's own losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import Tensor

from advsweep.errors import AdvsweepWarning, ConfigError, TrainingError

trl = pytest.importorskip("trl", minversion="1.12")
from advsweep.integrations.trl import EstimatorGRPOTrainer  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*has no effect"
    ),
]

Trainers = Callable[..., Any]


def letters(completions: list[str], **_: Any) -> list[float | None]:
    return [None if "k" in c else float(any(x in c for x in "abcd")) for c in completions]


def by_row(row: list[int], **_: Any) -> list[float]:
    """Groups of row 0 are all right, of row 1 all wrong; of others, every second rollout."""
    return [float([1, 0, place % 2][min(which, 2)]) for place, which in enumerate(row)]


def liking(completions: list[str], **_: Any) -> list[float]:
    return [0.3 * ("l" in c) for c in completions]


class Compared(EstimatorGRPOTrainer):
    """Computes TRL's loss besides, and keeps the largest differences of loss and gradient."""

    loss_difference = gradient_difference = 0.0
    largest_gradient = 0.0

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        theirs = trl.GRPOTrainer._compute_loss(self, model, inputs)
        ours: Tensor = super()._compute_loss(model, inputs)
        difference = float((ours - theirs).detach().abs())
        self.loss_difference = max(self.loss_difference, difference)
        if model.training:
            weights = [*model.parameters()]
            mine, other = (
                torch.autograd.grad(x, weights, retain_graph=True) for x in (ours, theirs)
            )
            for one, two in zip(mine, other, strict=True):
                difference = float((one - two).abs().max())
                self.gradient_difference = max(self.gradient_difference, difference)
                self.largest_gradient = max(self.largest_gradient, float(two.abs().max()))
        return ours


ONE_PASS = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 48}
SAME = {
    "grpo": ({"name": "clipped"}, {"loss_type": "grpo"}),
    "clips": (
        {"name": "clipped", "clip_low": 0.01, "clip_high": 0.02},
        {"loss_type": "grpo", "epsilon": 0.01, "epsilon_high": 0.02},
    ),
    "dapo": ({"name": "clipped", "aggregation": "token_mean"}, {"loss_type": "dapo"}),
    "parts of a generation": (
        {"name": "clipped", "aggregation": "token_mean"},
        {"loss_type": "dapo", "steps_per_generation": 4},
    ),
    "dr_grpo": ("dr_grpo", {"loss_type": "dr_grpo"}),
    "bnpo": (
        {"name": "clipped", "aggregation": "token_mean"},
        {"loss_type": "bnpo", **ONE_PASS},  # which counts the tokens of a pass
    ),
    "gspo": (
        {"name": "gspo", "clip_low": 0.2, "clip_high": 0.2},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "kl": (
        {"name": "clipped", "kl_coef": 0.3},
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
    ),
    "unbiased kl": (
        {"name": "clipped", "kl_coef": 0.3, "kl_gradient": "importance"},
        {"loss_type": "grpo", "beta": 0.3},
    ),
    "entropy": (
        {"name": "clipped", "entropy_coef": 0.2},
        # TRL's bonus is the mean of a pass, ours that of an update.
        {"loss_type": "grpo", "entropy_coef": 0.2, **ONE_PASS},
    ),
    "cispo": ({"name": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": ({"name": "sapo"}, {"loss_type": "sapo"}),
    "truncated": (
        {"name": "clipped", "aggregation": "token_mean"},
        {"loss_type": "dapo", "mask_truncated_completions": True},
    ),
}


PER_TOKEN = [("dapo", "entropy_shaped"), ("cispo", "entropy_shaped")]


@pytest.mark.parametrize(("case", "estimator"), [*((case, "grpo") for case in SAME), *PER_TOKEN])
def test_loss_and_gradient_are_those_of_trl(
    make_trainer: Trainers, case: str, estimator: str
) -> None:
    objective, settings = SAME[case]
    given = {
        "num_generations": 6,
        "max_steps": 4,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
        "per_device_train_batch_size": 12,
        "per_device_eval_batch_size": 6,
        "learning_rate": 0.02,
        "logging_steps": 1,
        **settings,
    }
    arguments = {"estimator": estimator, "objective": objective}
    columns = {"row": list(range(8))}
    trainer = make_trainer(Compared, [letters], columns, arguments, **given)
    trainer.train()
    trainer.evaluate(trainer.train_dataset)
    assert trainer.largest_gradient > 1e-3
    assert trainer.gradient_difference < 1e-6
    assert trainer.loss_difference < 1e-6
    logged = trainer.state.log_history[0]
    assert {"loss/policy", "entropy", "collapse/acr"} <= logged.keys()


def test_an_objective_does_not_count_dropped_rollouts(make_trainer: Trainers) -> None:
    losses = []

    class Noted(EstimatorGRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
            loss: Tensor = super()._compute_loss(model, inputs)
            losses.append((float(loss.detach()), inputs))
            return loss

    # Rows 0 and 1 have equal rewards. The loss of what is left, ratios of 1, is -mean(A) over the
    # passes: each gets an equal share of its 6 rollouts, wherever they are.
    trainer = make_trainer(
        Noted,
        [by_row],
        {"row": [0, 1, 2]},
        {"estimator": "filter_drop", "objective": "clipped"},
        num_generations=6,
        max_steps=1,
        per_device_train_batch_size=9,
        gradient_accumulation_steps=2,
    )
    trainer.train()
    for loss, inputs in losses:
        kept = inputs["completion_mask"].any(dim=1)
        assert inputs["num_rollouts_in_batch"] == 6
        assert loss == pytest.approx(-float(inputs["advantages"][kept].sum()) / 6, abs=1e-6)
    assert sum(int(i["completion_mask"].any(dim=1).sum()) for _, i in losses) == 6


class Keeper(EstimatorGRPOTrainer):
    """Keeps the rows of the last generation."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.outputs = super()._generate_and_score_completions(inputs)
        return self.outputs


STEPS = {"num_generations": 6, "max_steps": 2, "logging_steps": 1, "num_iterations": 1}


def test_dynamic_sampling_trains_on_mixed_groups(make_trainer: Trainers) -> None:
    def train(**more: Any) -> Any:
        trainer = make_trainer(
            Keeper,
            [by_row, liking],
            {"row": [0, 1, 2]},
            {
                "estimator": "dr_grpo",
                "objective": "clipped",
                "rollout": "dynamic_sampling",
                "success": "by_row",
            },
            # Old log-probabilities, which have to move with their rows.
            **{**STEPS, "num_iterations": 2, "max_steps": 4, "log_completions": True, **more},
        )
        trainer.train()
        return trainer

    trainer = train()
    advantages = trainer.outputs["advantages"].view(3, 6)
    # Every second rollout is right: ±1/2, and at most .3 by `liking`.
    assert advantages[:, 1::2].min() > 0.19
    assert advantages[:, ::2].max() < -0.19
    outputs = trainer.outputs
    assert outputs["num_items_in_batch"] == outputs["completion_mask"].sum()
    for step in trainer.state.log_history[0:4:2]:
        # Rows 0 and 1 are drawn, too, and cost.
        assert step["cost/rollouts"] >= 2
        assert step["cost/rollouts"] == pytest.approx(1 / step["cost/utilisation"])
        assert (1 - step["collapse/acr"]) * step["cost/rollouts"] > 0.99
        assert step["loss/policy"] == pytest.approx(0, abs=1e-5)
    table = pandas.read_parquet(
        Path(trainer.args.output_dir) / "completions" / "completions_00003.parquet"
    )
    assert table["by_row"].tolist() == [0, 1] * 9
    assert table["advantage"].tolist() == pytest.approx(trainer.outputs["advantages"].tolist())
    # By seed and step.
    again = train()
    costs = [[s["cost/rollouts"] for s in t.state.log_history[0:4:2]] for t in (trainer, again)]
    assert costs[0] == costs[1]


class Drawn(EstimatorGRPOTrainer):
    """Keeps the places in the dataset that are generated for, by forward pass."""

    def roll_out(self, inputs: Any) -> Any:
        drawn = vars(self).setdefault("drawn", {})
        drawn.setdefault(self._step, []).append(inputs[0]["place"])
        return super().roll_out(inputs)


def test_each_generation_of_a_step_draws_prompts_of_its_own(make_trainer: Trainers) -> None:
    def train() -> dict[int, list[int]]:
        trainer = make_trainer(
            Drawn,
            [by_row],
            {"row": [0] * 36 + [2] * 4, "place": [*range(40)]},
            {"estimator": "grpo", "rollout": {"name": "dynamic_sampling", "max_draws": 40}},
            gradient_accumulation_steps=3,
            steps_per_generation=1,
            per_device_train_batch_size=6,
            **STEPS,
        )
        trainer.train()
        return dict(trainer.drawn)

    drawn = train()
    # Two steps of three passes; what comes after the prompt that TRL hands over.
    assert [*drawn] == [*range(6)]
    further = [tuple(places[1:]) for places in drawn.values() if places[1:]]
    assert len(further) == len(set(further)) > 3
    assert train() == drawn


def test_rows_of_several_draws_keep_what_is_theirs(make_trainer: Trainers) -> None:
    trainer = make_trainer(
        Keeper,
        [by_row],
        {"row": [0, 1, 2, 3]},
        {
            "estimator": "grpo",
            "rollout": {"name": "dynamic_sampling", "draw_prompts": 7, "max_draws": 3},
        },
        **{**STEPS, "num_iterations": 2, "max_completion_length": 5, "learning_rate": 0.0},
    )
    trainer.train()
    rows, width = trainer.outputs, trainer.outputs["completion_ids"].shape[1]
    with torch.no_grad():
        log_probs, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat((rows["prompt_ids"], rows["completion_ids"]), dim=1),
            torch.cat((rows["prompt_mask"], rows["completion_mask"]), dim=1),
            width,
        )
    mask = rows["completion_mask"].bool()
    assert torch.allclose(log_probs[mask], rows["old_per_token_logps"][mask], atol=1e-5)


def test_a_policy_that_drops_groups_fills_the_step_up(make_trainer: Trainers) -> None:
    trainer = make_trainer(
        Keeper,
        [by_row],
        {"row": [0, 1, 2]},
        {"estimator": "grpo", "objective": "clipped", "rollout": "filter_drop"},
        **STEPS,
    )
    trainer.train()
    trained = trainer.outputs["completion_mask"].any(dim=1)
    assert trained.tolist() == [True] * 6 + [False] * 12
    assert trainer.outputs["num_rollouts_in_batch"] == 6
    assert trainer.state.log_history[0]["cost/utilisation"] == pytest.approx(1 / 3)


OF_TRL = {"beta", "epsilon", "max_completion_length", "sapo_temperature_neg"}


def test_what_does_not_fit_is_refused(make_trainer: Trainers) -> None:
    def make(functions: list[Any] | None = None, **arguments: Any) -> Any:
        settings = {"num_generations": 6, "max_steps": 1}
        settings |= {name: arguments.pop(name) for name in OF_TRL & arguments.keys()}
        given = {"estimator": "grpo", **arguments}
        functions = functions or [by_row]
        return make_trainer(EstimatorGRPOTrainer, functions, {"row": [0]}, given, **settings)

    with pytest.raises(ConfigError, match=r"beta: objective 'clipped' has a KL penalty"):
        make(objective={"name": "clipped", "kl_coef": 0.1})
    with pytest.raises(ConfigError, match=r"use_vllm: objective 'clipped' reads the log-prob"):
        make(objective={"name": "clipped", "correction": "token_truncate"})
    with pytest.raises(ConfigError, match=r"renew_every: expected 0, got 3; sync_ref_model"):
        make(objective={"name": "clipped", "kl_coef": 0.1, "renew_every": 3}, beta=0.1)
    with pytest.raises(ConfigError, match=r"max_completion_length: objective 'clipped' divides"):
        make(objective="dr_grpo", max_completion_length=None)
    with pytest.raises(ConfigError, match=r"no objective is called 'cisp'.*cispo"):
        make(objective="cisp")
    with pytest.raises(ConfigError, match=r"rollout policy 'retry' draws with a reference"):
        make(rollout="retry")
    with pytest.raises(ConfigError, match=r"rollout policy 'gfpo' draws with a reference"):
        make(rollout="gfpo")
    with pytest.raises(ConfigError, match=r"mask_truncated: expected false.*mask_truncated_compl"):
        make(rollout={"name": "plain", "mask_truncated": True})
    with pytest.raises(ConfigError, match=r"success: rollout policy 'dynamic_sampling' judges"):
        make([by_row, liking], rollout="dynamic_sampling")
    with pytest.warns(AdvsweepWarning, match=r"epsilon=0.3 has no effect: objective 'cispo'"):
        make(objective="cispo", epsilon=0.3)
    with pytest.warns(AdvsweepWarning, match=r"sapo_temperature_neg=9.0 has no effect"):
        make(objective="sapo", sapo_temperature_neg=9.0)
    with pytest.warns(AdvsweepWarning, match=r"beta=0.1 has no effect: objective 'cispo'"):
        make(objective="cispo", beta=0.1)
    with pytest.raises(TrainingError, match=r"step 1: expected 1 groups with different verdicts"):
        make(rollout={"name": "dynamic_sampling", "max_draws": 2}).train()


@pytest.mark.parametrize(
    "objective",
    [
        {"name": "clipped", "top_entropy_quantile": 0.5, "entropy_coef": 0.3},
        # Draws none by the last digits of log π, which rounding changes.
        {"name": "clip_cov", "fraction": 1.0, "cov_low": 0.0},
    ],
    ids=lambda spec: spec["name"],
)
def test_tokens_are_chosen_from_all_passes_of_an_update(
    make_trainer: Trainers, objective: dict[str, Any]
) -> None:
    """Gradients do not depend on the number of passes, whose rollouts TRL shuffles alike."""
    logs = []
    for passes in (1, 4):
        trainer = make_trainer(
            EstimatorGRPOTrainer,
            [by_row],
            {"row": [2, 2, 2, 2]},
            {"estimator": "grpo", "objective": objective},
            num_generations=6,
            max_steps=1,
            per_device_train_batch_size=24 // passes,
            gradient_accumulation_steps=passes,
            logging_steps=1,
            max_grad_norm=1e9,
        )
        trainer.train()
        logs.append(trainer.state.log_history[0])
    assert logs[0]["grad_norm"] > 0.001
    for name in ("grad_norm", "loss/policy"):
        assert logs[1][name] == pytest.approx(logs[0][name], rel=1e-4, abs=1e-7)
