"""Importing what TRL's own trainer logs: a real training, two commands, and the same numbers."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from advsweep.cli import main
from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.logs import READERS, ImportOptions
from advsweep.logs.base import ImportedRun
from advsweep.logs.names import NameMap
from tests.importing.conftest import read, values
from tests.integrations.conftest import MakeTrainer

trl = pytest.importorskip("trl", minversion="1.12")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

GROUP = 4


@pytest.fixture
def trained(policy_folder: Path, tmp_path: Path) -> tuple[Path, list[torch.Tensor]]:
    """The output folder of a GRPOTrainer that was evaluated once, and the rewards of each step."""
    from datasets import Dataset

    rewards: list[torch.Tensor] = []

    def letters(completions: list[str], **_: Any) -> list[float | None]:
        found = [None if "k" in c else float(any(x in c for x in "abcd")) for c in completions]
        if trainer.model.training:
            numbers = [math.nan if reward is None else reward for reward in found]
            rewards.append(torch.tensor(numbers).view(-1, GROUP))
        return found

    data = Dataset.from_dict({"prompt": ["a b", "c d", "e f", "g h"]})
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path / "run"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=4,
        per_device_train_batch_size=2 * GROUP,
        per_device_eval_batch_size=2 * GROUP,
        num_generations=GROUP,
        max_completion_length=3,
        learning_rate=1e-2,
        report_to="none",
        save_steps=3,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        log_completions=True,
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        model=str(policy_folder),
        reward_funcs=letters,
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
    )
    trainer.train()
    return tmp_path / "run", rewards


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code


def test_a_report_in_two_commands(
    trained: tuple[Path, list[torch.Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, rewards = trained
    assert len(rewards) == 4
    (run,) = READERS.build("trl").runs(folder, ImportOptions(names=NameMap("trl")))
    # Recognised by the advantages that TRL wrote.
    estimator = {"name": "grpo", "preset": "trl"}
    assert run.config["estimator"] == estimator
    assert (run.config["prompts_per_step"], run.config["group_size"]) == (2, GROUP)
    found: dict[int, dict[str, float]] = {}
    for step, logged in run.steps:
        found.setdefault(step, {}).update(logged)
    # Steps 2 and 4 were evaluated, so that their completions are lost. The last checkpoint is of
    # step 4, the last step.
    assert sorted(found) == [1, 2, 3, 4]
    assert run.left_out["steps whose completions are those of an evaluation"] == 2
    for step in (1, 3):
        scored = ~rewards[step - 1].isnan()
        batch = GroupBatch(rewards=rewards[step - 1].nan_to_num(), mask=scored)
        own = rollout_metrics(batch, build_estimator("grpo", preset="trl").compute(batch))
        own = {k: v for k, v in own.items() if math.isfinite(v)}
        assert {name: found[step].get(name) for name in own} == pytest.approx(own, abs=2e-6)
    for step in (2, 4):
        assert found[step]["reward/mean"] == pytest.approx(rewards[step - 1].nanmean().item())
        assert "mass/success" not in found[step]

    store = str(tmp_path / "a.db")
    monkeypatch.chdir(tmp_path)
    command(monkeypatch, "import", "trl", str(folder), "--set", "seed=0", "--store", store)
    assert "4 steps (4 new)" in capsys.readouterr().out
    command(monkeypatch, "report", "--format", "html", "--store", store)
    page = capsys.readouterr().out
    assert page.startswith("<!DOCTYPE html>")
    assert "collapse/acr" in page
    command(monkeypatch, "import", "trl", str(folder), "--set", "seed=0", "--store", store)
    assert "1 unchanged" in capsys.readouterr().out


def letters(completions: list[str], **_: Any) -> list[float]:
    return [float(any(x in text for x in "abcd")) for text in completions]


def short(completions: list[str], **_: Any) -> list[float]:
    return [1 / (1 + len(text)) for text in completions]


@pytest.fixture
def losses(make_trainer: MakeTrainer, tmp_path: Path) -> dict[str, dict[int, float]]:
    """Two trainings with weighted reward functions below `losses`; the rewards that they log."""
    logged = {}
    for loss in ("dapo", "dr_grpo"):
        trainer = make_trainer(
            trl.GRPOTrainer,
            [letters, short],
            {"own": [0, 1]},
            output_dir=str(tmp_path / "losses" / f"{loss}-s7"),
            loss_type=loss,
            reward_weights=[1.0, 0.2],
            seed=7,
            num_generations=GROUP,
            learning_rate=1e-2,
            max_steps=6,
            save_strategy="steps",
            save_steps=3,
            logging_steps=1,
            log_completions=True,
        )
        trainer.train()
        rows = trainer.state.log_history
        logged[loss] = {row["step"]: row["reward"] for row in rows if "reward" in row}
    return logged


def test_a_copy_keeps_losses_weights_and_every_step(
    losses: dict[str, dict[int, float]], tmp_path: Path
) -> None:
    source = shutil.copytree(tmp_path / "losses", tmp_path / "copy")
    # In the copy the first checkpoint is the newest file.
    for age, file in enumerate(sorted(source.rglob("trainer_state.json"))):
        os.utime(file, (10**9 - age, 10**9 - age))

    def rewards(runs: list[ImportedRun]) -> list[dict[int, float]]:
        found = [values(run) for run in runs]
        return [{step: own["reward/mean"] for step, own in steps.items()} for steps in found]

    logged = [pytest.approx(own, rel=1e-6) for own in losses.values()]
    runs = read("trl", source)
    assert rewards(runs) == logged
    assert [run.config["loss_type"] for run in runs] == ["dapo", "dr_grpo"]
    for run in runs:
        assert (run.config["seed"], run.config["optimizer"]["lr"]) == (7, 1e-2)
        assert "the reward is letters + 0.2 short" in run.notes
        # Both prompts are the same text, which makes two groups nevertheless.
        assert (run.config["prompts_per_step"], run.config["group_size"]) == (2, GROUP)
        assert run.config["estimator"] == {"name": "grpo", "preset": "trl"}
    for file in source.rglob("training_args.bin"):
        file.unlink()
    runs = read("trl", source, reward_weights={"short": 0.2})
    assert rewards(runs) == logged
    assert not any("gives other weights" in note for run in runs for note in run.notes)
    runs = read("trl", source)
    assert rewards(runs) == logged
    for run in runs:
        assert any("--set reward_weights.NAME=WEIGHT gives other weights" in n for n in run.notes)
    # The last checkpoint was cut on the way.
    cut = source / "dapo-s7" / "checkpoint-6" / "trainer_state.json"
    cut.write_bytes(cut.read_bytes()[:1500])
    run, _ = read("trl", source, reward_weights={"short": 0.2})
    assert "states that are cut (checkpoint-6/trainer_state.json)" in run.left_out
    assert rewards([run]) == [logged[0]]
