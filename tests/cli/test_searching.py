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
    planned = advsweep("plan", *SEARCH[1:])
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines() == [
        "searched over          kind     from       scale",
        "backend.learning_rate  numbers  0.01 to 8  log",
        "group_size             choice   4, 8",
        "",
        "sweep s: search=optuna for pass@1 (higher), 2 trials of 2 runs each: 2 to come",
        "24 steps left; no earlier run of this shape tells how long they take",
    ]
    assert advsweep(*SEARCH, "--dry-run").stdout == planned.stdout
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
    more = json.loads(advsweep("plan", *SEARCH[1:], "search.trials=3", "--format=json").stdout)
    assert more["best"] == found["best"]
    assert [(t["trial"], t["state"]) for t in more["trials"]] == [(0, "done"), (1, "done")]
    assert (more["states"], more["to_come"], more["seeds"]) == ({"done": 2}, 1, [0, 1])
    assert more["dimensions"] == {
        "backend.learning_rate": {"kind": "numbers", "low": 0.01, "high": 8.0, "log": True},
        "group_size": {"kind": "choice", "values": [4, 8]},
    }
    assert (more["steps_left"], more["sources"], more["untold"]) == (12, 4, 0)
    shown = advsweep("plan", *SEARCH[1:]).stdout.splitlines()
    assert shown[4].split()[:4] == ["trial", "state", "pass@1", "point"]
    assert shown[5].split()[:2] == ["0", "done"]
    assert shown[-4].endswith("2 trials of 2 runs each: 2 done")
    assert shown[-3] == "best of 2 trials, means over seeds:"
    assert shown[-1] == "no steps left"
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
