"""Routes: find a way over a map that is never shown, past a stop and to a goal."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import Plain
from advsweep.tasks.base import CorpusShares, Floor, Problem, Split
from advsweep.tasks.generated import LEVELS
from advsweep.tasks.map_tasks import MapTask, pretraining_keys
from advsweep.tasks.route_maps import (
    BIAS,
    KEPT_MAPS,
    MAX_NODES,
    NO_STOP,
    NODE_SYMBOLS,
    NODES,
    Prompts,
    path_tables,
    route_map,
    walk,
    write,
)

if TYPE_CHECKING:
    from jaxtyping import Int

    from advsweep.tasks.base import PerCompletion

    Ints = Int[np.ndarray, " rows"]


# Answers of the corpus that are not right: routes to another stop and goal, and routes that may
# use closed links.
_RANDOM = 0
_OLD_MAP = 1


def corpus(
    count: int, rng: np.random.Generator, shares: CorpusShares, map_seed: int = 0
) -> tuple[list[str], list[str]]:
    """Return prompts of all levels and their answers, which reach their targets with 8 nodes.

    Prompts are uniform over the levels, and each gets one walk. Where it does not arrive, prompt
    and level are drawn again. So hard levels are rarer, about half as frequent as easy ones, and
    the base model is worse at them.
    """
    known, (pool, sizes) = route_map(map_seed), pretraining_keys(map_seed)
    starts = np.cumsum(sizes) - sizes
    kinds = rng.choice(3, size=count, p=[*shares, 1 - sum(shares)])
    keys = np.empty(count, dtype=np.int64)
    nodes = np.empty((count, MAX_NODES), dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        levels = rng.integers(LEVELS, size=len(missing))
        keys[missing] = pool[starts[levels] + rng.integers(sizes[levels])]
        targets = Prompts.of_keys(keys)
        # The stops and goals of some are random; start, stop and goal are different nodes.
        rows = missing[kinds[missing] == _RANDOM]
        places = rng.random((len(rows), NODES))
        places[np.arange(len(rows)), targets.starts[rows]] = 2.0
        chosen = np.argpartition(places, 1, axis=1)
        targets.goals[rows] = chosen[:, 0]
        stops = targets.stops[rows]
        targets.stops[rows] = np.where(stops == NO_STOP, NO_STOP, chosen[:, 1])
        left = []
        for is_old, links in ((False, known.open), (True, known.old)):
            rows = missing[(kinds[missing] == _OLD_MAP) == is_old]
            walks, arrived = walk(links, targets[rows], rng.random((len(rows), MAX_NODES)))
            nodes[rows[arrived]] = walks[arrived]
            left.append(rows[~arrived])
        missing = np.concatenate(left)
    return Prompts.of_keys(keys).texts(), write(nodes)


@dataclass(kw_only=True)
class Routes(MapTask):
    """Find a way over a map of 64 nodes that no prompt shows, past a stop and to a goal.

    The prompt `avb:` asks for a way from a through v to b; `ab:` has no stop. The answer is the
    nodes after the start. It is right if every step is an open link, no node comes twice, it
    passes the stop and ends at the goal with at most 8 nodes. A model learns the map in its
    pretraining, with mistakes.

    Level 0 has no stop, and 2 or 3 links between start and goal. Levels 1 to 6 have a stop, and
    3, 4, 5, 6, 7 or 8 links on the shortest way.
    """

    name: ClassVar[str] = "routes"
    alphabet: ClassVar[str] = NODE_SYMBOLS + ":"
    corpus_shares: ClassVar[CorpusShares] = CorpusShares(random=0.05, mistaken=0.25)

    @property
    def max_completion_length(self) -> int:
        return MAX_NODES + 1

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        linked = _linked(self.map_seed)
        right = []
        for problem, answer in zip(problems, self.answers(problems, completions), strict=True):
            start, *stops, goal = list(problem.prompt[:-1])
            way = start + (answer or "")
            right.append(
                answer is not None
                and way[-1] == goal
                and len(set(way)) == len(way)
                and all(stop in way for stop in stops)
                and all(there in linked[here] for here, there in itertools.pairwise(way))
            )
        return np.array(right, dtype=np.float64)

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        """Return the completions that are sequences of 1 to 8 nodes, routes or not."""
        symbols = set(NODE_SYMBOLS)
        return [
            text if 1 <= len(text) <= MAX_NODES and symbols.issuperset(text) else None
            for text in completions
        ]

    def pretraining_pairs(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        shares: CorpusShares | None = None,
    ) -> tuple[list[str], list[str]]:
        """Return prompts of all levels, and walks over the map as it is or as it was."""
        return corpus(count, rng, shares or self.corpus_shares, self.map_seed)

    def corpus_identity(self) -> Plain:
        # The corpus has all levels, whichever are in use.
        return {"name": self.name, "revision": self.revision, "bias": BIAS} | self._own_map()

    def floors(self, split: Split = Split.HELD_OUT) -> Mapping[str, Floor]:
        """Return the exact floors `guess` and `walker`; see `path_tables`."""
        problems = self.problems(split)
        prompts = self._prompts(problems)
        cells = prompts.starts, prompts.stops, prompts.goals
        meanings = {
            "guess": "uniform sequences of nodes that end at the goal",
            "walker": "random walks over the map that stop at the goal",
        }
        rates = {name: table[cells] for name, table in path_tables(self.map_seed).items()}
        return self._floors_of(problems, rates, meanings)


@functools.lru_cache(KEPT_MAPS)
def _linked(map_seed: int) -> dict[str, set[str]]:
    """Return the nodes that an open link leads to, by node."""
    rows = route_map(map_seed).open.adjacent
    return {
        here: {there for there, linked in zip(NODE_SYMBOLS, row.tolist(), strict=True) if linked}
        for here, row in zip(NODE_SYMBOLS, rows, strict=True)
    }
