"""Base models as replicates: which of them make up one row.

On a backend whose base depends on the run's seed, the bases of one configuration's runs replicate
each other as the runs do, and make one row with a base for each seed. A base that all seeds share
is one model: a row without seeds, whose numbers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.store import RunRecord


@dataclass(frozen=True)
class BaseFamily:
    """The base models that replicate each other.

    Attributes:
        subjects: the subject of their evaluations by seed of the runs that start from them; one
            subject for all seeds if they share a base.
        run_ids: these runs.
    """

    subjects: Mapping[int, str]
    run_ids: frozenset[int]

    @property
    def is_shared(self) -> bool:
        """Whether all seeds start from one base."""
        return len(set(self.subjects.values())) == 1

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have a base of their own, ascending; none if they share one."""
        return () if self.is_shared else tuple(sorted(self.subjects))

    @property
    def members(self) -> list[str]:
        """The subjects in the order of `seeds`; the shared one alone."""
        first = next(iter(self.subjects.values()))
        return [self.subjects[seed] for seed in self.seeds] or [first]


def group_bases(runs: Iterable[RunRecord], evaluated: EvaluationsByTask) -> list[BaseFamily]:
    """Groups the evaluated base models of some runs, in the order of the runs.

    Configurations whose bases agree seed by seed have one family. Two families join only if each
    of the joint seeds has a base of its own, or all share one.
    """
    listed = list(runs)
    subjects = {
        run_id: record.subject
        for task in evaluated.tasks.values()
        for run_id, record in task.base.items()
    }
    by_config: dict[str, tuple[dict[int, str], set[int]]] = {}
    for run in listed:
        if run.id in subjects:
            own, ids = by_config.setdefault(run.config_hash, ({}, set()))
            own[run.seed] = subjects[run.id]
            ids.add(run.id)
    families: list[tuple[dict[int, str], set[int]]] = []
    # Configurations with more seeds first, so that the others find theirs.
    for own, ids in sorted(by_config.values(), key=lambda found: -len(found[0])):
        for known, members in families:
            if _are_alike(known, own):
                known |= own
                members |= ids
                break
        else:
            families.append((dict(own), set(ids)))
    order = {run.id: place for place, run in enumerate(listed)}
    families.sort(key=lambda family: min(order[run_id] for run_id in family[1]))
    return [BaseFamily(known, frozenset(ids)) for known, ids in families]


def _are_alike(one: Mapping[int, str], other: Mapping[int, str]) -> bool:
    """Tells whether two configurations start from the same bases, seed by seed."""
    if not set(one.values()) & set(other.values()):
        return False
    if any(other.get(seed, subject) != subject for seed, subject in one.items()):
        return False
    joint = {**one, **other}
    return len(set(joint.values())) in (1, len(joint))
