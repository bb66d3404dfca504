"""Importing what TRL writes: the trainer's state and completions."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

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
    import torch

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
    (run,) = read(tmp_path)
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
    assert run.notes == ["the estimator was recognised by the logged advantages", of_logged]
    # A name that agrees keeps the options that were recognised; another is told apart.
    (run,) = read(tmp_path, estimator="grpo")
    assert run.notes == [of_logged]
    (run,) = read(tmp_path, estimator="rloo")
    assert run.notes[1].startswith("the logged advantages are not those of estimator 'rloo'")


def test_the_state_alone(tmp_path: Path) -> None:
    path = state(tmp_path, [1, 2])
    for source in (tmp_path, path):
        (run,) = read(source)
        assert run.config == {"steps": 8, "logging_steps": 1}
        assert values(run)[2]["reward/mean"] == 0.25


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


def test_costs_are_unknown_if_not_every_step_is_logged(tmp_path: Path) -> None:
    state(tmp_path, [5, 10], logging_steps=5)
    completions(tmp_path, 5)
    (run,) = read(tmp_path)
    assert not any(name.startswith("cost/r") for name in values(run)[5])


def test_weights_of_reward_functions(tmp_path: Path) -> None:
    state(tmp_path, [1])
    right = [r for group in REWARDS for r in group]
    completions(tmp_path, 1, right=right, short=[0.4] * 8)
    (run,) = read(tmp_path)
    assert values(run)[1]["reward/mean"] == pytest.approx(0.65)
    assert "the reward is right + short" in run.notes
    assert "have the mean 0.65 at step 1, the trainer logged 0.25" in run.notes[-1]
    (run,) = read(tmp_path, reward_weights={"right": 1})
    assert values(run)[1]["reward/mean"] == 0.25
    assert not any("the trainer logged" in note for note in run.notes)
    for wrong in ("x", {"right": "1"}, {"right": True}):
        with pytest.raises(ConfigError, match="reward_weights: expected numbers"):
            read(tmp_path, reward_weights=wrong)


def test_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        state(tmp_path / "grpo" / name, [1], at=1)
    (tmp_path / "link").symlink_to(tmp_path)
    assert [run.source for run in read(tmp_path)] == ["grpo/a", "grpo/b"]


def test_damaged_files_do_not_hide_the_rest(tmp_path: Path) -> None:
    path = state(tmp_path, [1, 2, 3])
    path.write_text(path.read_text()[:-60])
    completions(tmp_path, 1)
    (tmp_path / "completions" / "completions_00002.parquet").write_bytes(b"PAR1")
    (run,) = read(tmp_path)
    assert sorted(values(run)) == [1, 2]
    assert run.left_out["steps after 2, as trainer_state.json is cut"] == 1
    assert sum(run.left_out.values()) == 2


@pytest.mark.parametrize("name", ["nothing", "."])
def test_what_is_no_run_of_trl_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        read(tmp_path / name)
