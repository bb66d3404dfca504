"""Optuna's TPE sampler as a search that keeps no state, and the dimensions that it searches.

Each point is suggested by a new study that is filled with the trials in the store. Optuna's own
storage is not used, so that the store stays the only record of a search. Dimensions are written
in Hydra's grammar:

    estimator.delta=interval(0.1,2)   'optimizer.lr=tag(log,interval(1e-5,1e-3))'
    'group_size=choice(4,8,16)'   'estimator.k=range(1,5)'   'estimator.k=int(interval(1,8))'

Seeds are replicates and never a dimension, and neither is a list without `choice`. In a sweep file
the same texts stand in `common` and in its block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import Component, option
from advsweep.config.overrides import is_call
from advsweep.errors import ConfigError
from advsweep.packages import extra_command
from advsweep.store.records import ValueState
from advsweep.sweep.early_stopping import MetricDirection

if TYPE_CHECKING:
    import optuna

LOG = "log"
SEED = "seed"


@dataclass(frozen=True)
class Dimension:
    """The values of a key.

    Attributes:
        values: all of them, without an order; of a range the least and the greatest.
        is_range: whether the values in between belong to it; integers if both are integers.
        log: whether a range has a logarithmic scale.
    """

    values: tuple[Any, ...]
    is_range: bool = False
    log: bool = False

    @property
    def is_integer(self) -> bool:
        return self.is_range and all(isinstance(value, int) for value in self.values)

    def __contains__(self, value: Any) -> bool:
        if self.is_range:
            return bool(self.values[0] <= value <= self.values[1])
        return value in self.values

    def __str__(self) -> str:
        if self.is_range:
            return " to ".join(f"{value:g}" for value in self.values)
        return ", ".join(map(str, self.values))


def split_overrides(texts: Iterable[str]) -> tuple[dict[str, Dimension], list[str]]:
    """Split overrides into dimensions by key, and all others.

    Raises:
        ConfigError: an interval is empty, or has a log scale and is not positive.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    dimensions: dict[str, Dimension] = {}
    rest: list[str] = []
    for text in texts:
        try:
            parsed = parser.parse_override(text)
        except HydraException:
            rest.append(text)  # Planning parses it again and reports the error.
            continue
        dimension = None if parsed.key_or_group == SEED else _dimension(text, parsed)
        if dimension is None:
            rest.append(text)
        else:
            dimensions[parsed.key_or_group] = dimension
    return dimensions, rest


def node_dimensions(node: Any) -> dict[str, Dimension]:
    """Return the dimensions in an experiment's `sweep` node; a block's replace `common`'s.

    Raises:
        ConfigError: as `split_overrides`.
    """
    node = node if isinstance(node, Mapping) else {}
    blocks = node.get("blocks")
    found: dict[str, Dimension] = {}
    for block in [node.get("common"), *(blocks if isinstance(blocks, list) else [])]:
        if isinstance(block, Mapping):
            texts = [f"{k}={v}" for k, v in block.items() if isinstance(v, str) and is_call(v)]
            found = {key: value for key, value in found.items() if key not in block}
            found |= split_overrides(texts)[0]
    return found


def _dimension(text: str, parsed: Any) -> Dimension | None:
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    sweep = parsed.value() if parsed.is_sweep_override() else None
    if isinstance(sweep, IntervalSweep):
        low, high, log = sweep.start, sweep.end, LOG in sweep.tags
        if low is None or high is None or not low < high or (log and low <= 0):
            above = " above 0" if log else ""
            raise ConfigError(f"{text}: expected interval(LOW,HIGH) with LOW < HIGH{above}")
        return Dimension((low, high), is_range=True, log=log)
    # `a=1,2` is a sweep over two values, `a=choice(1,2)` a dimension of the search.
    is_choice = isinstance(sweep, ChoiceSweep) and not sweep.simple_form
    if not is_choice and not isinstance(sweep, RangeSweep):
        return None
    values = tuple(parsed.sweep_iterator(transformer=type(parsed)._convert_value))
    if not values or any(isinstance(value, (list, dict)) for value in values):
        raise ConfigError(f"{text}: expected numbers, texts, true or false to choose from")
    return Dimension(values)


def fits(params: Mapping[str, Any], dimensions: Mapping[str, Dimension]) -> bool:
    """Whether a point has a value of each dimension and no others."""
    return params.keys() == dimensions.keys() and all(params[k] in dimensions[k] for k in params)


def format_params(params: Mapping[str, Any]) -> str:
    """Format a point for people, with six digits for each number."""
    return " ".join(
        f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items()
    )


def format_override(key: str, *values: Any) -> str:
    """Write values of a key as an override."""
    texts = []
    for value in values:
        if isinstance(value, bool):
            texts.append(str(value).lower())
        elif isinstance(value, str):
            escaped = value.replace("'", "\\'")
            texts.append(f"'{escaped}'")
        else:
            texts.append("null" if value is None else repr(value))
    return f"{key}={','.join(texts)}"


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial and its result so far.

    Attributes:
        values: the mean over seeds of each metric; empty unless the trial is done.
        runs: the ids of its runs that are in the store.
    """

    number: int
    params: Mapping[str, Any]
    state: ValueState
    values: tuple[float, ...] = ()
    runs: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether all its runs are done."""
        return self.state in (ValueState.DONE, ValueState.UNMEASURED)


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
        done = [result for result in results if result.state is ValueState.DONE]
        study = self.study(done, dimensions)
        return [done[trial.number] for trial in study.best_trials]

    def study(
        self,
        results: Sequence[TrialResult],
        dimensions: Mapping[str, Dimension],
        seeds: Sequence[int] = (),
    ) -> optuna.Study:
        """Make an Optuna study of the trials.

        Args:
            seeds: further seeds of its sampler, besides the search's own.
        """
        library = _import_optuna()
        kinds = library.trial.TrialState
        # A trial with open runs counts as running, and one without a value as failed.
        states = {ValueState.OPEN: kinds.RUNNING, ValueState.DONE: kinds.COMPLETE}
        states[ValueState.PRUNED] = kinds.PRUNED
        higher = MetricDirection.HIGHER.value
        made: optuna.Study = library.create_study(
            directions=["maximize" if b == higher else "minimize" for b in self.metrics.values()],
            sampler=library.samplers.TPESampler(
                n_startup_trials=self.startup,
                constant_liar=True,
                # SeedSequence makes unrelated streams from neighbouring numbers.
                seed=int(np.random.SeedSequence([self.seed, *seeds]).generate_state(1)[0]),
            ),
        )
        distributions = _distributions(dimensions)
        for result in results:
            made.add_trial(
                library.trial.create_trial(
                    state=states.get(result.state, kinds.FAIL),
                    params=dict(result.params),
                    distributions=distributions,
                    values=list(result.values) or None,
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
    kinds = _import_optuna().distributions
    found = {}
    for key, dimension in dimensions.items():
        if dimension.is_range:
            kind = kinds.IntDistribution if dimension.is_integer else kinds.FloatDistribution
            found[key] = kind(*dimension.values, log=dimension.log)
        else:
            found[key] = kinds.CategoricalDistribution(dimension.values)
    return found
