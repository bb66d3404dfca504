"""Search FADE's target entropy, the group size and the learning rate with Optuna's TPE sampler.

    pip install optuna
    python examples/search_with_optuna.py [TRIALS] [KEY=VALUE]...

A trial is one configuration with three seeds; its value is the mean of pass@1 over them. Started
again, the script suggests the same points in the same order, as they follow from SEED and from the
values before. advsweep repeats no run that is done, so a search that was killed is soon where it
was.

The best value of many trials is too good, since it was chosen for its luck, too: train the best
configuration on fresh seeds before it is compared with anything.
"""

from __future__ import annotations

import subprocess
import sys

import optuna

import advsweep

FIXED = ["task=countdown", "estimator=fade", "steps=100", "evaluation.every=0", "seed=0,1,2"]
SEED = 0


def value(trial: optuna.Trial, overrides: list[str]) -> float:
    """Train a trial's runs, as far as they are not in the store, and return their mean pass@1."""
    point = {
        "estimator.h_star": trial.suggest_float("h_star", 0.1, 0.9),
        "group_size": trial.suggest_categorical("group_size", [4, 8, 16]),
        "optimizer.lr": trial.suggest_float("lr", 1e-4, 1e-3, log=True),
    }
    name = f"search-{trial.number}"
    given = [f"{key}={number}" for key, number in point.items()]
    command = ["advsweep", "sweep", *FIXED, *given, *overrides, "--name", name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return float(advsweep.load_runs(sweep=name)["pass@1"].mean())


def main(trials: str = "20", *overrides: str) -> None:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
    study.optimize(lambda trial: value(trial, list(overrides)), n_trials=int(trials))
    print(f"best of {trials}: {study.best_params}, pass@1 {study.best_value:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
