"""Removal: everything of a run goes, and nothing of another one."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from advsweep.errors import NotFoundError, StoreError
from advsweep.store import NewEvaluation, Owner, ProblemCounts, Status
from advsweep.store.tables import Base

PROBLEM = ProblemCounts(
    problem_id="a", prompt="1 + 1", level=1, n=4, c=2, distinct=2, unscorable=0, answer_entropy=0.1
)


def evaluation(identity, run_id, step, problem="a", subject="weights"):
    problems = [ProblemCounts(**{**vars(PROBLEM), "problem_id": problem})]
    return NewEvaluation(
        identity=identity,
        subject=subject,
        run_id=run_id,
        step=step,
        task="sums",
        settings={},
        problems=problems,
    )


@pytest.fixture
def pair(store, new_run, tmp_path):
    """Two finished runs of the sweep `pair` that share the evaluation of their base model."""
    store.sweeps.add("pair", {})
    ids = store.runs.add([new_run(0), new_run(1)], "pair")
    store.evaluations.add(evaluation("base", ids[0], 0))
    store.evaluations.link(ids[1], "base", 0)
    for run_id in ids:
        store.leases.claim(run_id, Owner.current())
        store.metrics.record(run_id, [("reward/mean", 1, 0.5)])
        store.metrics.set_summaries(run_id, {"time/run": 1.0})
        store.checkpoints.add(run_id, 1, tmp_path / str(run_id))
        store.evaluations.add(evaluation(f"own {run_id}", run_id, 1, problem=f"of {run_id}"))
        store.leases.finish(run_id, Status.DONE)
    return ids


def rows(store):
    """How many rows each table has."""
    with store.database.read() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in Base.metadata.sorted_tables
        }


def test_an_evaluation_of_a_model_goes_alone(store, pair):
    for name, problem in (("m1", "a"), ("m2", "of a model")):
        store.evaluations.add(evaluation(name, None, 0, problem, subject=f"model:{name}"))
    before = rows(store)
    store.evaluations.remove_of_models(["m2", "base"])
    assert [e.identity for e in store.evaluations.of_models()] == ["m1"]
    # A run's evaluation is none of a model, though it is named.
    after = rows(store)
    changed = {name: n - after[name] for name, n in before.items() if after[name] != n}
    assert changed == {"evaluations": 1, "problem_sets": 1}


def test_a_run_goes_with_what_is_its_own(store, pair):
    gone, left = pair
    before = rows(store)
    store.runs.remove([gone])
    assert [run.id for run in store.runs.select(sweep="pair")] == [left]
    assert [e.identity for e in store.evaluations.select([left])] == ["base", f"own {left}"]
    assert store.metrics.points(left) == [("reward/mean", 1, 0.5)]
    after = rows(store)
    # Names of metrics stay; of two links to evaluations and one of its own each, one run's go.
    halved = {"runs", "sweep_runs", "points", "summaries", "checkpoints", "run_evaluations"}
    assert {name for name, n in before.items() if n and after[name] * 2 == n} == halved
    assert (before["evaluations"], after["evaluations"]) == (3, 2)
    assert (before["problem_sets"], after["problem_sets"]) == (3, 2)


def test_the_last_run_takes_what_was_shared(store, pair):
    store.runs.remove(pair)
    store.sweeps.remove("pair")
    left = {name for name, count in rows(store).items() if count}
    assert left == {"metrics"}


def test_a_sweep_goes_without_its_runs(store, pair):
    store.sweeps.remove("pair")
    assert [run.sweeps for run in store.runs.select()] == [(), ()]
    with pytest.raises(NotFoundError, match="no sweep 'pair'"):
        store.sweeps.remove("pair")


def test_a_sweep_goes_with_the_trials_of_its_search(store):
    store.sweeps.add("searched", {})
    store.trials.add("searched", 0, {"estimator.delta": 0.5}, "hash")
    store.sweeps.remove("searched")
    store.sweeps.add("searched", {})
    assert store.trials.select("searched") == []


def test_a_run_that_a_process_has_keeps_all_of_them(store, pair, new_run):
    [running] = store.runs.add([new_run(2)])
    store.leases.claim(running, Owner.current())
    with pytest.raises(StoreError, match=f"run {running} is being trained by process"):
        store.runs.remove([*pair, running])
    assert len(store.runs.select()) == 3
    with pytest.raises(NotFoundError, match="no run 77"):
        store.runs.remove([77])


def test_a_lost_run_can_be_removed(store, new_run, clock):
    [lost] = store.runs.add([new_run(0)])
    store.leases.claim(lost, Owner.current())
    clock.forward(61)
    store.runs.remove([lost])
    assert store.runs.select() == []
