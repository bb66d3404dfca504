"""The base models that runs start from, and which of them replicate each other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
from advsweep.report.data.run_tasks import TaskSettings
from advsweep.store import EvaluationRecord, RunRecord
from advsweep.store.seeds import SeedKey, seed_order

_SHORT = 8  # characters of a hash


class Base(NamedTuple):
    """A model that runs start from, on the problems that they are evaluated on.

    Attributes:
        subject: that of the model's evaluations.
        seed: that of the run, if it draws the problems; None if all seeds have the same.
    """

    subject: str
    seed: int | None = None


class BaseFamily(NamedTuple):
    """The bases that replicate each other: one of each seed, or one that all seeds share.

    Attributes:
        members: the bases, in the order of the seeds.
        seeds: those that have a base of their own, ascending; none if they share one.
        by_run: the base of each run that starts from one of them.
    """

    members: list[Base]
    seeds: tuple[SeedKey, ...]
    by_run: Mapping[int, Base]

    @property
    def short_name(self) -> str:
        """The start of the hash in the subject of the first base."""
        return self.members[0].subject.partition(":")[2][:_SHORT]

    @property
    def models(self) -> int:
        """How many models they are."""
        return len({base.subject for base in self.members})


@dataclass
class _SeedBases:
    """The base of each seed, and that of each run."""

    by_seed: dict[SeedKey, Base]
    by_run: dict[int, Base]

    def can_join(self, other: _SeedBases) -> bool:
        """Tell whether both share a base and agree seed by seed.

        Of the joint seeds, each must have a base of its own, or all share one.
        """
        mine = self.by_seed
        theirs = other.by_seed
        if not set(mine.values()) & set(theirs.values()):
            return False
        if any(mine.get(seed, base) != base for seed, base in theirs.items()):
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
    for bases in sorted(_bases_by_config(runs, evaluated), key=lambda own: -len(own.by_seed)):
        family = next((family for family in families if family.can_join(bases)), None)
        if family is None:
            families.append(bases)
        else:
            family.by_seed |= bases.by_seed
            family.by_run |= bases.by_run
    places = {run.id: place for place, run in enumerate(runs)}
    families.sort(key=lambda family: min(places[run_id] for run_id in family.by_run))
    return [_make_family(family) for family in families]


def _bases_by_config(runs: Sequence[RunRecord], evaluated: EvaluationsByTask) -> list[_SeedBases]:
    """Return the evaluated bases of each configuration's runs."""
    subjects: dict[int, str] = {}
    for task in evaluated.tasks.values():
        subjects |= {run_id: record.subject for run_id, record in task.base.items()}
    by_config: dict[str, _SeedBases] = {}
    for run in runs:
        if run.id in subjects:
            bases = by_config.setdefault(run.config_hash, _SeedBases({}, {}))
            base = Base(subjects[run.id], TaskSettings.of(run).seed)
            bases.by_seed[run.seed_key] = base
            bases.by_run[run.id] = base
    return list(by_config.values())


def _make_family(bases: _SeedBases) -> BaseFamily:
    if len(set(bases.by_seed.values())) == 1:
        return BaseFamily([next(iter(bases.by_seed.values()))], (), bases.by_run)
    seeds = tuple(sorted(bases.by_seed, key=seed_order))
    return BaseFamily([bases.by_seed[seed] for seed in seeds], seeds, bases.by_run)


def base_evaluations(
    task: TaskEvaluations, families: Sequence[BaseFamily]
) -> Mapping[Hashable, EvaluationRecord]:
    """Return the evaluations of the runs' bases on a task, by `Base`."""
    return {
        family.by_run[run_id]: record
        for family in families
        for run_id, record in task.base.items()
        if run_id in family.by_run
    }
