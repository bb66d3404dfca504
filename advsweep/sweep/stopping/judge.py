"""Applies a rule to a run that is being trained: the curves come from the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.store import Status
from advsweep.sweep.registry import STOPPINGS
from advsweep.sweep.stopping.base import Trial

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.stopping.base import Curve, Stopping


@dataclass(frozen=True)
class Judge:
    """Judges one run by a rule, beside all runs that share a sweep with it.

    The other runs may be on other machines: all that is known of them is in the store, as
    of their last batch of points.
    """

    store: Store
    run_id: int
    rule: Stopping

    @classmethod
    def of(cls, store: Store, record: RunRecord) -> Judge | None:
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
        [own] = self.store.runs(ids=[self.run_id])
        if own.stopping != self.rule.plain():
            # Whoever planned the run since wants it to go by another rule, or to its end.
            return None
        runs = {own.id: own}
        for sweep in own.sweeps:
            runs.update((run.id, run) for run in self.store.runs(sweep=sweep))
        curves = {name: self.store.series(list(runs), name) for name in self.rule.metrics}
        trials = {
            run.id: _trial(run, {n: c[run.id] for n, c in curves.items() if run.id in c})
            for run in runs.values()
        }
        judged = trials.pop(own.id)
        return self.rule.judge(judged, list(trials.values()), step)


def _trial(run: RunRecord, curves: dict[str, Curve]) -> Trial:
    return Trial(
        config_hash=run.config_hash,
        step=run.step,
        steps=run.steps,
        done=run.status is Status.DONE,
        curves=curves,
    )
