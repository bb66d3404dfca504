"""Importing what verl's own code writes: its file logger, its dumps, its settings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import Advantages, GroupBatch
from advsweep.logs import READERS, ImportedRun, ImportOptions
from advsweep.logs.names import NameMap

pytest.importorskip("verl")

PROMPTS, GROUP = 4, 4
OVERRIDES = [
    "algorithm.adv_estimator=grpo",
    f"data.train_batch_size={PROMPTS}",
    f"actor_rollout_ref.rollout.n={GROUP}",
    "data.seed=7",
]


def drawn(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    rates = torch.tensor([0.0, 0.3, 0.6, 1.0])[:, None].expand(PROMPTS, GROUP)
    return torch.bernoulli(rates, generator=generator)


def logged_values(rewards: torch.Tensor) -> dict[str, Any]:
    """Returns the metrics of a step as verl's own function computes them."""
    from verl import DataProto
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    rows, tokens = rewards.numel(), 3
    scores = torch.zeros(rows, tokens)
    scores[:, -1] = rewards.flatten()
    batch = {
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": scores,
        "returns": scores,
        "prompts": torch.ones(rows, 2, dtype=torch.long),
        "responses": torch.ones(rows, tokens, dtype=torch.long),
        "response_mask": torch.ones(rows, tokens, dtype=torch.long),
        "attention_mask": torch.ones(rows, 2 + tokens, dtype=torch.long),
    }
    metrics: dict[str, Any] = compute_data_metrics(DataProto.from_dict(batch), use_critic=False)
    # As numpy has them, and NaN, which orjson writes as null.
    return metrics | {"actor/entropy": np.float32(0.5), "perf/mfu/actor": float("nan")}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[torch.Tensor]]:
    """A run's folder, written by verl's classes, and the rewards of its steps."""
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.tracking import FileLogger

    (tmp_path / ".hydra").mkdir()
    settings = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(config_dir=settings, version_base=None):
        composed = compose("ppo_trainer", overrides=OVERRIDES)
    OmegaConf.save(composed, tmp_path / ".hydra" / "config.yaml")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    logger = FileLogger("project", "experiment")
    steps = [drawn(step) for step in (1, 2, 3)]
    for step, rewards in enumerate(steps, start=1):
        logger.log(logged_values(rewards), step)
        places = [(p, s) for p in range(PROMPTS) for s in range(GROUP)]
        PPOTrainer._write_generations(
            [f"prompt {p}" for p, _ in places],
            ["answer"] * len(places),
            ["1"] * len(places),
            rewards.flatten().tolist(),
            {"uid": [f"{step:08x}-{p}_{s}_0" for p, s in places]},
            str(tmp_path / "rollouts"),
            step,
        )
    logger.finish()
    return tmp_path, steps


def read(folder: Path) -> ImportedRun:
    options = ImportOptions(names=NameMap("verl"))
    (run,) = READERS.build("verl").runs(folder, options)
    return run


def test_the_numbers_are_those_of_verl(written: tuple[Path, list[torch.Tensor]]) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    folder, steps = written
    run = read(folder)
    assert run.config["estimator"] == {"name": "grpo", "preset": "verl"}
    assert (run.config["prompts_per_step"], run.config["group_size"]) == (PROMPTS, GROUP)
    assert run.config["seed"] == 7
    found: dict[int, dict[str, float]] = {}
    for step, values in run.steps:
        found.setdefault(step, {}).update(values)
    assert sorted(found) == [1, 2, 3]
    assert not run.left_out
    for step, rewards in enumerate(steps, start=1):
        # verl's own advantages of the same rewards.
        index = np.array([str(p) for p in range(PROMPTS) for _ in range(GROUP)], dtype=object)
        theirs, _ = compute_grpo_outcome_advantage(
            rewards.reshape(-1, 1).clone(), torch.ones(rewards.numel(), 1), index
        )
        batch = GroupBatch(rewards=rewards)
        advantages = Advantages(
            values=theirs.view(PROMPTS, GROUP), keep=torch.ones_like(rewards, dtype=torch.bool)
        )
        own = rollout_metrics(batch, advantages)
        own = {name: value for name, value in own.items() if math.isfinite(value)}
        assert {name: found[step].get(name) for name in own} == pytest.approx(own, abs=1e-6)
        assert found[step]["entropy/token"] == 0.5
        assert found[step]["cost/tokens"] == 3 * PROMPTS * GROUP
        assert "perf/mfu/actor" not in found[step]


def test_validation_samples_agree_with_verls_own_mean(tmp_path: Path) -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    verdicts = drawn(5)
    uids = [f"uid{p}" for p in range(PROMPTS) for _ in range(GROUP)]
    accuracy = [bool(v) for v in verdicts.flatten()]
    scores = [0.1 + 0.9 * v for v in accuracy]
    PPOTrainer._write_generations(
        [f"problem {uid}" for uid in uids],
        ["answer"] * len(uids),
        ["1"] * len(uids),
        scores,
        {"reward": scores, "acc": accuracy}
        | {"uid": [f"{uid}_{i % GROUP}_0" for i, uid in enumerate(uids)]},
        str(tmp_path / "validation"),
        10,
    )
    run = read(tmp_path)
    theirs = process_validation_metrics(["set"] * len(uids), uids, {"acc": accuracy})
    own = [result.correct / result.n for result in run.evaluations]
    assert [(result.step, result.n) for result in run.evaluations] == [(10, GROUP)] * PROMPTS
    assert np.mean(own) == pytest.approx(theirs["set"]["acc"][f"mean@{GROUP}"])
