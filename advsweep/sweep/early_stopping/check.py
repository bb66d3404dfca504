"""Applies a rule to a run that is being trained: the means come from the store."""

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
    """Judges one run by a rule, beside all runs that share a sweep with it.

    The other runs may be on other machines: all that is known of them is in the store, as
    of their last batch of points.
    """

    store: Store
    run_id: int
    rule: Stopping

    @classmethod
    def of(cls, store: Store, record: RunRecord) -> StoppingCheck | None:
        """The judge of a run; None where no rule may stop it."""
        if record.stopping is None:
            return None
        return cls(store, record.id, STOPPINGS.build(record.stopping, where="stopping"))

    def is_due(self, step: int) -> bool:
        return self.rule.is_due(step)

    def verdict(self, step: int) -> str | None:
        """Why the run is to be stopped after a step; None to let it go on.

        What was measured up to this step must be in the store.
        """
        [own] = self.store.runs.select(ids=[self.run_id])
        if own.stopping != self.rule.plain():
            # Whoever planned the run since wants it to go by another rule, or to its end.
            return None
        means = functools.cache(functools.partial(self.store.metrics.peers_means, self.run_id))
        trials = {peer.id: _trial(peer, means) for peer in self.store.runs.peers(self.run_id)}
        judged = trials.pop(self.run_id)
        return self.rule.judge(judged, list(trials.values()), step)


def _trial(peer: Peer, means: Callable[[str, int, int], Mapping[int, float]]) -> ObservedRun:
    """A run whose means are looked up, with those of all others, when a rule first asks."""
    return ObservedRun(
        config_hash=peer.config_hash,
        step=peer.step,
        steps=peer.steps,
        done=peer.done,
        mean=lambda metric, first, last: means(metric, first, last).get(peer.id),
    )
