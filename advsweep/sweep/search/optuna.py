"""Optuna's TPE sampler as a search that keeps no state.

Each point is suggested by a new study that is filled with the trials in the store. Optuna's own
storage is not used, so that the store stays the only record of a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import Component, option
from advsweep.errors import ConfigError
from advsweep.packages import extra_command
from advsweep.sweep.early_stopping.base import MetricDirection
from advsweep.sweep.search.dimensions import Dimension, RangeDimension

if TYPE_CHECKING:
    import optuna


class TrialState(Enum):
    """The state of a trial.

    `OPEN`: some of its runs are still to be trained and none is being trained. `UNMEASURED`: its
    runs are done and lack a finite value of a metric.
    """

    OPEN = "open"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial and its result so far.

    Attributes:
        values: the mean over seeds of each metric; empty unless the trial is done.
        runs: the ids of its runs that are in the store.
    """

    number: int
    params: Mapping[str, Any]
    state: TrialState
    values: tuple[float, ...] = ()
    runs: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether all its runs are done."""
        return self.state in (TrialState.DONE, TrialState.UNMEASURED)


@dataclass(kw_only=True)
class OptunaSearch(Component):
    """Tree-structured Parzen estimators (Bergstra et al., 2011) as implemented by Optuna.

    One metric gives the best trial, two give the Pareto front. A trial is one configuration with
    all given seeds; its value is the mean over them.

    Each point depends only on the seed, the trial's number and the results so far. A search of
    one trial at a time that was killed therefore continues exactly as it would have. Running
    trials count as poor ones, so that trials side by side differ.
    """

    name: ClassVar[str] = "optuna"

    trials: int = option(30, ge=1, help="trials in all")
    metrics: dict[str, str] = option(
        {"pass@1": "higher"}, help="one or two metrics, and whether higher or lower is better"
    )
    last: int = option(1, ge=1, help="last steps over which a run's metric is averaged")
    startup: int = option(10, ge=0, help="trials drawn at random first")
    seed: int = option(0, ge=0, help="seed of every random choice of the search")

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {better.value for better in MetricDirection}
        if not 1 <= len(self.metrics) <= 2 or not known.issuperset(self.metrics.values()):
            raise ConfigError(
                "metrics: expected one or two metrics, each with higher or lower, such as "
                f"{{pass@1: higher}}, got {self.metrics}"
            )

    def suggest(
        self,
        results: Sequence[TrialResult],
        dimensions: Mapping[str, Dimension],
        number: int,
        attempt: int = 0,
    ) -> dict[str, Any]:
        """Suggest the next point.

        Args:
            results: the trials so far, all of them points of these dimensions.
            number: the number of the new trial.
            attempt: another attempt gives another point.
        """
        study = self.study(results, dimensions, (number, attempt))
        return study.ask(_distributions(dimensions)).params

    def best(
        self, results: Sequence[TrialResult], dimensions: Mapping[str, Dimension]
    ) -> list[TrialResult]:
        """Return the best trial, or with two metrics the Pareto front; empty if none is done."""
        done = [result for result in results if result.state is TrialState.DONE]
        study = self.study(done, dimensions)
        return [done[trial.number] for trial in study.best_trials]

    def study(
        self,
        results: Sequence[TrialResult],
        dimensions: Mapping[str, Dimension],
        seeds: Sequence[int] = (),
        *,
        storage: str | None = None,
        name: str | None = None,
    ) -> optuna.Study:
        """Make an Optuna study of the trials, in memory or in a storage.

        Args:
            seeds: further seeds of its sampler, besides the search's own.
            storage: an Optuna URL of a database without a study of that name.
        """
        library = _import_optuna()
        states = {
            TrialState.OPEN: library.trial.TrialState.RUNNING,
            TrialState.RUNNING: library.trial.TrialState.RUNNING,
            TrialState.DONE: library.trial.TrialState.COMPLETE,
            TrialState.FAILED: library.trial.TrialState.FAIL,
            TrialState.PRUNED: library.trial.TrialState.PRUNED,
            TrialState.UNMEASURED: library.trial.TrialState.FAIL,
        }
        higher = MetricDirection.HIGHER.value
        made: optuna.Study = library.create_study(
            directions=["maximize" if b == higher else "minimize" for b in self.metrics.values()],
            sampler=library.samplers.TPESampler(
                n_startup_trials=self.startup,
                constant_liar=True,
                # SeedSequence makes unrelated streams from neighbouring numbers.
                seed=int(np.random.SeedSequence([self.seed, *seeds]).generate_state(1)[0]),
            ),
            storage=storage,
            study_name=name,
        )
        distributions = _distributions(dimensions)
        for result in results:
            made.add_trial(
                library.trial.create_trial(
                    state=states[result.state],
                    params=dict(result.params),
                    distributions=distributions,
                    values=list(result.values) or None,
                    user_attrs={"runs": list(result.runs)},
                )
            )
        return made


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"search=optuna needs Optuna, which is not installed: {extra_command('search')}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distributions(dimensions: Mapping[str, Dimension]) -> dict[str, Any]:
    return {key: _distribution(dimension) for key, dimension in dimensions.items()}


def _distribution(dimension: Dimension) -> Any:
    kinds = _import_optuna().distributions
    if not isinstance(dimension, RangeDimension):
        return kinds.CategoricalDistribution(dimension.values)
    kind = kinds.IntDistribution if dimension.is_integer else kinds.FloatDistribution
    return kind(dimension.low, dimension.high, log=dimension.log)
