"""The commands over a finished sweep: what they print for people and for programs."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import FAKE

IN_PROCESS = [*FAKE, "executor=debug"]


def test_ls_as_json_has_what_scripts_need(finished):
    runs = json.loads(finished("ls", "two", "--format", "json").stdout)
    assert len(runs) == 6
    for run in runs:
        assert run["sweep"] == "two"
        assert run["status"] == "done"
        assert run["step"] == run["steps"] == 12
        assert run["config"]["estimator"]["name"] == run["estimator"]
        assert run["config"]["seed"] == run["seed"]
        assert {"group_size", "steps", "backend", "task", "model"} <= run["config"].keys()
    assert len({r["identity"] for r in runs}) == 6


def test_ls_filters(finished):
    assert json.loads(finished("ls", "--status", "failed", "--format", "json").stdout) == []
    assert len(json.loads(finished("ls", "--limit", "2", "--format", "json").stdout)) == 2
    nothing = finished("ls", "--status", "failed")
    assert (nothing.stdout, nothing.stderr.strip()) == ("", "No runs found.")
    assert "failed" in finished("ls", "--status", "faled").stderr


def test_show_has_the_whole_record(finished):
    record = json.loads(finished("show", "last", "--format", "json").stdout)
    assert record["status"] == "done"
    assert record["config"]["backend"]["name"] == "fake"
    assert "reward/mean" in record["metrics"]
    assert [e["step"] for e in record["evaluations"]] == [0, 6, 12]
    for evaluation in record["evaluations"]:
        assert all(0 <= p["c"] <= p["n"] == 16 for p in evaluation["problems"])
        rates = [p["c"] / p["n"] for p in evaluation["problems"]]
        assert evaluation["scores"]["pass@1"] == pytest.approx(sum(rates) / len(rates))
    same = json.loads(finished("show", record["identity"][:8], "--format", "json").stdout)
    assert same["id"] == record["id"]


def test_an_unknown_run_or_sweep_is_refused(finished):
    for command in (["show", "77"], ["logs", "ffff0000"], ["report", "tow"], ["ls", "tow"]):
        done = finished(*command)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert "Traceback" not in done.stderr
    assert "done" in finished("logs", "1").stdout


def test_what_is_done_is_not_repeated_unless_forced(advsweep):
    first = json.loads(advsweep("run", "--format", "json", *IN_PROCESS).stdout)
    again = json.loads(advsweep("run", "--format", "json", *IN_PROCESS).stdout)
    assert again["id"] == first["id"]
    assert again["started"] == first["started"]
    forced = json.loads(advsweep("run", "--force", "--format", "json", *IN_PROCESS).stdout)
    assert forced["identity"] == first["identity"]
    assert forced["attempt"] == 2
    assert forced["id"] != first["id"]


def test_a_run_that_learned_nothing_is_named(advsweep):
    # One group of two in each of two steps: both rewards are equal with seed 0, not with seed 2.
    small = ["backend=fake", "executor=debug", "steps=2", "prompts_per_step=1", "group_size=2"]
    small += ["evaluation.n=1"]
    done = advsweep("run", *small)
    [line] = [line for line in done.stdout.splitlines() if "was learned" in line]
    assert line.startswith("run 1: nothing was learned: the rewards were equal within every group")
    assert line.endswith("`advsweep samples 1` shows what the model wrote")
    assert line in advsweep("show", "1").stdout.splitlines()
    swept = advsweep("sweep", "seed=0,1,2", *small, "--name", "few")
    assert [line for line in swept.stderr.splitlines() if "was learned" in line] == [
        line.replace("run 1", "runs 1-2")
    ]
