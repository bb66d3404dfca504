"""Episodes of walkers: all at once, turn by turn; and answers to problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.walk_policy import Chart, Positions, WalkPolicy, Ways, entropies
from advsweep.backends.randomness import Stream, torch_generator
from advsweep.backends.training_loop import Answers
from advsweep.tasks.base import Completions
from advsweep.tasks.walk_episodes import Scripts, parse_prompts

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.bandit.walk_policy import Logits, PerWay
    from advsweep.tasks.base import Problem
    from advsweep.tasks.walks import Walks


@dataclass(frozen=True)
class Rollouts:
    """Episodes, whose tokens are the turns: a node each. The environment's answers are no tokens.

    Attributes:
        positions: before each turn; arbitrary past the last.
        ways: number of the neighbour that was tried.
        lengths: turns of each episode.
        cut_off: whether the limit of turns ended it.
        log: log π of every neighbour before each turn, at the sampling temperature.
        counts: how many neighbours might be tried.
        texts: the episodes with the environment's answers.
    """

    positions: Positions
    ways: Int[Tensor, "rows turns"]
    lengths: Int[Tensor, " rows"]
    cut_off: Bool[Tensor, " rows"]
    log: Float[Tensor, "rows turns ways"]
    counts: Int[Tensor, "rows turns"]
    texts: list[str]

    def __getitem__(self, rows: Int[Tensor, " some"]) -> Rollouts:
        return Rollouts(
            positions=self.positions[rows],
            ways=self.ways[rows],
            lengths=self.lengths[rows],
            cut_off=self.cut_off[rows],
            log=self.log[rows],
            counts=self.counts[rows],
            texts=[self.texts[row] for row in rows.tolist()],
        )

    @classmethod
    def join(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """Return the episodes of all parts."""
        return cls(
            positions=Positions(
                here=torch.cat([part.positions.here for part in parts]),
                targets=torch.cat([part.positions.targets for part in parts]),
                avoided=torch.cat([part.positions.avoided for part in parts]),
            ),
            ways=torch.cat([part.ways for part in parts]),
            lengths=torch.cat([part.lengths for part in parts]),
            cut_off=torch.cat([part.cut_off for part in parts]),
            log=torch.cat([part.log for part in parts]),
            counts=torch.cat([part.counts for part in parts]),
            texts=[text for part in parts for text in part.texts],
        )

    @property
    def mask(self) -> Bool[Tensor, "rows turns"]:
        """True for the turns of an episode."""
        return torch.arange(self.ways.shape[1]) < self.lengths[:, None]

    @property
    def generated(self) -> Int[Tensor, " rows"]:
        """Tokens of each episode, which are its turns."""
        return self.lengths

    @property
    def answers(self) -> Answers:
        """The episodes as they are scored."""
        return Answers(texts=self.texts, lengths=self.lengths.float(), truncated=self.cut_off)

    @property
    def turns(self) -> Int[Tensor, "rows turns"]:
        """The turn of each token; -1 past the last."""
        return torch.arange(self.ways.shape[1]).where(self.mask, -1)

    @property
    def log_probs(self) -> Float[Tensor, "rows turns"]:
        """log π of what was tried; 0 past the last turn."""
        return at_ways(self.log, self.ways).where(self.mask, 0.0)

    @property
    def entropies(self) -> Float[Tensor, "rows turns"]:
        """Entropy before each turn, in nats; 0 past the last."""
        return entropies(self.log).where(self.mask, 0.0)

    @property
    def certainties(self) -> Float[Tensor, "rows turns"]:
        """KL(uniform ‖ π) over what might be tried, in nats; 0 past the last turn."""
        rank = torch.arange(self.log.shape[-1])
        # What is never tried has the least log π, so that sorting puts it last.
        tried = self.log.sort(dim=-1, descending=True).values
        sums = tried.where(rank < self.counts[..., None], 0.0).sum(dim=-1)
        return (-sums / self.counts - self.counts.log()).where(self.mask, 0.0)

    @property
    def squares(self) -> Float[Tensor, "rows turns"]:
        """Σπ² before each turn; 0 past the last."""
        return self.log.exp().square().sum(dim=-1).where(self.mask, 0.0)


def at_ways(values: PerWay, ways: Int[Tensor, "*walkers"]) -> Float[Tensor, "*walkers"]:
    """Return the values of what was tried."""
    return values.gather(-1, ways[..., None])[..., 0]


@torch.no_grad()
def sample(
    policy: WalkPolicy,
    ways: Ways,
    task: Walks,
    prompts: Sequence[str],
    generator: torch.Generator | None,
) -> Rollouts:
    """Draw an episode of each prompt.

    Args:
        generator: draws what is tried; None: the likeliest is, each time.
    """
    count = len(prompts)
    turns = task.max_turns
    shape = (count, turns)
    walkers = task.begin(prompts)
    asked, _ = parse_prompts(prompts)
    positions = Positions(*(torch.zeros(shape, dtype=torch.int64) for _ in range(3)))
    chosen = torch.zeros(shape, dtype=torch.int64)
    log = torch.zeros(*shape, ways.nodes.shape[1])
    counts = torch.ones(shape, dtype=torch.int64)
    cut_off = torch.zeros(count, dtype=torch.bool)
    scripts = Scripts(count, turns)
    uniform = torch.rand(turns, count, generator=generator) if generator else None
    for turn in range(turns):
        active = np.flatnonzero(~walkers.ended)
        if not len(active):
            break
        rows = torch.from_numpy(active)
        here = Positions.of(asked[active], walkers.passed[active], walkers.here[active])
        positions.here[rows, turn] = here.here
        positions.targets[rows, turn] = here.targets
        positions.avoided[rows, turn] = here.avoided
        log[rows, turn] = policy.log(here)
        counts[rows, turn] = policy.count(here)
        tried = _choose(log[rows, turn], None if uniform is None else uniform[turn, rows])
        chosen[rows, turn] = tried
        symbols = at_ways(ways.nodes[here.here], tried).numpy()
        reply = walkers.take(active, symbols)
        cut_off[rows] = torch.from_numpy(reply.cut_off)
        scripts.write(turn, active, symbols, reply)
    return Rollouts(
        positions=positions,
        ways=chosen,
        lengths=torch.from_numpy(walkers.turns.copy()),
        cut_off=cut_off,
        log=log,
        counts=counts,
        texts=scripts.texts(),
    )


def _choose(log: PerWay, uniform: Float[Tensor, " walkers"] | None) -> Int[Tensor, " walkers"]:
    """Choose a neighbour each: at random, or the likeliest."""
    if uniform is None:
        return log.argmax(dim=-1)
    chances = log.exp()
    cumulated = chances.cumsum(dim=-1)
    # Relative to the last sum, which rounding keeps from being 1.
    passed = (cumulated <= (uniform * cumulated[:, -1])[:, None]).sum(dim=-1)
    # A share that rounds to the whole must not choose what is never tried.
    last = (chances > 0).long() * torch.arange(log.shape[-1])
    return torch.minimum(passed, last.amax(dim=-1))


@dataclass(frozen=True)
class WalkSampler:
    """Answers problems with episodes.

    Attributes:
        logits: the table.
        ways: its map, with the logits before the training.
        task: whose environment answers.
    """

    logits: Logits
    ways: Ways
    task: Walks

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n episodes per problem; the KL from the base is exact."""
        prompts = [problem.prompt for problem in problems]
        policy = WalkPolicy(self.ways, self.logits, temperature)
        repeated = [prompt for prompt in prompts for _ in range(n)]
        generator = torch_generator(seed, Stream.EVALUATION)
        rollouts = sample(policy, self.ways, self.task, repeated, generator)
        by_problem = [rollouts.texts[i : i + n] for i in range(0, len(repeated), n)]
        entropy = rollouts.entropies.double().sum(dim=1).view(len(problems), n).sum(dim=1)
        tokens = rollouts.lengths.view(len(problems), n).sum(dim=1)
        return Completions(
            texts=by_problem,
            token_entropy=(entropy / tokens).numpy(),
            kl_base=self._kl(prompts, policy, temperature),
        )

    @torch.no_grad()
    def _kl(
        self, prompts: Sequence[str], policy: WalkPolicy, temperature: float
    ) -> Float[np.ndarray, " prompts"]:
        """Return KL(policy ‖ base) of the episodes of each prompt, in nats."""
        asked, _ = parse_prompts(prompts)
        chart = Chart.of(self.ways, asked)
        log = policy.log(chart.positions)
        base = WalkPolicy(self.ways, self.ways.base, temperature).log(chart.positions)
        of_turn = divergences(log, base)[..., None]
        to_come = chart.to_come(log, of_turn, self.task.max_turns)
        kl: Float[np.ndarray, " prompts"] = chart.at_start(to_come).numpy()
        return kl


def divergences(first: PerWay, second: PerWay) -> Float[Tensor, "*walkers"]:
    """Return KL(first ‖ second) before each turn, in nats and double precision."""
    first = first.double()
    return (first.exp() * (first - second.double())).sum(dim=-1).clamp(min=0)
