"""Sweeps whose seeds draw problems of their own out of data: `task.seed=seed`."""

from __future__ import annotations

import json

import pytest

from advsweep.errors import ConfigError
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.store import Status, open_store
from advsweep.sweep.events import DONE, STOPPED
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.worker.environment import new_run
from advsweep.sweep.worker.main import work_on
from advsweep.tasks.base import Split
from tests.sweep.helpers import in_step, points_of, terminate

QUICK = [
    *("backend=fake", "executor=debug", "steps=4", "prompts_per_step=4", "evaluation.n=2"),
    *("evaluation.k=[1]", "evaluation.every=0", "backend.checkpoint_every=2"),
    *("task=file", "task.held_out=6", "task.train=8", "task.verifier=numeric", "task.seed=seed"),
]


@pytest.fixture
def data(tmp_path):
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(20)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def plan(data, *overrides, name="drawn"):
    return make_plan([*QUICK, f"task.data={data}", *overrides], name=name)


def evaluated_of(store):
    """Return the evaluated problems of each run by seed and estimator, base and end alike."""
    problems = {}
    for run in store.runs.select():
        ids = {e.problem_ids for e in store.evaluations.select([run.id])}
        assert len(ids) == 1
        problems[run.seed, run.estimator] = ids.pop()
    return problems


def test_arms_share_the_problems_of_a_seed_and_seeds_the_row(data, store):
    arms = "estimator=grpo,rloo"
    # In pieces, seed by seed: they add up to one sweep.
    for seeds in ("seed=0", "seed=0,1", "seed=2"):
        assert execute(plan(data, arms, seeds), store).exit_code == 0
    problems = evaluated_of(store)
    assert len(problems) == 6
    for seed in range(3):
        assert problems[seed, "grpo"] == problems[seed, "rloo"]
    assert len({problems[seed, "grpo"] for seed in range(3)}) == 3
    data.unlink()  # a report needs no data
    report = build_report(store, ReportRequest("drawn", columns=["pass@1"]))
    trained = {row.group["estimator"]: row.seeds for row in report.rows if not row.is_untrained}
    assert trained == {"grpo": (0, 1, 2), "rloo": (0, 1, 2)}
    assert report.rows[0].seeds == (0, 1, 2)  # the base, on the problems of each


def test_an_interrupted_run_goes_on_with_the_problems_of_its_seed(
    data, store, tmp_path, monkeypatch
):
    [planned] = plan(data, "seed=1").runs
    new = new_run(planned.run, planned.config)
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    with open_store(str(folder / "advsweep.db")) as other:
        [undisturbed] = other.runs.add([new])
        assert work_on(other, [undisturbed], (), None) == DONE
        points = points_of(other, undisturbed)
    [interrupted] = store.runs.add([new])
    in_step(monkeypatch, 3, terminate, seed=1)
    assert work_on(store, [interrupted], (), None) == STOPPED
    [stopped] = store.runs.select()
    assert stopped.status is Status.INTERRUPTED
    assert work_on(store, [interrupted], (), None) == DONE
    assert points_of(store, interrupted) == points
    held_out = tuple(problem.id for problem in planned.run.task.problems(Split.HELD_OUT))
    assert evaluated_of(store) == {(1, planned.run.estimator.name): held_out}


def test_a_plan_with_more_problems_than_there_are_is_refused(data):
    with pytest.raises(ConfigError, match=r"^task\.train: expected at most the 14 training"):
        plan(data, "task.train=15")


def test_all_problems_are_of_the_identity(data):
    one = plan(data, "seed=0").runs[0].run
    other = plan(data, "seed=1").runs[0].run
    assert one.config_hash == other.config_hash
    assert one.identity != other.identity
    unused = {p.row for split in Split for p in one.task.problems(split)}
    row = next(number for number in range(1, 21) if number not in unused)
    rows = data.read_text(encoding="utf-8").splitlines()
    rows[row - 1] = json.dumps({"question": "What is 7 + 0?", "answer": "7"})
    data.write_text("\n".join(rows), encoding="utf-8")
    assert plan(data, "seed=0").runs[0].run.config_hash != one.config_hash
