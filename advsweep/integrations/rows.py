"""Estimators for trainers that hand over rollouts as rows, in any order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.diagnostics import rollout_metrics
from advsweep.errors import ConfigError
from advsweep.estimators import GroupBatch, build_estimator

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.estimators import Estimator

    Spec = Estimator | Mapping[str, Any] | str
    PerRow = Float[Tensor, " rows"]


class RowEstimator:
    """An estimator for rollouts in any order, of groups of any size: one row per rollout.

    Args:
        estimator: an estimator, its name, or a mapping as `build_estimator` takes it.
        given: the inputs beside rewards that the framework hands over.
        framework: name for messages.
        fields: fields of the estimator, if it is named.

    Attributes:
        metrics: `advsweep.diagnostics.rollout_metrics` of the last call; a success is a reward
            of 1.

    Raises:
        ConfigError: the estimator needs an input that is not given.
    """

    def __init__(self, estimator: Spec, given: Iterable[str], framework: str, **fields: Any):
        if isinstance(estimator, str | Mapping):
            estimator = build_estimator(estimator, **fields)
        self.estimator = estimator
        self.metrics: dict[str, float] = {}
        if missing := sorted(estimator.needs - set(given)):
            raise ConfigError(
                f"estimator '{estimator.name}' needs {', '.join(missing)}, which {framework} does "
                f"not hand over; expected one that needs no more than "
                f"{', '.join(sorted(given)) or 'rewards'}"
            )

    def advantages(
        self,
        rewards: PerRow,
        groups: Sequence[Hashable],
        *,
        sessions: Sequence[Hashable] | None = None,
        scorable: Bool[Tensor, " rows"] | None = None,
        lengths: PerRow | None = None,
        surprisal: PerRow | None = None,
        prompts: Sequence[str] | None = None,
    ) -> PerRow:
        """Return the advantage of each row, on the device of the rewards.

        Rollouts that the estimator drops, and those that cannot be scored, get 0.

        Args:
            groups: the group of each row.
            sessions: the rollout of each row, if one rollout may have several rows. It counts
                once, with the reward of its last row and the tokens of all; its rows get the
                same advantage.
            scorable: false for rows without a reward or that only pad; by default all true.
            lengths: generated tokens of each row.
            surprisal: sum of -log π over these tokens, in nats.
            prompts: name of each row's prompt, the same in every step.
        """
        device = rewards.device
        rollout = _numbered(range(len(rewards)) if sessions is None else sessions)
        last = torch.zeros(int(rollout.max()) + 1, dtype=torch.long)
        last.scatter_reduce_(0, rollout, torch.arange(len(rollout)), "amax")

        group = _numbered([groups[row] for row in last.tolist()])
        sizes = group.bincount()
        order = group.argsort(stable=True)
        place = torch.empty_like(group)
        place[order] = torch.arange(len(group)) - (sizes.cumsum(0) - sizes)[group[order]]

        def table(values: Tensor) -> Tensor:
            values = values.cpu()
            padded = values.new_zeros(len(sizes), int(sizes.max()))
            padded[group, place] = values
            return padded

        def total(values: Tensor) -> Tensor:
            """Sum over the rows of each rollout."""
            return torch.zeros(len(last)).index_add_(0, rollout, values.float().cpu())

        own = torch.ones(len(last), dtype=torch.bool) if scorable is None else scorable.cpu()[last]
        mask = table(own)
        tokens = None if lengths is None else total(lengths)
        entropy = None
        if surprisal is not None and tokens is not None:
            entropy = table(total(surprisal) / tokens.clamp(min=1))
        names = None
        if prompts is not None:
            first = [int(row) for row in last[order][sizes.cumsum(0) - sizes]]
            names = tuple(prompts[row] for row in first)
        batch = GroupBatch(
            rewards=table(rewards.detach().float().cpu()[last]),
            mask=None if mask.all() else mask,
            lengths=None if tokens is None else table(tokens),
            token_entropy=entropy,
            prompt_ids=names,
        )
        computed = self.estimator.compute(batch)
        self.metrics = rollout_metrics(batch, computed, verifier_free=self.estimator.verifier_free)
        kept = torch.where(computed.keep, computed.values, 0.0)
        return kept[group, place][rollout].to(device)


def _numbered(names: Iterable[Hashable]) -> Int[Tensor, " rows"]:
    """Number names by their first appearance."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names])


def prompt_name(prompt: Any) -> str:
    """Name a prompt by a digest; texts themselves would be part of an estimator's memory.

    Images and the like count by their type alone: their text is another in every process.
    """
    text = prompt
    if not isinstance(prompt, str):
        text = json.dumps(prompt, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
