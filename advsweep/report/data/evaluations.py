"""Selects the evaluations of a table: on each task, those that were made alike."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from advsweep.errors import ReportError, counted
from advsweep.report.data.last_evaluations import own_runs, read_evaluations
from advsweep.report.data.own_tasks import TaskSettings, has_problems
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.records import SELECTED

# Settings that do not change how samples were drawn.
_NO_PROTOCOL = frozenset({"name", "k", "every", "model"})
# Sampling from the whole distribution; older settings leave it out.
_WHOLE = ("top_p", 1.0)

RECORDED_LATER = ("verifier", "system", "max_tokens")
"""Settings of the task that older versions did not record."""

_NO_SETTINGS = frozenset({"task", "problems", "sampler", *RECORDED_LATER})

OWN_TASKS = "own"
"""The main task's name where runs were trained on different tasks."""

Protocol = dict[str, Any]


@dataclass(frozen=True)
class TaskEvaluations:
    """Evaluations on one task, all made alike unless mixed protocols were accepted.

    Attributes:
        protocol: task, problems and sampling; for mixed protocols, lists of each key's values.
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
    base: Mapping[int, EvaluationRecord]
    along: Mapping[int, Sequence[EvaluationRecord]]
    models: Sequence[EvaluationRecord]
    settings: Mapping[int, TaskSettings] = field(default_factory=dict)
    selected: Mapping[int, EvaluationRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationsByTask:
    """The evaluations of a table, by task.

    Attributes:
        main: the task of columns that name none; None if nothing was evaluated.
        differing: for each task whose evaluations were not made alike, the reason.
        train: the evaluations on training problems, by task; tasks whose evaluations were not made
            alike are left out.
    """

    tasks: Mapping[str, TaskEvaluations]
    main: str | None
    differing: Mapping[str, str] = field(default_factory=dict)
    train: Mapping[str, TaskEvaluations] = field(default_factory=dict)

    @property
    def protocol(self) -> Protocol | None:
        return None if self.main is None else self.tasks[self.main].protocol

    @property
    def others(self) -> list[str]:
        """The tasks other than the main one, sorted."""
        return sorted(set(self.tasks) - {self.main, OWN_TASKS})

    @property
    def final(self) -> list[EvaluationRecord]:
        """The final evaluations on all tasks."""
        return [record for task in self.tasks.values() for record in task.final.values()]

    def of(self, task: str | None, *, train: bool = False) -> TaskEvaluations | None:
        """Returns the evaluations on a task, by default the main one; None if there are none.

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
    store: Store, runs: Sequence[RunRecord], *, along: bool = False, mixed: bool = False
) -> EvaluationsByTask:
    """Selects for each task the evaluations by a protocol that all evaluated runs share.

    Evaluations between the first and the last step may have another number of samples.

    Of several shared protocols the one used last counts. The main task is the task that the runs
    were trained on, or else the task that was evaluated last.

    Args:
        along: read evaluations within the training, too.
        mixed: select each run's last evaluation, whatever its protocol.

    Raises:
        ReportError: no task has a shared protocol; the message names the keys that differ.
    """
    of_models = store.evaluations.of_models()
    of_runs, steps = read_evaluations(store, runs, along=along)
    own = {run.id: TaskSettings.of(run) for run in own_runs(runs)}
    tasks, differing = _by_task(of_runs, of_models, steps, own, mixed=mixed)
    if differing and not tasks:
        raise ReportError(next(iter(differing.values())))
    on_training = store.evaluations.select(list(steps), ends_only=not along, split="train")
    train, _ = _by_task(on_training, [], steps, own, mixed=mixed)
    found = replace(_with_main(runs, tasks, differing, mixed=mixed), train=train)
    if not along:
        return found
    steps_of = {
        run_id: values[SELECTED]
        for run_id, values in store.metrics.summaries(list(steps)).items()
        if SELECTED in values
    }
    validated: dict[int | None, set[str]] = {}
    for record in store.evaluations.select(list(steps_of), ends_only=True, split="validation"):
        validated.setdefault(record.run_id, set()).update(record.prompts)
    chosen = {name: _with_selected(task, steps_of, validated) for name, task in found.tasks.items()}
    return replace(found, tasks=chosen)


def _with_selected(
    task: TaskEvaluations,
    steps: Mapping[int, float],
    validated: Mapping[int | None, Set[str]],
) -> TaskEvaluations:
    """Return the task with each run's evaluation at a step, as large as its last one.

    Args:
        validated: the prompts that chose the step. The evaluation must have none of them, as one of
            all held-out problems would, made later.
    """
    return replace(
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


def _by_task(
    of_runs: Sequence[EvaluationRecord],
    of_models: Sequence[EvaluationRecord],
    steps: Mapping[int, int],
    settings: Mapping[int, TaskSettings],
    *,
    mixed: bool,
) -> tuple[dict[str, TaskEvaluations], dict[str, str]]:
    """Returns the evaluations by task, and why those of a task were not made alike.

    Args:
        settings: each run's own task.
    """
    ways = _Protocols(of_runs, of_models, settings)
    by_task: dict[str, list[tuple[str, EvaluationRecord]]] = {}
    for record in of_runs:
        by_task.setdefault(record.task, []).append((ways.key(record), record))
    models = [(ways.key(record), record) for record in of_models]
    tasks: dict[str, TaskEvaluations] = {}
    differing: dict[str, str] = {}
    for task, records in by_task.items():
        finals = _finals(records, steps)
        if not finals:
            continue
        common = set.intersection(*(set(found) for found in finals.values()))
        if not common and not mixed:
            differing[task] = _differing(finals, ways.by_key)
            continue
        newest = max(common, key=lambda key: _last_use(finals, key)) if common else None
        if mixed or newest is None:
            chosen = {i: max(found, key=lambda k: found[k].created) for i, found in finals.items()}
        else:
            chosen = dict.fromkeys(finals, newest)
        made = _of_task(records, finals, chosen, ways, models, steps)
        own = {i: settings[i] for i in made.final if i in settings and settings[i].name == task}
        tasks[task] = replace(made, settings=own)
    return tasks, differing


def unjudged_problems(records: Iterable[EvaluationRecord]) -> int:
    """Counts the problems that have an evaluation without any scored sample."""
    return len({(record.task, problem) for record in records for problem in record.unjudged})


def model_evaluations(store: Store) -> dict[str, tuple[Protocol, list[EvaluationRecord]]]:
    """Returns the evaluations of models without a run, by protocol."""
    records = store.evaluations.of_models()
    ways = _Protocols([], records, {})
    found: dict[str, list[EvaluationRecord]] = {}
    for record in records:
        found.setdefault(ways.key(record), []).append(record)
    return {key: (ways.by_key[key], records) for key, records in found.items()}


Finals = dict[int, dict[str, EvaluationRecord]]


def _finals(
    records: Sequence[tuple[str, EvaluationRecord]], steps: Mapping[int, int]
) -> dict[int, dict[str, EvaluationRecord]]:
    finals: Finals = {}
    for key, record in records:
        if record.run_id is not None and record.step == steps[record.run_id]:
            finals.setdefault(record.run_id, {})[key] = record
    return finals


def _last_use(finals: Finals, key: str) -> Any:
    return max(found[key].created for found in finals.values())


def _of_task(
    records: Sequence[tuple[str, EvaluationRecord]],
    finals: Finals,
    chosen: Mapping[int, str],
    ways: _Protocols,
    models: Sequence[tuple[str, EvaluationRecord]],
    steps: Mapping[int, int],
) -> TaskEvaluations:
    along: dict[int, list[EvaluationRecord]] = {}
    for run_id, own in _by_run(records).items():
        if run_id not in chosen:
            continue
        key, loose = chosen[run_id], ways.loose[chosen[run_id]]
        exact = {record.step: record for other, record in own if other == key}
        other_n = {
            record.step: record
            for other, record in sorted(own, key=lambda one: one[1].settings.get("n", 0))
            if ways.loose[other] == loose and 0 < record.step < steps[run_id]
        }
        found = {**other_n, **exact}
        along[run_id] = [found[step] for step in sorted(found)]
    used = set(chosen.values())
    return TaskEvaluations(
        protocol=_merged([ways.by_key[key] for key in sorted(used)]),
        final={run_id: found[chosen[run_id]] for run_id, found in finals.items()},
        base={i: listed[0] for i, listed in along.items() if listed[0].step == 0},
        along=along,
        models=[record for key, record in models if key in used],
    )


def _by_run(
    records: Sequence[tuple[str, EvaluationRecord]],
) -> dict[int, list[tuple[str, EvaluationRecord]]]:
    found: dict[int, list[tuple[str, EvaluationRecord]]] = {}
    for key, record in records:
        if record.run_id is not None:
            found.setdefault(record.run_id, []).append((key, record))
    return found


def _with_main(
    runs: Sequence[RunRecord],
    tasks: dict[str, TaskEvaluations],
    differing: Mapping[str, str],
    *,
    mixed: bool,
) -> EvaluationsByTask:
    """Finds the main task; runs trained on several tasks have one only if protocols are mixed."""
    own = {run.id: run.config.get("task", {}).get("name") for run in runs}
    counts = Counter(task for task in own.values() if task in tasks or task in differing)
    if len(counts) > 1 and mixed:
        parts = [tasks[task] for task in counts]
        tasks[OWN_TASKS] = TaskEvaluations(
            protocol=_merged([part.protocol for part in parts]),
            final={i: tasks[t].final[i] for i, t in own.items() if i in tasks[t].final},
            base={i: tasks[t].base[i] for i, t in own.items() if i in tasks[t].base},
            along={i: tasks[t].along[i] for i, t in own.items() if i in tasks[t].along},
            models=[record for part in parts for record in part.models],
            settings={i: own for part in parts for i, own in part.settings.items()},
        )
        return EvaluationsByTask(tasks, OWN_TASKS, differing)
    if len(counts) > 1:
        some = " and ".join(f"{task} ({counted(n, 'run')})" for task, n in sorted(counts.items()))
        raise ReportError(_refusal(f"task: {some}"))
    if counts:
        return EvaluationsByTask(tasks, next(iter(counts)), differing)

    def last(task: str) -> Any:
        return max(record.created for record in tasks[task].final.values())

    return EvaluationsByTask(tasks, max(tasks, key=last) if tasks else None, differing)


def _merged(protocols: Sequence[Protocol]) -> Protocol:
    """One protocol; the values of a key that differs are a list."""
    merged: Protocol = {}
    for key in dict.fromkeys(key for protocol in protocols for key in protocol):
        values: list[Any] = []
        for protocol in protocols:
            if protocol.get(key) not in values:
                values.append(protocol.get(key))
        merged[key] = values[0] if len(values) == 1 else values
    return merged


class _Protocols:
    """The protocols of evaluations, by a key for each distinct one.

    Args:
        of_runs: the evaluations of a table's runs.
        of_models: the evaluations of models without a run. The runs' evaluations decide which
            of them are alike.
        settings: each run's own task.

    Attributes:
        by_key: the protocols.
        loose: for each key what protocols share that differ in the number of samples alone.
    """

    def __init__(
        self,
        of_runs: Sequence[EvaluationRecord],
        of_models: Sequence[EvaluationRecord],
        settings: Mapping[int, TaskSettings],
    ) -> None:
        self.by_key: dict[str, Protocol] = {}
        self.loose: dict[str, str] = {}
        self._settings = settings
        listed: dict[str, set[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
        for record in of_runs:
            listed.setdefault(record.task, set()).add((record.problem_ids, record.prompts))
        # Prompts of a table have numbers for names, the same for every seed and level.
        self._differing = {task for task, sets in listed.items() if len(sets) > 1}
        # Thousands of evaluations have few protocols, and records of the same problems share one
        # tuple, so its id identifies it. Holding the records keeps those ids valid.
        self._records = (of_runs, of_models)
        known: dict[_Short, tuple[Protocol, str]] = {}
        for record in (*of_runs, *of_models):
            if (short := self._short(record)) not in known:
                known[short] = _protocol(record, is_drawn=short[-1])
        runs, models = (
            [known[s] for s in dict.fromkeys(map(self._short, part))] for part in self._records
        )
        self._keys: dict[_Short, str] = {}
        for short, (protocol, problems) in known.items():
            unknown = _not_recorded_by_all(protocol, problems, runs, models)
            kept = {name: value for name, value in protocol.items() if name not in unknown}
            key = json.dumps([kept, problems], sort_keys=True)
            self._keys[short] = key
            self.by_key[key] = kept
            alike = {name: value for name, value in kept.items() if name != "n"}
            self.loose[key] = json.dumps([alike, problems], sort_keys=True)

    def key(self, record: EvaluationRecord) -> str:
        return self._keys[self._short(record)]

    def _short(self, record: EvaluationRecord) -> _Short:
        own = self._settings.get(record.run_id or 0)
        is_drawn = own is not None and own.seed is not None and has_problems(own, record)
        is_drawn = is_drawn and record.task in self._differing
        return record.task, repr(record.settings), id(record.problem_ids), is_drawn


_Short = tuple[str, str, int, bool]


def _protocol(record: EvaluationRecord, *, is_drawn: bool) -> tuple[Protocol, str]:
    """Returns an evaluation's protocol, and a digest of its problems and their prompts.

    Args:
        is_drawn: whether the run's seed draws the problems. Those of all seeds are then alike if
            they are of the same levels.
    """
    settings = {k: v for k, v in record.settings.items() if k not in _NO_PROTOCOL}
    settings = {k: v for k, v in settings.items() if (k, v) != _WHOLE}
    protocol = {"task": record.task, **settings, "problems": len(record.problem_ids)}
    listed = [*record.problem_ids, *record.prompts]
    if is_drawn:
        listed = ["of the seed", *map(str, record.levels)]
    return protocol, hashlib.sha256("\n".join(listed).encode()).hexdigest()


def _not_recorded_by_all(
    protocol: Protocol,
    problems: str,
    of_runs: Sequence[tuple[Protocol, str]],
    of_models: Sequence[tuple[Protocol, str]],
) -> set[str]:
    """Returns the later settings that do not distinguish protocols: unrecorded, or one value."""

    def alike(others: Sequence[tuple[Protocol, str]], name: str) -> set[Any]:
        own = _recorded_always(protocol)
        return {
            other.get(name)
            for other, theirs in others
            if theirs == problems and _recorded_always(other) == own
        }

    unknown = set()
    for name in RECORDED_LATER:
        runs, models = alike(of_runs, name), alike(of_models, name)
        values = (runs - {None}) or (models - {None})
        if None in runs | models and len(values) == 1 and protocol.get(name) in {None, *values}:
            unknown.add(name)
    return unknown


def _recorded_always(protocol: Protocol) -> Protocol:
    return {name: value for name, value in protocol.items() if name not in RECORDED_LATER}


def _differing(
    finals: Mapping[int, Mapping[str, EvaluationRecord]],
    protocols: Mapping[str, Mapping[str, Any]],
) -> str:
    keys = sorted({key for found in finals.values() for key in found})
    # Settings with their default value may not be recorded.
    names = {name: None for key in keys for name in protocols[key] if name != "problems"}
    parts = []
    for name in [*names, "problems"]:
        missing = "not recorded" if name in RECORDED_LATER else "the default"
        counts = Counter(
            str(protocols[key].get(name, missing)) for f in finals.values() for key in f
        )
        if len(counts) > 1:
            shown = name if name in _NO_SETTINGS else f"evaluation.{name}"
            some = " and ".join(f"{v} ({counted(n, 'run')})" for v, n in sorted(counts.items()))
            parts.append(f"{shown}: {some}")
    differences = "; ".join(parts) or "the problems themselves, or their prompts"
    return _refusal(differences)


def _refusal(differences: str) -> str:
    return (
        f"these runs were not evaluated alike, so one table cannot hold them: {differences}; "
        "report them apart (--where), start their sweep again with the same evaluation settings, "
        "which evaluates without training again, or ask for --mixed-protocols"
    )
