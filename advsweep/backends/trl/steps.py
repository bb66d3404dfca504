"""One training step on TRL: its groups, its values between TRL's callbacks, and its effect.

Rollout policies draw groups from a `StepSource`. TRL calls `EstimatorTrainer` back many times in a
step, each time with other arguments and without a place for what a later callback needs; that
waits in the step's `StepBuffer`. `StepEffect` compares the policy before and after the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.step_changes import KL_STEP, evenly_spaced, kl_estimate, update_means
from advsweep.backends.training_loop import Answers, LanguageSource, Scores, TokenStatistics
from advsweep.backends.trl.padded_rows import PaddedRows
from advsweep.names import ENTROPY_CHANGE, GRADIENT_NORM, LEARNING_RATE
from advsweep.objectives.base import Choice

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.base import Run
    from advsweep.backends.trl.ranks import Ranks
    from advsweep.backends.trl.sampling import ModelSampler
    from advsweep.tasks.base import Problem

# Tensors `[rows]` or `[rows, tokens]`; prompts are padded on the left, the rest on the right.
Rows = dict[str, Tensor]

# The column of log π as the sampler drew each token, where it computes in the precision of updates.
DRAWN_LOG_PROBS = "drawn_log_probs"


def rows_of(outputs: Mapping[str, Any]) -> Rows:
    """Return the tensors that have rows; others are one number for all rows."""
    return {k: value for k, value in outputs.items() if value is not None and value.ndim > 0}


def trained_mask(rows: Mapping[str, Tensor]) -> Bool[Tensor, "rows tokens"]:
    """Return which tokens of completions the policy wrote; others are an environment's, or none."""
    mask = rows["completion_mask"].bool()
    return mask & rows["tool_mask"].bool() if "tool_mask" in rows else mask


def pick_rows(rows: Rows, index: Int[Tensor, " some"]) -> Rows:
    """Select rows, in the order of the index."""
    return {name: value[index.to(value.device)] for name, value in rows.items()}


def concatenate_rows(parts: Sequence[Rows], pad_id: int) -> Rows:
    """Concatenate batches, padded to the longest."""
    rows = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if values[0].ndim > 1:
            width = max(value.shape[1] for value in values)
            fill = fill_of(name, pad_id)
            values = [
                _pad(value, width, fill=fill, left=name.startswith("prompt_")) for value in values
            ]
        rows[name] = torch.cat(values)
    return rows


def fill_of(name: str, pad_id: int = 0) -> int:
    """Return what fills rows of a name, such as `completion_ids`, past their ends.

    Args:
        pad_id: the token that fills rows of tokens.
    """
    if name == "turn_of_token":
        return -1
    return pad_id if name.endswith("_ids") else 0


def _pad(values: Tensor, width: int, *, fill: int, left: bool) -> Tensor:
    """Return rows of a width, filled on the left or on the right."""
    missing = width - values.shape[1]
    return F.pad(values, (missing, 0) if left else (0, missing), value=fill)


@dataclass(frozen=True)
class Samplers:
    """What answers problems for rollouts that are not trained on.

    Attributes:
        reference: makes a sampler of the reference model.
        policy: makes a sampler of the weights in training.
    """

    reference: Callable[[], ModelSampler]
    policy: Callable[[], ModelSampler]


class RolloutMaker(Protocol):
    """What a source draws its groups with: a trainer that generates and scores rollouts.

    Attributes:
        step_buffer: the values of the current step.
        samplers: what answers problems for other rollouts.
    """

    step_buffer: StepBuffer
    samplers: Samplers

    @property
    def pad_id(self) -> int:
        """The token that fills rows."""

    def roll_out(self, problems: Sequence[Problem]) -> Rows:
        """Generate and score one rollout per problem; see `StepBuffer.take_draw`."""

    def judge_answers(
        self, sampler: ModelSampler, problems: Sequence[Problem], temperature: float, seed: int
    ) -> Float[Tensor, " rows"]:
        """Return the rewards of one answer per problem, which is not trained on."""


class StepSource(LanguageSource):
    """Draws the groups of a step."""

    def __init__(self, trainer: RolloutMaker, run: Run, step: int) -> None:
        super().__init__(run, step)
        self._trainer = trainer
        self._parts: list[Rows] = []
        # By seed and step alone, so that a resumed run draws what an uninterrupted one does.
        torch.manual_seed(torch_seed(run.rollout_seed, Stream.ROLLOUTS, step))

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        problems = list(self._run.task.draw(prompts, self._rng))
        # TRL's rows of each draw have another width; `rows` pads them to one.
        self._parts.append(self._trainer.roll_out(self._repeated(problems)))
        return self._add(problems, *self._trainer.step_buffer.take_draw())

    @property
    def reward_seconds(self) -> float:
        """Time spent in the verifier."""
        return self._trainer.step_buffer.reward_seconds

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        repeated = self._repeated([self._problems[group] for group in groups.tolist()])
        # Another seed, so that the rollouts do not depend on how many references there are.
        seed = torch_seed(self._run.rollout_seed, Stream.REFERENCE, self.step)
        temperature = self._run.generation.temperature
        rewards = self._trainer.judge_answers(
            self._trainer.samplers.reference(), repeated, temperature, seed
        )
        self.references += len(repeated)
        return rewards.view(len(groups), self._run.group_size)

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        problems = [self._problems[group] for group in groups.tolist()]
        self.references += len(problems)
        return self._trainer.judge_answers(self._trainer.samplers.policy(), problems, 0.0, seed=0)

    def rows(self, wanted: Int[Tensor, " some"]) -> Rows:
        """Return some rollouts by their numbers, as many as a full step has.

        Other rollouts replace missing ones; the caller masks them out.
        """
        whole = self._run.prompts_per_step * self._run.group_size
        # TRL splits a step into its updates by the number of rows, which therefore never changes.
        wanted = F.pad(wanted, (0, whole - len(wanted)))
        if torch.equal(wanted, torch.arange(len(self._parts[0]["completion_ids"]))):
            return self._parts[0]
        return pick_rows(concatenate_rows(self._parts, self._trainer.pad_id), wanted)


class UpdateMeans:
    """Means of the objective's metrics over the passes of an update and the updates of a step.

    Attributes:
        norm: norm of the current update's gradient before clipping.
    """

    def __init__(self) -> None:
        self.norm = 0.0
        self._updates: list[dict[str, float]] = []
        self._lr = 0.0
        self.begin()

    def begin(self) -> None:
        """Start an update: the next pass is its first."""
        self._passes: list[Tensor] = []
        self._names: list[str] = []

    def add(self, metrics: Mapping[str, Tensor], loss: Tensor) -> None:
        """Add a forward pass."""
        self._names = list(metrics)
        # Stays on the device: one transfer per update, not one per pass.
        self._passes.append(torch.stack([loss, *metrics.values()]).detach())

    def means(self, ranks: Ranks) -> tuple[float, dict[str, float]]:
        """Return the means of the loss and of each metric over the passes that have it.

        Args:
            ranks: the processes whose passes count.
        """
        table = torch.cat(ranks.gather(torch.stack(self._passes).cpu()))
        loss = table[:, 0].mean().item()
        numbers = table[:, 1:].nanmean(dim=0).tolist()
        return loss, dict(zip(self._names, numbers, strict=True))

    def end(self, metrics: Mapping[str, float], lr: float) -> None:
        """Count an update that the optimizer makes."""
        self._updates.append({**metrics, GRADIENT_NORM: self.norm})
        self._lr = lr
        self.begin()

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the updates of the step, and `loss/variance`; empty without an update."""
        metrics = update_means(self._updates)
        if self._updates:
            metrics[LEARNING_RATE] = self._lr
        return metrics


@dataclass
class StepBuffer:
    """What the callbacks of one step leave for each other.

    TRL calls `EstimatorTrainer` back many times in a step, each time with other arguments. The
    trainer makes a new buffer when a step starts; each callback fills the next part of it.

    Attributes:
        control_rng: randomness of the verdicts, for a control; None before training.
        draws: draws that the step has begun.
        calls: calls of the sampler in the current draw, several for episodes of several turns.
        answers: the completions that this process has generated last.
        statistics: token statistics of the rollouts in the last draw.
        scores: scores of the completions that were judged last.
        reward_seconds: time spent in the verifier.
        metrics: what is known of the step before its updates.
        effect: compares the policy before and after the updates.
        update_started: clock time when the rollouts were complete.
        shares: rollouts and tokens that each forward pass stands for.
        choices: what the losses of the current minibatch's passes take from all of it.
        updates: what the updates measured.
    """

    control_rng: np.random.Generator | None = None
    draws: int = 0
    calls: int = 0
    answers: Answers | None = None
    statistics: TokenStatistics | None = None
    scores: Scores | None = None
    reward_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    effect: StepEffect | None = None
    update_started: float = 0.0
    shares: list[tuple[float, float]] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    updates: UpdateMeans = field(default_factory=UpdateMeans)

    def take_draw(self) -> tuple[Scores, TokenStatistics]:
        """Return the scores and the token statistics of the last draw, and forget them."""
        # Forgotten, so that a callback that TRL left out is an error, not an older draw.
        scores = self.scores
        statistics = self.statistics
        assert scores is not None
        assert statistics is not None
        self.scores = self.statistics = None
        return scores, statistics


# A step's KL is estimated from one in so many of its rollouts, whose forward pass takes about a
# hundredth of the time of the updates, within these bounds.
_KL_ONE_IN = 32
_FEWEST_KL_ROLLOUTS, _MOST_KL_ROLLOUTS = 2, 16


class StepEffect:
    """Compares the policy before and after the updates of a step.

    Args:
        rows: the step's rollouts; the weights are those before the updates.
        entropies: whether to compare the entropies at all rollouts.
    """

    def __init__(self, trainer: Any, rows: Rows, *, entropies: bool) -> None:
        self._trainer = trainer
        self._rows = rows
        self._sampled = pick_rows(rows, torch.tensor(_choose_kl_rollouts(rows["keep"])))
        # The sampler's numbers differ from a pass's by rounding, which the estimate squares.
        drawn = self._sampled.get(DRAWN_LOG_PROBS)
        self._log_probs = forward_pass(trainer, self._sampled) if drawn is None else drawn
        self._entropies = self._mean_entropies() if entropies else None

    def metrics(self) -> dict[str, float]:
        """Return `policy/kl_step` after the updates and, if measured, `entropy/change`."""
        mask = trained_mask(self._sampled) & self._sampled["keep"][:, None]
        log_probs = forward_pass(self._trainer, self._sampled)
        kl, tokens = kl_estimate(self._log_probs, log_probs, mask).tolist()
        metrics = {KL_STEP: kl / tokens if tokens else 0.0}
        if self._entropies is not None:
            keep = self._rows["keep"]
            change = (self._mean_entropies() - self._entropies).where(keep, 0.0)
            total, kept = torch.stack((change.sum(), keep.sum())).tolist()
            if kept:
                metrics[ENTROPY_CHANGE] = total / kept
        return metrics

    def _mean_entropies(self) -> Float[Tensor, " rows"]:
        """Return the mean token entropy of each rollout, in nats."""
        mask = trained_mask(self._rows)
        entropies = forward_pass(self._trainer, self._rows, entropies=True)
        return entropies.where(mask, 0.0).sum(dim=1) / mask.sum(dim=1)


def _choose_kl_rollouts(keep: Bool[Tensor, " rows"]) -> list[int]:
    """Return the rollouts that a step's KL is estimated from, of those that train if any does."""
    training = keep.nonzero()[:, 0].tolist()
    candidates = training or list(range(len(keep)))
    share = len(keep) // _KL_ONE_IN
    count = min(max(share, _FEWEST_KL_ROLLOUTS), _MOST_KL_ROLLOUTS)
    return [candidates[index] for index in evenly_spaced(len(candidates), count)]


def forward_pass(
    trainer: Any, rows: Rows, *, entropies: bool = False
) -> Float[Tensor, "rows tokens"]:
    """Return log π of each token, or the entropies of their distributions in nats."""
    with torch.no_grad():
        # Not by the name that TRL calls, by which VllmTrainer scores rollouts.
        log_probs, spread, _ = trainer.token_pass(
            trainer.model,
            whole_rows(rows),
            trainer.args.per_device_train_batch_size,
            compute_entropy=entropies,
        )
    numbers: Tensor = spread if entropies else log_probs
    return numbers


def whole_rows(rows: Mapping[str, Tensor]) -> PaddedRows:
    """Return prompts with their completions."""
    completions = rows["completion_ids"]
    return PaddedRows(
        ids=torch.cat((rows["prompt_ids"], completions), dim=1),
        mask=torch.cat((rows["prompt_mask"], rows["completion_mask"]), dim=1),
        tokens=completions.shape[1],
    )
