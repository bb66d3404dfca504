"""Importing what TRL writes: the trainer's state and completions."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from advsweep.errors import ConfigError
from advsweep.estimators import build_estimator
from tests.importing.conftest import read as read_runs
from tests.importing.conftest import values

pytest.importorskip("pyarrow")
REWARDS = [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def state(folder: Path, steps: Iterable[int], *, at: int | None = None, **more: Any) -> Path:
    """Writes what transformers does with a checkpoint."""
    logged: list[dict[str, Any]] = [
        {"step": step, "epoch": step / 10, "reward": 0.25, "loss": 0.5, "grad_norm": 1.0}
        | {"frac_reward_zero_std": 0.5, "completions/mean_length": 3.0, "rewards/right/std": None}
        for step in steps
    ]
    content = {"global_step": at, "max_steps": 8, "logging_steps": 1, "epoch": 0.1} | more
    content["log_history"] = logged + content.pop("extra", [])
    path = folder / (f"checkpoint-{at}" if at else "") / "trainer_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def completions(
    folder: Path, step: int, *, advantages: str | None = "trl", **columns: list[float]
) -> None:
    import pandas as pd

    from advsweep.estimators import GroupBatch

    rewards = columns or {"right": [r for group in REWARDS for r in group]}
    rows = [
        (f"p{step}{p}", f"{step}{i}") for p, group in enumerate(REWARDS) for i in range(len(group))
    ]
    table: dict[str, Any] = {
        "step": [step] * len(rows),
        "prompt": [prompt for prompt, _ in rows],
        "completion": [text for _, text in rows],
        **rewards,
    }
    if advantages:
        estimator = build_estimator("grpo", preset=advantages)
        table["advantage"] = estimator(GroupBatch(rewards=torch.tensor(REWARDS))).flatten().tolist()
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    pd.DataFrame(table).to_parquet(path)


read = functools.partial(read_runs, "trl")


def test_a_whole_run(tmp_path: Path) -> None:
    state(tmp_path, [1, 2], at=2)
    state(tmp_path, [1, 2, 3, 4], at=4)
    for step in (1, 2, 3):
        completions(tmp_path, step)
    (run,) = read(tmp_path, seed=0)
    assert run.source == "."
    assert run.config == {
        "steps": 8,
        "logging_steps": 1,
        "estimator": {"name": "grpo", "preset": "trl"},
        "prompts_per_step": 2,
        "group_size": 4,
    }
    found = values(run)
    assert sorted(found) == [1, 2, 3, 4]
    # Sample σ of (1, 1, 0, 0) is √(1/3); TRL adds 1e-4 to it.
    assert found[1]["mass/success"] == pytest.approx(2 * 0.5 / (3**-0.5 + 1e-4) / 8)
    assert (found[1]["cost/rollouts"], found[1]["cost/tokens"]) == (1.0, 24.0)
    assert found[4]["collapse/acr"] == found[1]["collapse/acr"] == 0.5
    assert found[4]["optim/grad_norm"] == 1.0
    assert not run.left_out
    of_logged = "masses and other metrics of advantages are of the logged advantages"
    missing = ["the log ends at step 4 of 8", "1 step of the log without rollouts, the first is 4"]
    recognised = "the estimator was recognised by the logged advantages"
    assert run.notes == [*missing, recognised, of_logged]
    # A name that agrees keeps the options that were recognised.
    (run,) = read(tmp_path, estimator="grpo", seed=0)
    assert run.notes == [*missing, of_logged]


def test_completions_without_advantages_take_the_estimator_of_the_command(tmp_path: Path) -> None:
    completions(tmp_path, 1, advantages=None)
    (run,) = read(tmp_path)
    assert "estimator" not in run.config
    assert "mass/success" not in values(run)[1]
    (run,) = read(tmp_path, estimator="dr_grpo")
    assert values(run)[1]["mass/success"] == 1 / 8


def test_completions_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    """TRL writes them over those of the training at the same step."""
    state(tmp_path, [1, 2], extra=[{"step": 2, "eval_reward": 1.0, "eval_loss": 0.0}])
    completions(tmp_path, 1)
    completions(tmp_path, 2, right=[1.0] * 8)
    (run,) = read(tmp_path)
    found = values(run)
    assert found[2]["reward/mean"] == 0.25
    assert found[2]["eval_reward"] == 1.0
    # Its rollouts cost as much as those of the other steps.
    assert [found[step]["cost/rollouts"] for step in (1, 2)] == [1.0, 1.0]
    assert found[2]["cost/tokens"] == 24.0
    assert run.left_out == {"steps whose completions are those of an evaluation": 1}


@pytest.mark.parametrize("loss", ["dapo", "dr_grpo"])
def test_a_name_that_claims_other_advantages_gets_a_note(tmp_path: Path, loss: str) -> None:
    """The logged ones are GRPO's."""
    state(tmp_path, [1], at=1, max_steps=1, loss_type=loss, scale_rewards="group")
    completions(tmp_path, 1)
    (run,) = read(tmp_path, seed=0, estimator="dr_grpo")
    assert any(
        note.startswith("the logged advantages are not those of estimator 'dr_grpo'")
        for note in run.notes
    )
    of_loss = f"{loss} is a loss: its advantages are those of scale_rewards=group"
    assert (of_loss in run.notes) == (loss == "dr_grpo")


def functions(
    folder: Path, weights: dict[str, float], steps: int = 4, **more: Any
) -> dict[int, float]:
    """Writes a training with two reward functions; returns the rewards that the trainer logs."""
    totals, logged = {}, []
    for step in range(1, steps + 1):
        right = [float((place * step) % 3 == 0) for place in range(8)]
        short = [0.1 * (place + step) for place in range(8)]
        completions(folder, step, advantages=None, right=right, short=short)
        means = {"right": sum(right) / 8, "short": sum(short) / 8}
        totals[step] = sum(weights[name] * mean for name, mean in means.items())
        logged.append(
            {"step": step, "reward": totals[step], "frac_reward_zero_std": 0.25}
            | {f"rewards/{name}/mean": mean for name, mean in means.items()}
        )
    state(folder, [], extra=logged, **more)
    return totals


@pytest.mark.parametrize(
    ("true", "given"),
    [
        ({"right": 1.0, "short": 0.2}, {}),
        ({"right": 1.0, "short": 1.0}, {"right": 0.0}),
        ({"right": -0.5, "short": 2.0}, {"short": 2.0}),
    ],
)
@pytest.mark.parametrize("every", [1, 5])
def test_weights_that_the_log_contradicts(
    tmp_path: Path, true: dict[str, float], given: dict[str, float], every: int
) -> None:
    totals = functions(tmp_path, true, logging_steps=every)
    (run,) = read(tmp_path, reward_weights=given)
    found = values(run)
    assert {step: own["reward/mean"] for step, own in found.items()} == totals
    assert {own["collapse/acr"] for own in found.values()} == {0.25}
    assert not any(name.startswith(("solved/", "mass/")) for name in found[1])
    (note,) = [note for note in run.notes if "at step 1, the trainer logged" in note]
    assert ": --set reward_weights.NAME=WEIGHT gives other weights." in note


def test_groups_of_a_prompt_that_comes_again(tmp_path: Path) -> None:
    """Two groups of one text look like one of twice the size; the log has the share of each."""
    import pandas as pd

    state(tmp_path, [1], at=1, max_steps=1)
    completions(tmp_path, 1)
    (path,) = tmp_path.rglob("*.parquet")
    pd.read_parquet(path).assign(prompt="p").to_parquet(path)
    (run,) = read(tmp_path, seed=0)
    assert run.config["group_size"] == 8
    assert "is 0 at step 1, the trainer logged 0.5: " in run.notes[-1]
    for given in ({"group_size": 4}, {}):
        (run,) = read(tmp_path, seed=0, **given)
        assert (values(run)[1]["collapse/acr"], run.config["group_size"]) == (0.5, 4)
        assert not any("group_size" in note for note in run.notes)
        arguments(tmp_path, num_generations=4)


def arguments(folder: Path, **given: Any) -> None:
    """Writes the training's arguments as torch does."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(argparse.Namespace(**given), folder / "training_args.bin")


def test_arguments_tell_losses_seeds_and_rates_apart(tmp_path: Path) -> None:
    for loss in ("dapo", "dr_grpo"):
        for seed in (0, 1):
            state(tmp_path / f"{loss}-{seed}", [1], at=1, max_steps=1)
            more = {"loss_type": loss, "seed": seed, "learning_rate": 1e-6, "num_generations": 4}
            more |= {"output_dir": str(tmp_path), "optim": None, "report_to": ["none"]}
            arguments(tmp_path / f"{loss}-{seed}" / "checkpoint-1", **more)
    runs = read(tmp_path)
    assert [(run.config["loss_type"], run.config["seed"]) for run in runs] == [
        ("dapo", 0), ("dapo", 1), ("dr_grpo", 0), ("dr_grpo", 1),
    ]  # fmt: skip
    assert {run.config["optimizer"]["lr"] for run in runs} == {1e-6}
    assert {run.config["group_size"] for run in runs} == {4}
    assert not any("place" in run.config or "output_dir" in run.config for run in runs)
    assert not any(run.notes for run in runs)


@pytest.mark.parametrize("name", ["nothing", "."])
def test_what_is_no_run_of_trl_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        read(tmp_path / name)
