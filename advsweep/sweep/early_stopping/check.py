"""Applies a rule to a run in training, with the means of all runs from the store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.sweep.early_stopping.base import ObservedRun
from advsweep.sweep.registry import STOPPINGS

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import Peer
    from advsweep.sweep.early_stopping.base import Stopping


@dataclass(frozen=True)
class StoppingCheck:
    """Judges one run by a rule, in comparison with all runs that share a sweep with it.

    The other runs may be on other machines: the store has their points up to the last batch.
    """

    store: Store
    run_id: int
    rule: Stopping

    @classmethod
    def of(cls, store: Store, record: RunRecord) -> StoppingCheck | None:
        """Makes the check of a run; None if no rule may stop it."""
        if record.stopping is None:
            return None
        return cls(store, record.id, STOPPINGS.build(record.stopping, where="stopping"))

    def is_due(self, step: int) -> bool:
        return self.rule.is_due(step)

    def judge(self, step: int) -> str | None:
        """Returns why the run should stop after a step; None if it should continue.

        The points up to this step must be in the store.
        """
        [own] = self.store.runs.select(ids=[self.run_id])
        if own.stopping != self.rule.plain():
            # The run was planned again meanwhile, with another rule or none.
            return None
        means = functools.cache(functools.partial(self.store.metrics.peers_means, self.run_id))
        runs = {peer.id: _observed(peer, means) for peer in self.store.runs.peers(self.run_id)}
        own_curve = runs.pop(self.run_id)
        return self.rule.judge(own_curve, list(runs.values()), step)


def _observed(peer: Peer, means: Callable[[str, int, int], Mapping[int, float]]) -> ObservedRun:
    """Returns a run whose means are read, with those of all others, at the first use."""
    return ObservedRun(
        config_hash=peer.config_hash,
        step=peer.step,
        steps=peer.steps,
        done=peer.done,
        mean=lambda metric, first, last: means(metric, first, last).get(peer.id),
    )
