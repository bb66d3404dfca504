"""Runs that are trained together: the same numbers as alone, and ends of their own."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import advsweep_fake as fake
import pytest

from advsweep.errors import StoreError
from advsweep.store import Owner, RunRecord, Status, Store, open_store
from advsweep.store.leases import Leases
from advsweep.sweep.events import Event, RunEvent, SweepResult
from advsweep.sweep.exit_codes import DONE
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.stop_request import RunStopRequest
from advsweep.sweep.worker import environment, heartbeat
from advsweep.sweep.worker.environment import ProcessCosts
from advsweep.sweep.worker.main import work_on
from advsweep.sweep.worker.run import RunLogs
from tests.sweep.forked_workers import ForkingExecutor

Planner = Callable[..., Plan]
Measured = dict[str, Any]

STACK = ("backend.stack=8", "seed=0,1,2")


def measured(store: Store, record: RunRecord) -> Measured:
    """All that a run leaves behind, but for times."""
    folders = sorted((record.directory / "checkpoints").glob("step-*"))
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    return {
        "points": [
            p for p in store.metrics.points(record.id) if not p[0].startswith(("time/", "memory/"))
        ],
        "evaluations": [
            (e.identity, e.step, e.settings, e.n.tolist(), e.c.tolist(), e.distinct.tolist())
            for e in store.evaluations.select([record.id])
        ],
        "checkpoints": {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files},
    }


def all_measured(store: Store) -> dict[str, Measured]:
    """By identity, of all runs that are done."""
    return {r.identity: measured(store, r) for r in store.runs.select(status=Status.DONE)}


@pytest.fixture(scope="module")
def alone(plan: Planner, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    """What three seeds measure one after another."""
    directory = tmp_path_factory.mktemp("alone")
    with open_store(str(directory / "advsweep.db")) as store:
        assert execute(plan("seed=0,1,2"), store).done == 3
        return all_measured(store)


def kinds(events: list[Event]) -> list[tuple[int, str]]:
    return [(e.run.id, e.kind.value) for e in events if isinstance(e, RunEvent)]


def run(plan: Plan, store: Store, **options: Any) -> tuple[SweepResult, list[Event]]:
    events: list[Event] = []
    return execute(plan, store, on_event=events.append, **options), events


def in_step(
    monkeypatch: pytest.MonkeyPatch, seed: int, step: int, happens: Callable[[], None]
) -> None:
    """Makes something happen at the start of a step of one seed, once."""
    plain, once = fake._Trainer.step, iter([True])

    def disturbed(trainer: Any, now: int) -> Any:
        if (trainer._run.seed, now) == (seed, step) and next(once, False):
            happens()
        return plain(trainer, now)

    monkeypatch.setattr(fake._Trainer, "step", disturbed)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_they_get_the_numbers_that_they_get_alone(
    plan: Planner, store: Store, alone: dict[str, Measured]
) -> None:
    outcome, events = run(plan(*STACK), store)
    assert outcome.done == 3
    # All start before any ends: it was one worker that had them.
    assert [kind for _, kind in kinds(events)] == ["started"] * 3 + ["done"] * 3
    assert all_measured(store) == alone
    assert all(measured["checkpoints"] for measured in alone.values())


@pytest.mark.slow
def test_bandits_that_differ_in_all_they_may_are_as_they_are_alone(
    store: Store, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("fault", ["fail_at", "nan_at", "leave_at"])
def test_a_failing_run_does_not_hurt_those_beside_it(
    fault: str, plan: Planner, store: Store, alone: dict[str, Measured]
) -> None:
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
    plan: Planner, store: Store, alone: dict[str, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 1 stops after step 7 and the others after step 12; then they go on side by side."""
    monkeypatch.setattr(heartbeat, "PARENT_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "STOP_SECONDS", 0.01)
    asked, request = threading.Event(), RunStopRequest.request

    def noted(own: RunStopRequest, reason: str) -> None:
        request(own, reason)
        asked.set()

    def stop_one() -> None:
        store.leases.request_stop(2)
        assert asked.wait(60)

    monkeypatch.setattr(RunStopRequest, "request", noted)
    in_step(monkeypatch, 1, 7, stop_one)
    in_step(monkeypatch, 0, 12, terminate)
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


def test_a_request_before_the_first_step_ends_all(
    plan: Planner, store: Store, alone: dict[str, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_step(monkeypatch, 1, 1, terminate)
    outcome, _ = run(plan(*STACK), store)
    assert outcome.unfinished == 3
    assert [(r.status, r.step) for r in store.runs.select()] == [(Status.INTERRUPTED, 0)] * 3
    assert run(plan(*STACK), store)[0].done == 3
    assert all_measured(store) == alone


def added(plan: Plan, store: Store) -> list[int]:
    return [unit.run_id for unit in schedule_runs(plan, store, force=False)]


def take_over(url: str, run_id: int) -> None:
    """Another process, of another machine, has the run from now on."""
    with open_store(url) as other:
        assert other.leases.claim(run_id, Owner("elsewhere", 1, 0.0), holder=Owner.current())


def test_a_run_that_was_taken_over_is_let_go_and_the_others_go_on(
    plan: Planner, store: Store, alone: dict[str, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = added(plan(*STACK), store)
    in_step(monkeypatch, 1, 7, lambda: take_over(store.url, 2))
    assert work_on(store, ids, (), None) == DONE
    [lost] = store.runs.select(ids=[2])
    assert (lost.status, lost.host, lost.finished) == (Status.RUNNING, "elsewhere", None)
    assert [c.step for c in store.checkpoints.select(2)] == [5]
    found = all_measured(store)
    assert len(found) == 2
    assert found.items() <= alone.items()


def test_runs_that_others_have_are_left_to_them(
    plan: Planner, store: Store, alone: dict[str, Measured]
) -> None:
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


def test_what_befalls_all_of_them_is_tried_with_each_alone(
    plan: Planner, store: Store, alone: dict[str, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    init = fake.RoundRobin.__init__

    def fail(stack: Any, trainers: Any) -> None:
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
    plan: Planner, store: Store, alone: dict[str, Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, refusals = Leases.finish, iter(range(2))

    def finish(its: Leases, run_id: int, *arguments: Any, **options: Any) -> None:
        # The second time is after the reserve was given up.
        if run_id == 2 and next(refusals, None) is not None:
            raise StoreError("the store is broken")
        plain(its, run_id, *arguments, **options)

    monkeypatch.setattr(Leases, "finish", finish)
    outcome, _ = run(plan(*STACK), store)
    assert outcome.done == 2
    assert list(outcome.failed) == [2]
    [failed] = store.runs.select(ids=[2])
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert "could not use the store any more" in failed.error
    assert all_measured(store).items() <= alone.items()


@dataclass(kw_only=True)
class StackingExecutor(ForkingExecutor):
    """Starts stacked runs by the command of a worker, one process at a time."""

    stacks: ClassVar[bool] = True

    def capacity(self) -> int:
        return 1

    def log_to(self, file: Path) -> None:
        output = open(file, "a", encoding="utf-8")  # noqa: SIM115 (the process's until it ends)
        logging.basicConfig(handlers=[RunLogs(output)], level="INFO", force=True)


@pytest.mark.slow
def test_a_process_that_ends_without_a_word_takes_no_run_with_it(
    plan: Planner, store: Store, alone: dict[str, Measured]
) -> None:
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


def test_the_time_of_the_process_is_divided_among_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 110.0, 130.0])
    monkeypatch.setattr(environment.time, "monotonic", lambda: next(times))
    shared = ProcessCosts([1, 2])
    assert shared.leave(1) == 5.0  # half of ten seconds
    assert shared.leave(2) == 25.0  # and all of the twenty after them
