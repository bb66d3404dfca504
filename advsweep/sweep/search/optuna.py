"""Optuna's TPE sampler, asked for one point at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import Component, option
from advsweep.errors import ConfigError
from advsweep.sweep.early_stopping.base import MetricDirection
from advsweep.sweep.search.space import Dimension, Interval

if TYPE_CHECKING:
    import optuna


class State(Enum):
    """What became of a trial.

    `OPEN` is one that nobody trains, for the time being; `UNMEASURED` one whose runs are
    done and that has no number for a metric.
    """

    OPEN = "open"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    PRUNED = "pruned"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial as far as it is known.

    Attributes:
        values: of each objective, the mean over seeds; empty unless it is done.
        runs: ids in the store, as far as there are any.
    """

    number: int
    params: Mapping[str, Any]
    state: State
    values: tuple[float, ...] = ()
    runs: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether all its runs are done."""
        return self.state in (State.DONE, State.UNMEASURED)


@dataclass(kw_only=True)
class OptunaSearch(Component):
    """Tree-structured Parzen estimators (Bergstra et al., 2011), as Optuna has them.

    With one metric the best trial is searched for, with two the Pareto front. A trial is
    one configuration with all seeds that are given; what counts is the mean over them.

    The sampler keeps nothing: each point follows from the seed, the trial's number and the
    results so far, so that a search of one trial at a time that was killed goes on as it
    would have gone. Trials that are being trained count as poor ones, lest those side by
    side be alike.
    """

    name: ClassVar[str] = "optuna"

    trials: int = option(30, ge=1, help="trials in all")
    metrics: dict[str, str] = option(
        {"pass@1": "higher"}, help="one or two metrics, and whether higher or lower is better"
    )
    last: int = option(1, ge=1, help="steps at the end that a run's metric is the mean of")
    startup: int = option(10, ge=0, help="trials drawn at random first")
    seed: int = option(0, ge=0, help="fixes every random choice of the search")

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
        results: Sequence[Result],
        dimensions: Mapping[str, Dimension],
        number: int,
        attempt: int = 0,
    ) -> dict[str, Any]:
        """The next point to try, given the trials so far, which are points of this space.

        Args:
            number: that of the new trial.
            attempt: another one gives another point.
        """
        study = self.study(results, dimensions, (number, attempt))
        return study.ask(_distributions(dimensions)).params

    def best(self, results: Sequence[Result], dimensions: Mapping[str, Dimension]) -> list[Result]:
        """The best trial, or with two metrics the Pareto front; empty while none is done."""
        done = [result for result in results if result.state is State.DONE]
        study = self.study(done, dimensions)
        return [done[trial.number] for trial in study.best_trials]

    def study(
        self,
        results: Sequence[Result],
        dimensions: Mapping[str, Dimension],
        seeds: Sequence[int] = (),
        *,
        storage: str | None = None,
        name: str | None = None,
    ) -> optuna.Study:
        """The trials as a study of Optuna's, in memory or in a storage of its own.

        Args:
            seeds: what its sampler's choices depend on, beside the search's seed.
            storage: a URL as Optuna has it, of a database without a study of that name.
        """
        library = _import_optuna()
        states = {
            State.OPEN: library.trial.TrialState.RUNNING,
            State.RUNNING: library.trial.TrialState.RUNNING,
            State.DONE: library.trial.TrialState.COMPLETE,
            State.FAILED: library.trial.TrialState.FAIL,
            State.PRUNED: library.trial.TrialState.PRUNED,
            State.UNMEASURED: library.trial.TrialState.FAIL,
        }
        higher = MetricDirection.HIGHER.value
        made: optuna.Study = library.create_study(
            directions=["maximize" if b == higher else "minimize" for b in self.metrics.values()],
            sampler=library.samplers.TPESampler(
                n_startup_trials=self.startup,
                constant_liar=True,
                # Numbers near each other make streams that have nothing in common.
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
        raise ConfigError("search=optuna takes Optuna: pip install 'advsweep[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distributions(dimensions: Mapping[str, Dimension]) -> dict[str, Any]:
    return {key: _distribution(dimension) for key, dimension in dimensions.items()}


def _distribution(dimension: Dimension) -> Any:
    kinds = _import_optuna().distributions
    if not isinstance(dimension, Interval):
        return kinds.CategoricalDistribution(dimension.values)
    kind = kinds.IntDistribution if dimension.whole else kinds.FloatDistribution
    return kind(dimension.low, dimension.high, log=dimension.log)
