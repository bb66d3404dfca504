"""What reaches a tracker, whatever becomes of the run or of the tracker meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

from advsweep.errors import ConfigError
from advsweep.store import NewEvaluation, Owner, ProblemCounts, Status
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.tracking import base
from advsweep.sweep.tracking.base import (
    MAX_FAILURES,
    NoTracking,
    Sender,
    Track,
    Tracking,
    last_scores,
    sync,
    sync_command,
    tracker_client,
)
from advsweep.sweep.tracking.wandb import WandbTracking

logged: list[tuple[int, int, dict[str, float]]] = []
ends: list[tuple[int, Status]] = []
RELEASED = threading.Event()


@dataclass(kw_only=True)
class Odd(Tracking):
    """A tracker that works, or does not."""

    name: ClassVar[str] = "odd"

    how: str = "works"

    def open(self, record):
        if self.how == "hangs":
            RELEASED.wait()
        if self.how == "raises":
            raise RuntimeError("no such server")
        if self.how == "quotes":
            raise RuntimeError("no answer from http://me:secret@host/api")
        if self.how == "exits":
            raise SystemExit(3)
        return OddTrack(record.id)


class OddTrack(Track):
    def __init__(self, run):
        self._run = run
        self.last_step = max((step for own, step, _ in logged if own == run), default=-1)

    def log(self, rows):
        logged.extend((self._run, step, dict(values)) for step, values in rows)

    def close(self, record, summaries):
        ends.append((self._run, record.status))


@pytest.fixture(autouse=True)
def _fresh():
    logged.clear()
    ends.clear()
    RELEASED.clear()
    yield
    RELEASED.set()


@pytest.fixture
def training(store, new_run):
    """A run that is being trained: its id."""
    [run_id] = store.runs.add([new_run()])
    assert store.leases.claim(run_id, Owner.current())
    return run_id


def points(steps, value=0.0):
    return [("reward/mean", step, value) for step in steps]


def record_of(store, run_id):
    [record] = store.runs.select(ids=[run_id])
    return record


def send_all(store, run_id):
    Sender(store, Odd()).send(record_of(store, run_id), last=True)


def test_a_step_is_sent_once_and_with_its_evaluation_when_the_next_comes(store, training):
    sender = Sender(store, Odd())
    for new in (points([1, 2]), [("pass@1", 2, 0.5)], points([3])):
        store.metrics.record(training, new)
        sender.send(record_of(store, training))
    assert [step for _, step, _ in logged] == [1, 2]
    assert logged[1][2] == {"reward/mean": 0.0, "pass@1": 0.5}
    sender.send(record_of(store, training), last=True)
    assert [step for _, step, _ in logged] == [1, 2, 3]


def test_steps_that_a_resumed_run_makes_again_are_not_sent_again(store, training):
    store.metrics.record(training, points(range(1, 6), value=1.0))
    store.leases.finish(training, Status.INTERRUPTED)
    send_all(store, training)
    assert store.leases.claim(training, Owner.current())
    store.metrics.truncate(training, after_step=3)
    store.metrics.record(training, points(range(4, 9), value=2.0))
    store.leases.finish(training, Status.DONE)
    send_all(store, training)
    assert [step for _, step, _ in logged] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [values["reward/mean"] for *_, values in logged[3:6]] == [1.0, 1.0, 2.0]
    assert [status for _, status in ends] == [Status.INTERRUPTED, Status.DONE]


def test_sync_sends_runs_at_an_end_those_without_a_step_too(store, new_run):
    done, running, pending, failed = store.runs.add([new_run(seed=seed) for seed in range(4)])
    for run_id in (done, running, failed):
        assert store.leases.claim(run_id, Owner.current())
    store.leases.finish(done, Status.DONE)
    store.leases.finish(failed, Status.FAILED, error="no module")
    synced = sync(store, store.runs.select(ids=[done, running, pending, failed]), Odd())
    assert list(synced) == [
        (done, "sent", ""),
        (running, "left out", "it is running"),
        (pending, "left out", "it is pending"),
        (failed, "sent", ""),
    ]
    assert ends == [(done, Status.DONE), (failed, Status.FAILED)]


@pytest.mark.security
def test_sync_tells_an_error_without_the_password_in_it(store, new_run):
    [run_id] = store.runs.add([new_run()])
    assert store.leases.claim(run_id, Owner.current())
    store.leases.finish(run_id, Status.DONE)
    synced = sync(store, store.runs.select(ids=[run_id]), Odd(how="quotes"))
    assert list(synced) == [
        (run_id, "failed", "RuntimeError: no answer from http://me:***@host/api")
    ]


def test_sync_does_not_go_on_for_ever_with_a_tracker_that_is_out_of_reach(store, new_run):
    ids = store.runs.add([new_run(seed=seed) for seed in range(MAX_FAILURES + 2)])
    for run_id in ids:
        assert store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.DONE)
    synced = list(sync(store, store.runs.select(ids=ids), Odd(how="raises")))
    assert [outcome for _, outcome, _ in synced] == ["failed"] * MAX_FAILURES + ["left out"] * 2
    assert synced[0][2] == "RuntimeError: no such server"


def evaluate(store, run_id, step, solved, **settings):
    """Evaluates two problems with four samples each."""
    settings = {"n": 4, "k": [1, 2], "temperature": 1.0, **settings}
    problem = {"level": 0, "n": 4, "distinct": 1, "unscorable": 0, "answer_entropy": 0.25}
    problems = [
        ProblemCounts(problem_id=f"{i}", prompt=f"{i}=", c=c, **problem)
        for i, c in enumerate(solved)
    ]
    store.evaluations.add(
        NewEvaluation(
            identity=f"{run_id} {step} {settings}",
            subject=f"{run_id}@{step}",
            run_id=run_id,
            step=step,
            task="countdown",
            settings=settings,
            problems=problems,
        )
    )


def test_scores_are_those_of_the_newest_evaluation_of_each_protocol(store, training):
    evaluate(store, training, 5, (4, 2), k=["x"])  # settings without scores
    evaluate(store, training, 5, (4, 2), k=0)
    assert last_scores(store.evaluations.select([training])) == {}
    evaluate(store, training, 0, (0, 0))
    evaluate(store, training, 5, (4, 2))
    evaluate(store, training, 5, (4, 0), temperature=0.0)
    scores = last_scores(store.evaluations.select([training]))
    one, other = sorted({name.rpartition("/pass@")[0] for name in scores if "/pass@1" in name})
    assert one.startswith("evaluation/countdown-")
    # 4 and 2 of 4 samples: pass@1 is (1 + 1/2) / 2, pass@2 is (1 + (1 - 1/6)) / 2.
    values = {(scores[f"{p}/pass@1"], round(scores[f"{p}/pass@2"], 9)) for p in (one, other)}
    assert values == {(0.75, round((1 + 5 / 6) / 2, 9)), (0.5, 0.5)}
    assert {scores[f"{p}/step"] for p in (one, other)} == {5.0}


def feed_with(plan, store, tracking):
    """The outcome of the plan, and what was said."""
    said: list[str] = []
    with tracker_client(store, tracking, said.append) as feed:
        outcome = execute(plan, store, on_event=feed)
    return outcome, [line for line in said if "sending what is left" not in line]


def test_a_tracker_gets_every_step_and_every_end(plan, store):
    outcome, said = feed_with(plan("seed=0,1", name="two"), store, Odd(patience=200))
    assert (outcome.done, said) == (2, [])
    for run_id in outcome.run_ids:
        assert [step for run, step, _ in logged if run == run_id] == [*range(21)]
        assert ends.count((run_id, Status.DONE)) == 1


@pytest.mark.parametrize(
    ("how", "patience", "words"),
    [
        ("hangs", 0.5, "not all was sent within 0.5 s"),
        ("raises", 200, "RuntimeError: no such server"),
        ("quotes", 200, "RuntimeError: no answer from http://me:***@host/api;"),
        ("exits", 200, "SystemExit: 3"),
    ],
)
def test_a_tracker_that_hangs_or_fails_leaves_the_sweep_alone(plan, store, how, patience, words):
    tracking = Odd(how=how, patience=patience)
    outcome, said = feed_with(plan("seed=0,1", name="two"), store, tracking)
    assert outcome.done == 2
    [line] = said
    assert words in line
    assert f"2 of 2 runs are left: `advsweep export two --to odd --set how={how}`" in line


def test_a_run_that_is_retried_goes_on(plan, store):
    [run_id] = execute(plan("backend.fail_at=15"), store).run_ids
    [run] = store.runs.select(ids=[run_id])
    assert run.status is Status.FAILED
    with tracker_client(store, Odd(patience=200), lambda line: None) as feed:
        for _ in range(2):
            feed(RunEvent(EventKind.STARTED, run))
            feed(RunEvent(EventKind.FAILED, run))
    assert ends == [(run_id, Status.FAILED)]


@dataclass(kw_only=True)
class Away(Tracking):
    """A tracker whose server is away at first, and then loses its answer to the first rows."""

    name: ClassVar[str] = "away"

    failures: int = 0

    def open(self, record):
        self.fail(until=1)
        return AwayTrack(record.id, self)

    def fail(self, until):
        if self.failures > until:
            self.failures -= 1
            raise ConnectionError("no answer")


class AwayTrack(OddTrack):
    def __init__(self, run, tracking):
        super().__init__(run)
        self._tracking = tracking

    def log(self, rows):
        super().log(rows)
        self._tracking.fail(until=0)


def wait_for(is_reached):
    deadline = time.monotonic() + 60
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_tracker_that_was_away_gets_every_step_once(store, training, monkeypatch):
    monkeypatch.setattr(base, "POLL_SECONDS", 0.01)
    store.metrics.record(training, points(range(1, 6)))
    tracking = Away(failures=3, patience=60)
    run = record_of(store, training)
    said: list[str] = []
    with tracker_client(store, tracking, said.append) as feed:
        feed(RunEvent(EventKind.STARTED, run))
        wait_for(lambda: tracking.failures == 0)
        store.leases.finish(training, Status.DONE)
        feed(RunEvent(EventKind.DONE, run))
    assert said == []
    # The track that is opened after an error says how far the tracker is.
    assert [step for _, step, _ in logged] == [1, 2, 3, 4, 5]
    assert ends == [(training, Status.DONE)]


def test_a_tracker_that_stays_away_is_given_up_while_the_runs_go_on(store, training, monkeypatch):
    monkeypatch.setattr(base, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(base, "OUTAGE_SECONDS", 0.05)
    store.metrics.record(training, points(range(1, 6)))
    run = record_of(store, training)
    said: list[str] = []
    with tracker_client(store, Odd(how="raises", patience=60), said.append) as feed:
        feed(RunEvent(EventKind.STARTED, run))

        def is_given_up():
            feed(RunEvent(EventKind.WAITING, run))
            return bool(said)

        wait_for(is_given_up)
    [line] = said
    assert line.startswith("tracking: RuntimeError: no such server; the runs go on; 1 of 1 runs")


def test_a_wrong_setting_is_not_tried_again(store, training, monkeypatch):
    """A configuration error stays one, however long the tracker is tried."""
    monkeypatch.setattr(base, "POLL_SECONDS", 0.01)
    store.metrics.record(training, points(range(1, 6)))
    opened = []

    class Wrong(Odd):
        name: ClassVar[str] = "wrong"

        def open(self, record):
            opened.append(record.id)
            raise ConfigError("tracking.project: expected letters")

    run = record_of(store, training)
    said: list[str] = []
    with tracker_client(store, Wrong(patience=60), said.append) as feed:
        feed(RunEvent(EventKind.STARTED, run))
        wait_for(lambda: opened)
    assert opened == [training]
    assert "expected letters" in said[0]


PLUGIN = """
import atexit, threading
from dataclasses import dataclass
from typing import ClassVar
from advsweep.sweep.tracking.base import Tracking

@dataclass(kw_only=True)
class Endless(Tracking):
    name: ClassVar[str] = "endless"
    def open(self, record):
        atexit.register(threading.Event().wait)
        threading.Event().wait()
"""


@pytest.mark.slow
def test_the_exit_of_a_command_waits_for_no_library(install, tmp_path, monkeypatch):
    points = {"advsweep.trackings": {"endless": "endless_tracker:Endless"}}
    site = install("endless-tracker", points, endless_tracker=PLUGIN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *sys.path[1:]]))
    program = "from advsweep.cli import main; main()"
    arguments = ["run", "backend=fake", "steps=2", "tracking=endless", "tracking.patience=0.5"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--format=json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "not all was sent within 0.5 s" in done.stderr


@pytest.mark.parametrize("name", TRACKINGS.names())
def test_tracking_never_enters_a_runs_identity(plan, name):
    [tracked], [plain] = plan(f"tracking={name}").runs, plan().runs
    assert tracked.run.identity == plain.run.identity
    assert "tracking" not in tracked.config


def test_a_missing_package_is_refused_with_the_extra_that_has_it(tmp_path, monkeypatch):
    @dataclass(kw_only=True)
    class Lacking(NoTracking):
        name: ClassVar[str] = "lacking"
        package: ClassVar[str | None] = "no_such_package"

    (tmp_path / "no_such_package").mkdir()  # such as the one that wandb makes
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install .*no_such_package`"):
        Lacking().check()


def test_the_command_to_send_runs_later_has_all_fields():
    tracking = WandbTracking(project="mine", mode="offline", tags=("a b", "c"), patience=5)
    options = """--set mode=offline --set project=mine --set 'tags=['"'"'a b'"'"', '"'"'c'"'"']'"""
    assert sync_command(tracking, "1") == f"`advsweep export 1 --to wandb {options}`"
