"""Importing what TRL's own trainer logs: a real training, two commands, and the same numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from advsweep.cli import main
from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.logs import READERS, ImportOptions
from advsweep.logs.names import NameMap

trl = pytest.importorskip("trl", minversion="1.16")
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
