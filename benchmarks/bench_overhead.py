"""Benchmark a nearly empty run, compared with empty jobs of Hydra's launchers.

    python benchmarks/bench_overhead.py

A row's CPU time is of all processes together, the worker, what starts it and the supervision;
what every sweep has once is subtracted by the difference of a larger and a smaller sweep. The
median of several.
A run of ours trains one step, evaluates twice and records all of it, in a worker that did others
before; a job of Hydra's calls an empty function in a process that is there already. joblib's
launcher comes with the extra `bench`; without it its row is left out.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figures import head, show

# The backend `fake` of the tests does next to nothing in a step.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "tests" / "installed")

REPEATS = 3
TARGET = "150"
SLOTS = 2
MANY = 300
SWEEP = [
    *(sys.executable, "-c", "from advsweep.cli import main; main()", "sweep", "-j", str(SLOTS)),
    *("backend=fake", "steps=1", "prompts_per_step=1", "group_size=2", "task.levels=[0]"),
    *("task.held_out_per_level=1", "task.train_per_level=10", "evaluation.n=1"),
    *("evaluation.k=[1]", "evaluation.every=0"),
]
APPLICATION = """
import hydra

@hydra.main(version_base="1.3", config_path=None)
def main(config):
    pass

main()
"""

Command = Callable[[int], list[str]]


def sweep(*overrides: str) -> Command:
    return lambda runs: [*SWEEP, f"seed=range({runs})", *overrides]


def hydra(*overrides: str) -> Command:
    return lambda jobs: [
        *(sys.executable, "-c", APPLICATION, "-m", f"+job=range({jobs})", *overrides)
    ]


def main() -> None:
    basic = per_run(hydra(), few=2, many=62)
    joblib = None
    if importlib.util.find_spec("joblib"):
        launcher = hydra("hydra/launcher=joblib", f"hydra.launcher.n_jobs={SLOTS}")
        joblib = per_run(launcher, few=2, many=62)
    head("CPU ms")
    peer = (f"{1000 * basic:.0f}", "a job of Hydra's basic launcher")
    show("a run", f"{1000 * per_run(sweep(), few=2, many=62):.0f}", TARGET, *peer)
    if joblib is not None:
        show("a job of Hydra's joblib launcher", f"{1000 * joblib:.0f}")
    cpu, wall = cost(sweep()(MANY))
    what = f"{MANY} runs through {SLOTS} slots, from nothing"
    show(what, f"{cpu:.1f} CPU s")
    show("  by the clock", f"{wall:.1f} s", "60 s")


def per_run(command: Command, few: int, many: int) -> float:
    """Returns the CPU seconds of one additional run."""
    return statistics.median(
        (cost(command(many))[0] - cost(command(few))[0]) / (many - few) for _ in range(REPEATS)
    )


def cost(command: list[str]) -> tuple[float, float]:
    """Returns CPU seconds of a command with its children, and wall-clock seconds."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = os.times(), time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        wall, after = time.perf_counter() - began, os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system, wall


if __name__ == "__main__":
    main()
