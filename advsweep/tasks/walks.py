"""Walks: find a way over a map that is never shown, in turns with somebody who knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import Plain, option
from advsweep.tasks.base import CorpusShares, Floor, Problem, Split
from advsweep.tasks.episodes import EpisodeTask, Transcript
from advsweep.tasks.map_tasks import MapTask, pretraining_prompts
from advsweep.tasks.route_maps import MAX_NODES, route_map
from advsweep.tasks.walk_episodes import (
    BIAS,
    CLOSED,
    MOVED,
    SYMBOLS,
    Walk,
    Walkers,
    demonstrate,
    follow,
    other_targets,
    parse_prompts,
    solve_rates,
)

if TYPE_CHECKING:
    from advsweep.tasks.base import PerCompletion
    from advsweep.tasks.route_maps import Walks as Ways


@dataclass(kw_only=True)
class Walks(MapTask, EpisodeTask):
    """Walk over the map of `routes`, node by node, and be told if the link is open.

    The prompt is that of `routes`: `avb:` asks for a way from a through v to b, `ab:` has no stop.
    In each turn the policy names a node, and the environment answers `=`, the link is open and the
    walker has moved, or `!`, there is no open link and he is still there. The episode ends at the
    goal, or after `max_turns` turns. It is right if the walker comes to the goal and has passed
    the stop before. So `c=d!e` is a walk to c and, as d was closed, to e.

    The state before a turn is the place of the walker, whether he has passed the stop, and the
    problem. Levels are those of `routes`.
    """

    name: ClassVar[str] = "walks"
    alphabet: ClassVar[str] = SYMBOLS
    environment_symbols: ClassVar[str] = MOVED + CLOSED
    corpus_shares: ClassVar[CorpusShares] = CorpusShares(random=0.1, mistaken=0.5)

    turn_limit: int = option(
        12, ge=MAX_NODES, le=64, help="turns of an episode at most; a way may need 8"
    )
    stop_reward: float = option(
        0.0, ge=0, le=1, help="reward of the turn that passes the stop, beside that of the goal"
    )
    turn_cost: float = option(0.0, ge=0, le=1, help="what is taken from the reward for each turn")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._rewards_turns:
            vars(self)["provides"] = self.provides | {"turn_rewards"}

    @property
    def max_turns(self) -> int:
        return self.turn_limit

    @property
    def max_completion_length(self) -> int:
        # The environment answers each turn but the last.
        return 2 * self.turn_limit - 1

    @property
    def _rewards_turns(self) -> bool:
        return self.stop_reward > 0 or self.turn_cost > 0

    @property
    def is_binary(self) -> bool:
        return super().is_binary and not self._rewards_turns

    @property
    def is_shaped(self) -> bool:
        return super().is_shaped or self._rewards_turns

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = super().reward_range
        return low - self.turn_cost * self.turn_limit, high + self.stop_reward

    def begin(self, texts: Sequence[str]) -> Walkers:
        prompts, walked = parse_prompts(texts)
        walkers = Walkers(route_map(self.map_seed).open, prompts, self.turn_limit)
        follow(walkers, walked)
        return walkers

    def follow(self, prompts: Sequence[str], completions: Sequence[str]) -> Transcript:
        walk = self._walk(prompts, completions)
        turns = walk.walkers.turns
        rewards = np.zeros(walk.states.shape)
        rewards[np.arange(self.turn_limit) < turns[:, None]] -= self.turn_cost
        passed = np.flatnonzero(walk.stop_turn >= 0)
        rewards[passed, walk.stop_turn[passed]] += self.stop_reward
        return Transcript(turns=turns, states=walk.states, rewards=rewards)

    def _walk(self, prompts: Sequence[str], completions: Sequence[str]) -> Walk:
        return follow(self.begin(prompts), completions)

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        walk = self._walk([problem.prompt for problem in problems], completions)
        verdicts: PerCompletion = (walk.is_true & walk.walkers.solved).astype(np.float64)
        return verdicts

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        """Return the nodes that were walked to; None if the environment would answer otherwise."""
        walk = self._walk([problem.prompt for problem in problems], completions)
        return [
            _way(text) if text and is_true else None
            for text, is_true in zip(completions, walk.is_true.tolist(), strict=True)
        ]

    def pretraining_pairs(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        shares: CorpusShares | None = None,
    ) -> tuple[list[str], list[str]]:
        """Return prompts of all levels and episodes, right or not.

        Some walk to other targets, some believe the map that is outdated, the others know it.
        """
        shares = shares or self.corpus_shares
        prompts = pretraining_prompts(count, rng, self.map_seed)
        kinds = rng.choice(3, size=count, p=[*shares, 1 - sum(shares)])
        targets = other_targets(prompts, np.flatnonzero(kinds == 0), rng)
        uniform = rng.random((count, self.turn_limit))
        maps = route_map(self.map_seed)
        texts = np.empty(count, dtype=object)
        for known, rows in (
            (maps.old, np.flatnonzero(kinds == 1)),
            (maps.open, np.flatnonzero(kinds != 1)),
        ):
            walkers = Walkers(maps.open, prompts[rows], self.turn_limit)
            texts[rows] = demonstrate(walkers, known, targets[rows], uniform[rows])
        return prompts.texts(), texts.tolist()

    def corpus_identity(self) -> Plain:
        # The corpus has all levels, whichever are in use.
        own = {"name": self.name, "revision": self.revision, "bias": BIAS}
        return own | {"turn_limit": self.turn_limit} | self._own_map()

    def _write(self, walks: Ways) -> list[str]:
        return [MOVED.join(way) for way in super()._write(walks)]

    def floors(self, split: Split = Split.HELD_OUT) -> Mapping[str, Floor]:
        """Return the exact floors `guess` and `walker`."""
        problems = self.problems(split)
        rates = solve_rates(self.map_seed, self._prompts(problems), self.turn_limit)
        meanings = {
            "guess": "any of the 64 nodes each turn",
            "walker": "any neighbour by an open link each turn",
        }
        return self._floors_of(problems, rates, meanings)


def _way(text: str) -> str:
    """Return the nodes of a walk that were reached; the last symbol has no answer."""
    nodes = text[::2]
    answers = text[1::2]
    reached = [node for node, answer in zip(nodes, answers, strict=False) if answer == MOVED]
    last = nodes[-1] if len(text) % 2 else ""
    return "".join([*reached, last])
