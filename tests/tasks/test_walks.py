"""Walks: the environment, its verdicts, floors, corpus, and the rewards of turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import CorpusShares, Problem, Split
from advsweep.tasks.route_maps import NODE_SYMBOLS, Prompts, route_map
from advsweep.tasks.walk_episodes import CLOSED, MOVED, SYMBOLS, parse_prompts, solve_rates
from advsweep.tasks.walks import Walks

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(**options: Any) -> Walks:
    task = TASKS.build({"name": "walks", "held_out_per_level": 5, "train_per_level": 10, **options})
    assert isinstance(task, Walks)
    return task


TASK = make()
OPEN = route_map(0).open


def next_to(node: str) -> str:
    """Return a node to which a link is open."""
    return NODE_SYMBOLS[int(OPEN.neighbours[NODE_SYMBOLS.index(node), 0])]


def closed_to(node: str) -> str:
    """Return another node to which no link is open."""
    blocked = np.flatnonzero(~OPEN.adjacent[NODE_SYMBOLS.index(node)])
    return next(NODE_SYMBOLS[i] for i in blocked.tolist() if NODE_SYMBOLS[i] != node)


def score(prompt: str, *completions: str) -> list[float]:
    problems = [Problem("", prompt, 0)] * len(completions)
    return TASK.score(problems, completions).tolist()


def test_known_solutions_are_right() -> None:
    for split in Split:
        problems = TASK.problems(split)
        solutions = [problem.reference["solution"] for problem in problems]
        assert TASK.score(problems, solutions).all()


def test_an_episode_is_right_if_it_ends_at_the_goal_past_the_stop() -> None:
    a = "A"
    b = next_to(a)
    c = next(
        n
        for n in (NODE_SYMBOLS[i] for i in OPEN.neighbours[NODE_SYMBOLS.index(b)] if i < 64)
        if n != a
    )
    blocked = closed_to(a)
    assert score(f"{a}{c}:", f"{b}{MOVED}{c}") == [1.0]
    assert score(f"{a}{b}{c}:", f"{b}{MOVED}{c}", f"{blocked}{CLOSED}{b}{MOVED}{c}") == [1.0, 1.0]
    # The goal before the stop ends the episode; and one that goes on after its end is none.
    assert score(f"{a}{c}{b}:", b, f"{b}{MOVED}{c}{MOVED}{b}") == [0.0, 0.0]
    # The environment would not say so, says nothing, or the episode has not ended.
    assert score(f"{a}{c}:", f"{b}{CLOSED}{c}", f"{b}{c}", f"{b}{MOVED}") == [0.0, 0.0, 0.0]
    assert score(f"{a}{c}:", "", "=", "é", "\0") == [0.0] * 4


def test_the_walker_stays_where_no_link_is_open_and_turns_are_limited() -> None:
    blocked = closed_to("A")
    goal = next_to("A")
    wrong = f"{blocked}{CLOSED}"
    prompt = f"A{goal}:"
    assert score(prompt, wrong * 11 + goal) == [1.0]
    # The twelfth turn is the last.
    assert score(prompt, wrong * 12 + goal) == [0.0]
    states = TASK.follow([prompt], [wrong * 2 + goal])
    assert states.turns.tolist() == [3]
    assert len(set(states.states[0, :3].tolist())) == 1
    assert not states.states[0, 3:].any()


def test_states_tell_places_and_the_passed_stop_apart_and_not_histories() -> None:
    a = "A"
    b = next_to(a)
    goal = next(n for n in NODE_SYMBOLS if n not in (a, b))
    back = f"{b}{MOVED}{a}{MOVED}{b}{MOVED}"
    free, past = TASK.follow([f"{a}{goal}:", f"{a}{b}{goal}:"], [back + a, back + a]).states
    # Without a stop the second visit of a place is the first again; with one it is another state.
    assert free[0] == free[2]
    assert free[1] == free[3]
    assert past[0] != past[2]
    assert past[1] == past[3]
    assert set(free[:4]).isdisjoint(past[:4])


@pytest.mark.parametrize("texts", [["ab:"], ["avb:", "ab:", "+/0:x=y!"]])
def test_prompts_are_parsed_as_they_are_written(texts: Sequence[str]) -> None:
    prompts, rest = parse_prompts(texts)
    assert [p + r for p, r in zip(prompts.texts(), rest, strict=True)] == list(texts)


def test_an_episode_that_is_continued_goes_on_from_its_state() -> None:
    a = "A"
    b = next_to(a)
    c = next_to(b)
    goal = next(n for n in NODE_SYMBOLS if n not in (a, b, c))
    walkers = TASK.begin([f"{a}{b}{goal}:{b}{MOVED}", f"{a}{b}{goal}:"])
    assert [NODE_SYMBOLS[i] for i in walkers.here.tolist()] == [b, a]
    assert walkers.passed.tolist() == [True, False]
    reply = walkers.take(np.array([0]), np.array([SYMBOLS.index(c)]))
    assert SYMBOLS[int(reply.symbols[0])] == MOVED
    assert walkers.turns.tolist() == [2, 0]


def test_the_end_mark_ends_an_episode() -> None:
    walkers = TASK.begin(["Ab:"])
    assert walkers.take(np.array([0]), np.array([TASK.eos_id])).ended.all()


def test_floors_are_those_of_walkers_that_are_simulated() -> None:
    """200,000 walks of each floor, from a prompt of level 0 and one with a stop."""
    problems = [TASK.by_level(Split.HELD_OUT)[level][0] for level in (0, 1)]
    prompts = Prompts.of_keys(np.array([problem.reference["key"] for problem in problems]))
    exact = solve_rates(0, prompts, 12)
    rng = np.random.default_rng(0)
    count = 100_000
    for problem, guess, walker in zip(problems, exact["guess"], exact["walker"], strict=True):
        found = {}
        for name in ("guess", "walker"):
            walkers = TASK.begin([problem.prompt] * count)
            while not walkers.ended.all():
                rows = np.flatnonzero(~walkers.ended)
                nodes = rng.integers(64, size=len(rows))
                if name == "walker":
                    choices = OPEN.neighbours[walkers.here[rows]]
                    degrees = (choices < 64).sum(axis=1)
                    nodes = choices[
                        np.arange(len(rows)), (rng.random(len(rows)) * degrees).astype(int)
                    ]
                walkers.take(rows, nodes)
            found[name] = walkers.solved.mean()
        for name, rate in (("guess", guess), ("walker", walker)):
            error = (rate * (1 - rate) / count) ** 0.5
            assert abs(found[name] - rate) < 4 * error + 1e-9


def test_the_corpus_has_what_its_shares_say() -> None:
    rng = np.random.default_rng(0)

    def drawn(random: float, mistaken: float) -> tuple[float, float]:
        shares = CorpusShares(random=random, mistaken=mistaken)
        prompts, episodes = TASK.pretraining_pairs(2000, rng, shares=shares)
        problems = [Problem("", prompt, 0) for prompt in prompts]
        assert all(answer is not None for answer in TASK.answers(problems, episodes))
        closed = np.mean([CLOSED in episode for episode in episodes])
        return TASK.score(problems, episodes).mean(), closed

    right, closed = drawn(0, 0)
    assert right > 0.9
    assert closed == 0
    misled, told = drawn(0, 1)
    # Three in ten links of the outdated map are closed, and the walker is told.
    assert 0.5 < misled < right
    assert told > 0.5
    assert drawn(1, 0)[0] < 0.2


def test_rewards_of_turns_are_those_of_the_stop_and_the_cost() -> None:
    task = make(stop_reward=0.5, turn_cost=0.1)
    a = "A"
    b = next_to(a)
    goal = next(n for n in NODE_SYMBOLS if n not in (a, b))
    found = task.follow([f"{a}{b}{goal}:"], [f"{b}{MOVED}{a}{MOVED}{b}{MOVED}"])
    # .5 - .1 in the turn that passes the stop, and -.1 in each other one.
    assert found.rewards[0, :4].tolist() == pytest.approx([0.4, -0.1, -0.1, 0.0])
    assert task.reward_range == (pytest.approx(-1.2), 1.5)
    assert not task.is_binary
    assert task.is_shaped
    assert task.provides - TASK.provides == {"turn_rewards"}


def test_a_way_may_need_eight_turns() -> None:
    with pytest.raises(ConfigError, match="turn_limit"):
        make(turn_limit=7)
