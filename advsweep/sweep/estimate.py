"""What is left of a plan, and how long that should take by earlier runs of the same shape."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advsweep.store import Status
from advsweep.sweep.summaries import RUN_SECONDS

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.plan import Plan

MISSING = "missing"

_SHAPE = ("backend", "model", "task", "group_size", "prompts_per_step")
"""What mostly decides how long a step takes."""


@dataclass(frozen=True)
class Estimate:
    """What is left of a plan.

    Attributes:
        states: how many runs are in each state of the store; `missing` is not in it.
        steps: training steps left.
        seconds: how long they should take; None where no earlier run tells.
        sources: earlier runs that this was estimated from.
    """

    states: Mapping[str, int]
    steps: int
    seconds: float | None
    sources: int


def estimate(plan: Plan, store: Store | None, slots: int) -> Estimate:
    """Compares a plan with a store; None is a store that does not exist yet.

    Args:
        slots: workers side by side.
    """
    records = [] if store is None else store.runs(newest_first=False)
    latest = {record.identity: record for record in records}
    states: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for identity, config in {p.run.identity: p.config for p in plan.runs}.items():
        record = latest.get(identity)
        states[MISSING if record is None else record.status.value] += 1
        if record is None:
            steps[_shape(config)] += config["steps"]
        elif record.status is not Status.DONE:
            steps[_shape(config)] += record.steps - record.step
    rates = {} if store is None else _rates(store, records)
    used = {shape: rates.get(shape, []) for shape in steps}
    known = all(used.values())
    seconds = sum(statistics.median(used[s]) * n for s, n in steps.items()) if known else None
    return Estimate(
        states=states,
        steps=steps.total(),
        seconds=None if seconds is None else seconds / slots,
        sources=sum(map(len, used.values())),
    )


def _shape(config: Mapping[str, Any]) -> str:
    return repr([config[key] for key in _SHAPE])


def _rates(store: Store, records: list[RunRecord]) -> dict[str, list[float]]:
    """Seconds per step of the runs that are done, by shape."""
    done = [record for record in records if record.status is Status.DONE]
    summaries = store.summaries([record.id for record in done])
    rates: dict[str, list[float]] = {}
    for record in done:
        took = summaries.get(record.id, {}).get(RUN_SECONDS)
        if took is not None:
            rates.setdefault(_shape(record.config), []).append(took / record.steps)
    return rates
