"""Benchmark planning and validating a sweep, compared with Hydra composing each run.

    python benchmarks/bench_plan.py

Figures are CPU seconds of one thread. `looked up` is what `sweep --dry-run` does after planning:
finding all runs in a store that has them, and naming them. `memory` is what the process holds
more than before, by its resident pages. Hydra's figure is of a few runs that
it composes, times the number of runs.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from figures import head, show
from hydra import compose

from advsweep.store import open_store
from advsweep.sweep.labels import config_labels
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import config_groups
from advsweep.sweep.scheduler.runs import schedule_runs

HYDRA_RUNS = 20
TARGET = 20.0

SWEEPS = {
    "one estimator": [
        "group_size=2,4,8,16",
        "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4",
        "seed=range(500)",
    ],
    "5 estimators": [
        "estimator=grpo,fade,power_alpha,a_grae,rloo",
        "group_size=2,4,8,16",
        "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4",
        "seed=range(100)",
    ],
    "4 blocks, zipped values, conditions": [
        "sweep.seeds=264",
        "sweep.common={group_size:[2,4,8,16]}",
        "sweep.blocks=[{estimator:grpo},{estimator:power_alpha,estimator.alpha:[1,2,3]},"
        "{estimator:asym_grpo,estimator.delta:[0.3,0.5,2],"
        "when:[{if:{group_size:16},optimizer.lr:[1e-4,3e-4]}],"
        "exclude:[{group_size:2,estimator.delta:2}]},"
        "{estimator:fade,zip:{estimator.h_star:[0.3,0.5],optimizer.lr:[1e-4,3e-4]}}]",
    ],
    "the demo": ["+experiment=demo"],
}


def hydra_seconds() -> float:
    """Returns the CPU seconds that Hydra needs to compose one run."""
    with config_groups():
        compose("config")
        started = time.process_time()
        for seed in range(HYDRA_RUNS):
            compose("config", ["estimator=fade", f"seed={seed}"])
        return (time.process_time() - started) / HYDRA_RUNS


def held_bytes() -> int:
    """Returns the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    make_plan([], single=True)  # the imports
    head("CPU s")
    before = held_bytes()
    plan = make_plan(SWEEPS["5 estimators"])
    each_holds = (held_bytes() - before) / len(plan.runs) / 1000
    show("memory of a plan, kB a run", f"{each_holds:.1f}", "5")
    del plan
    each = hydra_seconds()
    for name, overrides in SWEEPS.items():
        started = time.process_time()
        plan = make_plan(overrides)
        took = time.process_time() - started
        runs = len(plan.runs)
        target = f"{TARGET:.0f}" if runs >= 10_000 else ""
        peer = (f"{each * runs:.0f}", f"Hydra composing each ({took / (each * runs):.1%} of it)")
        show(f"{runs:,} runs: {name}", f"{took:.2f}", target, *peer)
        with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/runs.db") as store:
            schedule_runs(plan, store, force=False)
            started = time.process_time()
            estimate(plan, store, slots=1)
            config_labels(planned.config for planned in plan.runs)
            show("  looked up in a store", f"{time.process_time() - started:.2f}")


if __name__ == "__main__":
    main()
