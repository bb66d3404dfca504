"""What units of work took in earlier runs of a kind, as these have measured it.

A run's process records the seconds of each kind of work (`advsweep.backends.work_clock`). A rate
holds for runs of the same kind, on machines of the same kind, alone: nothing is scaled from one
model, group size or machine to another.

`advsweep status` reads rates, so that nothing heavy is imported here.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from advsweep import names
from advsweep.sweep.worker.environment import kind_of_machine

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

# Of each kind the newest runs count, of at most so many of the store.
_NEWEST = 20
_MOST_READ = 500

# For each kind of work the parts of a config that mostly decide how long a unit takes. Estimators
# and objectives are left out, as their part of a step is small: the first of a sweep's arms tells
# the time of the others.
_KINDS: Mapping[str, Sequence[str]] = {
    names.FIRST_START_SECONDS: ("backend", "model"),
    names.START_SECONDS: ("backend", "model"),
    names.PRETRAINING_SECONDS: ("backend", "model", "task"),
    names.TRAINING_SECONDS: (
        "backend",
        "model",
        "task",
        "rollout",
        "generation",
        "group_size",
        "prompts_per_step",
    ),
    names.EVALUATION_SECONDS: ("backend", "model", "task", "generation", "evaluation"),
}

# Keys of these parts that do not change how long a unit takes.
_WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    "backend": frozenset({"checkpoint_every", "keep_last", "keep_every"}),
    "model": frozenset({"pretraining_seed", "pretraining_steps", "pretraining_warmup"}),
    "task": frozenset({"seed"}),
    "evaluation": frozenset({"n", "k", "every", "at", "n_between", "seed"}),
}


@dataclass
class Kinds:
    """The kinds of runs, by their configs; nodes that configs share are written once."""

    _texts: dict[tuple[str, int], str] = field(default_factory=dict)
    # A node must not be freed, since another one could have its `id`.
    _nodes: list[Any] = field(default_factory=list)

    def of(self, config: Mapping[str, Any], work: str) -> str:
        """Return what runs share whose units of a kind of work take as long."""
        return "\n".join([work, *(self._text(key, config.get(key)) for key in _KINDS[work])])

    def _text(self, key: str, node: Any) -> str:
        if not isinstance(node, Mapping):
            return repr(node)
        place = key, id(node)
        if place not in self._texts:
            ignored = _WITHOUT_EFFECT.get(key, frozenset())
            kept = sorted((name, value) for name, value in node.items() if name not in ignored)
            self._texts[place] = repr(kept)
            self._nodes.append(node)
        return self._texts[place]


@dataclass(frozen=True)
class Rates:
    """The seconds of a unit of work, by its kind.

    Attributes:
        kinds: names the kinds.
        seconds: the median of the newest runs of each kind.
        runs: how many runs these come from.
    """

    kinds: Kinds
    seconds: Mapping[str, float]
    runs: int = 0

    def of(self, config: Mapping[str, Any], work: str) -> float | None:
        """Return the seconds of a unit; None if no run of this kind has measured it."""
        return self.seconds.get(self.kinds.of(config, work))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine on which runs are to be trained.

    Attributes:
        kind: that of its processors; None if nobody knows it: earlier runs then count if all of
            them were trained on machines of one kind.
        host: its name, for runs on GPUs, of which a record does not have the kind.
    """

    kind: str | None = None
    host: str | None = None

    @classmethod
    def here(cls, *, has_gpus: bool) -> Machine:
        """Return this machine."""
        return cls(kind=kind_of_machine(), host=platform.node() if has_gpus else None)


def read_rates(store: Store | None, records: Iterable[RunRecord], machine: Machine) -> Rates:
    """Read what units of work took in earlier runs.

    Args:
        records: runs of the backends that are to train, the oldest first.
    """
    kinds = Kinds()
    if store is None:
        return Rates(kinds, {})
    recent = {record.id: record for record in list(records)[-_MOST_READ:]}
    summaries = store.metrics.summaries(list(recent))
    measured = {
        run_id: values for run_id, values in summaries.items() if names.TRAINING_SECONDS in values
    }
    fitting = _of_machine(store, [recent[run_id] for run_id in measured], machine)
    seconds: dict[str, list[float]] = defaultdict(list)
    for record in fitting:
        for work, value in measured[record.id].items():
            if work in _KINDS and is_time(value):
                seconds[kinds.of(record.config, work)].append(value)
    rates = {kind: statistics.median(values[-_NEWEST:]) for kind, values in seconds.items()}
    return Rates(kinds, rates, len(fitting))


def is_time(value: float) -> bool:
    """Return whether a stored value is a number of seconds; a store may be somebody else's."""
    return math.isfinite(value) and value >= 0


def _of_machine(
    store: Store, records: Sequence[RunRecord], machine: Machine
) -> Sequence[RunRecord]:
    """Return the runs that were trained on machines of a kind, the oldest first."""
    environments = store.runs.environments([record.id for record in records])
    kind_of = {
        record.id: kind_of_machine(environments[record.id])
        for record in records
        if record.id in environments
    }
    wanted = machine.kind
    if wanted is None:
        known = set(kind_of.values())
        if len(known) != 1:
            return []
        [wanted] = known
    return [
        record
        for record in sorted(records, key=lambda record: record.id)
        if kind_of.get(record.id) == wanted and machine.host in (None, record.host)
    ]
