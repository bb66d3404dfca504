"""Problems that the seed of a run draws out of data: `task.seed=seed`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.base import Split
from advsweep.tasks.dataset import Dataset

Write = Callable[..., str]
SEEDS = range(5)


def make(data: str, **fields: Any) -> Dataset:
    return Dataset(**{"data": data, "verifier": "numeric", "seed": "seed", **fields})


def ids(task: Dataset, split: Split) -> list[str]:
    return [problem.id for problem in task.problems(split)]


@pytest.fixture
def folder(write: Write, tmp_path: Path) -> str:
    """A folder with a split of fourteen problems and one of six."""
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(20)]
    write("set/train.jsonl", rows[:14])
    write("set/test.jsonl", rows[14:])
    return str(tmp_path / "set")


@pytest.mark.parametrize(
    ("fields", "digest"),
    [
        ({"held_out": 5}, "4a90319bbc01bfa0"),
        ({"held_out": 5, "train": 7, "seed": 3, "shots": 2}, "17dd0e3a80f1daa5"),
    ],
)
def test_runs_of_one_seed_keep_the_identity_that_stores_have(
    sums: str, fields: dict[str, Any], digest: str
) -> None:
    task = make(sums, **{"seed": 0, **fields})
    material = json.dumps(task.identity(), sort_keys=True).encode()
    assert hashlib.sha256(material).hexdigest()[:16] == digest
    assert "pool" not in task.protocol()
    assert task.for_seed(9) is task


def test_each_seed_draws_problems_of_its_own_and_holds_out_no_training_problem(sums: str) -> None:
    shared = make(sums, held_out=5, train=10)
    with pytest.raises(ConfigError, match=r"^task\.seed: expected an integer for a task without"):
        shared.problems(Split.TRAIN)
    drawn = [shared.for_seed(seed) for seed in SEEDS]
    for seed, task in zip(SEEDS, drawn, strict=True):
        held_out, trained = ids(task, Split.HELD_OUT), ids(task, Split.TRAIN)
        assert (len(held_out), len(trained)) == (5, 10)
        assert len({*held_out, *trained}) == 15
        # Those that this seed has had without a run.
        alone = make(sums, held_out=5, train=10, seed=seed)
        assert (held_out, trained) == (ids(alone, Split.HELD_OUT), ids(alone, Split.TRAIN))
        assert shared.for_seed(seed).problems(Split.TRAIN) == task.problems(Split.TRAIN)
    assert len({tuple(ids(task, Split.HELD_OUT)) for task in drawn}) == len(SEEDS)
    assert len({str(task.identity()) for task in drawn}) == len(SEEDS)


def test_splits_of_the_data_are_drawn_from_apart(folder: str) -> None:
    shared = make(folder, held_out=3, train=10)
    pools = make(folder, seed=0)
    for seed in SEEDS:
        task = shared.for_seed(seed)
        assert {*ids(task, Split.TRAIN)} < {*ids(pools, Split.TRAIN)}
        assert {*ids(task, Split.HELD_OUT)} < {*ids(pools, Split.HELD_OUT)}


def test_the_shared_task_is_known_by_its_pool_and_by_the_numbers(sums: str, write: Write) -> None:
    shared = make(sums, held_out=5, train=10)
    lines = Path(sums).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    elsewhere = make(write("other.jsonl", rows), held_out=5, train=10, title="other")
    assert elsewhere.identity() == shared.identity()
    for change in ({"held_out": 6}, {"train": 9}, {"seed": 0}, {"shots": 1}, {"prompt": "plain"}):
        assert make(sums, **{"held_out": 5, "train": 10, **change}).identity() != shared.identity()
    # A problem may be of no seed so far: the pool has another one all the same.
    fewer = make(write("fewer.jsonl", rows[:-1]), held_out=5, train=10)
    assert fewer.identity() != shared.identity()


def test_evaluations_of_all_seeds_are_described_alike(write: Write) -> None:
    """Every problem has a system message of its own, and seeds have different ones."""
    rows = [
        {
            "messages": [
                {"role": "system", "content": f"Rule {i}."},
                {"role": "user", "content": f"What is {i} + {i}?"},
            ],
            "answer": str(2 * i),
        }
        for i in range(20)
    ]
    shared = make(write("chats.jsonl", rows), held_out=5, question_column="messages")
    protocols = [shared.for_seed(seed).protocol() for seed in SEEDS]
    assert protocols[0]["pool"]
    assert all(protocol == protocols[0] for protocol in protocols)
    # An evaluation that names its pool is not shared with one that does not.
    task, alone = (
        shared.for_seed(3),
        make(shared.data, held_out=5, seed=3, question_column="messages"),
    )
    assert task.identity() != alone.identity()
    other = make(write("more.jsonl", rows[1:]), held_out=5, question_column="messages")
    assert other.for_seed(0).protocol()["pool"] != protocols[0]["pool"]


def test_seeds_draw_solved_examples_from_their_own_problems(sums: str) -> None:
    shared = make(sums, held_out=5, shots=2, prompt="{question}")
    prompts = set()
    for seed in SEEDS:
        task = shared.for_seed(seed)
        first = task.problems(Split.HELD_OUT)[0].prompt
        prompts.add(first.rpartition("\n\n")[0])
        held_out = {problem.row for problem in task.problems(Split.HELD_OUT)}
        assert not any(f"What is {row - 1} + " in first.rpartition("\n\n")[0] for row in held_out)
    assert len(prompts) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"held_out": 20}, r"task\.held_out: expected fewer than the 20 problems of the data"),
        ({"held_out": 15, "train": 6}, r"task\.train: expected at most the 5 training problems"),
    ],
)
def test_fewer_problems_than_asked_are_refused(
    sums: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        make(sums, **fields).for_seed(0).check()


def test_a_split_is_refused_of_which_all_seeds_take_all(folder: str) -> None:
    for fields in ({}, {"train": 14, "held_out": 6}):
        with pytest.raises(ConfigError, match=r"^task\.seed: .* have the 14 training problems and"):
            make(folder, **fields).for_seed(0).check()
    with pytest.raises(ConfigError, match=r"^task\.held_out: expected at most the 6 held-out"):
        make(folder, held_out=7, train=3).for_seed(0).check()
    for fields in ({"train": 13}, {"held_out": 5}, {"shots": 2}):
        make(folder, **fields).for_seed(0).check()
