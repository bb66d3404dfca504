"""Benchmark the bandit backend: runs trained together, and the same runs one by one.

    python benchmarks/bench_bandit.py [--steps 300] [--alone 5]

Figures are of the machine at hand, in CPU seconds of one thread. A step is 64 prompts with 256
behaviours each; nothing is written but the last checkpoints. The targets are 12,000 steps of runs
per CPU second with groups of 8, 30 CPU seconds for 735 runs with 300 steps such as those of
`+experiment=avspo/acr_predicts`, and 1 GB of memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.update({"OMP_NUM_THREADS": "1"})

import torch
from figures import head, show

from advsweep.backends.bandit.backend import BanditBackend
from advsweep.backends.bandit.stack import BanditStack
from advsweep.backends.base import Run, StackMember
from advsweep.backends.build import build_run
from advsweep.backends.reporter import SilentReporter

PROMPTS, BEHAVIOURS = 64, 256
ABILITIES = (-1.9, -0.2, 0.0, 1.2, 1.5)
LEVELS = range(7)
GROUP_SIZES = (2, 3, 4, 6, 8, 12, 16)
SEEDS = range(3)
REPEATS = 5
STEPS = 300
WARM_UP = 10


def make_run(
    steps: int,
    seed: int,
    group_size: int = 8,
    metrics_every: int = 1,
    **task: Any,
) -> Run:
    task = {
        "name": "bandit",
        "levels": [3],
        "prompts_per_level": PROMPTS,
        "behaviours": BEHAVIOURS,
        **task,
    }
    return build_run(
        {
            "estimator": "grpo",
            "objective": "clipped",
            "rollout": "plain",
            "task": task,
            "model": "table",
            "optimizer": {"name": "sgd", "lr": 50.0},
            "generation": "sampling",
            "evaluation": {"name": "standard", "every": 0},
            "backend": {
                "name": "bandit",
                "checkpoint_every": 0,
                "exact_every": 0,
                "metrics_every": metrics_every,
            },
            "group_size": group_size,
            "prompts_per_step": PROMPTS,
            "steps": steps,
            "seed": seed,
        }
    )


def stacks(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Returns runs as a sweep batches them: runs of equal group size together."""
    for _, same in itertools.groupby(runs, lambda run: run.group_size):
        alike = list(same)
        size = alike[0].backend.stack_size()
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def train(together: Sequence[Sequence[Run]]) -> float:
    """Returns the CPU seconds of training stacks of runs one after another."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        for stack in together:
            members = [
                StackMember(run, Path(folder) / run.identity, SilentReporter()) for run in stack
            ]
            stack[0].backend.train_together(members)
        return time.process_time() - started


def step(runs: Sequence[Run], steps: int) -> float:
    """Returns the CPU seconds of the steps of a stack, without setup and teardown."""
    backend = runs[0].backend
    assert isinstance(backend, BanditBackend)
    stack = BanditStack(runs, backend)
    for number in range(1, WARM_UP + 1):
        stack.step(number)
    started = time.process_time()
    for number in range(WARM_UP + 1, WARM_UP + steps + 1):
        stack.step(number)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description="What the bandit backend costs.")
    parser.add_argument("--steps", type=int, default=300, help="of each of the 735 runs")
    parser.add_argument("--alone", type=int, default=5, help="runs of each 105 trained one by one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train([[make_run(20, 0)]])
    head("run-steps/s")
    for every, what in ((1, "all metrics"), (10, "most metrics every 10 steps")):
        runs = [make_run(STEPS, seed, metrics_every=every) for seed in range(64)]
        figures = [
            (
                len(runs) * STEPS / step(runs, STEPS),
                len(runs) * STEPS / train([runs]),
                3 * STEPS / train([[run] for run in runs[:3]]),
            )
            for _ in range(REPEATS)
        ]
        steps, whole, alone = map(statistics.median, zip(*figures, strict=True))
        show(f"64 runs, {what}: steps", f"{steps:,.0f}", "12,000")
        show("  with making and saving them", f"{whole:,.0f}", "", f"{alone:,.0f}", "one by one")
        show("  times as many", f"{whole / alone:.1f}")

    head("CPU s")
    grid = [
        make_run(arguments.steps, seed, size, metrics_every=10, levels=[level], ability=ability)
        for size, level, ability, seed in itertools.product(GROUP_SIZES, LEVELS, ABILITIES, SEEDS)
    ]
    seconds = train(list(stacks(grid)))
    chosen = grid[:: len(ABILITIES) * len(LEVELS) * len(SEEDS) // arguments.alone]
    slowly = train([[run] for run in chosen]) * len(grid) / len(chosen)
    peer = f"one by one, from {len(chosen)} of them"
    show(
        f"{len(grid)} runs x {arguments.steps} steps", f"{seconds:.1f}", "30", f"{slowly:.0f}", peer
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    show("  peak memory, MB", f"{peak:.0f}", "1,000")


if __name__ == "__main__":
    main()
