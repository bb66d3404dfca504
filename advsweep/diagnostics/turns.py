"""Metrics of the turns of episodes: how many there are, and what credit an estimator gives them.

With Aᵢₜ the advantage of turn t of rollout i, the mean over the turn's tokens (an advantage per
rollout is that of each of its turns), rᵢₜ the turn's reward, that of the last turn with the
outcome, and V(xₜ) the mean reward to come from the state before turn t, which is 0 after the last
turn, a turn's *truth* is what it changed of the reward to come:

    Âᵢₜ = rᵢₜ + V(xₜ₊₁) - V(xₜ)

It is known where the batch has both values (`turn_values`).

**Noise.** If V(x) is the mean over K rollouts from x, of which the reward to come has the variance
σ²(x), the truth has the noise variance n = (σ²(xₜ) + σ²(xₜ₊₁))/K, with σ² = 0 after the last turn.
The noise has mean 0 and is independent of an advantage that is not made of these values. So the
mean of n over the turns is added to the expected error, and the correlation is multiplied by about
√(v/(v + n)), where v is the variance of the noiseless truth over the turns. With rewards of 0 and 1
σ² = V(1 - V), which is at most 1/4: n is at most 1/(2K). Estimators whose errors are compared on
one policy have the same n on average, so that it cancels in their difference. An estimator that
reads `turn_values` itself, as `vine` does, has this noise on both sides: its error is 0 and its
correlation 1 whatever K is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from advsweep.diagnostics.group_statistics import TOLERANCE, ratio
from advsweep.estimators.batch import Groups
from advsweep.estimators.turn_groups import TurnGroups
from advsweep.estimators.turns import Turns
from advsweep.names import (
    CREDIT_CORRELATION,
    CREDIT_ERROR,
    CREDIT_SHARE,
    TURN_COUNT,
    TURNS_COLLAPSED,
    TURNS_COMPANY,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num, Shaped
    from torch import Tensor

    from advsweep.diagnostics.group_statistics import PerRun
    from advsweep.estimators import GroupBatch
    from advsweep.estimators.batch import Advantages, PerTurn

    # One number or flag per turn, for each run; turns before groups, so that a sum over a turn's
    # places does not depend on how many turns other runs have.
    Places = Shaped[np.ndarray, "runs turns groups rollouts"]
    NumberPerPlace = Float[np.ndarray, "runs turns groups rollouts"]
    FlagPerPlace = Bool[np.ndarray, "runs turns groups rollouts"]
    PerIndex = Num[np.ndarray, "runs turns"]

# Metrics by name, a number of each run; NaN where a run has none.
TurnTable = dict[str, "PerRun"]


def turn_metrics(batch: GroupBatch, runs: int = 1) -> TurnTable:
    """Return what the turns of drawn episodes are like, for each run.

    Args:
        batch: with `turn_of_token`; the groups `[runs*prompts, rollouts]` of one run after another.
        runs: the number of runs, which have as many groups each.

    Returns:
        `turns/mean`, turns per episode; `turns/company`, if the batch has `turn_states`: the share
        of turns before whose state another rollout of the group stands too, at any turn.
    """
    turns = _StackedTurns(batch, runs)
    counts = _total(turns.sums(turns.present))
    episodes = turns.present[:, 0].sum(axis=(-2, -1))
    metrics: TurnTable = {TURN_COUNT: ratio(counts, episodes)}
    if batch.turn_states is not None and counts.any():
        by_state = TurnGroups.by_state(turns.turns)
        company = _total(turns.sums(turns.arrange(by_state.accompanied())))
        metrics[TURNS_COMPANY] = ratio(company, counts)
    return metrics


def credit_metrics(batch: GroupBatch, advantages: Advantages, runs: int = 1) -> TurnTable:
    """Return what an estimator gives to turns, for each run.

    Args:
        batch: with `turn_of_token`; the groups `[runs*prompts, rollouts]` trained on, of one run
            after another.
        advantages: those of these groups, `[runs*prompts, rollouts]` or with a token axis. They
            count whether their rollout is kept or not, as in `collapse/acr_after`.
        runs: the number of runs, which have as many groups each.

    Returns:
        `turns/collapsed/turn_T` for every turn T, from 1: of the groups of which at least two
        episodes have a turn T, the share whose advantages at that turn are all 0.
        `turns/collapsed`: that share over the groups of all turns.

        If the batch has `turn_values`, `credit/share`: the share of turns of which the truth is
        known; and over these `credit/error`, the mean of (A - Â)², `credit/error/turn_T`, that of
        turn T, and `credit/correlation`, Pearson's of A and Â, unless one of them has no spread.
        Advantages are in the estimator's own scale and the truth in that of rewards: estimators
        that divide by σ are told from others by the correlation alone.
    """
    turns = _StackedTurns(batch, runs)
    metrics = _collapse(turns, advantages)
    truth = _truth(turns.turns)
    if truth is not None:
        credit = _Credit(
            given=turns.numbers(turns.turns.means(advantages.values)),
            truth=turns.numbers(truth),
            known=turns.arrange(truth.isfinite()),
        )
        metrics |= _credit_table(turns, credit)
    return metrics


def _collapse(turns: _StackedTurns, advantages: Advantages) -> TurnTable:
    # Flags instead of sizes: the mean of a tiny size may be rounded to 0.
    is_nonzero = turns.turns.means((advantages.values != 0).to(advantages.values.dtype)) > 0
    has_gradient = turns.arrange(is_nonzero).any(axis=-1)
    compared = turns.present.sum(axis=-1) > 1
    groups = compared.sum(axis=-1)
    collapsed = (compared & ~has_gradient).sum(axis=-1)
    return _by_turn(TURNS_COLLAPSED, collapsed, groups)


@dataclass(frozen=True, eq=False)
class _Credit:
    """Advantages and truths of turns.

    Attributes:
        given: the advantages.
        truth: NaN where it is not known.
        known: where it is.
    """

    given: NumberPerPlace
    truth: NumberPerPlace
    known: FlagPerPlace


def _credit_table(turns: _StackedTurns, credit: _Credit) -> TurnTable:
    counts = turns.sums(credit.known)
    error = np.where(credit.known, credit.given - credit.truth, 0.0)
    metrics = _by_turn(CREDIT_ERROR, turns.sums(error * error), counts)
    metrics[CREDIT_CORRELATION] = _correlation(turns, credit)
    metrics[CREDIT_SHARE] = ratio(_total(counts), _total(turns.sums(turns.present)))
    return metrics


def _correlation(turns: _StackedTurns, credit: _Credit) -> PerRun:
    """Return Pearson's correlation; NaN where a side has no spread."""
    count = _total(turns.sums(credit.known))
    sides = []
    for values in (credit.given, credit.truth):
        known = np.where(credit.known, values, 0.0)
        mean = ratio(_total(turns.sums(known)), count)
        sides.append(np.where(credit.known, known - mean[:, None, None, None], 0.0))
    given, truth = sides
    covariance = ratio(_total(turns.sums(given * truth)), count)
    given_std = np.sqrt(ratio(_total(turns.sums(given * given)), count))
    truth_std = np.sqrt(ratio(_total(turns.sums(truth * truth)), count))
    has_spread = (given_std >= TOLERANCE) & (truth_std >= TOLERANCE)
    product = np.where(has_spread, given_std * truth_std, 0.0)
    # Rounding may take it beyond 1.
    correlation: PerRun = np.clip(ratio(covariance, product), -1.0, 1.0)
    return correlation


def _truth(turns: Turns) -> PerTurn | None:
    """Return what each turn changed of the reward to come; NaN where it is not known."""
    values = turns.input("turn_values")
    if values is None:
        return None
    truth = turns.changes(values.double())
    return truth.where(turns.present & truth.isfinite(), torch.nan)


def _by_turn(name: str, above: PerIndex, below: PerIndex) -> TurnTable:
    """Return above / below over all turns, and that of each turn, from 1."""
    metrics: TurnTable = {name: ratio(_total(above), _total(below))}
    for index in range(above.shape[1]):
        metrics[f"{name}/turn_{index + 1}"] = ratio(above[:, index], below[:, index])
    return metrics


class _StackedTurns:
    """The turns of the rollouts of R runs, whose groups follow one run after another.

    A statistic of a run has the same bits whatever the other runs are: numpy sums each row of an
    array separately, and sums of turns are added up one after the other.

    Attributes:
        turns: the turns of all runs.
        present: whether an episode has a turn; of rollouts that do not count none.
    """

    def __init__(self, batch: GroupBatch, runs: int) -> None:
        self.turns = Turns(Groups(batch))
        self._runs = runs
        self.present: FlagPerPlace = self.arrange(self.turns.present)

    def arrange(self, values: Shaped[Tensor, "runs*prompts rollouts turns"]) -> Places:
        """Return something per turn as an array of places."""
        by_run = values.reshape(self._runs, -1, *values.shape[1:])
        return np.ascontiguousarray(by_run.permute(0, 3, 1, 2).numpy(force=True))

    def numbers(self, values: PerTurn) -> NumberPerPlace:
        """Return a number per turn in double precision."""
        return self.arrange(values.double())

    def sums(self, values: Places) -> PerIndex:
        """Sum over the places of each turn of each run."""
        sums: PerIndex = values.reshape(*values.shape[:2], -1).sum(axis=-1)
        return sums


def _total(per_index: PerIndex) -> Num[np.ndarray, " runs"]:
    """Return the sum over the turns of each run."""
    # One after the other: zeros of turns that only other runs have change no bit.
    totals: Num[np.ndarray, " runs"] = per_index.cumsum(axis=-1)[:, -1]
    return totals
