"""The importable trainer, against TRL's own and against formulas."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import Tensor

from advsweep.errors import AdvsweepWarning, CheckpointError, ConfigError
from advsweep.estimators import Advantages, GroupBatch, build_estimator
from advsweep.logs.names import NameMap

trl = pytest.importorskip("trl", minversion="1.12")
from advsweep.integrations.trl import _ALWAYS, EstimatorGRPOTrainer  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

Trainers = Callable[..., Any]


def letters(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """Is there one of the first four letters? Where there is a `k` nobody knows."""
    return [None if "k" in c else float(any(x in c for x in "abcd")) for c in completions]


def liking(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """A reward that is not dyadic, and does not know either."""
    return [None if "k" in c or "e" in c else 0.9 * ("l" in c) for c in completions]


def by_place(row: list[int], **_: Any) -> list[float | None]:
    """Three groups of six: all right, all wrong, and every third right, wrong, unscorable."""
    mixed = [1.0, 0.0, None]
    return [[1.0, 0.0, mixed[place % 3]][which] for place, which in enumerate(row)]


class Recorded:
    """An estimator that keeps what it was given and what it gave."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.estimator = build_estimator(name, **fields)
        self.batches: list[GroupBatch] = []
        self.computed: list[Advantages] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.estimator, name)

    def compute(self, batch: GroupBatch) -> Advantages:
        self.batches.append(batch)
        self.computed.append(self.estimator.compute(batch))
        return self.computed[-1]


class Keeper(EstimatorGRPOTrainer):
    """Keeps the rows of the last generation."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.outputs = super()._generate_and_score_completions(inputs)
        return self.outputs


def weights_of(trainer: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "grpo", "preset": "trl"},
        # α = 0 adds nothing: one advantage per token, each the rollout's.
        {"name": "entropy_shaped", "alpha": 0.0, "base": {"name": "grpo", "preset": "trl"}},
    ],
    ids=["per rollout", "per token"],
)
def test_with_the_preset_trl_it_trains_as_trl_does(
    make_trainer: Trainers, spec: dict[str, Any]
) -> None:
    settings = {
        "num_generations": 6,
        "max_steps": 6,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
        "per_device_train_batch_size": 12,
        "reward_weights": [0.7, 0.4],
        "learning_rate": 0.01,
    }
    functions, columns = [letters, liking], {"row": list(range(8))}
    theirs = make_trainer(trl.GRPOTrainer, functions, columns, **settings)
    start = weights_of(theirs)
    theirs.train()
    recorded = Recorded(**spec)
    ours = make_trainer(
        EstimatorGRPOTrainer, functions, columns, {"estimator": recorded}, **settings
    )
    ours.train()
    assert len(recorded.batches) == 3  # each serves two of the six steps
    assert not all(batch.mask.all() for batch in recorded.batches)
    assert not equal(weights_of(theirs), start)
    if recorded.per_token:
        # A mean over tokens of equal numbers may differ in its last bit.
        assert [*ours._logs["advantages"]] == pytest.approx([*theirs._logs["advantages"]])
    else:
        assert [*ours._logs["advantages"]] == [*theirs._logs["advantages"]]
    assert equal(weights_of(ours), weights_of(theirs))


@pytest.mark.parametrize("truncated", [False, True])
def test_estimators_get_the_inputs_that_they_read(
    make_trainer: Trainers, policy_folder: Path, truncated: bool
) -> None:
    from transformers import Qwen2ForCausalLM

    references = [[0.0, 1, 1, 0, 1, 0], [1.0, 1, 0, 0, 0, 1]]
    recorded = Recorded("aapo")
    recorded.needs = _ALWAYS | {"ref_rewards", "reward_parts", "solve_rates"}
    if not truncated:
        recorded.needs |= {"token_kl"}
    settings = {
        "num_generations": 6,
        "max_steps": 1,
        "temperature": 0.7,
        "learning_rate": 0.0,
        "mask_truncated_completions": truncated,
        # The log-probabilities that TRL computes anyway have other masks here.
        "num_iterations": 2,
        "reward_weights": [1.0, 0.5],
        "beta": 0.1,
    }
    # Check the needs without `solve_rates`, which is read if it is there.
    needs, recorded.needs = recorded.needs, frozenset()
    trainer = make_trainer(
        Keeper,
        [letters, liking],
        {"ref_rewards": references, "row": [0, 1]},
        {"estimator": recorded, "success": "letters"},
        **settings,
    )
    recorded.needs = needs
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight *= 1.5
    trainer.train()
    (batch,) = recorded.batches
    assert batch.ref_rewards.tolist() == references
    assert (batch.step, batch.total_steps) == (1, 1)
    scored = trainer._rewards_per_function.view(2, 6, 2)
    assert torch.equal(batch.reward_parts.nan_to_num(7), scored.nan_to_num(7))
    assert batch.part_weights == (1.0, 0.5)
    first, second = batch.prompt_ids
    assert first == second  # both rows have the prompt "a b"
    right = trainer._rewards_per_function[:, 0].view(2, 6)
    count = (~right.isnan()).sum(1)
    assert torch.allclose(batch.solve_rates, (right == 1).sum(1) / count)

    outputs = trainer.outputs
    completions = outputs["completion_ids"]
    ends = completions == 1
    before_end = (ends.cumsum(1) - ends.int()) == 0
    lengths = before_end.sum(1)
    assert batch.lengths.flatten().tolist() == lengths.tolist()
    assert truncated == bool((outputs["completion_mask"].sum(1) < lengths).any())
    ids = torch.cat((outputs["prompt_ids"], completions), dim=1)
    start = outputs["prompt_ids"].size(1)
    log_policy, log_reference = (
        torch.log_softmax(model(ids).logits[:, start - 1 : -1].double() / 0.7, dim=-1)
        for model in (Qwen2ForCausalLM.from_pretrained(policy_folder), trainer.ref_model)
    )
    surprisal = -log_policy.gather(2, completions[..., None])[..., 0]
    exact = -(log_policy.exp() * log_policy).sum(-1)
    certainty = -log_policy.mean(-1) - math.log(log_policy.shape[-1])
    for values, per_token in (
        (batch.token_entropy, surprisal),
        (batch.token_entropy_exact, exact),
        (batch.self_certainty, certainty),
    ):
        expected = (per_token * before_end).sum(1) / lengths
        assert torch.allclose(values.flatten().double(), expected, atol=1e-5)
    chosen = torch.nn.functional.one_hot(completions, log_policy.shape[-1])
    of_reference = log_reference.gather(2, completions[..., None])[..., 0]
    of_tokens = [
        (batch.token_entropies, exact),
        (batch.token_grad_norms, (chosen - log_policy.exp()).square().sum(-1)),
        (batch.token_kl, -surprisal - of_reference),
    ]
    for values, per_token in of_tokens[: 2 if truncated else 3]:
        each = values.flatten(0, 1).double()
        assert torch.allclose(each, per_token * before_end, atol=1e-5)


def test_memory_is_saved_and_restored(make_trainer: Trainers) -> None:
    settings = {
        "num_generations": 6,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 0.01,
    }

    def train(resume: str | None = None) -> tuple[Recorded, Any]:
        recorded = Recorded("fade")
        trainer = make_trainer(
            EstimatorGRPOTrainer,
            [letters],
            {"row": [0, 1, 2]},
            {"estimator": recorded},
            **settings,
        )
        trainer.train(resume_from_checkpoint=resume)
        return recorded, trainer

    whole, trainer = train()
    assert len(whole.batches) == 4
    assert trainer.state.log_history[-2]["estimator/alpha"] == pytest.approx(
        whole.computed[-1].info["alpha"]
    )
    folder = Path(trainer.args.output_dir, "checkpoint-2")
    rest, resumed = train(str(folder))
    assert len(rest.batches) == 2
    assert rest.state_dict() == whole.state_dict()
    assert equal(weights_of(resumed), weights_of(trainer))

    (folder / "estimator.json").unlink()
    with pytest.raises(CheckpointError, match=r"estimator\.json: expected the memory"):
        train(str(folder))
    resumed.estimator = build_estimator("grpo")
    # TRL's own trainer made the checkpoint: nothing is missing.
    resumed._load_optimizer_and_scheduler(str(folder))


def test_dropped_rollouts_leave_the_loss(make_trainer: Trainers) -> None:
    trainer = make_trainer(
        Keeper,
        [by_place],
        {"row": [0, 1, 2]},
        {"estimator": "filter_drop"},
        num_generations=6,
        max_steps=1,
    )
    trainer.train()
    mask = trainer.outputs["completion_mask"].view(3, 6, -1)
    # The first two groups have collapsed; in the third those that cannot be scored stay,
    # as they do in TRL.
    assert not mask[:2].any()
    assert mask[2].any(dim=1).all()
    assert trainer.outputs["num_items_in_batch"] == mask.sum()
    assert trainer.outputs["advantages"].view(3, 6)[2].tolist() == [1, -1, 0, 1, -1, 0]


def test_an_evaluation_moves_no_memory(make_trainer: Trainers) -> None:
    recorded = Recorded("fade")
    trainer = make_trainer(
        EstimatorGRPOTrainer,
        [letters],
        {"row": [0, 1]},
        {"estimator": recorded},
        num_generations=6,
        max_steps=1,
        per_device_eval_batch_size=6,
    )
    trainer.train()
    before = recorded.state_dict()
    trainer.evaluate(trainer.train_dataset)
    assert recorded.state_dict() == before
    assert len(recorded.batches) == 1


def test_the_log_has_our_metrics(make_trainer: Trainers) -> None:
    trainer = make_trainer(
        EstimatorGRPOTrainer,
        [by_place],
        {"row": [0, 1, 2]},
        {"estimator": {"name": "asym_grpo", "delta": 0.5}},
        num_generations=6,
        max_steps=1,
        logging_steps=1,
        log_completions=True,
        save_strategy="steps",
        save_steps=1,
    )
    trainer.train()
    folder = Path(trainer.args.output_dir)
    saved = json.loads((folder / "checkpoint-1" / "trainer_state.json").read_text())
    (logged, *_) = saved["log_history"]
    # 1s, 0s, and 1 0 - 1 0 -: two of three groups teach nothing, one of them all right; 16
    # rollouts count. In the third group d = ±1/2, so A = 1/2 and -1/2 δ⁻¹ = -1.
    assert logged["collapse/acr"] == pytest.approx(2 / 3)
    assert logged["collapse/all_correct"] == pytest.approx(1 / 3)
    assert logged["reward/mean"] == logged["reward"] == 0.5
    assert logged["reward/unscorable"] == pytest.approx(2 / 18)
    table = pandas.read_parquet(folder / "completions" / "completions_00001.parquet")
    values = table["advantage"].tolist()
    assert values[:12] == [0.0] * 12
    high, low = values[12], values[13]
    assert values[12:] == [high, low, 0, high, low, 0]
    assert high > 0 > low
    assert logged["mass/success"] == pytest.approx(2 * high / 16)
    assert logged["mass/failure"] == pytest.approx(-2 * low / 16)
    assert logged["solved/6"] == pytest.approx(1 / 3)
    # An import takes ours where TRL has the like.
    names = NameMap("trl")
    imported = names.apply({name: v for name, v in logged.items() if isinstance(v, float)})
    assert imported["collapse/acr"] == logged["collapse/acr"]
    assert imported["mass/failure"] == logged["mass/failure"]


def test_what_does_not_fit_is_refused_at_the_start(make_trainer: Trainers) -> None:
    def make(spec: dict[str, Any] | str, **settings: Any) -> Any:
        extra = {name: settings.pop(name) for name in ("success",) if name in settings}
        settings = {"num_generations": 6, "max_steps": 1, **settings}
        arguments = {"estimator": spec, **extra}
        return make_trainer(EstimatorGRPOTrainer, [letters], {"row": [0]}, arguments, **settings)

    with pytest.raises(ConfigError, match="needs ref_rewards; `ref_rewards` may be"):
        make("aapo")
    with pytest.raises(ConfigError, match=r"needs reward_parts; .* several reward functions"):
        make("gdpo")
    with pytest.raises(ConfigError, match=r"needs token_kl; .* needs beta above 0"):
        make("kl_in_reward")
    with pytest.raises(ConfigError, match="needs answered"):
        make({"name": "rent", "no_answer": -1.0})
    with pytest.raises(ConfigError, match="multiple of 4, got 6"):
        make({"name": "passk_loo", "k": 4})
    with pytest.raises(ConfigError, match="importance_sampling_level"):
        make("entropy_shaped", importance_sampling_level="sequence", loss_type="grpo")
    with pytest.raises(ConfigError, match=r"success: expected a reward function of \['letters'\]"):
        make("grpo", success="liking")
    with pytest.warns(AdvsweepWarning, match="scale_rewards='none' has no effect"):
        make("grpo", scale_rewards="none")


def test_several_processes_train_as_trl_does(policy_folder: Path, tmp_path: Path) -> None:
    program = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", str(program), str(policy_folder), str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert {path.name for path in tmp_path.glob("passed-*")} == {"passed-0", "passed-1"}
