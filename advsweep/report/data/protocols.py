"""Protocols of evaluations: which were made alike, so that one table can hold them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.errors import counted
from advsweep.names import POOL
from advsweep.report.data.evaluations import TaskEvaluations
from advsweep.report.data.run_tasks import TaskSettings
from advsweep.store import EvaluationRecord

# Settings that do not change how samples were drawn.
_NO_PROTOCOL = frozenset({"name", "k", "every", "model"})
# Sampling from the whole distribution; older settings leave it out.
_WHOLE = ("top_p", 1.0)

# Keys of a protocol that are not of `evaluation`.
_OF_TASK = (
    "task",
    "problems",
    "verifier",
    "system",
    "shots",
    POOL,
    "max_tokens",
    "stop",
    "sampler",
)


@dataclass(frozen=True, order=True)
class Protocol:
    """How an evaluation was made, and of which problems: equal ones can stand in one table.

    Attributes:
        settings: task, number of problems, and sampling, as JSON.
        problems: the ids and the prompts; only the levels where each seed draws its problems, and
            nothing where it draws them from a pool of data.
    """

    settings: str
    problems: tuple[tuple[str, ...], ...]


# The evaluations of one run after its last step, by their protocols.
_Finals = Mapping[Protocol, EvaluationRecord]


@dataclass(frozen=True)
class EvaluatedRuns:
    """The runs whose evaluations are selected.

    Attributes:
        steps: the last step of each run that is evaluated.
        settings: the task of each in its config; imported runs have none.
        lenders: those that do not decide which protocol counts.
        mixed: whether the last evaluation of each run counts, whatever its protocol.
    """

    steps: Mapping[int, int]
    settings: Mapping[int, TaskSettings]
    lenders: Collection[int] = ()
    mixed: bool = False


class EvaluationSelector:
    """Selects for each task the evaluations of one protocol.

    Args:
        runs: whose evaluations they are.
        records: the evaluations of these runs.
        of_models: those of models without a run.

    Attributes:
        tasks: the selected evaluations by task.
        differing: the reason for each task whose evaluations were not made alike.
    """

    def __init__(
        self,
        runs: EvaluatedRuns,
        records: Sequence[EvaluationRecord],
        of_models: Sequence[EvaluationRecord] = (),
    ) -> None:
        self._runs = runs
        self._problem_sets: dict[str, set[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
        for record in records:
            problem_sets = self._problem_sets.setdefault(record.task, set())
            problem_sets.add((record.problem_ids, record.prompts))
        # The settings of each protocol, in the order in which they were recorded.
        self._settings: dict[Protocol, dict[str, Any]] = {}
        self._records: dict[str, dict[int, list[tuple[Protocol, EvaluationRecord]]]] = {}
        for record in records:
            assert record.run_id is not None
            of_task = self._records.setdefault(record.task, {})
            of_task.setdefault(record.run_id, []).append((self._protocol_of(record), record))
        self._models = [(self._protocol_of(record), record) for record in of_models]
        self.tasks: dict[str, TaskEvaluations] = {}
        self.differing: dict[str, str] = {}
        for task in self._records:
            self._select(task)

    def _protocol_of(self, record: EvaluationRecord) -> Protocol:
        settings: dict[str, Any] = {"task": record.task}
        for key, value in record.settings.items():
            if key not in _NO_PROTOCOL and (key, value) != _WHOLE:
                settings[key] = value
        settings["problems"] = len(record.problem_ids)
        protocol = Protocol(json.dumps(settings, sort_keys=True), self._problems_of(record))
        self._settings[protocol] = settings
        return protocol

    def _problems_of(self, record: EvaluationRecord) -> tuple[tuple[str, ...], ...]:
        """Return what two evaluations must share of their problems."""
        if POOL in record.settings:
            # The settings name the pool that each seed draws as many problems from.
            return ()
        problems = (record.problem_ids, record.prompts)
        task = self._runs.settings.get(record.run_id or 0)
        if task is None or task.seed is None or len(self._problem_sets[record.task]) == 1:
            return problems
        # Where the run's seed draws the problems, those of all seeds are alike if they are of the
        # same levels. Prompts of a table have numbers for names, the same for every seed and level.
        if task.has_problems_of(record):
            return ("of the seed",), tuple(map(str, record.levels))
        return problems

    def _select(self, task: str) -> None:
        """Select the evaluations of a task, or say why they were not made alike."""
        every = self._finals_of(task)
        finals = {i: last for i, last in every.items() if i not in self._runs.lenders}
        if not finals:
            return
        chosen = _newest_of_each(finals) if self._runs.mixed else _newest_of_all(finals)
        if chosen is None:
            self.differing[task] = self._describe_differing(finals)
            return
        used = set(chosen.values())
        for run_id, last in every.items():
            alike = next((protocol for protocol in last if protocol in used), None)
            if run_id not in chosen and alike is not None:
                chosen[run_id] = alike
        along = {run_id: self._along(task, run_id, protocol) for run_id, protocol in chosen.items()}
        self.tasks[task] = TaskEvaluations(
            protocol=self._settings[min(used)],
            final={run_id: every[run_id][protocol] for run_id, protocol in chosen.items()},
            base={run_id: made[0] for run_id, made in along.items() if made[0].step == 0},
            along=along,
            models=[record for protocol, record in self._models if protocol in used],
            settings=self._settings_of(task, chosen),
        )

    def _finals_of(self, task: str) -> dict[int, _Finals]:
        """Return the evaluations of each run after its last step, by their protocols."""
        finals: dict[int, _Finals] = {}
        for run_id, made in self._records[task].items():
            end = self._runs.steps[run_id]
            last = {protocol: record for protocol, record in made if record.step == end}
            if last:
                finals[run_id] = last
        return finals

    def _settings_of(self, task: str, run_ids: Iterable[int]) -> dict[int, TaskSettings]:
        """Return the task in the config of the runs that were trained on it."""
        settings = {}
        for run_id in run_ids:
            trained = self._runs.settings.get(run_id)
            if trained is not None and trained.name == task:
                settings[run_id] = trained
        return settings

    def _along(self, task: str, run_id: int, protocol: Protocol) -> list[EvaluationRecord]:
        """Return a run's evaluations in the order of their steps.

        Those within the training may have another number of samples; the largest counts.
        """
        records = self._records[task][run_id]
        by_step: dict[int, EvaluationRecord] = {}
        for other, record in sorted(records, key=lambda made: made[1].settings.get("n", 0)):
            is_within = 0 < record.step < self._runs.steps[run_id]
            if is_within and self._differ_in_samples(other, protocol):
                by_step[record.step] = record
        for other, record in records:
            if other == protocol:
                by_step[record.step] = record
        return [by_step[step] for step in sorted(by_step)]

    def _differ_in_samples(self, one: Protocol, other: Protocol) -> bool:
        """Tell whether two protocols are equal but for the number of samples, or in all."""
        if one.problems != other.problems:
            return False
        return {**self._settings[one], "n": None} == {**self._settings[other], "n": None}

    def _describe_differing(self, finals: Mapping[int, _Finals]) -> str:
        """Return the message that names the keys in which evaluations differ."""
        used = [self._settings[protocol] for last in finals.values() for protocol in last]
        # Settings with their default value may not be recorded.
        names = dict.fromkeys(name for settings in used for name in sorted(settings))
        parts = []
        for name in names:
            counts = Counter(str(settings.get(name, "the default")) for settings in used)
            if len(counts) > 1:
                shown = name if name in _OF_TASK else f"evaluation.{name}"
                some = " and ".join(f"{v} ({counted(n, 'run')})" for v, n in sorted(counts.items()))
                parts.append(f"{shown}: {some}")
        return refusal("; ".join(parts) or "the problems themselves, or their prompts")


def _newest_of_each(finals: Mapping[int, _Finals]) -> dict[int, Protocol]:
    """Return the protocol that each run was last evaluated by."""
    return {
        run_id: max(last, key=lambda protocol: last[protocol].created)
        for run_id, last in finals.items()
    }


def _newest_of_all(finals: Mapping[int, _Finals]) -> dict[int, Protocol] | None:
    """Return for each run the protocol used last of those that all share; None if none is.

    Numbers of other protocols (fewer samples, another temperature) are other quantities.
    """
    shared = set.intersection(*(set(last) for last in finals.values()))
    if not shared:
        return None
    used_last = {
        protocol: max(last[protocol].created for last in finals.values()) for protocol in shared
    }
    return dict.fromkeys(finals, max(used_last, key=used_last.__getitem__))


def refusal(differences: str) -> str:
    """Return the message that one table cannot hold some evaluations."""
    return (
        f"these runs were not evaluated alike, so one table cannot hold them: {differences}; "
        "report them apart (--where), or start their sweep again with the same evaluation "
        "settings, which evaluates without training again"
    )
