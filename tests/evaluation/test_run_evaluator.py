"""The evaluations of a run: how many samples each has, and on which problems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from advsweep.backends.build import build_run
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.store import Store, open_store
from advsweep.sweep.exit_codes import DONE
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.scheduled_runs import new_run
from advsweep.sweep.worker.main import work

FAKE = [
    "backend=fake",
    "executor=debug",
    "steps=4",
    "prompts_per_step=4",
    "task.held_out_per_level=2",
    "evaluation.n=8",
    "evaluation.k=[1,8]",
    "evaluation.every=2",
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        yield opened


def trained(store: Store, *overrides: str) -> tuple[int, Evaluator]:
    [planned] = make_plan([*FAKE, *overrides]).runs
    [record] = store.runs.select(ids=store.runs.add([new_run(planned)]))
    assert work(store, record, (), None) == DONE
    return record.id, Evaluator(store, build_run(record.config), record.id, record.attempt)


def test_evaluations_between_the_ends_have_fewer_samples(store: Store) -> None:
    run_id, evaluator = trained(store, "evaluation.n_between=2")
    found = store.evaluations.select([run_id])
    assert [(e.step, set(e.n.tolist())) for e in found] == [(0, {8}), (2, {2}), (4, {8})]
    assert [e.settings["k"] for e in found] == [[1, 8], [1], [1, 8]]
    assert evaluator.missing() == []
    points = store.metrics.points(run_id)
    assert sorted(step for name, step, _ in points if name == "pass@8") == [0, 4]
    assert sorted(step for name, step, _ in points if name == "pass@1") == [0, 2, 4]


def test_training_problems_are_evaluated_apart(store: Store) -> None:
    run_id, evaluator = trained(store, "evaluation.train_problems=3")
    held_out, train = (store.evaluations.select([run_id], split=s) for s in ("held_out", "train"))
    assert [e.step for e in held_out] == [e.step for e in train] == [0, 2, 4]
    assert {len(e.problem_ids) for e in train} == {3}
    assert not set(train[0].problem_ids) & set(held_out[0].problem_ids)
    assert evaluator.missing() == []


def test_the_evaluations_of_a_run_do_not_depend_on_the_new_settings(store: Store) -> None:
    """What is stored of an evaluation is what was stored before there were such settings."""
    plain, _ = trained(store)
    other, _ = trained(store, "evaluation.train_problems=3", "seed=1")
    first, second = (store.evaluations.select([run])[0] for run in (plain, other))
    assert first.identity == second.identity
    assert not {"n_between", "train_problems"} & set(first.settings)


def test_training_problems_can_be_evaluated_after_the_training(store: Store) -> None:
    run_id, evaluator = trained(store)
    settings = {**evaluator.run.evaluation.plain(), "train_problems": 2}
    run = build_run({**evaluator.run.plain(), "evaluation": settings})
    later = Evaluator(store, run, run_id, 1)
    assert later.missing() == [0, 4]
    [record] = store.runs.select(ids=[run_id])
    loaded: list[int] = []
    for step in later.missing():

        def sampler(step: int = step) -> object:
            loaded.append(step)
            return run.backend.sampler(run, record.directory, step)

        later.ensure(step, sampler)  # type: ignore[arg-type]
    assert later.missing() == []
    assert loaded == [0, 4]
