"""Runs that are trained together: the same numbers as alone, and ends of their own."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import ClassVar

import advsweep_fake as fake
import pytest

from advsweep.backends.work_clock import WorkClock
from advsweep.errors import StoreError
from advsweep.store import Owner, Status, open_store
from advsweep.store.leases import Leases
from advsweep.sweep.events import DONE, RunEvent
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.stop_request import RunStopRequest
from advsweep.sweep.worker import environment, main
from advsweep.sweep.worker.environment import ProcessCosts
from advsweep.sweep.worker.main import work_on
from advsweep.sweep.worker.run import RunLogs
from tests.sweep.forked_workers import ForkingExecutor
from tests.sweep.helpers import in_step, points_of, run, terminate

STACK = ("backend.stack=8", "seed=0,1,2")


def measured(store, record):
    """All that a run leaves behind, but for times."""
    folders = sorted((record.directory / "checkpoints").glob("step-*"))
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    return {
        "points": points_of(store, record.id),
        "evaluations": [
            (e.identity, e.step, e.settings, e.n.tolist(), e.c.tolist(), e.distinct.tolist())
            for e in store.evaluations.select([record.id])
        ],
        "checkpoints": {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files},
    }


def all_measured(store):
    """By identity, of all runs that are done."""
    return {r.identity: measured(store, r) for r in store.runs.select(status=Status.DONE)}


@pytest.fixture(scope="module")
def alone(plan, tmp_path_factory):
    """What three seeds measure one after another."""
    directory = tmp_path_factory.mktemp("alone")
    with open_store(str(directory / "advsweep.db")) as store:
        assert execute(plan("seed=0,1,2"), store).done == 3
        return all_measured(store)


def kinds(events):
    return [(e.run.id, e.kind.value) for e in events if isinstance(e, RunEvent)]


@pytest.mark.slow
def test_they_get_the_numbers_that_they_get_alone(plan, store, alone):
    outcome, events = run(plan(*STACK), store)
    assert outcome.done == 3
    # All start before any ends: it was one worker that had them.
    assert [kind for _, kind in kinds(events)] == ["started"] * 3 + ["done"] * 3
    assert all_measured(store) == alone
    assert all(measured["checkpoints"] for measured in alone.values())


@pytest.mark.slow
def test_bandits_that_differ_in_all_they_may_are_as_they_are_alone(store, tmp_path):
    bandits = (
        *("executor=debug", "evaluation.n=4", "evaluation.k=[1]", "prompts_per_step=20"),
        *("backend=bandit", "model=table", "task=bandit", "optimizer=sgd", "steps=6"),
        *("estimator=grpo,fade", "group_size=4,8", "optimizer.lr=10,50", "task.spread=1,2"),
    )
    with open_store(str(tmp_path / "alone.db")) as other:
        run(make_plan([*bandits, "backend.stack=1"]), other)
        expected = all_measured(other)
    outcome, events = run(make_plan(bandits), store)
    assert outcome.done == 16
    # Those of one group size are trained together.
    assert [kind for _, kind in kinds(events)] == (["started"] * 8 + ["done"] * 8) * 2
    assert all_measured(store) == expected


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["fail_at", "nan_at", "leave_at"])
def test_a_failing_run_does_not_hurt_those_beside_it(fault, plan, store, alone):
    outcome, events = run(plan(*STACK, f"backend.{fault}=0,7"), store)
    assert (outcome.done, len(outcome.failed)) == (3, 3)
    assert "retrying" not in [kind for _, kind in kinds(events)]
    assert all_measured(store) == alone
    for record in store.runs.select(status=Status.FAILED):
        assert record.step == 6
        assert record.finished is not None
        assert [step for _, step, _ in store.metrics.points(record.id, ["reward/mean"])] == [
            *range(1, 7)
        ]


def test_one_that_is_asked_to_stop_does_so_alone_and_all_of_them_go_on(
    plan, store, alone, monkeypatch
):
    """Seed 1 stops after step 7 and the others after step 12; then they go on side by side."""
    monkeypatch.setattr(main, "PARENT_SECONDS", 0.01)
    monkeypatch.setattr(main, "STOP_SECONDS", 0.01)
    asked, request = threading.Event(), RunStopRequest.request

    def noted(own, reason):
        request(own, reason)
        asked.set()

    def stop_one():
        store.leases.request_stop(2)
        assert asked.wait(60)

    monkeypatch.setattr(RunStopRequest, "request", noted)
    in_step(monkeypatch, 7, seed=1, happens=stop_one)
    in_step(monkeypatch, 12, terminate)
    outcome, events = run(plan(*STACK), store)
    assert (outcome.stopped, outcome.unfinished) == (True, 3)
    assert [kind for _, kind in kinds(events)] == ["started"] * 3 + ["interrupted"] * 3
    stopped = [(r.status, r.step, r.error) for r in store.runs.select(newest_first=False)]
    asked_to = (Status.INTERRUPTED, 12, "asked to stop")
    assert stopped == [asked_to, (Status.INTERRUPTED, 7, "asked to stop"), asked_to]
    outcome, events = run(plan(*STACK), store)
    assert outcome.done == 3
    assert [kind for _, kind in kinds(events)] == ["started"] * 3 + ["done"] * 3
    assert all_measured(store) == alone


def test_a_request_before_the_first_step_ends_all(plan, store, alone, monkeypatch):
    in_step(monkeypatch, 1, terminate, seed=1)
    outcome, _ = run(plan(*STACK), store)
    assert outcome.unfinished == 3
    assert [(r.status, r.step) for r in store.runs.select()] == [(Status.INTERRUPTED, 0)] * 3
    assert run(plan(*STACK), store)[0].done == 3
    assert all_measured(store) == alone


def added(plan, store):
    return [unit.run_id for unit in schedule_runs(plan, store, force=False)]


def take_over(url, run_id):
    """Another process, of another machine, has the run from now on."""
    with open_store(url) as other:
        assert other.leases.claim(run_id, Owner("elsewhere", 1, 0.0), holder=Owner.current())


def test_a_run_that_was_taken_over_is_let_go_and_the_others_go_on(plan, store, alone, monkeypatch):
    ids = added(plan(*STACK), store)
    in_step(monkeypatch, 7, seed=1, happens=lambda: take_over(store.url, 2))
    assert work_on(store, ids, (), None) == DONE
    [lost] = store.runs.select(ids=[2])
    assert (lost.status, lost.host, lost.finished) == (Status.RUNNING, "elsewhere", None)
    assert [c.step for c in store.checkpoints.select(2)] == [5]
    found = all_measured(store)
    assert len(found) == 2
    assert found.items() <= alone.items()


def test_runs_that_others_have_are_left_to_them(plan, store, alone):
    ids = added(plan(*STACK), store)
    with open_store(store.url) as other:
        assert other.leases.claim(1, Owner.current())
        assert work_on(store, ids, (), None) == DONE
    assert [r.status for r in store.runs.select(ids=ids)] == [
        Status.RUNNING,
        Status.DONE,
        Status.DONE,
    ]
    assert store.metrics.points(1) == []
    assert all_measured(store).items() <= alone.items()


def test_what_befalls_all_of_them_is_tried_with_each_alone(plan, store, alone, monkeypatch):
    init = fake.RoundRobin.__init__

    def fail(stack, trainers):
        if len(trainers) > 1:
            raise RuntimeError("no room for three")
        init(stack, trainers)

    monkeypatch.setattr(fake.RoundRobin, "__init__", fail)
    outcome, events = run(plan(*STACK), store)
    assert (outcome.done, outcome.failed) == (3, {})
    assert [kind for _, kind in kinds(events)] == [
        *["started"] * 3,
        *["retrying"] * 3,
        *["started", "done"] * 3,
    ]
    [message] = {
        e.message for e in events if isinstance(e, RunEvent) and e.kind.value == "retrying"
    }
    assert message == (
        "could not be trained together with others: RuntimeError: no room for three; "
        "it is trained alone now"
    )
    assert all_measured(store) == alone


@pytest.mark.slow
def test_an_end_that_the_store_does_not_take_is_recorded_by_the_parent(
    plan, store, alone, monkeypatch
):
    plain, refusals = Leases.finish, iter(range(2))

    def finish(its, run_id, *arguments, **options):
        # The second time is after the reserve was given up.
        if run_id == 2 and next(refusals, None) is not None:
            raise StoreError("the store is broken")
        plain(its, run_id, *arguments, **options)

    monkeypatch.setattr(Leases, "finish", finish)
    outcome, _ = run(plan(*STACK), store, policy=Policy(retries=0))
    assert outcome.done == 2
    assert list(outcome.failed) == [2]
    [failed] = store.runs.select(ids=[2])
    assert failed.status is Status.FAILED
    assert failed.error == "its process could not use the store any more: the store is broken"
    assert all_measured(store).items() <= alone.items()


@dataclass(kw_only=True)
class StackingExecutor(ForkingExecutor):
    """Starts stacked runs by the command of a worker, one process at a time."""

    stacks: ClassVar[bool] = True

    def capacity(self):
        return 1

    def log_to(self, file):
        output = open(file, "a", encoding="utf-8")  # noqa: SIM115 (the process's until it ends)
        logging.basicConfig(handlers=[RunLogs(output)], level="INFO", force=True)


@pytest.mark.slow
def test_a_process_that_ends_without_a_word_takes_no_run_with_it(plan, store, alone):
    """Run 1 ends in step 3; run 4 ends its process in step 7, and again when it is alone."""
    faulty = plan("backend.stack=8", "seed=0", "backend.exit_at=7")
    short = plan("backend.stack=8", "seed=0", "steps=3")
    stacked = replace(
        plan(*STACK),
        runs=[*short.runs, *plan(*STACK).runs, *faulty.runs],
        executor=StackingExecutor(),
    )
    outcome, events = run(stacked, store)
    assert (outcome.done, list(outcome.failed)) == (4, [5])
    told = kinds(events)
    assert told[:5] == [(i, "started") for i in (1, 2, 3, 4, 5)]
    assert sorted(told[5:10]) == [(1, "done"), *((i, "retrying") for i in (2, 3, 4, 5))]
    ends = [(i, kind) for i in (2, 3, 4) for kind in ("started", "done")]
    assert told[10:] == [*ends, (5, "started"), (5, "failed")]
    [failed] = store.runs.select(ids=[5])
    assert failed.error == "its process ended with exit status 70"
    found = all_measured(store)
    assert found.items() >= alone.items()
    # The lines of each run are in its own log, those of the process in that of the first.
    logs = {
        r.id: (r.directory / "log.txt").read_text(encoding="utf-8") for r in store.runs.select()
    }
    assert "5 runs trained together: 1, 2, 3, 4, 5" in logs[1]
    assert "step 3 of 3" in logs[1]
    assert "step 3 of 20" not in logs[1]
    assert "see the log of run 1" in logs[2]
    assert "training grpo, seed 0" in logs[2]
    assert "seed 1" not in logs[2]


def test_the_time_of_the_process_is_divided_among_its_runs(monkeypatch):
    clock = WorkClock(2)
    times = iter([100.0, 110.0, 130.0])
    monkeypatch.setattr(environment.time, "monotonic", lambda: next(times))
    shared = ProcessCosts([1, 2], clock)
    assert shared.leave(1) == 5.0  # half of ten seconds
    assert shared.leave(2) == 25.0  # and all of the twenty after them
