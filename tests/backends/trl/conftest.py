"""What the tests of the TRL backend share: a task whose groups are mixed, and stock TRL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed
from advsweep.backends.run import Run
from advsweep.tasks.base import Problem
from advsweep.tasks.countdown.task import Countdown

pytest.importorskip("trl", minversion="1.16")


@dataclass(kw_only=True)
class Parity(Countdown):
    """Countdown's prompts; an answer of even length is right, so that most groups are mixed."""

    name: ClassVar[str] = "parity"

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> np.ndarray:
        return np.array([float(len(text) % 2 == 0) for text in completions])


@pytest.fixture
def parity_run(small_run: Callable[..., Run]) -> Callable[..., Run]:
    """Builds a small run whose groups are mixed."""

    def build(**changes: Any) -> Run:
        task = Parity(levels=(0, 1), held_out_per_level=3)
        return replace(small_run("trl", **changes), task=task)

    return build


@pytest.fixture
def stock_training(tmp_path: Path) -> Callable[..., tuple[list[float], dict[str, Any]]]:
    """Trains as a run would be, by TRL alone; returns the loss of every pass and the weights."""
    return lambda run, **settings: train_stock(run, tmp_path / "stock", **settings)


def train_stock(run: Run, folder: Path, **settings: Any) -> tuple[list[float], dict[str, Any]]:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    losses = []

    class Stock(GRPOTrainer):  # type: ignore[misc]
        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **named)
            losses.append(loss.item())
            return loss

    layout = run.backend.layout_of(run, 1)  # type: ignore[attr-defined]
    updates = layout.updates

    class Seed(TrainerCallback):  # type: ignore[misc]
        """Our rollouts are drawn by seed and step."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % updates == 0:
                step = state.global_step // updates + 1
                seed = torch_seed(run.seed, Stream.ROLLOUTS, step, args.process_index)
                torch.manual_seed(seed)

    problems = [
        problem
        for step in range(1, run.steps + 1)
        for problem in run.task.draw(
            run.prompts_per_step, numpy_generator(run.seed, Stream.PROMPTS, step)
        )
    ]

    def score(completions: list[str], **_: Any) -> list[float]:
        return run.task.score(problems[: len(completions)], completions).tolist()

    place = run.model.path  # type: ignore[attr-defined]
    given = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": run.steps * updates,
        "per_device_train_batch_size": layout.device_batch,
        "gradient_accumulation_steps": layout.passes,
        "steps_per_generation": layout.minibatches * layout.passes,
        "num_iterations": layout.inner_epochs,
        "num_generations": run.group_size,
        "max_completion_length": run.task.max_completion_length,  # type: ignore[attr-defined]
        "learning_rate": run.optimizer.lr,
        "lr_scheduler_type": "constant",
        "shuffle_dataset": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        **settings,
    }
    trainer = Stock(
        model=place,
        reward_funcs=score,
        args=GRPOConfig(**given),
        train_dataset=Dataset.from_dict({"prompt": [problem.prompt for problem in problems]}),
        processing_class=AutoTokenizer.from_pretrained(place, padding_side="left"),
        callbacks=[Seed()],
    )
    trainer.train()
    return losses, dict(trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict())
