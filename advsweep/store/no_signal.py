"""Finds runs that learned nothing from their rewards: no step had an advantage other than 0.

What counts is the share of groups with advantages, as every backend records it, and not the
estimator: some estimators have advantages in groups of equal rewards too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.store.store import Store

FEW = 0.01
"""A run learned hardly anything if a smaller share of its groups has an advantage."""

EARLY_STEPS = 10
MOST_EARLY = 0.1
"""Runs with at least this share in their early steps learned something; their curves are not read,
which would take longer than the rest of a report of many runs."""

_AFTER = "collapse/acr_after"
_TRAINED = "cost/utilisation"
_REASONS = ("collapse/acr", "collapse/all_wrong", "reward/mean")


@dataclass(frozen=True)
class NoSignal:
    """A run whose groups have no advantages, or hardly any.

    Attributes:
        with_advantages: share of the groups, over all steps, with an advantage other than 0.
        equal: share of groups whose rewards are all equal; NaN if it is unknown.
        wrong: share of the groups without a success; NaN if it is unknown.
        reward: mean reward; NaN if it is unknown.
    """

    with_advantages: float
    equal: float
    wrong: float
    reward: float

    @property
    def text(self) -> str:
        """What is wrong, its cause and what to do, without a full stop."""
        how_much = "hardly anything" if self.with_advantages else "nothing"
        if not self.equal >= 1 - FEW:
            share = f"fewer than {FEW:.0%} of the groups" if self.with_advantages else "no group"
            return (
                f"{how_much} was learned from the rewards: {share} had an advantage other than 0; "
                "check the estimator's fields and the rollout policy"
            )
        groups = "every group of every step"
        if self.equal < 1:
            groups = f"more than {1 - FEW:.0%} of the groups"
        value = " (all 0)" if self.wrong == 1 and self.reward == 0 else ""
        task = (
            "an easier task, another prompt, another model"
            if self.wrong >= 0.5
            else "a harder task"
        )
        return (
            f"{how_much} was learned: the rewards were equal within {groups}{value}, so that "
            f"advantages were 0; try {task} or a larger group_size"
        )


def find_no_signal(store: Store, run_ids: Sequence[int]) -> dict[int, NoSignal]:
    """Returns the runs that learned nothing, or hardly anything, from their rewards, by id.

    Runs whose groups' advantages were not recorded are left out, such as those of other
    trainers. Steps in which the rollout policy kept no group count as steps without advantages.
    """
    early = _shares(store, run_ids, first=EARLY_STEPS)
    suspects = [run_id for run_id, share in early.items() if share is None or share < MOST_EARLY]
    few = {
        run_id: share
        for run_id, share in _shares(store, suspects).items()
        if share is not None and share < FEW
    }
    reasons = [store.metrics.means(list(few), name) for name in _REASONS]
    return {
        run_id: NoSignal(share, *(means.get(run_id, math.nan) for means in reasons))
        for run_id, share in few.items()
    }


def _shares(
    store: Store, run_ids: Sequence[int], first: int | None = None
) -> dict[int, float | None]:
    """Returns the share of groups with advantages over the first steps of each run, or over all."""
    after, trained = (
        store.metrics.means(run_ids, name, first=first) for name in (_AFTER, _TRAINED)
    )
    return {run_id: _with_advantages(after.get(run_id), trained.get(run_id)) for run_id in run_ids}


def _with_advantages(after: float | None, trained: float | None) -> float | None:
    """Returns the share of the generated groups with advantages; None if it is unknown.

    Groups that the rollout policy drops are not part of `collapse/acr_after`.

    Args:
        after: mean of `collapse/acr_after`; None if no step has it.
        trained: mean of `cost/utilisation`; None if no step has it.
    """
    if after is not None:
        return (1 - after) * (1.0 if trained is None else trained)
    return 0.0 if trained == 0 else None
