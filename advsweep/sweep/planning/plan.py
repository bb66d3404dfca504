"""Plans: every run of a sweep, built and validated before anything starts.

`run` and `sweep` go the same way: overrides and the `sweep` node of an experiment make spaces
(`advsweep.config.sweep_file`), each point of a space is composed to a config
(`advsweep.config.compose`), and each config is built (`advsweep.backends.build`).

A run that cannot train anything is refused, and settings without effect are warned of
(`advsweep.sweep.planning.effects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends import BACKENDS, EVALUATIONS
from advsweep.backends.build import BuildCache, build_run, name_of, rollout_for_estimator
from advsweep.components import Plain
from advsweep.config.compose import MessageCounts, PointComposer
from advsweep.config.groups import ConfigGroups
from advsweep.config.overrides import parse_overrides
from advsweep.config.space import Assignment, Race, Space, points
from advsweep.config.sweep_file import read_spaces
from advsweep.errors import ConfigError
from advsweep.store.sweeps import METHODS
from advsweep.sweep.early_stopping import Stopping
from advsweep.sweep.executors.base import Executor
from advsweep.sweep.planning.effects import check_effects, ineffective_rule
from advsweep.sweep.registry import SETTINGS, config_groups
from advsweep.sweep.tracking.base import Tracking

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.config.overrides import Override


# Replaces the runs of a sweep by others.
Change = Callable[[Sequence[Assignment]], Sequence[Assignment]]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        config: the run's resolved config, as the store has it.
        assignment: the keys that it was given.
    """

    run: Run
    config: Plain
    assignment: Assignment = field(default_factory=dict)


@dataclass(frozen=True)
class Duplicate:
    """A run that was left out because an earlier run of the plan is the same.

    Attributes:
        identity: the identity of both.
        assignment: the point that is left out.
        first: the point of the earlier run; it may differ in aliases.
    """

    identity: str
    assignment: Assignment
    first: Assignment


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep, or a single run, with the settings of the sweep.

    Attributes:
        name: the sweep's name; None for a single run.
        runs: every run once, in the order of the spaces.
        duplicates: the points that were left out, as their runs are there already.
        executor: where the runs are executed.
        stopping: the rule that may stop its runs early; None: each keeps the rule it has.
        tracking: where else the runs are shown.
        spec: the overrides and what else the store keeps of the sweep, in JSON types.
        warnings: settings without effect or seldom meant, and parameters that some components
            lack.
        race: how its runs are chosen among these; None: all are trained.
    """

    name: str | None
    runs: Sequence[PlannedRun]
    duplicates: Sequence[Duplicate]
    executor: Executor
    stopping: Stopping | None
    tracking: Tracking
    spec: Plain
    warnings: Sequence[str] = ()
    race: Race | None = None

    @property
    def absent(self) -> Sequence[str]:
        """The data that this machine lacks and without which some of its runs cannot start."""
        return sorted({data for planned in self.runs for data in planned.run.absent})

    def check(self) -> None:
        """Refuse what this machine or the user does not allow. Nothing is started.

        Raises:
            ConfigError: its executor cannot work here, or its runs would verify answers by
                running programs that a model wrote, without the user's consent.
        """
        self.executor.check()
        for planned in self.runs:
            planned.run.task.check_consent()
            planned.run.backend.check_consent()

    def settings(self) -> Plain:
        """Return the config nodes of executor and resources, which starting it again needs."""
        resources = self.executor.resources
        return {"executor": self.executor.plain(), "resources": resources.plain()}


def make_plan(
    overrides: Iterable[str],
    *,
    config_dirs: Sequence[str | Path] = (),
    groups: ConfigGroups | None = None,
    name: str | None = None,
    single: bool = False,
    fetch: bool = True,
    change: Change = lambda listed: listed,
) -> Plan:
    """Plan a sweep or a single run.

    Args:
        overrides: in Hydra's grammar, such as `estimator=grpo,fade`. They are the present command
            line's, or the caller's own, and never a store's: they may name files, and code to run.
        config_dirs: folders of the user's own config groups, searched first.
        groups: the config groups of these folders, for several plans that share what they
            compose; it takes the place of `config_dirs`.
        name: the sweep's name. The default is the name in the `sweep` node, the experiment's, or
            a hash of the runs, so that the same command resumes the same sweep.
        single: refuse anything that makes more than one run.
        fetch: as in `build_run`; False for a plan that is only shown.
        change: replaces the runs of the sweep by others, for the stages of a tuned sweep.

    Raises:
        ConfigError: something does not fit. Errors of several runs come as one message.
    """
    texts = list(overrides)
    parsed = parse_overrides(texts)
    if single:
        _refuse_values(parsed)
    with groups or config_groups(config_dirs) as groups:
        spaces = read_spaces(groups, parsed)
        listed = change(list(points(spaces)))
        _check_number(listed, spaces, single=single)
        composer = PointComposer(groups, listed, {o.key for o in parsed})
        built, nodes, warnings = _build_runs(composer, listed, fetch=fetch)
    race = _race_of(spaces)
    settings = {key: SETTINGS[key].build(nodes[key], where=key) for key in SETTINGS}
    runs, duplicates = _unique(built, listed)
    executor = settings["executor"]
    executor.prepare(settings["resources"], [planned.run for planned in runs])
    if not single:
        reason = ineffective_rule(settings["stopping"], [planned.run for planned in runs])
        if reason:
            warnings.append(reason)
    return Plan(
        name=None if single else name or _default_name(spaces, runs),
        runs=runs,
        duplicates=duplicates,
        executor=executor,
        stopping=settings["stopping"],
        tracking=settings["tracking"],
        spec=_spec(texts, spaces, runs),
        warnings=warnings,
        race=race,
    )


def _refuse_values(overrides: Iterable[Override]) -> None:
    """Refuse several values of a key, for a single run."""
    for override in overrides:
        if override.swept:
            raise ConfigError(
                f"{override.text}: expected one value, as a run has one, got a sweep over "
                f"{len(override.values)}; sweep over them with `advsweep sweep`"
            )


def _check_number(listed: Sequence[Assignment], spaces: Sequence[Space], *, single: bool) -> None:
    """Refuse a sweep without runs, and several runs where one is wanted."""
    if not listed:
        raise ConfigError("sweep: expected at least one run, got none; `exclude` leaves none")
    if single and len(listed) > 1:
        raise ConfigError(
            f"{spaces[0].name or 'sweep'}: expected one run, got a sweep of {len(listed)}; "
            f"start it with `advsweep sweep`"
        )


def _race_of(spaces: Sequence[Space]) -> Race | None:
    """Return how the runs of the sweep race; None without a race."""
    races = [space.race for space in spaces if space.race]
    if not races:
        return None
    if len(spaces) > 1:
        raise ConfigError(f"sweep.race: expected one sweep file, got {len(spaces)}")
    return races[0]


def _default_name(spaces: Sequence[Space], runs: Sequence[PlannedRun]) -> str:
    """Return the names in the sweep files, or else a hash of the runs."""
    names = [space.name for space in spaces if space.name]
    if names:
        return "+".join(names)
    identities = "".join(sorted({planned.run.identity for planned in runs}))
    return f"sweep-{hashlib.sha256(identities.encode()).hexdigest()[:8]}"


def _spec(texts: list[str], spaces: Iterable[Space], runs: Sequence[PlannedRun]) -> Plain:
    """Return what the store keeps of a sweep."""
    spec: Plain = {"overrides": texts, "runs": len(runs)}
    outcomes = dict.fromkeys(outcome for space in spaces for outcome in space.outcomes)
    if outcomes:
        spec["outcomes"] = list(outcomes)
    methods = {
        planned.run.config_hash: planned.assignment["method"]
        for planned in runs
        if "method" in planned.assignment
    }
    if methods:
        spec[METHODS] = methods
    return spec


def _build_runs(
    composer: PointComposer, listed: Sequence[Assignment], *, fetch: bool
) -> tuple[list[Run], Plain, list[str]]:
    """Compose and build every point.

    Returns:
        The runs, the config nodes that set the sweep, and warnings.

    Raises:
        ConfigError: a run cannot be built; several errors come as one message.
    """
    built: list[Run] = []
    errors = MessageCounts(len(listed))
    warnings = MessageCounts(len(listed))
    settings: Plain = {}
    cache = BuildCache()
    loaded: dict[str, Plain] = {}
    effects: dict[Any, str] = {}
    for point in listed:
        try:
            config, values = composer.config(point)
            settings = _same_settings(settings, config)
            config.pop("sweep", None)
            if "evaluation.n" in values and "evaluation.k" not in values:
                config["evaluation"], changes = with_fitting_k(config["evaluation"])
                warnings.add(*changes)
            config["backend"] = _loaded(config.get("backend"), loaded)
            config["rollout"], changes = rollout_for_estimator(config, cache)
            warnings.add(*changes)
            run = build_run(config, fetch=fetch, cache=cache)
            if run.backend.external:
                run.backend.check_given(point)
            else:
                warnings.add(*check_effects(run, values, effects), *run.backend.cautions(run))
            built.append(run)
        except ConfigError as error:
            errors.add(str(composer.located(point, error)))
    errors.check()
    nodes = {key: settings.get(key) for key in SETTINGS}
    return built, nodes, [*composer.partial_keys, *warnings.lines("warnings")]


def _same_settings(earlier: Plain, config: Plain) -> Plain:
    """Return the nodes of a config that set the sweep.

    Args:
        earlier: the nodes of the runs before; empty for the first one.

    Raises:
        ConfigError: they differ.
    """
    settings = {key: config[key] for key in SETTINGS if key in config}
    if not earlier:
        return settings
    for key in settings.keys() | earlier.keys():
        if settings.get(key) != earlier.get(key):
            raise ConfigError(
                f"{key}: expected the same for all runs of a sweep, as it is no part of a "
                f"run, got {earlier.get(key)} and {settings.get(key)}"
            )
    return settings


def _loaded(node: Any, loaded: dict[str, Plain]) -> Any:
    """Return a backend's node, completed with the files that it names; each is read once."""
    name = name_of(node)
    if name not in BACKENDS:
        return node  # `build_run` says so.
    text = repr(node)
    if text not in loaded:
        plain = dict(node) if isinstance(node, Mapping) else {"name": name}
        loaded[text] = BACKENDS.get(name).load_node(plain)
    return loaded[text]


def with_fitting_k(node: Mapping[str, Any]) -> tuple[Plain, list[str]]:
    """Replace every k of pass@k above n by n in an evaluation's config.

    Returns:
        The config, and a message if it was changed.
    """
    # Built with the largest n, to know the default of k; everything else is checked later.
    default = EVALUATIONS.get(node["name"])().k
    n = node["n"]
    ks = node.get("k", default)
    if not isinstance(n, int) or not any(k > n for k in ks):
        return {**node}, []
    fitting = sorted({*(k for k in ks if k <= n), n})
    before = ", ".join(map(str, ks))
    after = ", ".join(map(str, fitting))
    message = f"evaluation.k: {after} instead of {before}, as evaluation.n is {n}"
    return {**node, "k": fitting}, [message]


def _unique(
    built: Sequence[Run], listed: Sequence[Assignment]
) -> tuple[list[PlannedRun], list[Duplicate]]:
    """Return each training once for each way to evaluate it, and the points left out."""
    unique: dict[tuple[str, str], PlannedRun] = {}
    duplicates = []
    # Plans may have 100,000 runs, so equal nodes are one object and are written out once.
    nodes: dict[int, Plain] = {}
    evaluations: dict[int, str] = {}
    for run, assignment in zip(built, listed, strict=True):
        config = run.plain(nodes)
        node = config.get("evaluation")
        if id(node) not in evaluations:
            evaluations[id(node)] = repr(node)
        key = (run.identity, evaluations[id(node)])
        if key in unique:
            duplicates.append(Duplicate(run.identity, assignment, unique[key].assignment))
        else:
            unique[key] = PlannedRun(run, config, assignment)
    return list(unique.values()), duplicates
