"""The work that runs of a store have left, from their records alone.

`advsweep status` builds no run, as that takes seconds and may need the user's consent. What a
plan knows exactly is told from the store here: a base model is made once a run of it has begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.components import as_node
from advsweep.store.imported import is_calibration
from advsweep.store.records import Status
from advsweep.store.run_folders import is_whole
from advsweep.sweep.planning.rates import Machine, read_rates
from advsweep.sweep.planning.remaining import Remaining, RunWork, Schedule, Workers, time_of
from advsweep.sweep.worker.environment import kind_of_machine

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

# Runs of other sweeps that are asked for rates.
_EARLIER = 200

# The backend that pretrains its models.
_PRETRAINING_BACKEND = "tiny"

# Of few digits, as Python refuses to read thousands of them.
_PRETRAINING_STAGE = re.compile(r"pretraining (\d{1,18})/(\d{1,18})")

# The stages of a run before and with the evaluation of its base.
_BEFORE_TRAINING = ("pretraining", "base evaluation", "loading", "calibrating")


def pretrained_share(record: RunRecord) -> float:
    """Return how far a run is with the pretraining of its base, from 0 to 1."""
    stage = _PRETRAINING_STAGE.fullmatch(record.stage or "")
    if stage is None:
        return 0.0
    return min(1.0, int(stage[1]) / max(1, int(stage[2])))


def time_of_stored(
    store: Store, sweep: str | None, running: Sequence[RunRecord]
) -> Remaining | None:
    """Return the time that running runs, and those that wait for their workers, have left.

    Args:
        sweep: that of the runs; None: all of the store.
        running: the runs that processes train, of which `of_runs` begins with these.

    Returns:
        None if no run is trained: nobody knows when the others are.
    """
    if not running:
        return None
    waiting = store.runs.select(sweep=sweep, status=Status.PENDING, newest_first=False)
    done = store.runs.select(status=Status.DONE, limit=_EARLIER)
    backends = {record.backend for record in running}
    measured = [record for record in [*reversed(done), *running] if record.backend in backends]
    environments = store.runs.environments([record.id for record in running])
    machines = {kind_of_machine(environment) for environment in environments.values()}
    machine = Machine(kind=machines.pop() if len(machines) == 1 else None)
    begun = {_base_of(record) for record in done} | {
        _base_of(record) for record in running if _has_base(record)
    }
    works = [_work(record, begun) for record in [*running, *waiting]]
    workers = {(record.host, record.pid) for record in running}
    return time_of(works, read_rates(store, measured, machine), Workers(number=len(workers)))


def _work(record: RunRecord, begun: set[str]) -> RunWork:
    """Return what a run has left.

    Args:
        begun: the bases that are made.
    """
    config = record.config
    left = max(0, record.steps - record.step)
    is_active = record.status is Status.RUNNING
    schedule = _schedule_of(config)
    if schedule is None or is_calibration(config):
        return RunWork(config=config, steps=left, is_active=is_active)
    base = _base_of(record)
    work = RunWork(
        config=config,
        steps=left,
        samples=schedule.samples_after(record.step, record.steps),
        is_active=is_active,
    )
    if base in begun:
        return work
    updates = 0
    if record.backend == _PRETRAINING_BACKEND:
        steps = as_node(config.get("model")).get("pretraining_steps")
        updates = steps if is_whole(steps) else 0
    return RunWork(
        config=config,
        steps=left,
        samples=work.samples,
        base=base,
        updates=updates * (1 - pretrained_share(record)),
        base_samples=schedule.n,
        is_active=is_active,
    )


def _schedule_of(config: Mapping[str, Any]) -> Schedule | None:
    """Return when and how much a run evaluates; None if its config does not say so in numbers.

    Commands evaluate by themselves, and the records of other programs may hold anything.
    """
    node = as_node(config.get("evaluation"))
    n = node.get("n")
    every = node.get("every")
    n_between = node.get("n_between") or n
    at = node.get("at") or []
    if not is_whole(n) or not is_whole(every) or not is_whole(n_between):
        return None
    if not isinstance(at, list) or not all(map(is_whole, at)):
        return None
    return Schedule(n=n, every=every, n_between=n_between, at=at)


def _has_base(record: RunRecord) -> bool:
    """Return whether a run is past its base."""
    stage = record.stage or ""
    return record.step > 0 or not (stage == "" or stage.startswith(_BEFORE_TRAINING))


def _base_of(record: RunRecord) -> str:
    """Return what records share whose runs start from the same weights and evaluate them alike."""
    config = record.config
    model = as_node(config.get("model"))
    task = as_node(config.get("task"))
    of_seed = "seed" in (model.get("pretraining_seed"), task.get("seed"))
    parts: list[Any] = [model, task, config.get("evaluation"), record.seed if of_seed else None]
    return repr(parts)
