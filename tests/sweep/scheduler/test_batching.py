"""Which runs are trained together by one worker: the rules, and what the engine makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from advsweep.store import Status
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import ScheduledRun, companions


@dataclass(frozen=True)
class Stub:
    """A planned run, the run and its backend in one."""

    key: str | None
    size: int

    @property
    def run(self):
        return self

    @property
    def backend(self):
        return self

    def stack_key(self, run: Stub) -> str | None:
        return self.key

    def stack_size(self):
        return self.size


def scheduled(run_id: int, key: str | None = "a", size: int = 99) -> ScheduledRun:
    wanted: Any = [Stub(key, size)]
    return ScheduledRun(run_id, wanted)


def chosen(first, *queue, free=1):
    return [other.run_id for other in companions(first, queue, free)]


def test_runs_of_the_same_key_are_trained_together() -> None:
    assert chosen(
        scheduled(1), scheduled(2), scheduled(3, "b"), scheduled(4, None), scheduled(5)
    ) == [2, 5]
    assert chosen(scheduled(1, None), scheduled(2, None)) == []
    assert chosen(scheduled(1, size=3), scheduled(2), scheduled(3), scheduled(4)) == [2, 3]


@pytest.mark.parametrize(("free", "others"), [(1, 9), (2, 4), (3, 3), (4, 2), (10, 0), (20, 0)])
def test_as_much_is_left_for_each_free_slot(free, others):
    """10 runs: ceil(10 / free) for each slot, of which one is the first's own."""
    queue = [*(scheduled(i) for i in range(2, 11)), scheduled(11, "b"), scheduled(12, "b")]
    assert len(chosen(scheduled(1), *queue, free=free)) == others


@dataclass(kw_only=True)
class Noting(DebugExecutor):
    """Notes which runs its workers are given, a list each."""

    name: ClassVar[str] = "noting"

    def __post_init__(self):
        super().__post_init__()
        self.given: list[list[int]] = []

    def start(self, job):
        self.given.append([job.run_id, *job.others])
        return super().start(job)


def given(plan, store, executor=None, **options):
    """Which runs the workers of an execution were given."""
    noting = executor or Noting()
    execute(replace(plan, executor=noting), store, **options)
    return noting.given


STACK = ("backend.stack=3", "steps=2", "evaluation.n=2", "evaluation.k=[1]")


def test_the_runs_of_a_plan_are_divided_among_workers(plan, store):
    stacked = plan(*STACK, "seed=0,1,2,3,4", "group_size=4,8")
    # In the order of the plan.
    assert given(stacked, store) == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]
    assert {run.status for run in store.runs.select()} == {Status.DONE}


def test_limits_are_for_processes_of_a_single_run(plan, store):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noting, "limits_time", True)
        limited = given(plan(*STACK, "seed=0,1"), store, policy=Policy(time_limit=600))
        patch.setattr(Noting, "limits_memory", True)
        noting = Noting()
        noting.prepare(Resources(memory="900G"), ())
        small = given(plan(*STACK, "seed=2,3"), store, executor=noting)
    assert limited == [[1], [2]]
    assert small == [[3], [4]]


@pytest.mark.slow
def test_runs_that_failed_or_are_only_evaluated_are_alone(plan, store):
    given(plan(*STACK, "seed=0,1", "backend.fail_at=2"), store)
    given(plan(*STACK, "seed=2,3"), store)
    again = plan(*STACK, "seed=0,1,2,3,4,5", "backend.fail_at=2,0", "evaluation.n=4")
    numbers = {(r.seed, r.config["backend"]["fail_at"]): r.id for r in store.runs.select()}
    failed = {numbers[0, 2], numbers[1, 2]}
    trained = {numbers[2, 0], numbers[3, 0]}
    workers = given(again, store)
    alone = {ids[0] for ids in workers if len(ids) == 1}
    assert failed | trained <= alone
    # 8 of the 12 are new: six are given together, three by three, and two.
    assert sorted(len(ids) for ids in workers if not (failed | trained) & set(ids)) == [2, 3, 3]
