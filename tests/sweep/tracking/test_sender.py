"""What reaches a tracker: every step once, whatever becomes of the run meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from advsweep.store import NewEvaluation, Owner, ProblemCounts, RunRecord, Status
from advsweep.sweep.tracking.base import Rows, Track, Tracking
from advsweep.sweep.tracking.client import MAX_FAILURES, Sender, last_scores, sync

LOGGED: list[tuple[int, dict[str, float]]] = []
ENDS: list[Status] = []
SUMMARIES: list[dict[str, float]] = []


class Noted(Track):
    def __init__(self, last_step: int) -> None:
        self.last_step = last_step

    def log(self, rows: Rows) -> None:
        LOGGED.extend((step, dict(values)) for step, values in rows)

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        ENDS.append(record.status)
        SUMMARIES.append(dict(summaries))


@dataclass(kw_only=True)
class Noting(Tracking):
    name: ClassVar[str] = "noting"

    failing: bool = False

    def open(self, record: RunRecord) -> Track:
        if self.failing:
            raise RuntimeError("no such server")
        return Noted(max((step for step, _ in LOGGED), default=-1))


@pytest.fixture(autouse=True)
def _nothing_logged():
    LOGGED.clear()
    ENDS.clear()
    SUMMARIES.clear()


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


def sender_of(store):
    return Sender(store, Noting())


def send_all(store, run_id):
    sender_of(store).send(record_of(store, run_id), last=True)


def test_steps_are_sent_once_and_the_last_when_the_next_comes(store, training):
    sender = sender_of(store)
    for steps in ([1, 2], [], [3]):
        store.metrics.record(training, points(steps))
        sender.send(record_of(store, training))
    assert [step for step, _ in LOGGED] == [1, 2]
    sender.send(record_of(store, training), last=True)
    assert [step for step, _ in LOGGED] == [1, 2, 3]


def test_an_evaluation_that_comes_after_the_metrics_of_its_step_is_sent_with_them(store, training):
    sender = sender_of(store)
    store.metrics.record(training, points([1, 2]))
    sender.send(record_of(store, training))
    store.metrics.record(training, [("pass@1", 2, 0.5)])
    store.metrics.record(training, points([3]))
    sender.send(record_of(store, training))
    assert LOGGED[1:] == [(2, {"reward/mean": 0.0, "pass@1": 0.5})]


def test_steps_that_a_resumed_run_makes_again_are_not_sent_again(store, training):
    store.metrics.record(training, points(range(1, 6), value=1.0))
    store.leases.finish(training, Status.INTERRUPTED)
    send_all(store, training)
    assert store.leases.claim(training, Owner.current())
    store.metrics.truncate(training, after_step=3)
    store.metrics.record(training, points(range(4, 9), value=2.0))
    store.leases.finish(training, Status.DONE)
    send_all(store, training)
    assert [step for step, _ in LOGGED] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [values["reward/mean"] for _, values in LOGGED[3:6]] == [1.0, 1.0, 2.0]
    assert ENDS == [Status.INTERRUPTED, Status.DONE]


def test_a_run_that_failed_before_its_first_step_is_shown(store, training):
    store.leases.finish(training, Status.FAILED, error="no module")
    send_all(store, training)
    assert (LOGGED, ENDS) == ([], [Status.FAILED])


def test_sync_leaves_out_what_is_at_no_end(store, new_run):
    done, running, pending, failed = store.runs.add([new_run(seed=seed) for seed in range(4)])
    for run_id in (done, running, failed):
        assert store.leases.claim(run_id, Owner.current())
    store.leases.finish(done, Status.DONE)
    store.leases.finish(failed, Status.FAILED)
    runs = store.runs.select(ids=[done, running, pending, failed])
    synced = sync(store, runs, lambda run: Noting())
    assert synced.sent == [done, failed]
    assert set(synced.left_out) == {running, pending}


def test_sync_does_not_go_on_for_ever_with_a_tracker_that_is_out_of_reach(store, new_run):
    ids = store.runs.add([new_run(seed=seed) for seed in range(MAX_FAILURES + 2)])
    for run_id in ids:
        assert store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.DONE)
    synced = sync(store, store.runs.select(ids=ids), lambda run: Noting(failing=True))
    assert list(synced.failed) == ids[:MAX_FAILURES]
    assert synced.failed[ids[0]] == "RuntimeError: no such server"
    assert list(synced.left_out) == ids[MAX_FAILURES:]


def evaluate(store, run_id, step, solved, **settings):
    """Evaluates two problems with four samples each; returns the identity."""
    settings = {"n": 4, "k": [1, 2], "temperature": 1.0, **settings}
    identity = f"{run_id} {step} {settings}"
    problems = [
        ProblemCounts(
            problem_id=f"{i}",
            prompt=f"{i}=",
            level=0,
            n=4,
            c=c,
            distinct=1,
            unscorable=0,
            answer_entropy=0.25,
        )
        for i, c in enumerate(solved)
    ]
    store.evaluations.add(
        NewEvaluation(
            identity=identity,
            subject=f"{run_id}@{step}",
            run_id=run_id,
            step=step,
            task="countdown",
            settings=settings,
            problems=problems,
        )
    )


def test_scores_are_those_of_the_newest_evaluation_of_each_protocol(store, training):
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


def test_settings_without_scores_are_left_out(store, training):
    evaluate(store, training, 5, (4, 2), k=["x"])
    evaluate(store, training, 5, (4, 2), k=0)
    assert last_scores(store.evaluations.select([training])) == {}
