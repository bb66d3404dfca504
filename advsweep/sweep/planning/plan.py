"""Plans: every run of a sweep, built and validated before anything starts.

`run` and `sweep` go through the same path: overrides and the `sweep` node of an experiment
are a space (`advsweep.config.space`); each of its points is composed, patched and built.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.backends.base import Run
from advsweep.components import Component, Plain
from advsweep.config.compose import Composer
from advsweep.config.conditions import Assignment
from advsweep.config.conf_files import Printed
from advsweep.config.overrides import Override, parse_overrides
from advsweep.config.space import Space, read_space
from advsweep.errors import ConfigError
from advsweep.store.revisions import alike, component_name, run_list
from advsweep.sweep.early_stopping.base import Stopping
from advsweep.sweep.executors.base import Executor
from advsweep.sweep.planning.builder import GROUPS, KEYS, Points
from advsweep.sweep.planning.no_effect import idle_rule
from advsweep.sweep.settings import Off
from advsweep.sweep.tracking.base import Tracking, tracking_spec

if TYPE_CHECKING:
    from advsweep.store import Store


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        config: the run's resolved config, as the store keeps it.
        printed: how long it took somebody else, as the sweep file has it.
    """

    run: Run
    config: Plain
    printed: Printed | None = None


@dataclass(frozen=True)
class Duplicate:
    """A run that was left out since an earlier one is the same.

    Attributes:
        identity: the identity of both.
        assignment: what was asked for.
        first: what the earlier one was asked for by; aliases may tell them apart.
        where: the block that asked for it; empty where there is but one.
    """

    identity: str
    assignment: Assignment
    first: Assignment
    where: str


@dataclass(frozen=True)
class Plan:
    """What a sweep, or a single run, comes to.

    Attributes:
        name: the sweep's name; None for a single run.
        runs: every run once, in the order of the space.
        duplicates: what was left out of them.
        executor: where the runs go.
        stopping: the rule that may stop its runs early; None: each keeps the one that it has.
        search: what chooses further runs, if anything.
        tracking: where else its runs are shown.
        spec: what was asked for, in JSON types.
        warnings: settings that have no effect, and parameters that some components lack.
    """

    name: str | None
    runs: Sequence[PlannedRun]
    duplicates: Sequence[Duplicate]
    executor: Executor
    stopping: Stopping | None
    search: Component
    tracking: Tracking
    spec: Plain
    warnings: Sequence[str] = ()

    @property
    def absent(self) -> Sequence[str]:
        """Data that is not on this machine, without which no run of it can start."""
        return sorted({place for planned in self.runs for place in planned.run.absent})

    def check(self) -> None:
        """Refuses what this machine or the user's consent does not allow; nothing is started yet.

        Raises:
            ConfigError: its executor cannot work here, or its runs would verify answers by
                running what a model wrote.
        """
        self.executor.check()
        for planned in self.runs:
            planned.run.task.check_consent()

    def settings(self) -> Plain:
        """How its runs are executed, as config nodes: what it takes to start them again."""
        resources = self.executor.resources
        return {"executor": self.executor.plain(), "resources": resources.plain()}


def make_plan(
    overrides: Iterable[str],
    *,
    config_dirs: Sequence[str | Path] = (),
    name: str | None = None,
    single: bool = False,
    whole: bool = True,
    fetch: bool = True,
    strict: bool = False,
) -> Plan:
    """Plans a sweep, or a single run.

    Args:
        overrides: in Hydra's grammar, such as `estimator=grpo,fade`.
        config_dirs: folders of the user's own config groups, searched first.
        name: the sweep's name; else the `sweep` node's, the experiment's, or a hash of the
            runs, so that the same command resumes the same sweep.
        single: refuse anything that makes more than one run.
        whole: false for one trial of a search, for which conditions of a sweep file need
            not hold.
        fetch: as in `build_run`: false for a plan that is only looked at.
        strict: refuse an override of a parameter that some of the chosen components lack. By
            default it is set for those that have it, with a warning.

    Raises:
        ConfigError: anything that does not fit. Errors of several runs come as one message.
    """
    texts = list(overrides)
    parsed = parse_overrides(texts)
    if single:
        _refuse_sweeps(parsed)
    with Composer(GROUPS, KEYS, [Path(d) for d in config_dirs]) as composer:
        spaces = _spaces(composer, parsed, whole=whole)
        points = Points(composer, shared=() if strict else {o.key for o in parsed})
        asked = list(_asked(spaces))
        if not asked:
            raise ConfigError("sweep: expected at least one run, got none; `exclude` leaves none")
        for point in asked:
            points.add(point.assignment, point.where)
        if single and len(points) > 1:
            raise ConfigError(
                f"{spaces[0].name or 'sweep'}: expected one run, got a sweep of {len(points)}; "
                f"start it with `advsweep sweep`"
            )
        built, settings, warnings = points.build(fetch=fetch)
    runs, duplicates = _unique(built, asked)
    executor = settings["executor"]
    executor.prepare(settings["resources"], [planned.run for planned in runs])
    if isinstance(settings["search"], Off) and not single:
        warnings += filter(None, [idle_rule(settings["stopping"], [p.run for p in runs])])
    if not single:
        name = name or "+".join(s.name for s in spaces if s.name) or _content_name(runs)
    return Plan(
        name=None if single else name,
        runs=runs,
        duplicates=duplicates,
        executor=executor,
        stopping=settings["stopping"],
        search=settings["search"],
        tracking=settings["tracking"],
        spec={"overrides": texts, "runs": len(runs), **tracking_spec(settings["tracking"])},
        warnings=warnings,
    )


def _refuse_sweeps(overrides: Iterable[Override]) -> None:
    for override in overrides:
        if override.swept:
            raise ConfigError(
                f"{override.text}: expected one value, as a run has one, got a sweep over "
                f"{len(override.values)}; sweep over them with `advsweep sweep`"
            )


def _spaces(composer: Composer, overrides: Sequence[Override], *, whole: bool) -> list[Space]:
    """One space for each experiment that is chosen; a single one where none is."""
    rest = [o for o in overrides if o.key != "experiment" and not _changes_sweep(o)]
    for override in rest:
        composer.check_key(override.key)
    spaces = []
    for name, node in sweep_nodes(composer, overrides):
        chosen = [] if name is None else [Override(f"experiment={name}", "experiment", (name,))]
        space = read_space(node, [*chosen, *rest], whole=whole)
        spaces.append(dataclasses.replace(space, name=space.name or name))
    return spaces


def sweep_nodes(composer: Composer, overrides: Sequence[Override]) -> list[tuple[str | None, Any]]:
    """The experiments that are chosen and their `sweep` nodes, as the command line changes them.

    Raises:
        ConfigError: there is no such experiment, or a change that does not fit.
    """
    changes = [o for o in overrides if _changes_sweep(o)]
    choices = [o for o in overrides if o.key == "experiment"]
    values = () if not choices or choices[-1].deleted else choices[-1].values
    experiments = [composer.member("experiment", v) for v in values if v is not None]
    if not experiments:
        return [(None, _changed(None, changes))]
    return [
        (name, _changed(composer.compose({"experiment": name}).config.get("sweep"), changes))
        for name in experiments
    ]


def _changes_sweep(override: Override) -> bool:
    return override.key.split(".")[0] == "sweep"


def _changed(node: Any, changes: Iterable[Override]) -> Any:
    """The `sweep` node with the command line's changes to it, such as `sweep.seeds=5`."""
    for change in changes:
        _, *path = change.key.split(".")
        if len(path) != 1 or change.swept or change.deleted:
            raise ConfigError(
                f"{change.text}: expected sweep.name, sweep.seeds, sweep.common or "
                f"sweep.blocks with one value"
            )
        node = {**(node or {}), path[0]: change.values[0]}
    return node


class _Asked(NamedTuple):
    """A point of a space; `where` is its block where there are several."""

    where: str
    assignment: Assignment
    printed: Printed | None


def _asked(spaces: Sequence[Space]) -> Iterator[_Asked]:
    """Every point of the spaces."""
    several = sum(len(space.blocks) for space in spaces) > 1
    for space in spaces:
        prefix = f"{space.name}: " if len(spaces) > 1 else ""
        for block in space.blocks:
            where = f"{prefix}{block.where}" if several else ""
            yield from (_Asked(where, assignment, block.printed) for assignment in block)


def _unique(
    built: Sequence[Run], asked: Sequence[_Asked]
) -> tuple[list[PlannedRun], list[Duplicate]]:
    """Each training once for each way to evaluate it, and what that leaves out."""
    unique: dict[tuple[str, str], tuple[PlannedRun, Assignment]] = {}
    duplicates = []
    # In a plan of 100,000 runs, nodes that are alike are one object.
    nodes: dict[int, Plain] = {}
    evaluations: dict[int, str] = {}
    for run, (where, assignment, printed) in zip(built, asked, strict=True):
        config = run.plain(nodes)
        node = config["evaluation"]
        if id(node) not in evaluations:
            evaluations[id(node)] = repr(node)
        key = (run.identity, evaluations[id(node)])
        if key in unique:
            duplicates.append(Duplicate(run.identity, assignment, unique[key][1], where))
        else:
            unique[key] = (PlannedRun(run, config, printed), assignment)
    return [planned for planned, _ in unique.values()], duplicates


def _content_name(runs: Iterable[PlannedRun]) -> str:
    identities = sorted({planned.run.identity for planned in runs})
    return "sweep-" + hashlib.sha256("".join(identities).encode()).hexdigest()[:8]


def outdated(plan: Plan, store: Store | None) -> list[str]:
    """A sentence for each component of which the store has runs of an older revision.

    Only runs count whose config is that of a run of the plan that the store lacks, but for the
    component's own parameters.

    Args:
        store: None is one that does not exist yet.
    """
    raised = [p for p in plan.runs if p.run.revisions and not p.run.absent]
    if store is None or not raised:
        return []
    records = store.runs.select(newest_first=False)
    planned = {p.run.identity for p in plan.runs}
    had = {record.identity for record in records}
    strange = [r for r in records if r.identity not in planned and r.started is not None]
    recorded = store.runs.revisions([record.id for record in strange])
    wanted: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for p in raised:
        if p.run.identity not in had:
            for key, revision in p.run.revisions.items():
                kind = (key, component_name(p.config, key), revision)
                wanted.setdefault(kind, []).append(p.config)
    sentences = []
    for (key, name, revision), configs in wanted.items():
        older = [
            record
            for record in strange
            if component_name(record.config, key) == name
            and (record.id not in recorded or recorded[record.id].get(key, 1) < revision)
        ]
        if found := alike(older, configs, key):
            sentences.append(_sentence(key, name, [record.id for record in found]))
    return sentences


def _sentence(key: str, name: str, ids: Sequence[int]) -> str:
    what = "1 run" if len(ids) == 1 else f"{len(ids)} runs"
    verb = "is" if len(ids) == 1 else "are"
    return (
        f"{what} of an older revision of {key} '{name}' {verb} not reused ({run_list(ids)}): the "
        f"results of the two differ"
    )
