"""The evaluations of a run: how many samples each has, and on which problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from advsweep.backends.build import build_run
from advsweep.evaluation.run_evaluator import Evaluator
from advsweep.names import SELECTED_STEP
from advsweep.store import Store, open_store
from advsweep.sweep.events import DONE
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.worker.environment import new_run
from advsweep.sweep.worker.main import work_on

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
    [record] = store.runs.select(ids=store.runs.add([new_run(planned.run, planned.config)]))
    assert work_on(store, [record.id], (), None) == DONE
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


SELECTING = ["evaluation.select_on={share: 0.5, n: 16}", "evaluation.at=[1,3]"]


def test_the_first_step_with_the_best_validation_score_is_selected(store: Store) -> None:
    run_id, evaluator = trained(store, *SELECTING)
    reported, validating = (
        store.evaluations.select([run_id], split=s) for s in ("held_out", "validation")
    )
    assert [e.step for e in reported] == [e.step for e in validating] == [0, 1, 2, 3, 4]
    assert {len(e.problem_ids) for e in (*reported, *validating)} == {7}
    assert not set(reported[0].problem_ids) & set(validating[0].problem_ids)
    assert {(*e.n.tolist(),) for e in validating} == {(16,) * 7}
    scores = {e.step: e.c.sum() / e.n.sum() for e in validating}
    best = max(scores, key=lambda step: scores[step])
    assert best > 0, "the test's run should improve"
    points = store.metrics.points(run_id)
    assert [(step, value) for name, step, value in points if name == SELECTED_STEP] == [(4, best)]
    assert (
        store.metrics.summaries([run_id])[run_id][SELECTED_STEP]
        == evaluator.selected_step()
        == best
    )
    written = {step: value for name, step, value in points if name == "validation/pass@1"}
    assert written == pytest.approx(scores)
    assert evaluator.missing() == []


def test_equal_scores_select_the_first_and_unscored_steps_never_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, evaluator = trained(store, *SELECTING)
    for scores, best in (
        ([0.25, 0.5, 0.5, 0.0, 0.25], 1),
        ([math.nan, 0.0, 0.0, math.nan, 0.0], 1),
        ([0.25, 0.5, 0.75], None),
    ):
        own = dict(enumerate(scores))
        monkeypatch.setattr(Evaluator, "validation_scores", lambda _, own=own: own)
        assert evaluator.selected_step() == best


def test_steps_that_may_be_selected_have_as_many_samples_as_the_ends(store: Store) -> None:
    """Each step that is better than those before, so that entropies compare with the ends'."""
    run_id, evaluator = trained(store, *SELECTING, "evaluation.n_between=2")
    scores = evaluator.validation_scores()
    samples = {e.step: e.settings["n"] for e in store.evaluations.select([run_id])}
    records = {s for s in (1, 2, 3) if all(scores[s] > scores[other] for other in range(s))}
    assert 0 < len(records) < 3, "the test's run should have both kinds of steps"
    assert samples == {step: 8 if step in {0, 4} | records else 2 for step in range(5)}


@pytest.mark.slow
def test_select_on_leaves_the_training_and_evaluations_of_other_runs_alone(store: Store) -> None:
    plain, first = trained(store)
    selecting, second = trained(store, *SELECTING, "seed=1")
    other = "evaluation.select_on={task: {held_out_per_level: 3}}"
    with_task, third = trained(store, other, "seed=2")
    assert first.run.identity == replace(second.run, seed=0).identity
    bases = [store.evaluations.select([run])[0] for run in (plain, selecting, with_task)]
    # Half of the problems are not reported; with others for validation, all are.
    assert [len(base.problem_ids) for base in bases] == [14, 7, 14]
    assert bases[0].identity == bases[2].identity != bases[1].identity
    assert "select_on" not in bases[1].settings
    chosen = store.evaluations.select([with_task], split="validation")
    assert {len(e.problem_ids) for e in chosen} == {7}
    assert third.missing() == []
