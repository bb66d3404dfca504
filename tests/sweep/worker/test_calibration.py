"""Learning rates matched by steps: calibrations in the store, shared, resumed and refused."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from typing import Any

import pytest

from advsweep.backends.bandit.backend import BanditBackend
from advsweep.backends.build import build_run, calibration_of, reference_run
from advsweep.backends.reporter import SilentReporter
from advsweep.errors import TrainingError
from advsweep.names import CHANGE_NORM, MATCH_FACTOR
from advsweep.report.data.runs import read_runs
from advsweep.store import NewRun, Owner, Status, open_store
from advsweep.sweep.events import DONE, FAILED, STOPPED
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import config_groups
from advsweep.sweep.stop_request import RunStopped
from advsweep.sweep.worker.calibration import ERROR, MOVED, TOLERANCE, TRIED
from advsweep.sweep.worker.environment import new_run
from advsweep.sweep.worker.main import work_on

BANDIT = (
    "backend=bandit",
    "model=table",
    "task=bandit",
    "optimizer=sgd",
    "optimizer.lr=50",
    "optimizer.match=step",
    "steps=30",
    "evaluation.every=0",
    "evaluation.n=8",
)


@pytest.fixture(scope="module")
def bandit():
    """Plans bandits with match=step."""
    groups = config_groups()

    @functools.cache
    def make(*overrides):
        return make_plan([*BANDIT, *overrides], groups=groups)

    return make


NOBODY: Any = SilentReporter()


def work(store, plan):
    return work_on(store, store.runs.add([new_run(p.run, p.config) for p in plan.runs]), (), None)


def calibrations(store):
    records = store.runs.select(newest_first=False)
    return [r for r in records if r.config["optimizer"]["calibrates"]]


def last(store, record):
    names = [MATCH_FACTOR, CHANGE_NORM, ERROR, "optim/lr"]
    return store.metrics.last_values([record.id], names)[record.id]


def trials(store, record):
    series = (store.metrics.series([record.id], name)[record.id][1] for name in (TRIED, MOVED))
    return list(zip(*(values.tolist() for values in series), strict=True))


def moved(run, factor):
    """How far the first steps of a run change its table, trained here by its backend alone."""
    first = replace(calibration_of(run), learning_rate_scale=factor)
    [norm] = run.backend.change_norms([first], NOBODY, lambda step: None)
    assert isinstance(norm, float)
    return norm


@pytest.mark.slow
def test_the_first_steps_change_the_weights_as_those_of_the_reference(bandit, store):
    plan = bandit("estimator=power_alpha,rloo", "seed=0,1")
    assert work(store, plan) == DONE
    for planned, record in zip(plan.runs, store.runs.select(ids=[1, 2, 3, 4]), strict=True):
        assert record.status is Status.DONE
        factor = last(store, record)[MATCH_FACTOR]
        assert last(store, record)["optim/lr"] == pytest.approx(50 * factor, rel=1e-6)
        own, reference = moved(planned.run, factor), moved(reference_run(planned.run), 1.0)
        assert own == pytest.approx(reference, rel=TOLERANCE)
        assert len(store.metrics.series([record.id], MATCH_FACTOR)[record.id][0]) == 30
    # dr_grpo trains with the mean over G = 8 as its baseline, RLOO with that over the 7 others:
    # its advantages are 8/7 as large.
    rloo = [last(store, r)[MATCH_FACTOR] for r in store.runs.select(ids=[3, 4])]
    assert rloo == pytest.approx([7 / 8, 7 / 8], rel=0.03)


@pytest.mark.slow
def test_calibrations_are_runs_that_others_share(bandit, store):
    work(store, bandit("estimator=power_alpha,dr_grpo", "seed=0,1"))
    made = calibrations(store)
    assert [(r.estimator, r.seed) for r in made] == [
        ("dr_grpo", 0),
        ("dr_grpo", 1),
        ("power_alpha", 0),
        ("power_alpha", 1),
    ]
    assert {(r.status, r.step, r.steps, r.sweeps) for r in made} == {(Status.DONE, 20, 20, ())}
    assert all(build_run(r.config).identity == r.identity for r in made)
    assert [last(store, r)[MATCH_FACTOR] for r in made[:2]] == [1.0, 1.0]
    assert all(abs(last(store, r)[ERROR]) <= TOLERANCE for r in made[2:])
    assert trials(store, made[2])[-1] == (
        last(store, made[2])[MATCH_FACTOR],
        last(store, made[2])[CHANGE_NORM],
    )
    before = [trials(store, r) for r in made]
    # Evaluations, checkpoints and further estimators of the seeds change no calibration.
    work(store, bandit("estimator=rloo", "seed=0,1", "backend.checkpoint_every=7"))
    assert [r.estimator for r in calibrations(store)[4:]] == ["rloo", "rloo"]
    assert [trials(store, r) for r in calibrations(store)[:4]] == before
    assert {r.config["estimator"]["name"] for r in read_runs(store, None)} == {
        *("power_alpha", "dr_grpo", "rloo")
    }
    assert len(read_runs(store, None)) == 6
    # Its calibrations were started after it.
    assert store.runs.find("last").id == 10


@pytest.mark.slow
def test_a_stopped_calibration_goes_on_after_its_last_trial(bandit, store, tmp_path, monkeypatch):
    plan = bandit("estimator=power_alpha")
    with open_store(str(tmp_path / "undisturbed.db")) as undisturbed:
        work(undisturbed, plan)
        expected = [trials(undisturbed, r) for r in calibrations(undisturbed)]
    assert [len(t) for t in expected][1] >= 2
    plain, calls = BanditBackend.change_norms, []

    def stopping(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RunStopped("asked to stop")
        return plain(self, *arguments)

    monkeypatch.setattr(BanditBackend, "change_norms", stopping)
    assert work(store, plan) == STOPPED
    assert [r.status for r in calibrations(store)] == [Status.DONE, Status.INTERRUPTED]
    assert work(store, plan) == DONE
    assert [trials(store, r) for r in calibrations(store)] == expected
    # The first trial of the estimator is not made again.
    assert len(calls) == 1 + 1 + 1 + len(expected[1]) - 1


@pytest.mark.slow
def test_a_calibration_of_another_process_is_awaited(bandit, store):
    plan = bandit("estimator=rloo")
    work(store, plan)
    made = calibrations(store)
    with open_store(store.name) as other:
        # Another process of this host, the parent of this one, has the lease of the reference.
        new = bandit("estimator=rloo", "seed=7")
        reference = calibration_of(reference_run(new.runs[0].run))
        [held] = other.runs.add([replace(_as_new(made[0]), identity=reference.identity, seed=7)])
        assert other.leases.claim(held, Owner.of(1))
        points = [(MATCH_FACTOR, 20, 1.0), (CHANGE_NORM, 20, 5.0)]

        def finish():
            other.metrics.record(held, points)
            other.leases.finish(held, Status.DONE)

        timer = threading.Timer(1.0, finish)
        timer.start()
        assert work(store, new) == DONE
        timer.join()
    [own] = [r for r in calibrations(store) if r.seed == 7 and r.estimator == "rloo"]
    assert last(store, own)[CHANGE_NORM] == pytest.approx(5.0, rel=TOLERANCE)


def _as_new(record):
    return NewRun(
        identity=record.identity,
        config_hash=record.config_hash,
        seed=record.seed,
        config=record.config,
        steps=record.steps,
        estimator=record.estimator,
        backend=record.backend,
    )


def test_a_run_whose_reference_never_moves_fails_and_says_why(bandit, store):
    # The reference sees groups of equal rewards alone: no behaviour is right with rate 1.
    plan = bandit("estimator=reinforce", "task.levels=[0]", "task.rates=[0.999999]", "group_size=2")
    assert work(store, plan) == FAILED
    [record] = store.runs.select(ids=[1])
    assert record.error is not None
    assert "optimizer.match: expected weights that change" in record.error
    assert "with the reference, got none" in record.error


def test_a_calibration_can_be_started_by_itself(bandit, store):
    plan = bandit("estimator=rloo", "optimizer.calibrates=30", "steps=20")
    assert work(store, plan) == DONE
    [record] = store.runs.select(ids=[1])
    assert record.identity == calibration_of(bandit("estimator=rloo").runs[0].run).identity
    assert record.step == 20
    assert set(last(store, record)) == {MATCH_FACTOR, CHANGE_NORM, ERROR}
    assert store.evaluations.select([1]) == []
    assert work(store, bandit("estimator=rloo")) == DONE
    assert len(calibrations(store)) == 2


def test_a_rate_at_which_training_breaks_is_too_large(bandit, store, monkeypatch):
    plain = BanditBackend.change_norms

    def breaking(self, runs, *arguments):
        found = plain(self, runs, *arguments)
        own = [run.estimator.name == "power_alpha" for run in runs]
        return [
            TrainingError("too far") if is_own and run.learning_rate_scale > 1.5 else norm
            for is_own, run, norm in zip(own, runs, found, strict=True)
        ]

    monkeypatch.setattr(BanditBackend, "change_norms", breaking)
    assert work(store, bandit("estimator=power_alpha")) == DONE
    [record] = store.runs.select(ids=[1])
    assert 1 <= last(store, record)[MATCH_FACTOR] <= 1.5
    own = calibrations(store)[1]
    assert last(store, own)[ERROR] < -TOLERANCE
