"""The evaluations of a table: those made alike on each task, base models, and chance baselines."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from advsweep.errors import ReportError, counted
from advsweep.names import SELECTED_STEP
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.imported import is_imported
from advsweep.store.seeds import SeedKey, seed_order
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split, Task

if TYPE_CHECKING:
    from advsweep.tasks.base import Floor

V = TypeVar("V")

# Settings that do not change how samples were drawn.
_NO_PROTOCOL = frozenset({"name", "k", "every", "model"})
# Sampling from the whole distribution; older settings leave it out.
_WHOLE = ("top_p", 1.0)

# Keys of a protocol that are not of `evaluation`.
_OF_TASK = ("task", "problems", "verifier", "system", "shots", "max_tokens", "stop", "sampler")

# How an evaluation was made: task, number of problems, and sampling.
Protocol = dict[str, Any]

# A protocol as text, and the problems with their prompts.
_Key = tuple[str, tuple[tuple[str, ...], ...]]


class TaskSettings(NamedTuple):
    """The task in the config of a run.

    Attributes:
        config: its settings as JSON.
        seed: the run's, if it draws the task (`task.seed=seed`); None if all seeds share it.
    """

    name: str
    config: str
    seed: int | None

    @classmethod
    def of(cls, run: RunRecord) -> Self:
        node = run.config.get("task", {})
        seed = run.seed if node.get("seed") == "seed" else None
        return cls(node.get("name", ""), json.dumps(node, sort_keys=True), seed)


@dataclass(frozen=True)
class TaskEvaluations:
    """Evaluations on one task, all made alike unless mixed protocols were accepted.

    Attributes:
        protocol: how they were made; of mixed protocols one.
        final: each run's evaluation after its last step.
        base: each run's evaluation before its first step.
        along: all evaluations of each run, in the order of their steps.
        selected: each run's evaluation at the step that validation problems chose, if it is among
            those `along`.
        models: evaluations of models without a run, by the same protocol.
        settings: the task of each run in its config; none of runs that were trained on others.
    """

    protocol: Protocol
    final: Mapping[int, EvaluationRecord]
    base: Mapping[int, EvaluationRecord] = field(default_factory=dict)
    along: Mapping[int, Sequence[EvaluationRecord]] = field(default_factory=dict)
    models: Sequence[EvaluationRecord] = ()
    settings: Mapping[int, TaskSettings] = field(default_factory=dict)
    selected: Mapping[int, EvaluationRecord] = field(default_factory=dict)

    def without(self, run_ids: Collection[int]) -> TaskEvaluations:
        """Return the evaluations of the other runs."""

        left_out = frozenset(run_ids)

        def of_others(records: Mapping[int, V]) -> dict[int, V]:
            return {run_id: own for run_id, own in records.items() if run_id not in left_out}

        return replace(
            self,
            final=of_others(self.final),
            base=of_others(self.base),
            along=of_others(self.along),
            settings=of_others(self.settings),
            selected=of_others(self.selected),
        )

    def floors(self, record: EvaluationRecord) -> Mapping[str, Floor]:
        """Return the chance baselines of an evaluation's problems by name; none without any.

        The task computes them (`Task.floors`) from the settings that a run's config has.
        """
        own = self.settings.get(record.run_id or 0)
        for settings in [own] if own is not None else dict.fromkeys(self.settings.values()):
            floors, _ = _known_of_task(settings, _split_of(record))
            if floors and _has_problems(settings, record):
                return floors
        return {}

    def common_floors(self) -> dict[int | None, tuple[EvaluationRecord, Mapping[str, Floor]]]:
        """Return a final evaluation and its floors for each seed that draws its problems.

        If all seeds share the problems, they are under None. Empty if there are no floors, or if
        runs that share a task were evaluated on different problems.
        """
        by_seed: dict[int | None, list[EvaluationRecord]] = {}
        for run_id, record in self.final.items():
            seed = self.settings[run_id].seed if run_id in self.settings else None
            by_seed.setdefault(seed, []).append(record)
        found = {seed: (own[0], self.floors(own[0])) for seed, own in by_seed.items()}
        alike = all(len({record.problem_ids for record in own}) == 1 for own in by_seed.values())
        return found if alike and all(floors for _, floors in found.values()) else {}


@dataclass(frozen=True)
class EvaluationsByTask:
    """The evaluations of a table, by task.

    Attributes:
        main: the task of columns that name none; None if nothing was evaluated, or if mixed
            protocols were accepted of runs that were trained on different tasks.
        differing: for each task whose evaluations were not made alike, the reason.
        train: the evaluations on training problems, by task; tasks whose evaluations were not made
            alike are left out.
    """

    tasks: Mapping[str, TaskEvaluations]
    main: str | None
    differing: Mapping[str, str] = field(default_factory=dict)
    train: Mapping[str, TaskEvaluations] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        """The tasks other than the main one, sorted."""
        return sorted(set(self.tasks) - {self.main})

    def without(self, run_ids: Collection[int]) -> EvaluationsByTask:
        """Return the evaluations of the other runs."""
        if not run_ids:
            return self
        return replace(
            self,
            tasks={name: task.without(run_ids) for name, task in self.tasks.items()},
            train={name: task.without(run_ids) for name, task in self.train.items()},
        )

    @property
    def final(self) -> list[EvaluationRecord]:
        """The final evaluations on all tasks."""
        return [record for task in self.tasks.values() for record in task.final.values()]

    def of(self, task: str | None, *, train: bool = False) -> TaskEvaluations | None:
        """Return the evaluations on a task, by default the main one; None if there are none.

        Args:
            train: on its training problems.

        Raises:
            ReportError: they were not made alike.
        """
        name = self.main if task is None else task
        if name is None:
            return None
        if train:
            return self.train.get(name)
        if name in self.differing:
            raise ReportError(self.differing[name])
        return self.tasks.get(name)


def select_evaluations(
    store: Store,
    runs: Sequence[RunRecord],
    *,
    lending: Sequence[RunRecord] = (),
    along: bool = False,
    mixed: bool = False,
) -> EvaluationsByTask:
    """Select for each task the evaluations by a protocol that all evaluated runs share.

    Evaluations between the first and the last step may have another number of samples. Of several
    shared protocols the one used last counts. The main task is the task that the runs were trained
    on, or else the task that was evaluated last.

    Args:
        lending: further runs, whose evaluations by that protocol are selected too. They do not
            decide which it is.
        along: read evaluations within the training, too.
        mixed: select each run's last evaluation, whatever its protocol.

    Raises:
        ReportError: no task has a shared protocol; the message names the keys that differ.
    """
    read = [*runs, *lending]
    steps = {run.id: run.steps for run in read}
    settings = {run.id: TaskSettings.of(run) for run in read if not is_imported(run.config)}
    records = store.evaluations.select(list(settings), ends_only=not along)
    if imported := list(steps.keys() - settings.keys()):
        # Other trainers may evaluate before the last step: the last evaluation counts.
        theirs = store.evaluations.select(imported)
        last = {record.run_id: record.step for record in sorted(theirs, key=lambda r: r.step)}
        steps |= {run_id: step for run_id, step in last.items() if run_id is not None}
        records = [*records, *(r for r in theirs if along or r.step in (0, last[r.run_id]))]
        records.sort(key=lambda record: (record.run_id or 0, record.step))
    lenders = frozenset(run.id for run in lending)
    of_models = store.evaluations.of_models()
    tasks, differing = _by_task(records, of_models, steps, settings, mixed, lenders)
    if differing and not tasks:
        raise ReportError(next(iter(differing.values())))
    on_training = store.evaluations.select(list(steps), ends_only=not along, split="train")
    train, _ = _by_task(on_training, [], steps, settings, mixed, lenders)
    if along:
        tasks = _with_selected(store, tasks, list(steps))
    own = [run.config.get("task", {}).get("name") for run in runs]
    counts = Counter(task for task in own if task in tasks or task in differing)
    if len(counts) > 1 and not mixed:
        some = " and ".join(f"{task} ({counted(n, 'run')})" for task, n in sorted(counts.items()))
        raise ReportError(_refusal(f"task: {some}"))
    main = next(iter(counts)) if len(counts) == 1 else None
    if not counts and tasks:
        main = max(tasks, key=lambda name: max(r.created for r in tasks[name].final.values()))
    return EvaluationsByTask(tasks, main, differing, train)


def _with_selected(
    store: Store, tasks: Mapping[str, TaskEvaluations], run_ids: Sequence[int]
) -> dict[str, TaskEvaluations]:
    """Return the tasks with each run's evaluation at its chosen step, as large as its last one.

    The evaluation must have none of the prompts that chose the step, as one of all held-out
    problems would, made later.
    """
    summaries = store.metrics.summaries(run_ids)
    steps = {i: values[SELECTED_STEP] for i, values in summaries.items() if SELECTED_STEP in values}
    validated: dict[int | None, set[str]] = {}
    for record in store.evaluations.select(list(steps), ends_only=True, split="validation"):
        validated.setdefault(record.run_id, set()).update(record.prompts)
    return {
        name: replace(
            task,
            selected={
                run_id: record
                for run_id, step in steps.items()
                for record in task.along.get(run_id, ())
                if record.step == step
                and record.settings.get("n") == task.final[run_id].settings.get("n")
                and validated.get(run_id, set()).isdisjoint(record.prompts)
            },
        )
        for name, task in tasks.items()
    }


def _by_task(
    of_runs: Sequence[EvaluationRecord],
    of_models: Sequence[EvaluationRecord],
    steps: Mapping[int, int],
    settings: Mapping[int, TaskSettings],
    mixed: bool,
    lenders: frozenset[int],
) -> tuple[dict[str, TaskEvaluations], dict[str, str]]:
    """Return the evaluations by task, and why those of a task were not made alike.

    Args:
        steps: the last step of each run that is evaluated.
        settings: each run's own task.
        lenders: runs that do not decide which protocol counts.
    """
    listed: dict[str, set[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
    for record in of_runs:
        listed.setdefault(record.task, set()).add((record.problem_ids, record.prompts))
    protocols: dict[_Key, Protocol] = {}

    def key_of(record: EvaluationRecord) -> _Key:
        made = {k: v for k, v in record.settings.items() if k not in _NO_PROTOCOL}
        made = {k: v for k, v in made.items() if (k, v) != _WHOLE}
        protocol = {"task": record.task, **made, "problems": len(record.problem_ids)}
        problems: tuple[tuple[str, ...], ...] = (record.problem_ids, record.prompts)
        own = settings.get(record.run_id or 0)
        # Where the run's seed draws the problems, those of all seeds are alike if they are of the
        # same levels. Prompts of a table have numbers for names, the same for every seed and level.
        is_drawn = own is not None and own.seed is not None and len(listed[record.task]) > 1
        if own is not None and is_drawn and _has_problems(own, record):
            problems = (("of the seed",), tuple(map(str, record.levels)))
        key = json.dumps(protocol, sort_keys=True), problems
        protocols[key] = protocol
        return key

    def is_alike(key: _Key, other: _Key) -> bool:
        one, two = ({**protocols[own], "n": None} for own in (key, other))
        return one == two and key[1] == other[1]

    by_task: dict[str, dict[int, list[tuple[_Key, EvaluationRecord]]]] = {}
    for record in of_runs:
        assert record.run_id is not None
        of_run = by_task.setdefault(record.task, {}).setdefault(record.run_id, [])
        of_run.append((key_of(record), record))
    models = [(key_of(record), record) for record in of_models]
    tasks: dict[str, TaskEvaluations] = {}
    differing: dict[str, str] = {}
    for task, records in by_task.items():
        ends = {i: {k: r for k, r in own if r.step == steps[i]} for i, own in records.items()}
        of_lenders = {i: found for i, found in ends.items() if found and i in lenders}
        finals = {i: found for i, found in ends.items() if found and i not in lenders}
        if not finals:
            continue
        # Numbers of other protocols (fewer samples, another temperature) are other quantities: one
        # table has those of a protocol that every run was evaluated by.
        # The key of each run's protocol: with `mixed` its newest, else the newest that all share.
        shared = set.intersection(*(set(found) for found in finals.values()))
        uses = {key: max(found[key].created for found in finals.values()) for key in shared}
        if mixed:
            chosen = {i: max(own, key=lambda k: own[k].created) for i, own in finals.items()}
        elif uses:
            chosen = dict.fromkeys(finals, max(uses, key=lambda key: uses[key]))
        else:
            differing[task] = _describe_differing(finals, protocols)
            continue
        for run_id, own in of_lenders.items():
            alike = [key for key in own if key in chosen.values()]
            if alike:
                chosen[run_id] = alike[0]
        finals |= {run_id: own for run_id, own in of_lenders.items() if run_id in chosen}
        along = {}
        for run_id, key in chosen.items():
            # Within the training evaluations may have another number of samples.
            by_step = {
                record.step: record
                for other, record in sorted(
                    records[run_id], key=lambda one: one[1].settings.get("n", 0)
                )
                if 0 < record.step < steps[run_id] and is_alike(other, key)
            }
            by_step |= {record.step: record for other, record in records[run_id] if other == key}
            along[run_id] = [by_step[step] for step in sorted(by_step)]
        used = sorted(set(chosen.values()))
        tasks[task] = TaskEvaluations(
            protocol=protocols[used[0]],
            final={run_id: found[chosen[run_id]] for run_id, found in finals.items()},
            base={i: listed[0] for i, listed in along.items() if listed[0].step == 0},
            along=along,
            models=[record for key, record in models if key in used],
            settings={i: settings[i] for i in finals if i in settings and settings[i].name == task},
        )
    return tasks, differing


def _describe_differing(
    finals: Mapping[int, Mapping[_Key, EvaluationRecord]], protocols: Mapping[_Key, Protocol]
) -> str:
    used = [protocols[key] for found in finals.values() for key in found]
    # Settings with their default value may not be recorded.
    names = dict.fromkeys(name for protocol in used for name in sorted(protocol))
    parts = []
    for name in names:
        counts = Counter(str(protocol.get(name, "the default")) for protocol in used)
        if len(counts) > 1:
            shown = name if name in _OF_TASK else f"evaluation.{name}"
            some = " and ".join(f"{v} ({counted(n, 'run')})" for v, n in sorted(counts.items()))
            parts.append(f"{shown}: {some}")
    return _refusal("; ".join(parts) or "the problems themselves, or their prompts")


def _refusal(differences: str) -> str:
    return (
        f"these runs were not evaluated alike, so one table cannot hold them: {differences}; "
        "report them apart (--where), or start their sweep again with the same evaluation "
        "settings, which evaluates without training again"
    )


@functools.lru_cache(maxsize=64)
def _known_of_task(
    settings: TaskSettings, split: str
) -> tuple[Mapping[str, Floor], Mapping[str, str]]:
    """Return the floors of a run's task and the prompts of its problems; nothing is sampled.

    Most tasks have neither floors nor a draw of the seed's, and may need data or a program that
    is not here: they are not built.
    """
    try:
        kind = TASKS.get(settings.name)
        if kind.floors is Task.floors and settings.seed is None:
            return {}, {}
        task = TASKS.build(json.loads(settings.config))
        task = task if settings.seed is None else task.for_seed(settings.seed)
        prompts = {p.id: p.prompt for p in task.problems(Split(split))}
    except Exception:  # noqa: BLE001, settings of another version, or a task of another package
        return {}, {}
    try:
        return task.floors(), prompts
    except Exception:  # noqa: BLE001, as above; its problems are known all the same
        return {}, prompts


def _split_of(record: EvaluationRecord) -> str:
    return str(record.settings.get("split", Split.HELD_OUT.value))


def _has_problems(settings: TaskSettings, record: EvaluationRecord) -> bool:
    """Tell whether the problems of an evaluation are those of a run's task."""
    _, prompts = _known_of_task(settings, _split_of(record))
    pairs = zip(record.problem_ids, record.prompts, strict=True)
    return all(prompts.get(problem) == prompt for problem, prompt in pairs)


class BaseFamily(NamedTuple):
    """The base models that replicate each other: one of each seed, or one that all seeds share.

    Attributes:
        members: the subjects of their evaluations, in the order of the seeds.
        seeds: those that have a base of their own, ascending; none if they share one.
        run_ids: the runs that start from them.
    """

    members: list[str]
    seeds: tuple[SeedKey, ...]
    run_ids: set[int]


def group_bases(runs: Iterable[RunRecord], evaluated: EvaluationsByTask) -> list[BaseFamily]:
    """Group the evaluated base models of some runs, in the order of the runs.

    Configurations whose bases agree seed by seed have one family. Two families join only if each
    of the joint seeds has a base of its own, or all share one.
    """
    listed = list(runs)
    subjects = {i: r.subject for task in evaluated.tasks.values() for i, r in task.base.items()}
    by_config: dict[str, tuple[dict[SeedKey, str], set[int]]] = {}
    for run in listed:
        if run.id in subjects:
            own, ids = by_config.setdefault(run.config_hash, ({}, set()))
            own[run.seed_key] = subjects[run.id]
            ids.add(run.id)
    families: list[tuple[dict[SeedKey, str], set[int]]] = []
    # Configurations with more seeds first, so that the others find theirs.
    for own, ids in sorted(by_config.values(), key=lambda found: -len(found[0])):
        for known, members in families:
            joint = {**known, **own}
            alike = set(known.values()) & set(own.values()) and {**own, **known} == joint
            if alike and len(set(joint.values())) in (1, len(joint)):
                known.update(own)
                members |= ids
                break
        else:
            families.append((dict(own), set(ids)))
    order = {run.id: place for place, run in enumerate(listed)}
    found = []
    for known, ids in sorted(families, key=lambda family: min(map(order.__getitem__, family[1]))):
        is_shared = len(set(known.values())) == 1
        seeds = () if is_shared else tuple(sorted(known, key=seed_order))
        found.append(BaseFamily([known[s] for s in seeds or list(known)[:1]], seeds, ids))
    return found


def base_evaluations(task: TaskEvaluations) -> dict[str, EvaluationRecord]:
    """Return the evaluations of the runs' base models on a task, by subject."""
    return {record.subject: record for record in task.base.values()}
