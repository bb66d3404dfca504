"""Evaluations in the store."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import update

from advsweep.errors import NotFoundError
from advsweep.store import NewEvaluation, ProblemCounts
from advsweep.store.tables import EVALUATIONS


@pytest.fixture
def ids(store, new_run) -> list[int]:
    return store.runs.add([new_run(seed=i, steps=100) for i in range(3)])


def _evaluation(identity: str, run_id: int | None, step: int, c: int = 2) -> NewEvaluation:
    return NewEvaluation(
        identity=identity,
        subject=f"subject of {identity}",
        run_id=run_id,
        step=step,
        task="countdown",
        settings={"n": 4, "k": [1, 4], "temperature": 1.0},
        problems=[
            ProblemCounts(
                problem_id="0/12=3",
                prompt="12=03:",
                level=0,
                n=4,
                c=c,
                distinct=3,
                unscorable=0,
                answer_entropy=1.04,
                token_entropy=0.5,
                right_entropy=0.69,
                kl_base=0.25,
                right_counts=[1] * c,
            ),
            ProblemCounts(
                problem_id="6/é=9",
                prompt="é=09:",
                level=6,
                n=3,
                c=0,
                distinct=1,
                unscorable=1,
                answer_entropy=0.0,
                right_counts=[],
            ),
        ],
    )


def test_an_evaluation_is_read_with_its_counts(store, clock, ids):
    assert not store.evaluations.has("e")
    store.evaluations.add(_evaluation("e", ids[0], 100))
    assert store.evaluations.has("e")
    [found] = store.evaluations.select(ids)
    assert (found.run_id, found.step, found.identity) == (ids[0], 100, "e")
    assert (found.subject, found.task, found.created) == ("subject of e", "countdown", clock.now)
    assert found.settings == {"n": 4, "k": [1, 4], "temperature": 1.0}
    assert found.problem_ids == ("0/12=3", "6/é=9")
    assert found.prompts == ("12=03:", "é=09:")
    columns = (found.levels, found.n, found.c, found.distinct, found.unscorable)
    assert [column.tolist() for column in columns] == [[0, 6], [4, 4], [2, 0], [3, 1], [0, 1]]
    assert all(np.issubdtype(column.dtype, np.integer) for column in columns)
    assert found.answer_entropy.tolist() == [1.04, 0.0]
    assert found.token_entropy[0] == 0.5
    assert np.isnan(found.token_entropy[1])
    assert found.right_entropy[0] == 0.69
    assert np.isnan(found.right_entropy[1])
    assert found.kl_base[0] == 0.25
    assert np.isnan(found.kl_base[1])
    assert found.right_counts is not None
    assert found.right_counts.tolist() == [1, 1]
    # Two right answers of two kinds, of which two are drawn; the other problem has none.
    np.testing.assert_allclose(found.rarefied(2), [math.log(2), np.nan])
    assert found.scores()["kl/base"] == 0.25


def test_older_evaluations_lack_numbers_that_were_added_later(store, ids):
    store.evaluations.add(_evaluation("e", ids[0], 100))
    later = dict.fromkeys(("right_entropy", "kl_base", "right_counts"))
    with store.database.write() as connection:
        connection.execute(update(EVALUATIONS).values(**later))
    [found] = store.evaluations.select(ids)
    for numbers in (found.right_entropy, found.kl_base, found.rarefied()):
        assert np.isnan(numbers).tolist() == [True, True]
    assert found.right_counts is None
    assert "kl/base" not in found.scores()


def test_right_answers_are_counted_for_all_problems_or_none(store, ids):
    evaluation = _evaluation("e", ids[0], 100)
    first, second = evaluation.problems
    problems = [first, replace(second, right_counts=None)]
    store.evaluations.add(replace(evaluation, problems=problems))
    [found] = store.evaluations.select(ids)
    assert found.right_counts is None


def test_evaluations_on_training_problems_are_apart(store, ids):
    held_out = _evaluation("e", ids[0], 100)
    settings = {**held_out.settings, "split": "train"}
    store.evaluations.add(held_out)
    store.evaluations.add(replace(held_out, identity="t", settings=settings))
    found = {
        split: [e.identity for e in store.evaluations.select(ids, split=split)]
        for split in ("held_out", "train", None)
    }
    assert found == {"held_out": ["e"], "train": ["t"], None: ["e", "t"]}
    assert [e.identity for e in store.evaluations.select(ids)] == ["e"]
    found = store.evaluations.find("t", run_id=ids[0], step=100)
    assert (found.identity, found.run_id, found.step) == ("t", ids[0], 100)


def test_runs_share_the_evaluation_of_their_base_model(store, ids):
    store.evaluations.add(_evaluation("base", None, 0))
    assert store.evaluations.select(ids) == []
    for run_id in (ids[1], ids[0], ids[0]):
        store.evaluations.link(run_id, "base", 0)
    assert [(e.run_id, e.step) for e in store.evaluations.select(ids)] == [(ids[0], 0), (ids[1], 0)]
    with pytest.raises(NotFoundError, match="no evaluation other"):
        store.evaluations.link(ids[0], "other", 0)
    with pytest.raises(NotFoundError, match="no run 99"):
        store.evaluations.link(99, "base", 0)


def test_select_only_the_first_and_last_evaluations(store, ids):
    for step in (0, 50, 100):
        store.evaluations.add(_evaluation(f"e{step}", ids[0], step))
    assert [e.step for e in store.evaluations.select(ids)] == [0, 50, 100]
    assert [e.step for e in store.evaluations.select(ids, ends_only=True)] == [0, 100]


def test_scores_by_hand(store, ids):
    evaluation = _evaluation("whole", ids[0], 100)
    problems = [
        replace(evaluation.problems[1], problem_id=str(i), n=n, c=c, unscorable=unscorable)
        for i, (n, c, unscorable) in enumerate([(8, 3, 0), (6, 0, 2), (0, 0, 8), (8, 8, 0)])
    ]
    store.evaluations.add(replace(evaluation, problems=problems))
    [found] = store.evaluations.select(ids)
    assert found.unjudged == ("2",)
    # The judged problems are solved at 3/8, 0/8 and 8/8; 2 of 24 samples failed.
    assert found.scores([1])["pass@1"] == pytest.approx((3 / 8 + 0 + 1) / 3)
    assert found.scores([1])["evaluation/unscorable"] == pytest.approx(2 / 24)
