"""Where rollout policies draw the groups of a step of TRL's GRPOTrainer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.backends.trl.steps import concatenate_rows, rows_of
from advsweep.errors import ConfigError
from advsweep.estimators.batch import CollapseBy

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.rollouts.base import RolloutPolicy


class Draw(NamedTuple):
    """What one call of TRL's generation gives.

    Attributes:
        outputs: what it returns: the rows of this process.
        scored: rewards of all processes, NaN where a function gave None.
        lengths: tokens of each completion of this process.
        table: columns of TRL's table of completions, of all processes.
    """

    outputs: dict[str, Any]
    scored: Float[Tensor, "rollouts functions"]
    lengths: list[int]
    table: Mapping[tuple[str, str], list[Any]]


class DrawingTrainer(Protocol):
    """What a source needs of the GRPOTrainer that generates and scores.

    Attributes:
        success: number of the reward function that is 1 for a success; None if none is known.
    """

    args: Any
    state: Any
    accelerator: Any
    train_dataset: Any
    num_generations: int
    reward_weights: Tensor
    reward_func_names: list[str]
    success: int | None
    _step: int

    def roll_out(self, inputs: Sequence[dict[str, Any]]) -> Draw:
        """Make and score a rollout for each row of the dataset."""


class TrlSource:
    """Draws the groups of a step: first those that TRL hands over, then others of its dataset.

    In several processes only all groups that TRL hands over can be drawn, at once.

    Args:
        inputs: the rows of the dataset that TRL hands over, one per rollout of this process.

    Attributes:
        step: the training step, counted from 1.
        group_size: rollouts of a group.
        inputs: the rows of the rollouts drawn so far.
    """

    def __init__(self, trainer: DrawingTrainer, inputs: Sequence[dict[str, Any]]) -> None:
        self.step = int(trainer.state.global_step) + 1
        self.group_size = int(trainer.num_generations)
        self.inputs: list[dict[str, Any]] = []
        self._trainer = trainer
        # The most rows of one call of TRL's generation.
        self._most = len(inputs)
        self._rows = itertools.chain(inputs, self._further())
        self._draws: list[Draw] = []

    def _further(self) -> Iterator[dict[str, Any]]:
        # By seed and generation alone, so that a training that resumes draws the same prompts.
        # A step has several generations if `steps_per_generation` is below its passes.
        trainer = self._trainer
        dataset = trainer.train_dataset
        passes = trainer.args.gradient_accumulation_steps
        generation = (self.step - 1) * passes + trainer._step % passes
        rng = numpy_generator(trainer.args.seed, Stream.PROMPTS, generation)
        while True:
            for index in rng.permutation(len(dataset)):
                row = dataset[int(index)]
                for _ in range(self.group_size):
                    yield dict(row)

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        processes = self._trainer.accelerator.num_processes
        whole = len(self.inputs) + prompts * self.group_size // processes
        while len(self.inputs) < whole:
            # TRL's memory and its table of completions are those of the rows of a step.
            count = min(self._most, whole - len(self.inputs))
            inputs = list(itertools.islice(self._rows, count))
            self.inputs += inputs
            self._draws.append(self._trainer.roll_out(inputs))
        return self.rewards[-prompts:]

    @property
    def scored(self) -> Float[Tensor, "rollouts functions"]:
        """Rewards of all rollouts drawn, by function."""
        return torch.cat([draw.scored for draw in self._draws])

    @property
    def rewards(self) -> Float[Tensor, "groups rollouts"]:
        """The rewards, NaN where no function could score."""
        scored = self.scored.cpu()
        rewards: Tensor = (scored * self._trainer.reward_weights.cpu()).nansum(dim=1)
        rewards[scored.isnan().all(dim=1)] = torch.nan
        return rewards.view(-1, self.group_size)

    @property
    def verdicts(self) -> Float[Tensor, "groups rollouts"]:
        """The verdicts; the rewards if no function is known to give them."""
        success = self._trainer.success
        if success is None:
            return self.rewards
        return self.scored[:, success].cpu().view(-1, self.group_size)

    @property
    def own_lengths(self) -> list[int]:
        """Tokens of each completion of this process."""
        return list(itertools.chain.from_iterable(draw.lengths for draw in self._draws))

    @property
    def lengths(self) -> Float[Tensor, "groups rollouts"]:
        """Tokens of each completion, in a single process."""
        return torch.tensor(self.own_lengths, dtype=torch.float32).view(-1, self.group_size)

    def outputs(self, pad_id: int) -> dict[str, Any]:
        """Return TRL's tensors of all rows that this process has drawn."""
        if len(self._draws) == 1:
            return self._draws[0].outputs
        parts = [rows_of(draw.outputs) for draw in self._draws]
        return dict(concatenate_rows(parts, pad_id))

    def table(self, rows: Int[Tensor, " rows"]) -> dict[tuple[str, str], list[Any]]:
        """Return columns of TRL's table of completions, of some rows."""
        names = set.intersection(*(set(draw.table) for draw in self._draws))
        table = {}
        for name in names:
            values = list(itertools.chain.from_iterable(draw.table[name] for draw in self._draws))
            table[name] = [values[row] for row in rows.tolist()]
        return table


def check_rollout(trainer: DrawingTrainer, policy: RolloutPolicy) -> None:
    """Refuse a rollout policy that cannot draw from TRL's trainer.

    Raises:
        ConfigError: says what the policy would need.
    """
    label = f"rollout policy '{policy.name}'"
    if policy.draws_references or policy.draws_again or policy.selects:
        raise ConfigError(
            f"rollout: {label} draws with a reference model, again for the same prompts, or more "
            f"rollouts of a prompt, which is not possible here; expected plain, dynamic_sampling "
            f"or filter_drop"
        )
    if policy.mask_truncated:
        raise ConfigError(
            "rollout.mask_truncated: expected false, got true; TRL's mask_truncated_completions "
            "does this"
        )
    if policy.keeps_all:
        return
    processes = trainer.accelerator.num_processes
    if processes > 1:
        raise ConfigError(
            f"rollout: {label} needs one process, got {processes}; the estimator filter_drop "
            f"leaves out collapsed groups in several"
        )
    dataset = trainer.train_dataset
    columns = getattr(dataset, "column_names", None) or ()
    if not hasattr(dataset, "__len__") or {"image", "images"} & {*columns}:
        raise ConfigError(
            f"rollout: {label} draws further prompts: expected a dataset of texts that does not "
            f"stream, got {type(dataset).__name__} with the columns {', '.join(columns)}"
        )
    if policy.on is CollapseBy.VERDICT and trainer.success is None:
        raise ConfigError(
            f"success: {label} judges groups by verdicts: expected one of "
            f"{trainer.reward_func_names}, that is 1 for a success, got none; or set on=reward"
        )
