"""Runs that a plan does not reuse, since a component of theirs has an older revision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advsweep.store.revisions import alike, component_name, run_list

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.plan import Plan


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
    records = store.runs(newest_first=False)
    planned = {p.run.identity for p in plan.runs}
    had = {record.identity for record in records}
    strange = [r for r in records if r.identity not in planned and r.started is not None]
    recorded = store.revisions([record.id for record in strange])
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
