"""Train with TRL's trainer and with ours in each of several processes, and compare.

torchrun --nproc_per_node 2 two_processes.py POLICY OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from advsweep.errors import ConfigError
from advsweep.estimators import build_estimator
from advsweep.integrations.trl import EstimatorGRPOTrainer

ROWS = 3


def letters(completions: list[str], **_: Any) -> list[float]:
    return [float(any(letter in text for letter in "abcd")) for text in completions]


def train(cls: type, folder: Path, **more: Any) -> Any:
    # Groups of four rollouts over two processes with three times two: one group is in both.
    config = GRPOConfig(
        output_dir=str(folder),
        num_generations=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        max_completion_length=4,
        max_steps=2,
        learning_rate=0.01,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    prompts = ["a b", "c d e", "f g"] * 4
    references = [[0.0, 1.0, 2.0, 3.0]] * 12
    dataset = Dataset.from_dict({"prompt": prompts, "ref_rewards": references})
    trainer = cls(
        model=sys.argv[1], reward_funcs=letters, args=config, train_dataset=dataset, **more
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    output = Path(sys.argv[2])
    theirs = train(GRPOTrainer, output)
    ours = train(EstimatorGRPOTrainer, output, estimator=build_estimator("grpo", preset="trl"))
    weights = theirs.model.state_dict()
    assert all(torch.equal(w, weights[n]) for n, w in ours.model.state_dict().items())
    assert [*ours._logs["advantages"]] == [*theirs._logs["advantages"]]

    # TRL's default loss is "dapo".
    objective = {"name": "clipped", "aggregation": "token_mean"}
    ours = train(EstimatorGRPOTrainer, output, estimator="grpo", objective=objective)
    theirs = train(EstimatorGRPOTrainer, output, estimator="grpo")
    weights = theirs.model.state_dict()
    assert all(torch.allclose(w, weights[n], atol=1e-5) for n, w in ours.model.state_dict().items())
    with pytest.raises(ConfigError, match="needs one process, got 2"):
        train(EstimatorGRPOTrainer, output, estimator="grpo", rollout="dynamic_sampling")

    batches = []

    class Recorder(EstimatorGRPOTrainer):
        def _group_batch(self, *arguments: Any) -> Any:
            batches.append(super()._group_batch(*arguments))
            return batches[-1]

    estimator = build_estimator("entropy_shaped", base={"name": "dcpo"})
    # Read by no estimator together, but given to all that ask.
    estimator._narrow(needs=estimator.needs | {"ref_rewards", "token_entropy"})
    last = train(Recorder, output, estimator=estimator)
    batch = batches[-1]
    assert batch.ref_rewards.tolist() == [[0, 1, 2, 3]] * ROWS
    assert len(set(batch.prompt_ids)) == ROWS
    sampled = batch.token_entropies.sum(2) > 0
    assert bool((sampled == (batch.lengths > 0)).all())
    whole = last.accelerator.gather(batch.token_entropy)
    assert torch.equal(whole, batch.token_entropy.repeat(2, 1))  # the same in both
    (output / f"passed-{last.accelerator.process_index}").touch()
