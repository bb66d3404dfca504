"""Benchmark the tiny backend against TRL's GRPOTrainer on the same model, task and batch.

    python benchmarks/bench_tiny.py [countdown routes] [--steps 100] [--trl-steps 10]

Figures are of the machine at hand, in CPU seconds of one thread; a step is 64 prompts x 8
rollouts. On countdown it has two updates, and the targets are 8 steps per CPU second where
rollouts of advantage 0 are skipped, 5 times TRL's, and 1 GB of memory. On routes it has the
studies' eight updates (4 minibatches, 2 inner epochs); the targets are 0.2 CPU seconds per
step, 8 times TRL's steps, and 30 CPU seconds for the base model. A step has at least a third of
the rate of its largest matrix products. The loss of each objective takes at most 3 % of a step
more than that of `clipped`. TRL comes with the extra `bench`; without it its rows are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.update(
    {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
)

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.pretraining import pretrain
from advsweep.backends.tiny.sampling import TinySampler
from advsweep.backends.tiny.trainer import TinyTrainer
from advsweep.backends.tiny.weights import Weights, export_folder, flatten
from advsweep.config.validation import reported_problems
from advsweep.evaluation.evaluate import count
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs
from advsweep.statistics import pass_at_k
from advsweep.tasks.base import Problem

PROMPTS, GROUP = 64, 8
SETTINGS: dict[str, dict[str, Any]] = {
    "countdown": {"backend": {"minibatches": 2}},
    "routes": {
        "backend": {"minibatches": 4, "inner_epochs": 2},
        "optimizer": {"name": "adamw", "lr": 4e-4},
    },
}
WARM_UP = 3


def make_run(task: str, **backend: Any) -> Run:
    settings = SETTINGS[task]
    nodes = {
        "estimator": "grpo",
        "objective": "clipped",
        "rollout": "plain",
        "task": task,
        "model": {"name": "tiny", "pretraining_seed": 0},
        "optimizer": settings.get("optimizer", "adamw"),
        "generation": "sampling",
        "evaluation": "standard",
        "backend": {"name": "tiny", **settings["backend"], **backend},
    }
    numbers = {"group_size": GROUP, "prompts_per_step": PROMPTS, "steps": 1000, "seed": 0}
    return build_run({**nodes, **numbers})


def train(run: Run, base: Weights, steps: int) -> tuple[float, list[float]]:
    """Returns CPU seconds per step and the mean reward of each step."""
    trainer = TinyTrainer(run, run.backend, run.model, run.task, base)
    rewards = [trainer.step(step)["reward/mean"] for step in range(1, WARM_UP + 1)]
    started = time.process_time()
    rewards += [
        trainer.step(step)["reward/mean"] for step in range(WARM_UP + 1, WARM_UP + steps + 1)
    ]
    return (time.process_time() - started) / steps, rewards


def train_with_trl(run: Run, folder: Path, steps: int) -> tuple[float, list[float]]:
    """Returns the same for TRL on an export of the same weights."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    problems: list[Problem] = []
    for step in range(steps + WARM_UP):
        problems += run.task.draw(PROMPTS, np.random.default_rng(step))
    minibatches, epochs = run.backend.minibatches, run.backend.inner_epochs
    updates = minibatches * epochs
    rewards: list[float] = []
    ends: list[float] = []

    def score(completions: list[str], problem: list[int], **_: Any) -> list[float]:
        scores = run.task.score([problems[i] for i in problem], completions)
        rewards.append(float(scores.mean()))
        return list(scores)

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.process_time())

    rows = {"prompt": [p.prompt for p in problems], "problem": list(range(len(problems)))}
    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=PROMPTS * GROUP // minibatches,
        steps_per_generation=minibatches,
        num_iterations=epochs,
        num_generations=GROUP,
        max_steps=(steps + WARM_UP) * updates,
        max_completion_length=run.task.max_completion_length,
        temperature=run.generation.temperature,
        learning_rate=run.optimizer.lr,
        lr_scheduler_type="constant",
        max_grad_norm=run.optimizer.max_grad_norm,
        beta=0.0,
        epsilon=0.2,
        loss_type="grpo",
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        logging_steps=updates,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=str(folder / "hf"),
        reward_funcs=score,
        args=settings,
        train_dataset=Dataset.from_dict(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "hf"),
        callbacks=[Clock()],
    )
    with contextlib.redirect_stdout(None):
        trainer.train()
    return (ends[-1] - ends[WARM_UP * updates - 1]) / steps, rewards


def loss_seconds(name: str, updates: int, steps: int = 50) -> float:
    """Returns CPU seconds per step of an objective's loss and gradient, without the network."""
    objective = OBJECTIVES.build(name)
    rows, width = PROMPTS * GROUP // updates, 16
    old = -torch.rand(rows, width)
    inputs = LossInputs(
        log_probs=(old + 0.1 * torch.randn(rows, width)).requires_grad_(),
        old_log_probs=old,
        completion_mask=torch.ones(rows, width, dtype=torch.bool),
        advantages=torch.randn(rows),
        rollouts=rows,
        tokens=rows * width,
    )
    started = time.process_time()
    for _ in range(steps * updates):
        torch.autograd.backward(objective.loss(inputs).loss)
    return (time.process_time() - started) / steps


def matrix_rate(model: TinyModel) -> float:
    """Returns floating-point operations per second of the network's largest products."""
    x, matrix = torch.randn(512, model.width), torch.randn(model.width, 2 * model.mlp_width)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(100):
            x @ matrix
        seconds.append(time.perf_counter() - started)
    return 200 * x.shape[0] * matrix.numel() / min(seconds)


def operations(run: Run, base: Weights, steps: int) -> float:
    """Returns the floating-point operations of a step, by torch's counter."""
    trainer = TinyTrainer(run, run.backend, run.model, run.task, base)
    with FlopCounterMode(display=False) as counter:
        for step in range(1, steps + 1):
            trainer.step(step)
    return counter.get_total_flops() / steps


def show(what: str, figure: str) -> None:
    print(f"{what:<52}{figure}", flush=True)


def first_and_last(rewards: Sequence[float]) -> str:
    return f"{np.mean(rewards[:5]):.2f}, {np.mean(rewards[-5:]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the tiny backend costs.")
    parser.add_argument("tasks", nargs="*", default=[*SETTINGS], help="countdown, routes or both")
    parser.add_argument("--steps", type=int, default=100, help="steps of ours that are timed")
    parser.add_argument("--trl-steps", type=int, default=10, help="steps of TRL's that are timed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in arguments.tasks:
        print(f"-- {task}")
        measure(task, arguments.steps, arguments.trl_steps)


def measure(task: str, steps: int, trl_steps: int) -> None:
    run = make_run(task)
    started = time.process_time()
    base = pretrain(run.model, run.task)
    show("pretraining of the base model", f"{time.process_time() - started:.0f} s")

    started = time.process_time()
    sampler, settings = TinySampler(flatten(base, run.model), run.model, run.task), run.evaluation
    problems = reported_problems(run.task, settings)
    results = count(sampler, run.task, settings, problems, settings.seed)
    seconds = time.process_time() - started
    show(f"evaluation, {len(results)} problems x {run.evaluation.n} samples", f"{seconds:.1f} s")
    n, c = (np.array([getattr(r.counts, name) for r in results]) for name in ("n", "c"))
    for k in run.evaluation.k:
        show(f"base pass@{k}", f"{np.mean(pass_at_k(n, c, k)):.3f}")

    whole, _ = train(make_run(task, skip_zero_advantages=False), base, steps)
    show("training, every rollout computed", f"{1 / whole:.1f} steps/s")
    ours, rewards = train(run, base, steps)
    show("training, rollouts of advantage 0 skipped", f"{1 / ours:.1f} steps/s")
    show("  mean reward, first and last 5 steps", first_and_last(rewards))
    speed = operations(run, base, WARM_UP + steps) / ours
    show("  floating-point operations", f"{speed / 1e9:.0f} GFLOP/s")
    show("  of the core's matrix rate", f"{speed / matrix_rate(run.model):.0%}")
    updates = run.backend.minibatches * run.backend.inner_epochs
    clipped = min(loss_seconds("clipped", updates) for _ in range(5))
    for name in OBJECTIVES.names():
        more = min(loss_seconds(name, updates) for _ in range(5)) - clipped
        show(f"  {name}, more than clipped", f"{more / ours:.1%} of a step")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    show("peak memory", f"{peak:.0f} MB")

    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed; it comes with the extra bench: pip install '.[bench]'")
        return
    with tempfile.TemporaryDirectory() as folder:
        export_folder(Path(folder) / "hf", base, run.model, run.task, temperature=1.0)
        theirs, rewards = train_with_trl(run, Path(folder), trl_steps)
    show("TRL's GRPOTrainer, the same batch and base", f"{1 / theirs:.2f} steps/s")
    show("  mean reward, first and last 5 steps", first_and_last(rewards))
    beside, _ = train(run, base, trl_steps)
    show("the tiny backend over as many steps", f"{1 / beside:.1f} steps/s")
    show("ratio", f"{theirs / beside:.1f}")


if __name__ == "__main__":
    main()
