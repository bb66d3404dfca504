"""Searches and early stopping as a user starts them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from advsweep.cli.plans import plan_sweep
from advsweep.store import open_store

Advsweep = Callable[..., "subprocess.CompletedProcess[str]"]

QUICK = [
    *("executor=debug", "backend=fake", "steps=6", "prompts_per_step=4"),
    *("evaluation.n=4", "evaluation.k=[1,4]", "evaluation.every=0"),
]
SEARCH = [
    *("sweep", "--name=s", *QUICK, "search=optuna", "search.trials=2", "seed=0,1"),
    *("backend.learning_rate=tag(log,interval(0.01,8))", "group_size=choice(4,8)"),
]


@pytest.mark.slow
def test_a_search_ends_with_its_best(advsweep: Advsweep) -> None:
    planned = advsweep(*SEARCH, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines() == [
        "backend.learning_rate  0.01 to 8",
        "group_size             4, 8",
        "",
        "sweep s: search=optuna for pass@1 (higher), 2 trials of 2 runs each: 2 to come",
    ]
    planned = advsweep(*SEARCH, "--format=json")
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout)
    assert (found["done"], found["skipped"]) == (4, 0)
    best = found["best"][0]
    assert best["params"].keys() == {"backend.learning_rate", "group_size"}
    assert best["values"].keys() == {"pass@1"}
    again = advsweep(*SEARCH)
    assert "best of 2 trials, means over seeds:" in again.stderr
    assert f"trial {best['trial']}: " in again.stderr
    more = json.loads(advsweep(*SEARCH, "search.trials=3", "--dry-run", "--format=json").stdout)
    assert more["best"] == found["best"]
    assert [(t["trial"], t["state"]) for t in more["trials"]] == [(0, "done"), (1, "done")]
    assert (more["states"], more["to_come"], more["seeds"]) == ({"done": 2}, 1, [0, 1])
    assert more["dimensions"] == {
        "backend.learning_rate": {"kind": "numbers", "low": 0.01, "high": 8.0, "log": True},
        "group_size": {"kind": "choice", "values": [4, 8]},
    }
    shown = advsweep(*SEARCH, "--dry-run").stdout.splitlines()
    assert shown[3].split()[:4] == ["trial", "state", "pass@1", "point"]
    assert shown[4].split()[:2] == ["1", "done"]
    assert shown[-3].endswith("2 trials of 2 runs each: 2 done")
    assert shown[-2] == "best of 2 trials, means over seeds:"
    refused = advsweep(*SEARCH, "--force")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--force: a search or a tuned sweep always resumes" in refused.stderr


def test_a_trial_without_results_has_none_in_any_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = "search.metrics={pass@1:higher,entropy/answer:higher}"
    planned = plan_sweep([*QUICK, *SEARCH[2 + len(QUICK) :], two], [], "s", fetch=False)
    params = {"backend.learning_rate": 0.5, "group_size": 4}
    with open_store(str(tmp_path / "a.db")) as store:
        store.sweeps.add("s", {})
        config_hash = planned.study.plan(params).runs[0].run.config_hash
        store.trials.add("s", 0, params, config_hash)
    planned.print(str(tmp_path / "a.db"), 2, force=False, as_json=False)
    table = capsys.readouterr().out.splitlines()
    assert table[3].split() == ["trial", "state", "pass@1", "entropy/answer", "point"]
    assert table[4].split() == ["0", "open", "backend.learning_rate=0.5", "group_size=4"]
    assert table[-1].endswith(": 1 open, 1 to come")
    planned.print(str(tmp_path / "a.db"), 2, force=False, as_json=True)
    [trial] = json.loads(capsys.readouterr().out)["trials"]
    assert trial == {"trial": 0, "params": params, "values": {}, "state": "open"}
