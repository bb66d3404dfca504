"""How long it takes to plan and validate a sweep, beside Hydra composing each run.

    python benchmarks/bench_plan.py

Figures are CPU seconds of one thread; the target is 20 s for 10,000 runs. `looked up` is what
`advsweep plan` does after planning: finding all runs in a store that has them, and naming them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hydra import compose, initialize_config_dir

from advsweep.config.directory import conf_directory
from advsweep.store import NewRun, Store, open_store
from advsweep.sweep.estimate import estimate
from advsweep.sweep.labels import config_labels
from advsweep.sweep.plan import Plan, make_plan

HYDRA_RUNS = 20

SWEEPS = {
    "one estimator": [
        "group_size=2,4,8,16",
        "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4",
        "seed=range(500)",
    ],
    "5 estimators x 4 group sizes x 5 rates x 100 seeds": [
        "estimator=grpo,fade,power_alpha,a_grae,rloo",
        "group_size=2,4,8,16",
        "optimizer.lr=1e-4,2e-4,3e-4,4e-4,5e-4",
        "seed=range(100)",
    ],
    "4 blocks with zipped values and conditions, 264 seeds": [
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


def filled_store(plan: Plan, folder: str) -> Store:
    """A store that has all runs of a plan."""
    store = open_store(f"{folder}/advsweep.db")
    new = [
        NewRun(
            identity=planned.run.identity,
            config_hash=planned.run.config_hash,
            seed=planned.run.seed,
            config=planned.config,
            steps=planned.run.steps,
            estimator=planned.run.estimator.name,
            backend=planned.run.backend.name,
        )
        for planned in plan.runs
    ]
    store.add_runs(new)
    return store


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
    print(f"{'plan':<54} {'runs':>6} {'CPU s':>6} {'ms/run':>7} {'looked up':>10}")
    for name, overrides in SWEEPS.items():
        started = time.process_time()
        plan = make_plan(overrides)
        took = time.process_time() - started
        with tempfile.TemporaryDirectory() as folder, filled_store(plan, folder) as store:
            started = time.process_time()
            estimate(plan, store, slots=1)
            config_labels(planned.config for planned in plan.runs)
            looked_up = time.process_time() - started
        runs = len(plan.runs)
        print(f"{name:<54} {runs:6} {took:6.2f} {took / runs * 1e3:7.2f} {looked_up:10.2f}")
    each = hydra_seconds(conf_directory())
    name = "Hydra composing each run (extrapolated)"
    print(f"{name:<54} {10_000:6} {each * 1e4:6.0f} {each * 1e3:7.2f}")


if __name__ == "__main__":
    main()
