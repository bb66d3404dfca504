"""How long it takes to plan and validate a sweep, beside Hydra composing each run.

    python benchmarks/bench_plan.py

Figures are CPU seconds of one thread; the target is 20 s for 10,000 runs.
"""

from __future__ import annotations

import time
from pathlib import Path

from hydra import compose, initialize_config_dir

from advsweep.config.directory import conf_directory
from advsweep.sweep.plan import make_plan

HYDRA_RUNS = 20

SWEEPS = {
    "one estimator, 10,000 runs": [
        "group_size=2,4,8,16",
        "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4",
        "seed=range(500)",
    ],
    "5 estimators x 4 group sizes x 5 rates x 100 seeds, 10,000 runs": [
        "estimator=grpo,fade,power_alpha,a_grae,rloo",
        "group_size=2,4,8,16",
        "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4",
        "seed=range(100)",
    ],
    "the demo, 15 runs": ["+experiment=demo"],
}


def hydra_seconds(directory: Path) -> float:
    """CPU seconds that Hydra needs to compose one run."""
    with initialize_config_dir(str(directory), version_base="1.3"):
        compose("config")
        started = time.process_time()
        for seed in range(HYDRA_RUNS):
            compose("config", ["estimator=fade", f"seed={seed}"])
        return (time.process_time() - started) / HYDRA_RUNS


def main() -> None:
    make_plan([], single=True)  # the imports
    print(f"{'plan':<66} {'CPU s':>8} {'ms/run':>8}")
    for name, overrides in SWEEPS.items():
        started = time.process_time()
        plan = make_plan(overrides)
        took = time.process_time() - started
        print(f"{name:<66} {took:8.2f} {took / len(plan.runs) * 1e3:8.2f}")
    each = hydra_seconds(conf_directory())
    print(f"{'Hydra composing 10,000 runs (extrapolated)':<66} {each * 1e4:8.0f} {each * 1e3:8.2f}")


if __name__ == "__main__":
    main()
