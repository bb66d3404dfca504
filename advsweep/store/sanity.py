"""Checks that runs learned something, and have one revision.

A run learned nothing from its rewards if no step had an advantage other than 0. What counts is the
share of groups with advantages, as every backend records it, and not the estimator: some
estimators have advantages in groups of equal rewards too.

A component's revision rises with a fix that changes its results. Configs do not contain it, so
runs of several revisions look alike although their results differ. Each run records the revisions
that it was trained with, the sources of plug-ins and of its program, and the commit of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.errors import first_of
from advsweep.names import (
    ACR,
    ACR_AFTER,
    ALL_WRONG,
    ROLLOUT_COST,
    TRUNCATED,
    UTILISATION,
    WEIGHTS_CHANGED,
)

if TYPE_CHECKING:
    from advsweep.store.records import RunRecord
    from advsweep.store.store import Store

# A run learned hardly anything if a smaller share of its groups has an advantage.
FEW = 0.01

# If the token limit cut off at least this share of the answers, that is the cause.
MANY_CUT_OFF = 0.5

# If the first step changed a smaller share of the weights that had a gradient, their type or the
# learning rate is the cause.
FEW_CHANGED = 0.5

EARLY_STEPS = 10
# Runs with at least this share in their early steps learned something.
MOST_EARLY = 0.1


def find_no_signal(store: Store, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the runs that learned nothing, or hardly anything, from their rewards.

    By id, with what is wrong, its cause and what to do, without a full stop. Runs whose groups'
    advantages were not recorded are left out, such as those of other trainers. Steps in which
    the rollout policy kept no group count as steps without advantages.
    """
    return _find_rounded_updates(store, run_ids) | _find_no_advantages(store, run_ids)


def _find_rounded_updates(store: Store, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the runs whose first step left most weights with a gradient as they were."""
    changed = store.metrics.means(run_ids, WEIGHTS_CHANGED)
    return {
        run_id: (
            f"hardly anything was learned: step 1 changed {share:.2%} of the weights that had a "
            "gradient, as updates at this optimizer.lr are below the rounding of their type; try a "
            "larger optimizer.lr, or weights of more bits"
        )
        for run_id, share in changed.items()
        if share < FEW_CHANGED
    }


def _find_no_advantages(store: Store, run_ids: Sequence[int]) -> dict[int, str]:
    """Return the runs with hardly any advantage other than 0, after their early steps."""
    early = _shares(store, run_ids, first=EARLY_STEPS)
    # Reading all curves would take longer than the rest of a report of many runs.
    suspects = [run_id for run_id, share in early.items() if share is None or share < MOST_EARLY]
    few = {
        run_id: share
        for run_id, share in _shares(store, suspects).items()
        if share is not None and share < FEW
    }
    equal = store.metrics.means(list(few), ACR)
    wrong = store.metrics.means(list(few), ALL_WRONG)
    cut_off = store.metrics.means(list(few), TRUNCATED)
    reasons = {}
    for run_id, share in few.items():
        how_much = "hardly anything" if share else "nothing"
        if cut_off.get(run_id, 0.0) >= MANY_CUT_OFF:
            reasons[run_id] = (
                f"{how_much} was learned: the token limit cut off {cut_off[run_id]:.0%} of the "
                "answers; try a larger generation.max_tokens or, if the model's end marks are not "
                "those of its prompts, generation.stop with the text that ends an answer"
            )
        elif equal.get(run_id, 0.0) >= 1 - FEW:
            task = "an easier" if wrong.get(run_id, 0.0) >= 0.5 else "a harder"
            reasons[run_id] = (
                f"{how_much} was learned: the rewards were equal within every group, or nearly, "
                f"so that advantages were 0; try {task} task or a larger group_size"
            )
        else:
            few_groups = f"fewer than {FEW:.0%} of the groups" if share else "no group"
            reasons[run_id] = (
                f"{how_much} was learned from the rewards: {few_groups} had an advantage other "
                "than 0; check the estimator's fields and the rollout policy"
            )
    return reasons


def _shares(
    store: Store, run_ids: Sequence[int], first: int | None = None
) -> dict[int, float | None]:
    """Return the share of groups with advantages over the first steps of each run, or over all.

    None if it is unknown.
    """
    # Groups that the rollout policy drops are not part of `collapse/acr_after`.
    after = store.metrics.means(run_ids, ACR_AFTER, first=first)
    trained = store.metrics.means(run_ids, UTILISATION, first=first)
    # Of the rollouts that a step asks for: some policies draw many more than they train on.
    drawn = store.metrics.means(run_ids, ROLLOUT_COST, first=first)
    shares: dict[int, float | None] = {}
    for run_id in run_ids:
        if run_id in after:
            share = trained.get(run_id, 1.0) * drawn.get(run_id, 1.0)
            shares[run_id] = (1 - after[run_id]) * min(share, 1.0)
        else:
            shares[run_id] = 0.0 if trained.get(run_id) == 0 else None
    return shares


# Characters of a config hash in conditions on `config_hash`.
HASH = 8

_SHOWN = 12  # hashes or ranges of run ids in a message


def find_mixed_revisions(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Describe the components that the runs have in several revisions, and how to omit the older.

    So are plug-ins and programs of several sources, and programs of several commits. A run that
    recorded no revisions has the first.
    """
    if not runs:
        return []
    return [
        *_mixed_revisions(store, runs),
        *_mixed_sources(store, runs),
        *_mixed_commits(store, runs),
    ]


def title_of(key: str, name: str) -> str:
    """Return what users call a component whose source is recorded: `estimator 'halved'`."""
    return "the program of backend 'command'" if (key, name) == _COMMAND else f"{key} '{name}'"


_COMMAND = ("backend", "command")
_SHORT = 8  # characters of a hash of code in a message


def _mixed_sources(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Describe the plug-ins and programs that the runs have in several sources."""
    recorded = store.runs.sources([run.id for run in runs])
    components = {
        (key, part["name"]): None for parts in recorded.values() for key, part in parts.items()
    }
    sentences = []
    for key, name in components:
        by_source: dict[str, list[RunRecord]] = {}
        for run in runs:
            source = _source_in(run, recorded.get(run.id, {}), key, name)
            if source is not None:
                by_source.setdefault(source, []).append(run)
        if len(by_source) < 2:
            continue
        # The version of the newest run is the last one.
        in_order = sorted(by_source.items(), key=lambda pair: max(run.id for run in pair[1]))
        listed = ", ".join(
            f"{source} in {run_list(run.id for run in some)}" for source, some in in_order
        )
        what = f"{title_of(key, name)} has several versions, whose results may differ"
        sentences.append(f"{what}: {listed}; {_leave_out(in_order)}")
    return sentences


def _source_in(run: RunRecord, recorded: Mapping[str, Any], key: str, name: str) -> str | None:
    """Return the source of a component that a run was trained with; None without the component.

    Args:
        recorded: the sources that the run recorded, by config key.
    """
    part = recorded.get(key)
    if part is not None:
        return str(part["digest"])[:_SHORT] if part["name"] == name else None
    if run.started and component_name(run.config, key) == name:
        return "unknown source"
    return None


def _mixed_commits(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Describe the replicates whose program was started in several states of its repository."""
    recorded = store.runs.programs([run.id for run in runs])
    sentences = []
    for members in _replicates(run for run in runs if run.id in recorded):
        states: dict[str, list[int]] = {}
        for run in members:
            states.setdefault(name_state(recorded[run.id]), []).append(run.id)
        if len(states) > 1:
            listed = ", ".join(f"{state} in {run_list(ids)}" for state, ids in states.items())
            sentences.append(
                f"the program of {members[0].estimator} was started in several states of its "
                f"repository, with the same files: {listed}"
            )
    return sentences


def _replicates(runs: Iterable[RunRecord]) -> list[list[RunRecord]]:
    replicates: dict[str, list[RunRecord]] = {}
    for run in runs:
        replicates.setdefault(run.config_hash, []).append(run)
    return list(replicates.values())


def name_state(state: Mapping[str, Any]) -> str:
    """Return what users call the state of a repository: `commit 1a2b3c4d with changes 5e6f7a8b`."""
    commit = f"commit {str(state.get('commit'))[:_SHORT]}" if state.get("commit") else "no commit"
    changes = f" with changes {str(state.get('diff'))[:_SHORT]}" if state.get("diff") else ""
    return commit + changes


def _leave_out(in_order: Sequence[tuple[Any, Sequence[RunRecord]]]) -> str:
    """Return how to omit the runs of all versions but the last one."""
    hashes = {run.config_hash[:HASH]: None for _, some in in_order[:-1] for run in some}
    if len(hashes) > _SHOWN:
        return "`advsweep rm` deletes runs"
    return f"--where 'config_hash!={','.join(hashes)}' leaves the older out of a report"


def _mixed_revisions(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    recorded = store.runs.revisions([run.id for run in runs])
    # The config hash covers the revisions. Runs of earlier versions recorded none.
    revisions = {run.config_hash: recorded[run.id] for run in runs if run.id in recorded}
    raised = {
        (key, component_name(run.config, key)): None
        for run in runs
        for key in revisions.get(run.config_hash, ())
    }
    sentences = []
    for key, name in raised:
        by_revision: dict[int, list[RunRecord]] = {}
        for run in runs:
            trained = run.config_hash in revisions or run.started is not None
            if trained and component_name(run.config, key) == name:
                revision = revisions.get(run.config_hash, {}).get(key, 1)
                by_revision.setdefault(revision, []).append(run)
        if len(by_revision) > 1:
            in_order = sorted(by_revision.items())
            listed = ", ".join(
                f"revision {revision} in {run_list(run.id for run in some)}"
                for revision, some in in_order
            )
            what = f"{key} '{name}' has several revisions, whose results differ"
            sentences.append(f"{what}: {listed}; {_leave_out(in_order)}")
    return sentences


def component_name(config: Mapping[str, Any], key: str) -> str:
    """Return the name of the component at a dotted key of a config; empty without one."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    name = value.get("name") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else ""


def run_list(ids: Iterable[int]) -> str:
    """Format ids as ranges: `run 3`, `runs 1-6, 9`."""
    listed = sorted(ids)
    ranges: list[list[int]] = []
    for i in listed:
        if ranges and i == ranges[-1][-1] + 1:
            ranges[-1][1:] = [i]
        else:
            ranges.append([i])
    texts = ["-".join(map(str, part)) for part in ranges]
    return f"run{'' if len(listed) == 1 else 's'} {first_of(texts, _SHOWN)}"
