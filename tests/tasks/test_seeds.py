"""Tasks that the seed of a run draws: `task.seed=seed`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import CorpusShares, SeededTask, Split, SymbolTask
from advsweep.tasks.route_maps import prompts_of_levels, route_map
from advsweep.tasks.routes import Routes

SMALL: dict[str, dict[str, Any]] = {
    "bandit": {"prompts_per_level": 2, "behaviours": 8, "correct": 2},
    "countdown": {"levels": [0, 2], "held_out_per_level": 5, "train_per_level": 10},
    "routes": {"levels": [0, 2], "held_out_per_level": 5, "train_per_level": 10},
}


def tied(name: str) -> SeededTask:
    task = TASKS.build({"name": name, "seed": "seed", **SMALL[name]})
    assert isinstance(task, SeededTask)
    return task


@pytest.mark.parametrize("name", SMALL)
def test_each_seed_draws_a_task(name: str) -> None:
    task = tied(name)
    assert task.plain()["seed"] == "seed"
    with pytest.raises(ConfigError, match=r"^task\.seed: expected an integer for a task without"):
        task.problems(Split.HELD_OUT)
    drawn = [task.for_seed(seed) for seed in range(3)]
    assert [one.seed for one in drawn] == [0, 1, 2]
    # The task of seed 0 is the one that every seed shared before.
    shared = TASKS.build({"name": name, **SMALL[name]})
    assert drawn[0].identity() == shared.identity()
    assert shared.for_seed(3) is shared
    assert len({str(one.identity()) for one in drawn}) == 3
    assert drawn[1].identity() == task.for_seed(1).identity()


@pytest.mark.parametrize("name", ["countdown", "routes"])
def test_seeds_have_problems_of_their_own_and_splits_stay_apart(name: str) -> None:
    task = tied(name)
    sets = [
        {split: {p.prompt for p in one.problems(split)} for split in Split}
        for one in (task.for_seed(seed) for seed in range(4))
    ]
    held_out = [one[Split.HELD_OUT] for one in sets]
    assert all(len(own) == 10 for own in held_out)
    assert len(set.union(*held_out)) > 25
    # The part of a problem does not depend on the seed, nor on the map.
    assert not set.union(*held_out) & set.union(*(one[Split.TRAIN] for one in sets))


def test_seeds_of_routes_have_maps_of_their_own() -> None:
    one, other = (tied("routes").for_seed(seed) for seed in (1, 2))
    assert isinstance(one, Routes)
    assert isinstance(other, Routes)
    for task in (one, other):
        links = route_map(task.map_seed).open
        for problem in task.problems(Split.HELD_OUT):
            solution = problem.reference["solution"]
            assert task.score([problem], [solution]).tolist() == [1.0]
        assert links.distances.max() < 99
    # Right on one map is mostly wrong on the other.
    problems = one.problems(Split.HELD_OUT)
    solutions = [problem.reference["solution"] for problem in problems]
    assert other.score(problems, solutions).mean() < 0.2
    keys = [prompts_of_levels(task.map_seed)[2].keys for task in (one, other)]
    assert not np.array_equal(*keys)
    rates = [dict(task.floors()["walker"].rates) for task in (one, other)]
    assert rates[0] != rates[1]


def test_bases_learn_the_map_of_the_seed() -> None:
    """A corpus of right answers alone follows the open links of its own map."""
    identities = set()
    for seed in (0, 1):
        task = tied("routes").for_seed(seed)
        assert isinstance(task, SymbolTask)
        identities.add(str(task.corpus_identity()))
        pairs = task.pretraining_pairs(
            200, np.random.default_rng(0), shares=CorpusShares(random=0.0, mistaken=0.0)
        )
        codes = {symbol: place for place, symbol in enumerate(task.alphabet)}
        adjacent = route_map(seed).open.adjacent
        for prompt, answer in zip(*pairs, strict=True):
            nodes = [codes[prompt[0]], *map(codes.__getitem__, answer)]
            assert adjacent[nodes[:-1], nodes[1:]].all()
    assert len(identities) == 2
    # Countdown's corpus has all problems of its levels, whatever the seed.
    countdown = [tied("countdown").for_seed(seed) for seed in (0, 1)]
    corpora = [one.corpus_identity() for one in countdown if isinstance(one, SymbolTask)]
    assert corpora[0] == corpora[1]
