"""The answers that evaluations keep for people to read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import StoreError
from advsweep.store import AnswerSample, NewEvaluation, Store, open_store
from advsweep.store.evaluation_records import MAX_CHARACTERS
from advsweep.store.merge import merge
from tests.store.conftest import evaluation_of

IDENTITY = "ab" * 32


def _evaluation(run_id: int | None) -> NewEvaluation:
    return evaluation_of(IDENTITY, run_id, 4, problems=["first", "second"])


def _sample(**changes: Any) -> AnswerSample:
    values: dict[str, Any] = {
        "problem_id": "second",
        "prompt": "prompt of second",
        "level": 1,
        "answer": "I think it is 4.",
        "length": 16,
        "read": "4",
        "reward": 1.0,
    }
    return AnswerSample(**{**values, **changes})


@pytest.fixture
def run_id(store, new_run) -> int:
    [run_id] = store.runs.add([new_run(seed=0, steps=4)])
    return run_id


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "other.db")) as opened:
        yield opened


def test_answers_are_read_with_their_problems(store, run_id):
    kept = [_sample(), _sample(problem_id="first", prompt="prompt of first", level=0, reward=None)]
    store.evaluations.add(_evaluation(run_id), kept)
    assert store.evaluations.samples([IDENTITY, "none"]) == {IDENTITY: kept}
    assert [sample.verdict for sample in kept] == ["correct", "unscorable"]
    assert _sample(reward=0.0).verdict == _sample(reward=0.5).verdict == "wrong"


def test_a_long_answer_loses_its_middle(store, run_id):
    text = "a" * MAX_CHARACTERS + "b" * MAX_CHARACTERS
    store.evaluations.add(_evaluation(run_id), [_sample(answer=text, read=text, length=len(text))])
    [kept] = store.evaluations.samples([IDENTITY])[IDENTITY]
    assert len(kept.answer) == MAX_CHARACTERS
    assert kept.read == kept.answer
    assert kept.length == 2 * MAX_CHARACTERS
    assert kept.answer.startswith("aaa")
    assert kept.answer.endswith("bbb")
    assert f"[... {MAX_CHARACTERS} characters left out ...]" in kept.answer


def test_answers_go_with_their_evaluation(store, run_id):
    store.evaluations.add(_evaluation(run_id), [_sample()])
    store.runs.remove([run_id])
    assert not store.evaluations.has(IDENTITY)
    assert store.evaluations.samples([IDENTITY]) == {}


def _with(**changes: object) -> Callable[[dict[str, object]], object]:
    return lambda row: [{**row, **changes}]


@pytest.mark.security
@pytest.mark.parametrize(
    "change",
    [
        _with(problem="third"),
        _with(problem=["first"]),
        _with(answer="x" * (MAX_CHARACTERS + 1)),
        _with(answer="a\0b"),
        _with(answer=None),
        _with(length=-1),
        _with(read=4),
        _with(reward="much"),
        _with(more=1),
        lambda row: row,
        lambda row: [row] * 9,
        lambda row: ["text"],
    ],
)
def test_a_merge_refuses_answers_that_advsweep_cannot_have_written(store, other, new_run, change):
    if store.file is None:
        pytest.skip("once is enough")
    [theirs] = other.runs.add([new_run(seed=0, steps=4)])
    other.evaluations.add(_evaluation(theirs), [_sample()])
    assert other.file is not None
    with sqlite3.connect(other.file) as connection:
        [(text,)] = connection.execute("SELECT answers FROM evaluation_samples")
        changed = json.dumps(change(json.loads(text)[0]))
        connection.execute("UPDATE evaluation_samples SET answers = ?", (changed,))
    with pytest.raises(StoreError, match="evaluation"):
        merge(store, other)
    assert not store.evaluations.has(IDENTITY)
