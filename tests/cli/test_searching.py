"""Searches and early stopping as a user starts them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

Advsweep = Callable[..., "subprocess.CompletedProcess[str]"]

QUICK = [
    *("executor=debug", "backend=fake", "steps=6", "prompts_per_step=4"),
    *("evaluation.n=4", "evaluation.k=[1,4]", "evaluation.every=0"),
]
SEARCH = [
    *("sweep", "--name=s", *QUICK, "search=optuna", "search.trials=2", "seed=0,1"),
    *("backend.learning_rate=tag(log,interval(0.01,8))", "group_size=choice(4,8)"),
]


def test_a_search_ends_with_its_best(advsweep: Advsweep) -> None:
    planned = advsweep(*SEARCH, "--dry-run")
    assert planned.stdout == (
        "backend.learning_rate: 0.01 to 8, on a log scale\n"
        "group_size: one of 4, 8\n"
        "sweep s: 2 trials of 2 runs each\n"
    )
    told = advsweep(*SEARCH, "--format=json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["done"], found["skipped"]) == (4, 0)
    best = found["best"][0]
    assert best["params"].keys() == {"backend.learning_rate", "group_size"}
    assert best["values"].keys() == {"pass@1"}
    again = advsweep(*SEARCH)
    assert "best of 2 trials, means over seeds:" in again.stderr
    assert f"trial {best['trial']}: " in again.stderr
    refused = advsweep(*SEARCH, "--force")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--force: a search goes on where it was" in refused.stderr


def test_pruned_runs_are_told_of(advsweep: Advsweep) -> None:
    rule = ("stopping=acr", "stopping.first=3", "stopping.threshold=1e-9", "stopping.runs=0")
    swept = advsweep("sweep", "--name=p", *QUICK, *rule)
    assert swept.returncode == 0, swept.stderr
    assert "sweep p: 0 done, 1 pruned of 1 runs\n  run 1 pruned: ACR over the" in swept.stderr
    listed = advsweep("ls", "--status=pruned", "--format=json")
    assert [run["step"] for run in json.loads(listed.stdout)] == [3]
