"""How a store stands: speeds, what is left, and why runs failed."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import pytest

from advsweep.cli.commands import status as status_command
from advsweep.names import COLLAPSED, EVALUATION_SECONDS, TRAINING_SECONDS
from advsweep.store import Owner, Status
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.status import LOST_REASON, read_status
from advsweep.sweep.worker.environment import describe_environment
from advsweep.sweep.worker.run import record_collapse


def test_the_speed_is_that_of_the_newest_steps(plan, store):
    execute(plan("backend.fail_at=3"), store)
    [run] = store.runs.select()
    store.leases.claim(run.id, Owner.current())
    store.metrics.truncate(run.id, after_step=0)
    # 0.3 + 0.1 s a step, of which there are 20; three are done.
    points = [("time/rollout", s, 0.3) for s in (1, 2, 3)]
    store.metrics.record(run.id, points + [("time/update", s, 0.1) for s in (1, 2, 3)])
    store.leases.heartbeat(run.id, step=3, stage="training")
    [running] = read_status(store, failures=9).running
    assert running["steps_per_second"] == pytest.approx(2.5)
    # Each of the 17 steps that are left takes .5 s with all that is around it; the evaluations
    # after step 10 and at the end take 2 s each; the base is evaluated.
    rates = {TRAINING_SECONDS: 0.5, EVALUATION_SECONDS: 2 / run.config["evaluation"]["n"]}
    store.metrics.set_summaries(run.id, rates)
    [running] = read_status(store, failures=9).running
    assert running["seconds_left"] == pytest.approx(12.5)
    assert (running["step"], running["stage"], running["pid"]) == (
        3,
        "training",
        Owner.current().pid,
    )
    assert 0 <= running["heartbeat_age"] < 60


def test_what_a_store_says_of_a_running_run_is_bounded(plan, store):
    """An imported store may have stages of any length, and times that are none."""
    [planned] = schedule_runs(plan(name="foreign"), store, force=False)
    store.leases.claim(planned.run_id, Owner.current())
    stage = "loading \x1b[31m" * 100
    store.leases.heartbeat(planned.run_id, step=3, stage=stage)
    store.metrics.record(planned.run_id, [("time/update", s, -0.4) for s in (1, 2, 3)])
    standing = read_status(store, "foreign", failures=9)
    [running] = standing.running
    assert running["steps_per_second"] is None
    assert running["stage"] == stage
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status_command._print_status(store, "foreign", standing)
    row = printed.getvalue().splitlines()[-1]
    assert "loading \\x1b[31mloading" in row
    assert "…" in row
    assert len(row) < 200
    # Of times and others the times count.
    store.metrics.record(planned.run_id, [("time/update", 4, 0.5)], step=4)
    [running] = read_status(store, "foreign", failures=9).running
    assert running["steps_per_second"] == 2


def test_a_collapsed_training_is_recorded_and_counted(plan, store):
    ids = [run.run_id for run in schedule_runs(plan("seed=0,1", "steps=40"), store, force=False)]
    onsets = []
    for run_id, low in zip(ids, (0.1, 0.3), strict=True):
        assert store.leases.claim(run_id, Owner.current())
        rewards = [0.4] * 20 + [low] * 20
        points = [("reward/mean", step, value) for step, value in enumerate(rewards, start=1)]
        points += [("collapse/all_wrong", step, 1 - v) for step, v in enumerate(rewards, start=1)]
        store.metrics.record(run_id, points, step=40)
        [record] = store.runs.select(ids=[run_id])
        record_collapse(store, record)
        store.leases.finish(run_id, Status.DONE)
        onsets.append(store.metrics.series([run_id], "collapse/onset"))
    detected = store.metrics.series(ids, COLLAPSED)
    # Of the first, .4 - .03 k is above .2 up to the window that ends at step 26.
    assert [curve[1].tolist() for curve in detected.values()] == [[1.0], [0.0]]
    assert [curve[0].tolist() for curve in detected.values()] == [[40], [40]]
    assert [{i: v.tolist() for i, (_, v) in found.items()} for found in onsets] == [
        {ids[0]: [26.0]},
        {},
    ]
    assert read_status(store, failures=9).collapsed == [ids[0]]


def test_failures_say_why_lost_ones_first(plan, store):
    execute(plan("seed=0,1", "backend.fail_at=3", name="failing"), store)
    store.leases.claim(1, replace(Owner.current(), started=-1.0))
    standing = read_status(store, "failing", failures=9)
    assert [(f.id, f.status) for f in standing.failures] == [(1, Status.LOST), (2, Status.FAILED)]
    assert standing.failures[0].error == LOST_REASON
    assert standing.failures[1].error.startswith("RuntimeError: step 3 fails")
    assert standing.runs == 2
    assert [f.id for f in read_status(store, failures=1).failures] == [1]


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (60, "run estimator step left stage seed"),
        (80, "run estimator step left stage seed steps/s heartbeat"),
    ],
)
def test_a_narrow_terminal_wraps_no_line_and_cuts_no_word(plan, store, monkeypatch, columns, heads):
    arms = plan("estimator=reinforce_pp_baseline", "seed=0,1,2", name="narrow")
    first, second, _ = (run.run_id for run in schedule_runs(arms, store, force=False))
    for run_id in (first, second):
        store.leases.claim(run_id, Owner.current())
    store.leases.finish(second, Status.FAILED, error="CUDA out of memory " * 6)
    store.metrics.record(first, [("time/update", step, 0.4) for step in range(1, 6)])
    store.leases.heartbeat(first, step=5, stage="training")
    store.metrics.set_summaries(first, {TRAINING_SECONDS: 0.4, EVALUATION_SECONDS: 0.0})
    store.runs.set_environment(first, describe_environment())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    with contextlib.redirect_stdout(status_command._Screen()) as screen:
        status_command._print_status(store, "narrow", read_status(store, "narrow", failures=9))
    status, bar, *failure, empty, titles, row = screen.getvalue().splitlines()
    assert status == "sweep narrow: 3 runs, 1 pending, 1 running, 1 failed"
    # 5 of 3 x 20 steps, as the failed run has no checkpoint; those of the other two take .4 s each.
    assert bar == "[=           ] 5 of 60 steps, about 14 s left"
    start = "run 2 (reinforce_pp_baseline seed=1) failed at step 0/20: "
    assert " ".join(" ".join(failure).split()) == start + " ".join(["CUDA out of memory"] * 6)
    assert empty == ""
    assert titles.split() == heads.split()
    assert row.split()[:7] == ["1", "reinforce_pp_baseline", "5/20", "6", "s", "training", "0"]
    assert max(map(len, (status, bar, *failure, titles.rstrip(), row.rstrip()))) <= columns
