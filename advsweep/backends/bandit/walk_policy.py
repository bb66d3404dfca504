"""Policies of walkers: in each state a softmax over the neighbours of the place, from one table.

What a walker may still do follows from its place, from whether it has passed its stop, and from its
problem. The table has a row for each place and each node that it is on its way to, the stop or, if
that is passed, the goal. Problems share these rows: with a row for each state of each problem,
held-out problems would keep the base policy, and evaluations would measure nothing that was
trained. A row has a logit for each neighbour on the old map, as a link that never was is never
open: 64 logits would be ten times the table, and would begin at rates of 0.

As the walkers of the corpus do, the policy never tries the goal before the stop, and prefers nodes
that are nearer on the old map to what it is on its way to. It does not know which links are closed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.tasks.route_maps import KEPT_MAPS, NO_STOP, NODES, Prompts, route_map

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    # Logits by row of the table, and numbers of each neighbour that a walker may try.
    Logits = Float[Tensor, "rows ways"]
    PerWay = Float[Tensor, "*walkers ways"]

# How strongly the base policy prefers nodes that are nearer. With 1 its solve rates go from .6 on
# the lowest level to .02 on the highest; closed links, which it tries again, cost it the most.
BIAS = 1.0

# Added to what is never tried. Exponentials of it are 0, and times 0 it is 0, not NaN.
_NEVER = -1e4


@dataclass(frozen=True)
class Ways:
    """The map, as walkers without a memory see it.

    Attributes:
        nodes: the neighbours of each node on the old map, then `NODES` as padding.
        leads: where one stands after trying them: there if the link is open, else still here.
        never: -10,000 at the padding, else 0.
        base: the logits of the base policy, 0 at the padding; row 64 target + place.
    """

    nodes: Int[Tensor, "nodes ways"]
    leads: Int[Tensor, "nodes ways"]
    never: Float[Tensor, "nodes ways"]
    base: Logits


@functools.lru_cache(KEPT_MAPS)
def ways_of(map_seed: int) -> Ways:
    """Return the ways of a map."""
    maps = route_map(map_seed)
    nodes = maps.old.neighbours
    is_padding = nodes == NODES
    known = np.where(is_padding, 0, nodes)
    here = np.arange(NODES)[:, None]
    is_open = maps.open.adjacent[here, known] & ~is_padding
    base = np.where(is_padding, 0.0, -BIAS * maps.old.distances[:, known])
    return Ways(
        nodes=torch.from_numpy(nodes),
        leads=torch.from_numpy(np.where(is_open, known, here)),
        never=torch.from_numpy(np.where(is_padding, _NEVER, 0.0)).float(),
        base=torch.from_numpy(base).float().reshape(NODES * NODES, -1),
    )


@dataclass(frozen=True)
class Positions:
    """What the policy of walkers depends on.

    Attributes:
        here: where each stands.
        targets: what it is on its way to, the stop or the goal.
        avoided: the goal, as long as the stop is not passed; then `NODES`.
    """

    here: Int[Tensor, "*walkers"]
    targets: Int[Tensor, "*walkers"]
    avoided: Int[Tensor, "*walkers"]

    @classmethod
    def of(cls, prompts: Prompts, passed: np.ndarray, here: np.ndarray) -> Positions:
        """Return the positions of walkers of prompts, all of one shape."""
        return cls(
            here=torch.from_numpy(here),
            targets=torch.from_numpy(np.where(passed, prompts.goals, prompts.stops)),
            avoided=torch.from_numpy(np.where(passed, NODES, prompts.goals)),
        )

    def __getitem__(self, rows: Int[Tensor, " some"] | slice) -> Positions:
        return Positions(self.here[rows], self.targets[rows], self.avoided[rows])

    @property
    def states(self) -> Int[Tensor, "*walkers"]:
        """The numbers of their states in a `Chart`."""
        return (self.avoided == NODES).long() * NODES + self.here


class WalkPolicy:
    """softmax(z/T) over the neighbours of a place.

    Args:
        logits: z.
        temperature: T, above 0.
    """

    def __init__(self, ways: Ways, logits: Logits, temperature: float = 1.0) -> None:
        self._ways = ways
        self._logits = logits
        self._temperature = temperature

    def log(self, positions: Positions) -> PerWay:
        """Return log π of every neighbour; of what is never tried, below -9,000 or so."""
        rows = positions.targets * NODES + positions.here
        # Its gradient adds up the rows one after another, so that equal runs have equal bits.
        logits = self._logits.index_select(0, rows.flatten()).view(*rows.shape, -1)
        return torch.log_softmax(logits / self._temperature + self._excluded(positions), dim=-1)

    def _excluded(self, positions: Positions) -> PerWay:
        is_avoided = self._ways.nodes[positions.here] == positions.avoided[..., None]
        return self._ways.never[positions.here] + _NEVER * is_avoided

    def count(self, positions: Positions) -> Int[Tensor, "*walkers"]:
        """Return how many neighbours may be tried."""
        return (self._excluded(positions) == 0).sum(dim=-1)


def entropies(log: PerWay) -> Float[Tensor, "*walkers"]:
    """H = -Σ π log π of each walker, in nats."""
    return -(log.exp() * log).sum(dim=-1)


@dataclass(frozen=True)
class Chart:
    """All that may become of the walkers of some prompts, by state: place + 64 if past the stop.

    Attributes:
        positions: of each state.
        starts: the state in which each prompt starts.
        following: the state after trying a neighbour.
        arrives: whether the episode ends there, at the goal.
        solves: whether it ends there and is right.
        passes: whether the stop is passed there for the first time.
    """

    positions: Positions
    starts: Int[Tensor, " prompts"]
    following: Int[Tensor, "prompts states ways"]
    arrives: Bool[Tensor, "prompts states ways"]
    solves: Bool[Tensor, "prompts states ways"]
    passes: Bool[Tensor, "prompts states ways"]

    @classmethod
    def of(cls, ways: Ways, prompts: Prompts) -> Chart:
        """Draw the chart of prompts."""
        has_stop = prompts.stops != NO_STOP
        shape = (len(prompts), 2 * NODES)
        here = np.broadcast_to(np.tile(np.arange(NODES), 2), shape).copy()
        passed = np.broadcast_to(np.arange(2 * NODES) >= NODES, shape).copy()
        # Nobody is before a stop that there is not; the goal only fills its place.
        stops = np.where(has_stop, prompts.stops, prompts.goals)
        each = Prompts(prompts.starts[:, None], stops[:, None], prompts.goals[:, None])
        positions = Positions.of(each, passed, here)
        leads = ways.leads[positions.here]
        goals = torch.from_numpy(prompts.goals)[:, None, None]
        has_passed = torch.from_numpy(passed)[..., None]
        passes = ~has_passed & (leads == torch.from_numpy(prompts.stops)[:, None, None])
        arrives = leads == goals
        return cls(
            positions=positions,
            starts=torch.from_numpy(np.where(has_stop, 0, NODES) + prompts.starts),
            following=(has_passed | passes).long() * NODES + leads,
            arrives=arrives,
            solves=arrives & (has_passed | passes),
            passes=passes,
        )

    def to_come(
        self, log: PerWay, gains: Float[Tensor, "prompts states #ways"], turns: int
    ) -> Float[Tensor, "turns+1 prompts states"]:
        """Return the exact mean of what is still to come, by the number of turns that are left.

        Args:
            log: log π of each neighbour in each state.
            gains: what a turn adds.
            turns: the most turns of an episode.
        """
        chances = log.double().exp()
        of_turn = (chances * gains).sum(dim=-1)
        goes_on = chances.masked_fill(self.arrives, 0.0)
        following = self.following.flatten(1)
        sums = [torch.zeros_like(of_turn)]
        for _ in range(turns):
            after = sums[-1].gather(1, following).view(self.following.shape)
            sums.append(of_turn + (goes_on * after).sum(dim=-1))
        return torch.stack(sums)

    def at_start(
        self, to_come: Float[Tensor, "turns+1 prompts states"]
    ) -> Float[Tensor, " prompts"]:
        """Return what is still to come at the starts of episodes."""
        return to_come[-1].gather(1, self.starts[:, None])[:, 0]
