"""Workers that join a sweep: whoever takes up its runs, none is lost or done twice."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

from advsweep.errors import ConfigError, NotFoundError, PluginError
from advsweep.estimators import ESTIMATORS
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.executors.local import LocalExecutor
from advsweep.sweep.scheduler.pull import Probation, pull_runs
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.worker.environment import new_run
from tests.sweep.helpers import measured, wait_until


def add(plan, store):
    """Puts a plan's runs into the store, and starts none."""
    assert plan.name is not None
    store.sweeps.add(plan.name, {})
    return store.runs.add([new_run(p.run, p.config) for p in plan.runs], plan.name)


def joined(store, sweep=None):
    """What a worker in this very process does and tells."""
    events: list[Event] = []
    outcome = pull_runs(store, sweep, DebugExecutor(), events.append)
    return outcome, [(e.run.id, e.kind.value) for e in events if isinstance(e, RunEvent)]


def test_a_worker_does_the_runs_of_a_sweep_in_its_order(plan, store):
    others = add(plan("seed=7", name="other"), store)
    ids = add(plan("seed=2,1,0", name="demo"), store)
    outcome, events = joined(store, "demo")
    assert events == [(i, kind) for i in ids for kind in ("started", "done")]
    assert (outcome.run_ids, outcome.done, outcome.exit_code) == (ids, 3, 0)
    assert [run.status for run in store.runs.select(ids=others)] == [Status.PENDING]
    assert joined(store)[0].run_ids == others
    assert joined(store)[0].run_ids == []


@pytest.mark.slow
def test_a_worker_waits_for_more(plan, store):
    later = plan("seed=0", name="demo")
    add(plan("seed=1", name="demo"), store)

    def on_event(event):
        if isinstance(event, RunEvent) and event.kind.value == "done" and event.run.seed == 1:
            # In a moment in which the worker has asked for more, and was told of none.
            with open_store(store.url) as other:
                add(later, other)

    outcome = pull_runs(store, "demo", DebugExecutor(), on_event, idle_seconds=1.5)
    assert outcome.done == 2


@dataclass(kw_only=True)
class Roomy(DebugExecutor):
    """Notes what it was prepared for, and has room for as many runs as cores say."""

    name: ClassVar[str] = "roomy"

    def __post_init__(self):
        super().__post_init__()
        self.told: list[tuple[str, int]] = []

    def prepare(self, resources, runs):
        super().prepare(resources, runs)
        self.told.append(("prepared", resources.cpus))

    def check(self):
        if self.resources.cpus > 8:
            raise ConfigError("there are no such machines")

    def capacity(self):
        return 8 // self.resources.cpus

    def start(self, job):
        self.told.append(("run", job.run_id))
        return super().start(job)


def planned(plan, store):
    """The ids of a plan's runs, which are in the store as a sweep leaves them that was killed."""
    return [unit.run_id for unit in schedule_runs(plan, store, force=False)]


def test_a_worker_gives_runs_what_their_sweep_does(plan, store):
    narrow = planned(plan("seed=0,1", name="narrow"), store)
    wide = planned(plan("seed=2,3", "resources.cpus=4", name="wide"), store)
    executor = Roomy()
    outcome = pull_runs(store, None, executor)
    assert outcome.done == 4
    first, second = [("run", i) for i in narrow], [("run", i) for i in wide]
    assert executor.told == [("prepared", 1), *first, ("prepared", 4), *second]


def test_a_worker_without_room_leaves_the_runs_to_others(plan, store):
    planned(plan("seed=0", "resources.cpus=16", name="huge"), store)
    with pytest.raises(ConfigError, match="no such machines"):
        pull_runs(store, None, Roomy())
    with pytest.raises(ConfigError, match="expected a key of resources, as the config"):
        pull_runs(store, None, Roomy(), overrides=["executor=slurm"])
    [run] = store.runs.select()
    assert run.status is Status.PENDING
    assert store.leases.claim_next(Owner.current()) == run.id


# What only this machine lacks


def statuses(store):
    return [run.status for run in store.runs.select(newest_first=False)]


def test_four_runs_survive_a_worker_that_lacks_a_component(plan, store, monkeypatch):
    add(plan("estimator=grpo,rloo", "seed=0,1", name="demo"), store)
    with monkeypatch.context() as patch:
        build = ESTIMATORS.get

        def lacking(name, **options):
            if name == "rloo":
                raise PluginError("estimator: 'rloo' needs the package of_rloo, which is missing")
            return build(name, **options)

        patch.setattr(ESTIMATORS, "get", lacking)
        with pytest.raises(ConfigError, match="run 3: estimator: 'rloo' needs the package of_rl"):
            pull_runs(store, None, DebugExecutor())
    assert statuses(store) == [Status.PENDING] * 4
    assert pull_runs(store, None, DebugExecutor()).done == 4


@pytest.mark.parametrize("error", [ConfigError, ImportError, FileNotFoundError])
def test_four_runs_survive_a_worker_on_which_they_cannot_be_built(plan, store, monkeypatch, error):
    """Data, a program or a package that only the build of the run asks for."""
    add(plan("seed=0,1,2,3", name="demo"), store)
    with monkeypatch.context() as patch:

        def fail(*_):
            raise error("no such thing on this machine")

        patch.setattr("advsweep.sweep.worker.run.make_evaluators", fail)
        with pytest.raises(
            ConfigError, match=r"^run 1: .*no such thing on this machine; the worker ends"
        ):
            pull_runs(store, None, DebugExecutor())
    first, *others = store.runs.select(newest_first=False)
    assert statuses(store) == [Status.PENDING] * 4
    assert "no such thing on this machine" in (first.error or "")
    assert [other.error for other in others] == [None] * 3
    assert first.started is None
    assert pull_runs(store, None, DebugExecutor()).done == 4


def test_a_run_that_was_trained_before_goes_on_elsewhere(plan, store, monkeypatch):
    interrupted_at(13, plan, store, monkeypatch)
    with monkeypatch.context() as patch:

        def fail(*_):
            raise ConfigError("no such thing")

        patch.setattr("advsweep.sweep.worker.run.make_evaluators", fail)
        with pytest.raises(ConfigError, match="no such thing"):
            pull_runs(store, None, DebugExecutor())
    [run] = store.runs.select()
    assert (run.status, run.step) == (Status.INTERRUPTED, 13)
    assert pull_runs(store, None, DebugExecutor()).done == 1


def test_four_runs_survive_a_worker_that_cannot_write_to_its_folder(plan, store, monkeypatch):
    add(plan("seed=0,1,2,3", name="demo"), store)
    store.runs_directory.write_text("a file in place of the folder")
    with pytest.raises(ConfigError, match="run 1: its process could not be started"):
        pull_runs(store, None, DebugExecutor())
    assert statuses(store) == [Status.PENDING] * 4


def test_a_worker_whose_first_runs_fail_before_a_step_stops(plan, store):
    add(plan("seed=range(6)", "backend.fail_at=1", name="demo"), store)
    message = "the first 2 runs failed before they had trained a step, run 2 with: RuntimeError"
    with pytest.raises(ConfigError, match=message):
        pull_runs(store, None, DebugExecutor())
    assert statuses(store) == [Status.FAILED] * 2 + [Status.PENDING] * 4


def test_a_run_that_trains_shows_that_the_machine_is_fit(plan, store):
    add(plan("seed=range(4)", "backend.fail_at=2", name="demo"), store)
    assert len(pull_runs(store, None, DebugExecutor()).failed) == 4


def test_a_worker_starts_two_runs_until_one_of_them_trains(plan, store, monkeypatch):
    ids = add(plan("seed=range(4)", name="demo"), store)
    records = store.runs.select(ids=ids)
    probation = Probation(store)
    for record in records[:2]:
        assert probation.has_room
        probation.note(RunEvent(EventKind.STARTED, record))
    assert not probation.has_room
    probation.note(RunEvent(EventKind.FAILED, records[0], "of its own"))
    assert probation.has_room
    probation.note(RunEvent(EventKind.STARTED, records[2]))
    monkeypatch.setattr("advsweep.sweep.scheduler.pull.PROBATION_SECONDS", 0.0)
    assert probation.has_room
    probation.note(RunEvent(EventKind.STARTED, records[3]))
    assert probation.has_room
    probation.note(RunEvent(EventKind.FAILED, records[1], "of its own"))
    assert not probation.has_failed


def test_a_worker_waits_for_its_sweep(plan, store):
    later = plan("seed=0", name="demo")

    def add_later():
        time.sleep(0.5)
        with open_store(store.url) as other:
            add(later, other)

    with pytest.raises(NotFoundError, match="no sweep 'demo'"):
        pull_runs(store, "demo", DebugExecutor())
    thread = threading.Thread(target=add_later)
    thread.start()
    # It waits for more runs after that.
    outcome = pull_runs(store, "demo", DebugExecutor(), idle_seconds=3)
    assert outcome.done == 1
    thread.join()


@pytest.mark.slow
def test_without_its_checkpoints_a_run_begins_anew_and_measures_the_same(
    plan, store, quick_undisturbed, monkeypatch
):
    """As on a machine that does not share the folder, and then on the first one again."""
    interrupted_at(13, plan, store, monkeypatch)
    here, away = store.runs_directory, store.runs_directory.with_name("first-machine")
    shutil.move(here, away)
    interrupted_at(8, plan, store, monkeypatch)
    assert max(step for _, step, _ in store.metrics.points(1)) == 8
    # Of the two checkpoints of the first machine the second is ahead of what is measured.
    shutil.rmtree(here)
    shutil.move(away, here)
    assert {p.name for p in here.glob("*/checkpoints/*")} == {"step-000010", "step-000013"}
    assert joined(store)[0].done == 1
    assert measured(store)[0] == quick_undisturbed[0]


def interrupted_at(step, plan, store, monkeypatch):
    """A worker whose run is asked to stop in a step."""
    from advsweep.sweep.worker.reporter import StoreReporter

    add(plan("seed=0", name="demo"), store)
    report = StoreReporter.metrics

    def stopping(self, at, values):
        report(self, at, values)
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(StoreReporter, "metrics", stopping)
        outcome = pull_runs(store, "demo", DebugExecutor())
    assert outcome.exit_code == 130
    assert [run.status for run in store.runs.select()] == [Status.INTERRUPTED]


def work(url, started):
    def note(event):
        if isinstance(event, RunEvent) and event.kind is EventKind.STARTED:
            with open(started, "a", encoding="utf-8") as file:
                file.write(f"{event.run.id}\n")

    with open_store(url, create=False) as store:
        pull_runs(store, "demo", DebugExecutor(), note)


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "shared.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.mark.slow
def test_eight_workers_lose_and_repeat_nothing(plan, shared_url, tmp_path):
    started = tmp_path / "started.txt"
    with open_store(shared_url) as store:
        ids = add(plan("steps=5", "seed=range(40)", name="demo"), store)
        workers = [fork(work, shared_url, str(started)) for _ in range(8)]
        # Two are killed in the middle; what they had is for the others, or for a last one.
        wait_until(lambda: store.runs.count(status=Status.DONE) >= 4)
        for worker in workers[:2]:
            worker.kill()
        for worker in workers:
            worker.join()
        work(shared_url, str(started))
        runs = store.runs.select(ids=ids)
        assert {run.status for run in runs} == {Status.DONE}
        assert len({run.pid for run in runs}) > 2
        for run_id in ids:
            points = store.metrics.points(run_id, ["reward/mean"])
            assert [step for _, step, _ in points] == [1, 2, 3, 4, 5]
    # A worker notes a run when it is over, in this very process: all but what the killed had.
    noted = [int(line) for line in started.read_text(encoding="utf-8").split()]
    assert len(noted) == len(set(noted)) >= len(ids) - 2


def fork(target, *arguments):
    # A fork has everything imported already, which takes seconds otherwise.
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def work_beside(url):
    with open_store(url, create=False) as store:
        raise SystemExit(pull_runs(store, None, LocalExecutor(jobs=2)).exit_code)


@pytest.fixture
def worker(plan, store):
    """A worker of two runs at a time, among three that take their time."""
    add(plan("seed=0,1,2", "backend.step_seconds=0.5", name="demo"), store)
    process = fork(work_beside, store.url)
    yield process
    process.kill()
    process.join()


@pytest.mark.slow
def test_a_worker_that_is_asked_to_stop_leaves_its_runs_to_others(store, worker):
    wait_until(lambda: sum(run.step >= 2 for run in store.runs.select()) == 2)
    worker.terminate()
    worker.join(timeout=60)
    assert worker.exitcode == 130
    *taken, left = store.runs.select(newest_first=False)
    assert {run.status for run in taken} == {Status.INTERRUPTED}
    assert all(store.checkpoints.select(run.id)[-1].step == run.step for run in taken)
    assert left.status is Status.PENDING
    assert store.leases.claim_next(Owner.current()) == taken[0].id
