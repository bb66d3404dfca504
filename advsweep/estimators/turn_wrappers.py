"""The turn form of other estimators: their formula on returns, within groups of turns."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.estimators.batch import PER_PROMPT, PER_TOKEN, PER_TURN, GroupBatch, Groups
from advsweep.estimators.turn_credit import TurnEstimator
from advsweep.estimators.turn_groups import TurnGroups
from advsweep.estimators.turns import Turns
from advsweep.estimators.wrappers import Wrapper

if TYPE_CHECKING:
    from advsweep.estimators.batch import FlagPerRollout, PerToken

# Which turns of a prompt are compared: those of the same number, or those before the same state.
TurnsOf = Literal["turn", "state"]


@dataclass(kw_only=True)
class ByTurn(Wrapper):
    """The base's formula within groups of turns: Aᵢₜ = Âᵢₜ of Gᵢₜ = rᵢₜ + γ Gᵢ₍ₜ₊₁₎.

    A group is the turns of a prompt that have the same number (`group=turn`), or the same state
    before them (`group=state`). The base sees one batch, whose groups are these and whose rewards
    are the returns; an episode that has no such turn is a missing rollout there. Lengths are those
    of turns, and each group of turns has a prompt's name of its own; what else is given for a
    rollout or a prompt is that of each of its turns. Rollouts of one turn get what the base gives
    them.

    A turn without company, the only one of its group, gets what the base gives a single rollout: 0
    where it compares rollouts. Logged: `company`, the share of turns in whose group another rollout
    has a turn. A turn that the base leaves out gets 0; where it leaves out all turns of an episode,
    the episode is left out.
    """

    name: ClassVar[str] = "by_turn"
    needs: ClassVar[frozenset[str]] = TurnEstimator.needs
    uses: ClassVar[frozenset[str]] = TurnEstimator.uses
    per_token: ClassVar[bool] = True

    group: TurnsOf = option(
        "turn", help="turns of the same number are compared, or those before the same state"
    )
    gamma: float = option(1.0, ge=0, le=1, help="γ: discount of a reward per turn")

    def __post_init__(self) -> None:
        super().__post_init__()
        base = self._inner
        read = sorted((base.needs | base.uses) & (PER_TOKEN | PER_TURN))
        if read:
            raise ConfigError(
                f"base: estimator '{self.name}' gives its base numbers per turn, and '{base.name}' "
                f"reads {', '.join(read)} per token; expected a base that does not"
            )
        if base.binary_only and self.gamma < 1:
            raise ConfigError(
                f"gamma: expected 1 with base '{base.name}', which is defined for rewards of 0 and "
                f"1 only, got {self.gamma:g}"
            )
        if self.group == "state":
            self._narrow(needs=self.needs | {"turn_states"})

    def _advantages(self, groups: Groups, info: dict[str, float]) -> PerToken:
        turns = Turns(groups)
        table = self._table(turns)
        computed = self._inner.compute(self._turn_batch(groups.batch, table))
        info.update(computed.info)
        info["company"] = table.company()
        values = table.scatter(computed.values)
        kept = table.scatter(computed.keep)
        is_trained = kept.any(dim=-1, keepdim=True)
        return turns.spread(values.masked_fill(is_trained & ~kept, 0.0))

    def _keep(self, groups: Groups) -> FlagPerRollout:
        table = self._table(Turns(groups))
        kept = self._inner._keep(Groups(self._turn_batch(groups.batch, table)))
        return table.scatter(kept & table.present).any(dim=-1)

    def _table(self, turns: Turns) -> TurnGroups:
        return TurnGroups.by_state(turns) if self.group == "state" else TurnGroups.by_index(turns)

    def _turn_batch(self, batch: GroupBatch, table: TurnGroups) -> GroupBatch:
        """Return the batch that the base sees: its groups are groups of turns."""
        inputs: dict[str, Any] = {}
        for field in fields(batch):
            value = getattr(batch, field.name)
            if field.name in PER_TOKEN | PER_TURN:
                inputs[field.name] = None
            elif isinstance(value, torch.Tensor):
                of_rows = value[table.prompts]
                is_per_rollout = field.name not in PER_PROMPT and value.ndim > 1
                inputs[field.name] = of_rows[:, table.rollouts] if is_per_rollout else of_rows
        if batch.prompt_ids is not None:
            rows = zip(table.prompts.tolist(), table.labels.tolist(), strict=True)
            inputs["prompt_ids"] = tuple(
                f"{batch.prompt_ids[prompt]}, {self.group} {label}" for prompt, label in rows
            )
        inputs["rewards"] = table.gather(table.turns.returns(self.gamma))
        if batch.turn_of_token is not None:
            # Without it a rollout is a turn, and has its length.
            inputs["lengths"] = table.gather(table.turns.token_counts)
        is_whole = batch.mask is None and bool(table.present.all())
        inputs["mask"] = None if is_whole else table.present
        return replace(batch, **inputs)
