"""The base models that runs start from, and which of them replicate each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.store import EvaluationRecord, RunRecord
from advsweep.store.seeds import SeedKey, seed_order


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


@dataclass
class _SeedBases:
    """The base of each seed, and the runs that start from them.

    Attributes:
        subjects: the subject of the base's evaluation, by seed.
        run_ids: the runs.
    """

    subjects: dict[SeedKey, str]
    run_ids: set[int]

    def can_join(self, other: _SeedBases) -> bool:
        """Tell whether both share a base and agree seed by seed.

        Of the joint seeds, each must have a base of its own, or all share one.
        """
        mine = self.subjects
        theirs = other.subjects
        if not set(mine.values()) & set(theirs.values()):
            return False
        if any(mine.get(seed, subject) != subject for seed, subject in theirs.items()):
            return False
        joint = {**mine, **theirs}
        return len(set(joint.values())) in (1, len(joint))


def group_bases(runs: Sequence[RunRecord], evaluated: EvaluationsByTask) -> list[BaseFamily]:
    """Group the evaluated base models of some runs, in the order of the runs.

    Configurations whose bases agree seed by seed have one family. Two families join only if each
    of the joint seeds has a base of its own, or all share one.
    """
    families: list[_SeedBases] = []
    # Configurations with more seeds first, so that the others find theirs.
    for bases in sorted(_bases_by_config(runs, evaluated), key=lambda own: -len(own.subjects)):
        family = next((family for family in families if family.can_join(bases)), None)
        if family is None:
            families.append(bases)
        else:
            family.subjects.update(bases.subjects)
            family.run_ids |= bases.run_ids
    places = {run.id: place for place, run in enumerate(runs)}
    families.sort(key=lambda family: min(places[run_id] for run_id in family.run_ids))
    return [_make_family(family) for family in families]


def _bases_by_config(runs: Sequence[RunRecord], evaluated: EvaluationsByTask) -> list[_SeedBases]:
    """Return the evaluated bases of each configuration's runs."""
    subjects: dict[int, str] = {}
    for task in evaluated.tasks.values():
        subjects |= {run_id: record.subject for run_id, record in task.base.items()}
    by_config: dict[str, _SeedBases] = {}
    for run in runs:
        if run.id in subjects:
            bases = by_config.setdefault(run.config_hash, _SeedBases({}, set()))
            bases.subjects[run.seed_key] = subjects[run.id]
            bases.run_ids.add(run.id)
    return list(by_config.values())


def _make_family(bases: _SeedBases) -> BaseFamily:
    if len(set(bases.subjects.values())) == 1:
        return BaseFamily([next(iter(bases.subjects.values()))], (), bases.run_ids)
    seeds = tuple(sorted(bases.subjects, key=seed_order))
    return BaseFamily([bases.subjects[seed] for seed in seeds], seeds, bases.run_ids)


def base_evaluations(task: TaskEvaluations) -> Mapping[str, EvaluationRecord]:
    """Return the evaluations of the runs' base models on a task, by subject."""
    return {record.subject: record for record in task.base.values()}
