"""Blocks of a stack, of runs with the same group size: advantages, and data of a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from advsweep.backends.bandit.update import Experience
from advsweep.backends.training_loop import compute_advantages
from advsweep.errors import BatchError
from advsweep.estimators.batch import Advantages
from advsweep.rollouts.base import Collected

if TYPE_CHECKING:
    from advsweep.backends.bandit.changes import BlockChanges
    from advsweep.backends.bandit.sampling import Source
    from advsweep.estimators import Estimator, GroupBatch


class RunBlock:
    """Neighbouring runs of a stack with the same group size.

    Attributes:
        runs: their places in the stack.
        read: optional fields of a batch that some estimator reads.
        trained_on: the data of the last step.
        changes: measures its steps; None until the first step.
    """

    trained_on: Experience

    def __init__(self, runs: slice, estimators: Sequence[Estimator]) -> None:
        self.runs = runs
        self.changes: BlockChanges | None = None
        self.read = frozenset().union(*(one.needs | one.uses for one in estimators))
        self._estimators = estimators
        # An estimator that computes each group alone serves several runs in one call.
        self._teams = equal_neighbours(
            [
                str(estimator.identity()) if estimator.per_group else number
                for number, estimator in enumerate(estimators)
            ]
        )

    def __len__(self) -> int:
        return len(self._estimators)

    def advantages(
        self, drawn: GroupBatch, collected: Collected
    ) -> tuple[Advantages, list[Mapping[str, float]], dict[int, Exception]]:
        """Compute the advantages of the groups that a step trains on.

        Returns:
            The advantages, the info of each run's estimator, and the errors of runs whose
            estimator refuses their groups, by number; their advantages are 0.
        """
        weighed: list[Advantages] = []
        infos: list[Mapping[str, float]] = []
        errors: dict[int, Exception] = {}
        teams = list(self._teams)
        while teams:
            team, *teams = teams
            groups, own = self._select(team, drawn, collected)
            try:
                made = compute_advantages(self._estimators[team.start], groups, own)
                if made.per_token:
                    # A rollout is one token.
                    made = replace(made, values=made.values[..., 0])
            except BatchError as error:
                if team.stop - team.start > 1:
                    # The error does not say whose group it is; compute each run alone.
                    teams = [slice(i, i + 1) for i in range(team.start, team.stop)] + teams
                    continue
                errors[team.start] = error
                nothing = torch.zeros_like(groups.rewards[: len(own.groups)])
                made = Advantages(values=nothing, keep=nothing.bool())
            weighed.append(made)
            infos += [made.info] * (team.stop - team.start)
        if len(weighed) == 1:
            return weighed[0], infos, errors
        values, keep = (
            torch.cat([getattr(a, name) for a in weighed]) for name in ("values", "keep")
        )
        return Advantages(values=values, keep=keep), infos, errors

    def _select(
        self, team: slice, drawn: GroupBatch, collected: Collected
    ) -> tuple[GroupBatch, Collected]:
        """Select the groups of some runs."""
        if team.stop - team.start == len(self):
            return drawn, collected
        each = len(collected.groups) // len(self)
        groups, references = slice(each * team.start, each * team.stop), collected.ref_rewards
        return drawn.select(groups), Collected(
            torch.arange(groups.stop - groups.start),
            None if references is None else references[groups],
        )


def experience(
    source: Source, collected: Collected, drawn: GroupBatch, advantages: Advantages
) -> Experience:
    """Return the data that a step trains on.

    Args:
        collected: the groups kept; some of those drawn only if they are of one run.
        drawn: all groups drawn.
    """
    assert drawn.token_entropy is not None
    rows, actions = source.rows, source.actions
    log_probs = -drawn.token_entropy.view(actions.shape)
    groups = collected.groups
    if len(groups) < len(drawn.rewards):
        rows = groups[None] if rows is None else rows[:, groups]
        actions, log_probs = actions[:, groups], log_probs[:, groups]
    return Experience(
        rows=rows,
        actions=actions,
        log_probs=log_probs,
        advantages=advantages.values.view(actions.shape),
        keep=advantages.keep.view(actions.shape),
    )


def equal_neighbours(keys: Sequence[Hashable]) -> list[slice]:
    """Return the longest slices of equal neighbouring keys."""
    ends = list(itertools.accumulate(len(list(same)) for _, same in itertools.groupby(keys)))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


class StepClock:
    """Measures a run's share of the seconds that a step of several runs takes."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Record the time since the last lap."""
        now = time.perf_counter()
        self.laps[name] = (now - self._last) / self._runs
        self._last = now
