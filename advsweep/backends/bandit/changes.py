"""What the steps of a block of runs change: parameters, and policies exactly.

Plain gradient descent on advantages that sum to zero moves the logits of sampled behaviours
alone. Then everything here is computed from these, without a pass over the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.bandit.softmax import IncrementalSoftmax, Policy, divergences
from advsweep.backends.step_changes import change_metrics

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from advsweep.backends.bandit.tables import Logits


class ChangeMemory:
    """What the change of the next step is compared with.

    Attributes:
        last: the last step's change of the parameters.
        sums: squared norms of the change since the base and of the last change; NaN if unknown.
    """

    def __init__(self, parameters: Float[Tensor, "runs rows behaviours"]) -> None:
        self.last = torch.zeros_like(parameters)
        self.sums: Float[Tensor, "runs 2"] = torch.zeros(len(parameters), 2).double()

    def __getitem__(self, runs: slice | list[int]) -> ChangeMemory:
        part = object.__new__(ChangeMemory)
        part.last, part.sums = self.last[runs], self.sums[runs]
        return part


@dataclass
class Drift:
    """What a step of an incremental policy changed beside the sampled behaviours.

    Attributes:
        table: the parameters before the first such update of a block.
        runs: the runs that made such an update.
    """

    table: Float[Tensor, "runs prompts behaviours"]
    runs: Bool[Tensor, " runs"]


class BlockChanges:
    """Measures the steps of runs that have the same group size.

    Args:
        parameters: trained in place by others.
        logits: maps parameters to logits.
        memory: changed in place.
    """

    def __init__(
        self,
        parameters: Float[Tensor, "runs rows behaviours"],
        logits: Logits,
        temperature: Float[Tensor, "runs 1 1"],
        memory: ChangeMemory,
    ) -> None:
        self._parameters = parameters
        self._logits = logits
        self._origin = logits.origin() if logits.is_shared else logits.base
        self._temperature = temperature
        self._memory = memory
        # The behaviours at which `last` is not 0; None if it may be anywhere.
        self._moved: Int[Tensor, "runs prompts rollouts"] | None = None
        self._samples: _Samples | None = None
        self._table: Tensor | None = None
        self._probabilities: Tensor | None = None

    def begin(self, policy: Policy, actions: Int[Tensor, "runs groups rollouts"]) -> None:
        """Remember the state before a step.

        Args:
            policy: the current policy, which the step may change in place.
            actions: the behaviours that the step trains on.
        """
        self._samples = self._table = self._probabilities = None
        if isinstance(policy, IncrementalSoftmax):
            self._samples = _Samples(policy, self._parameters, actions)
        else:
            self._table, self._probabilities = self._parameters.clone(), policy.probabilities

    def skip(self) -> None:
        """Forget what is known of the steps before; for a step that is not measured."""
        self._memory.sums.fill_(torch.nan)

    def end_brief(self, drift: Drift | None) -> None:
        """Remember the step's change for the cosine of the next step, and measure nothing else.

        Args:
            drift: what an incremental policy changed beside the sampled behaviours, if anything.
        """
        samples, sums = self._samples, self._memory.sums
        if samples is None or drift is not None:
            self.end(drift)
        else:
            moved = self._moved_by(samples)
            self._remember(samples, moved)
            sums[:, 1] = _sums(moved.where(samples.is_first, 0.0).square())
        # Unknown for every run, so that a run has the same numbers in any stack.
        sums[:, 0] = torch.nan

    def end(
        self, drift: Drift | None
    ) -> tuple[list[dict[str, float]], Float[Tensor, "runs prompts"]]:
        """Return the metrics of the step's changes, and KL(old ‖ new) of each prompt.

        Args:
            drift: what an incremental policy changed beside the sampled behaviours, if anything.
        """
        if self._samples is None:
            sums, kl = self._of_table()
        else:
            moved = self._moved_by(self._samples)
            sums, kl = self._of_samples(self._samples, moved)
            if drift is None:
                self._remember(self._samples, moved)
            else:
                # Earlier updates of the step changed sampled behaviours alone.
                self._table = drift.table.scatter(-1, self._samples.actions, self._samples.before)
                before = Policy.of(self._table, self._temperature)
                self._probabilities = before.probabilities
                # Each run's numbers are made in the way they are made for it alone.
                whole, own = drift.runs[:, None], self._of_table()
                sums, kl = own[0].where(whole, sums), own[1].where(whole, kl)
        self._memory.sums.copy_(sums[:, :2])
        return [change_metrics(*own) for own in sums.tolist()], kl

    def _of_samples(
        self, samples: _Samples, moved: Float[Tensor, "runs prompts rollouts"]
    ) -> tuple[Float[Tensor, "runs 4"], Float[Tensor, "runs prompts"]]:
        last, actions = self._memory.last, samples.actions
        change = moved.where(samples.is_first, 0.0)
        # (b + c - o)² - (b - o)² = c (c + 2 (b - o))
        growth = change * (moved + 2 * (samples.before - self._origin.gather(-1, actions)))
        total = self._memory.sums[:, 0] + _sums(growth)
        if total.isnan().any():
            whole = self._parameters - self._origin
            total = total.where(~total.isnan(), _dots(whole, whole))
        along = change * last.gather(-1, actions)
        sums = [total, _sums(change.square()), _sums(along)]
        # In double precision, since e^x - 1 - x cancels where the change x is small.
        kl = divergences(samples.log_probs.double().exp(), change.double() / self._temperature)
        return torch.stack([*sums, self._memory.sums[:, 1]], dim=1), kl

    def _moved_by(self, samples: _Samples) -> Float[Tensor, "runs prompts rollouts"]:
        """Return the change of each sampled behaviour, repetitions included."""
        return self._parameters.gather(-1, samples.actions) - samples.before

    def _remember(self, samples: _Samples, moved: Float[Tensor, "runs prompts rollouts"]) -> None:
        """Make the change of sampled behaviours the last one."""
        last = self._memory.last
        if self._moved is None:
            last.zero_()
        else:
            last.scatter_(-1, self._moved, 0.0)
        last.scatter_(-1, samples.actions, moved)
        self._moved = samples.actions

    def _of_table(self) -> tuple[Float[Tensor, "runs 4"], Float[Tensor, "runs prompts"]]:
        assert self._table is not None
        assert self._probabilities is not None
        change, last = self._parameters - self._table, self._memory.last
        total = self._parameters - self._origin
        sums = [_dots(total, total), _dots(change, change), _dots(change, last)]
        last.copy_(change)
        self._moved = None
        kl = divergences(self._probabilities, self._logits.change(change) / self._temperature)
        return torch.stack([*sums, self._memory.sums[:, 1]], dim=1), kl.double()


class _Samples:
    """Sampled behaviours before a step.

    Attributes:
        actions: the behaviours of each prompt, ascending.
        is_first: whether a behaviour is not a repetition.
        before, log_probs: their parameters and log π.
    """

    def __init__(
        self,
        policy: IncrementalSoftmax,
        parameters: Float[Tensor, "runs prompts behaviours"],
        actions: Int[Tensor, "runs prompts rollouts"],
    ) -> None:
        # numpy sorts short rows several times faster than torch.
        self.actions = torch.from_numpy(np.sort(actions.numpy(), axis=-1))
        self.is_first: Bool[Tensor, "runs prompts rollouts"] = torch.ones_like(
            self.actions, dtype=torch.bool
        )
        torch.ne(self.actions[..., 1:], self.actions[..., :-1], out=self.is_first[..., 1:])
        self.before = parameters.gather(-1, self.actions)
        self.log_probs = policy.log_probs_at(self.before)


def _sums(values: Float[Tensor, "runs prompts rollouts"]) -> Float[Tensor, " runs"]:
    return values.flatten(1).sum(dim=1, dtype=torch.float64)


def _dots(
    first: Float[Tensor, "runs rows behaviours"], second: Float[Tensor, "runs rows behaviours"]
) -> Float[Tensor, " runs"]:
    # Sums with a conversion are many times slower, so only those over rows have one.
    return (first * second).sum(dim=-1).sum(dim=-1, dtype=torch.float64)
