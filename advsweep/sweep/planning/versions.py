"""Says how a plan meets the runs of a store: changed code, other values, a sweep that exists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.components import CODE, as_node, leaves
from advsweep.errors import counted, first_of
from advsweep.machine import git_state
from advsweep.store.records import Status
from advsweep.store.sanity import name_state, title_of

if TYPE_CHECKING:
    from pathlib import Path

    from advsweep.backends.base import Run
    from advsweep.backends.identity import NamedSource
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan

_LISTED = 4  # files and sweeps that a line names


def describe_changed_code(plan: Plan, store: Store | None) -> list[str]:
    """Return a line for each plug-in, and each program, that changed since stored runs.

    These runs stay as they are; the plan's are new ones. Commits of a program's repository that
    changed none of its files are named too, as its runs count as done.
    """
    if store is None:
        return []
    with_sources = [planned.run for planned in plan.runs if planned.run.sources]
    if not with_sources:
        return []
    done = store.runs.done_ids([run.identity for run in with_sources])
    missing = [run for run in with_sources if run.identity not in done]
    older = _Older()
    if missing:
        alike = store.runs.by_definition({run.estimator.name for run in missing})
        ids = [i for run in missing for i in alike.get(run.definition, [])]
        records = {record.id: record for record in store.runs.select(ids=ids)}
        recorded = store.runs.sources(ids)
        for run in missing:
            older.add(run, [records[i] for i in alike.get(run.definition, [])], recorded)
    return [*older.lines(), *_moved_repositories(store, with_sources, done)]


def describe_meeting(
    plan: Plan,
    store: Store | None,
    records: Sequence[RunRecord],
    *,
    force: bool,
    is_stage: bool,
) -> list[str]:
    """Return a line for everything in which stored runs differ from what a plan gives.

    Args:
        records: all runs of the store.
        force: whether completed runs are trained again.
        is_stage: whether it has only a part of its sweep's runs, as a stage of a tuning.
    """
    changed = describe_changed_code(plan, store)
    replaced = replaced_runs(plan, records)
    if replaced:
        verb, pronoun = ("is", "it") if len(replaced) == 1 else ("are", "them")
        changed.append(
            f"{counted(len(replaced), 'run')} of sweep {plan.name} that never started {verb} no "
            f"longer part of it, as the code changed since; this plan has {pronoun} anew"
        )
    lines = list(changed)
    if not force:
        lines += _kept_values(plan, records)
    # Runs of other code join a sweep as well, and have their line.
    if not changed and not is_stage:
        lines += _joined_sweep(plan, records)
    return lines


def replaced_runs(plan: Plan, records: Iterable[RunRecord]) -> list[int]:
    """Return the ids of runs of the plan's sweep that it replaces by runs of newer code.

    They have the configs of planned runs and never started. No worker would train them, as it
    finds another source than the planned one.
    """
    with_sources = [planned for planned in plan.runs if planned.run.sources]
    if not with_sources:
        return []
    identities = {planned.run.identity for planned in plan.runs}
    waiting = [
        record
        for record in records
        if record.status is Status.PENDING
        and record.started is None
        and plan.name in record.sweeps
        and record.identity not in identities
    ]
    if not waiting:
        return []
    configs = {_as_key(planned.config) for planned in with_sources}
    return [record.id for record in waiting if _as_key(record.config) in configs]


def _as_key(config: Mapping[str, Any]) -> str:
    """Return a config as a text, without the code of its components."""
    return json.dumps(sorted((key, as_text(value)) for key, value in leaves(config)))


def _kept_values(plan: Plan, records: Sequence[RunRecord]) -> list[str]:
    """Return a line on runs that are done, or being trained, with other values than the plan's.

    Such values change no result, so that a run counts as done with any of them.
    """
    kept = (Status.DONE, Status.RUNNING)
    stored = {record.identity: record for record in records if record.status in kept}
    differing: dict[str, str] = {}
    ids: set[int] = set()
    for planned in plan.runs:
        record = stored.get(planned.run.identity)
        if record is None or record.config == planned.config:
            continue
        planned_values = dict(leaves(planned.config))
        # A file of the same code may have another name.
        renamed = {f"{k}.name" for k, v in planned.config.items() if CODE in as_node(v)}
        for key, value in leaves(record.config):
            # Evaluations have their own identities: missing ones are made.
            if key.startswith("evaluation.") or planned_values.get(key, value) == value:
                continue
            if key in renamed:
                continue
            differing.setdefault(
                key, f"{key}={as_text(value)} (given: {as_text(planned_values[key])})"
            )
            ids.add(record.id)
    if not ids:
        return []
    return [
        f"{counted(len(ids), 'run')} that {'counts' if len(ids) == 1 else 'count'} as done had "
        f"{first_of(differing.values(), _LISTED)}, which changes no result; --force trains with "
        "what is given"
    ]


def _joined_sweep(plan: Plan, records: Sequence[RunRecord]) -> list[str]:
    """Return a line if the plan adds runs to a sweep that has others."""
    stored = {record.identity for record in records if plan.name in record.sweeps}
    planned = {each.run.identity for each in plan.runs}
    others = len(stored - planned)
    new = len(planned - stored)
    if not others or not new or plan.race is not None:
        return []
    return [
        f"sweep {plan.name} is there already: {counted(new, 'run')} of this plan "
        f"{'joins' if new == 1 else 'join'} {counted(others, 'other run')} of it; give another "
        "--name to keep them apart"
    ]


def as_text(value: Any) -> str:
    """Return a config value as it is typed on a command line."""
    return value if isinstance(value, str) else json.dumps(value)


class _Older:
    """Stored runs that differ from planned ones in nothing but code, by what changed."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], dict[int, RunRecord]] = {}
        self._files: dict[tuple[str, str], dict[str, None]] = {}
        self._unknown: dict[tuple[str, str], dict[int, RunRecord]] = {}

    def add(
        self, run: Run, alike: Sequence[RunRecord], recorded: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Add the stored runs of equal settings, unless one has the planned code too.

        Args:
            recorded: the sources of these runs, by id and config key.
        """
        if any(record.identity == run.identity for record in alike):
            return
        for record in alike:
            parts = recorded.get(record.id, {})
            for key, part in run.sources.items():
                component = (key, part.name)
                if key not in parts:
                    self._unknown.setdefault(component, {})[record.id] = record
                elif parts[key]["digest"] != part.source.digest:
                    self._runs.setdefault(component, {})[record.id] = record
                    changed = _changed_files(part, parts[key]["files"])
                    self._files.setdefault(component, {}).update(dict.fromkeys(changed))

    def lines(self) -> list[str]:
        """Return a line for each component."""
        lines = []
        for (key, name), records in self._runs.items():
            files = first_of(self._files[(key, name)], _LISTED)
            named_files = f" ({files})" if files else ""
            lines.append(
                f"{title_of(key, name)} changed since {_describe(records)}"
                f"{named_files}: trained again as new runs; the old ones stay"
            )
        for (key, name), records in self._unknown.items():
            lines.append(
                f"{title_of(key, name)}: nobody knows its source in {_describe(records)}, which "
                "an earlier version of advsweep trained without recording it: trained again as "
                "new runs; the old ones stay"
            )
        return lines


def _changed_files(part: NamedSource, recorded: Any) -> list[str]:
    """Return the names of the files that were added, changed or removed."""
    before = as_node(recorded)
    after = part.source.plain()["files"]
    return sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))


def _describe(records: Mapping[int, RunRecord]) -> str:
    """Return how many runs there are, and of which sweeps: `4 runs of sweep demo`."""
    sweeps = list(dict.fromkeys(name for record in records.values() for name in record.sweeps))
    named = f" of sweep {first_of(sweeps, _LISTED)}" if sweeps else ""
    return f"{counted(len(records), 'run')}{named}"


def _moved_repositories(store: Store, runs: Sequence[Run], done: Mapping[str, int]) -> list[str]:
    """Return a line for each program whose repository changed while its files did not.

    Args:
        done: the ids of completed runs by identity.
    """
    recorded = store.runs.programs(list(done.values()))
    now: dict[Path, dict[str, Any] | None] = {}
    moved: dict[tuple[str, str], int] = {}
    for run in runs:
        folder = run.backend.program_folder(run)
        run_id = done.get(run.identity)
        if folder is None or run_id not in recorded:
            continue
        if folder not in now:
            now[folder] = git_state(folder)
        state = now[folder]
        if state is not None and state != recorded[run_id]:
            change = (name_state(recorded[run_id]), name_state(state))
            moved[change] = moved.get(change, 0) + 1
    return [
        f"the repository of the program went from {before} to {after}, and the files of the "
        f"program are the same: {counted(number, 'run')} of it count as done; --force trains "
        "them again"
        for (before, after), number in moved.items()
    ]
